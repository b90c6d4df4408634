"""The ``farfield`` command: it parses, calls the library and prints; every idea lives elsewhere.

Heavy imports (torch, numba, matplotlib) stay inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Transformer neural operators that are trained on small domains and used on much larger ones.",
)
generate = typer.Typer(no_args_is_help=True, help="Make a dataset with the built-in solvers.")
bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory, always as ratios within one run.")
app.add_typer(generate, name="generate")
app.add_typer(bench, name="bench")

Preset = Annotated[
    str, typer.Option(help="quick: minutes, cpu: the best for two cores, paper: as published.")
]
Out = Annotated[Path | None, typer.Option(help="Folder of the dataset; by default data/CASE-PRESET.")]
Workers = Annotated[
    int | None, typer.Option(help="Threads that solve at once, at most (and by default) all cores.")
]
Seed = Annotated[
    int, typer.Option(help="The same seed gives the same bytes, whatever the number of workers.")
]
Scales = Annotated[
    str | None,
    typer.Option(help="Larger domains instead of the preset's, e.g. `2,10,100`, or `2x1` for two axes."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting of `dataset.yaml`, e.g. `states=21`; repeatable."),
]


@generate.command("swe")
def generate_swe(
    preset: Preset = "cpu",
    out: Out = None,
    workers: Workers = None,
    seed: Seed = 0,
    scales: Scales = None,
    changes: Changes = None,
) -> None:
    """One-dimensional shallow water.

    Example: `farfield generate swe --preset quick --out data/swe`

    Run it again to continue after a crash: what is complete is kept.
    """
    _generate("swe", preset, out, workers, seed, scales, changes)


@generate.command("gray-scott")
def generate_gray_scott(
    preset: Preset = "cpu",
    out: Out = None,
    workers: Workers = None,
    seed: Seed = 0,
    scales: Scales = None,
    changes: Changes = None,
) -> None:
    """Two-dimensional Gray-Scott reaction and diffusion.

    Example: `farfield generate gray-scott --preset quick --out data/gray-scott`

    Run it again to continue after a crash: what is complete is kept.
    """
    _generate("gray-scott", preset, out, workers, seed, scales, changes)


def _generate(
    case: str,
    preset: str,
    out: Path | None,
    workers: int | None,
    seed: int,
    scales: str | None,
    changes: list[str] | None,
) -> None:
    from farfield.datasets import generation

    config = generation.configure(case, preset, seed, scales, changes or [])
    out = out or Path("data") / f"{case}-{preset}"
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {
            name: progress.add_task(name, total=config.work(split)) for name, split in config.splits.items()
        }
        made = generation.generate(
            config, out, workers, lambda name, work: progress.advance(tasks[name], work)
        )
        for name in config.splits.keys() - made:
            progress.update(tasks[name], completed=config.work(config.splits[name]))
    print(f"{out}: {'made ' + ', '.join(made) if made else 'already complete'}; see {out / 'README.md'}")


@bench.command("solvers")
def bench_solvers(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here, and a table beside it.")
    ] = None,
    datasets: Annotated[
        bool, typer.Option(help="Also make the paper's whole datasets (6 GB, minutes).")
    ] = False,
) -> None:
    """Speed of the solvers against NumPy and against what the machine allows.

    Example: `farfield bench solvers --json benchmarks/solvers.json`
    """
    import json
    import tempfile
    import time

    from farfield.datasets import generation
    from farfield.files import atomic_write_text
    from farfield.solvers.benchmark import benchmark_solvers, markdown

    results = benchmark_solvers()
    for case in ("swe", "gray-scott") if datasets else ():
        with tempfile.TemporaryDirectory(dir=".") as folder:
            start = time.perf_counter()
            generation.generate(generation.configure(case, "paper"), Path(folder) / case)
            results.setdefault("datasets", {})[case] = time.perf_counter() - start
    if json_file is not None:
        atomic_write_text(json_file, json.dumps(results, indent=1) + "\n")
        atomic_write_text(json_file.with_suffix(".md"), markdown(results))
    print(markdown(results))


@app.command()
def version() -> None:
    """Print the versions of farfield and of what its results depend on."""
    from importlib.metadata import version as installed

    for package in ("farfield", "torch", "numpy", "numba", "h5py"):
        print(f"{package} {installed(package)}")


def main() -> None:
    """Run the command; a user's mistake is one line, not a traceback (unless FARFIELD_DEBUG is set)."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("FARFIELD_DEBUG"):
            raise
        message = f"[bold red]error:[/] {type(error).__name__}: {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
