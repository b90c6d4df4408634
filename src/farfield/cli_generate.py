"""``farfield generate``: datasets from the built-in solvers and from OpenFOAM."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

generate = typer.Typer(no_args_is_help=True, help="Make a dataset with the built-in solvers.")

Preset = Annotated[str, typer.Option(help="quick: minutes, cpu: the best for two cores, paper: as published.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the dataset; by default data/CASE-PRESET.")]
Workers = Annotated[int | None, typer.Option(help="Threads that solve at once, at most (and by default) all cores.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same bytes, whatever the number of workers.")]
Scales = Annotated[
    str | None,
    typer.Option(help="Larger domains instead of the preset's, e.g. `2,10,100`, or `2x1` for two axes."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting of `dataset.yaml`, e.g. `states=21`; repeatable."),
]


def _add_grid_command(case: str, about: str) -> None:
    """The cases on a grid take the same options."""

    def command(
        preset: Preset = "cpu",
        out: Out = None,
        workers: Workers = None,
        seed: Seed = 0,
        scales: Scales = None,
        changes: Changes = None,
    ) -> None:
        _generate(case, preset, out, workers, seed, scales, changes)

    command.__doc__ = f"""{about}

    Example: `farfield generate {case} --preset quick --out data/{case}`

    Run it again to continue after a crash: what is complete is kept.
    """
    generate.command(case)(command)


_add_grid_command("swe", "One-dimensional shallow water.")
_add_grid_command("gray-scott", "Two-dimensional Gray-Scott reaction and diffusion.")


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
        tasks = {name: progress.add_task(name, total=config.work(split)) for name, split in config.splits.items()}
        made = generation.generate(config, out, workers, lambda name, work: progress.advance(tasks[name], work))
        for name in config.splits.keys() - made:
            progress.update(tasks[name], completed=config.work(config.splits[name]))
    print(f"{out}: {'made ' + ', '.join(made) if made else 'already complete'}; see {out / 'README.md'}")


@generate.command("urban-wind")
def generate_urban_wind(
    preset: Annotated[str, typer.Option(help="quick (minutes), cpu (an hour), paper (a day)")] = "quick",
    out: Annotated[Path | None, typer.Option(help="folder; resumes what is there; data/urban-wind-PRESET")] = None,
    workers: Annotated[int, typer.Option(help="cases solved at the same time, one core each")] = 2,
    seed: Annotated[int, typer.Option(help="of the random cities")] = 0,
) -> None:
    """Wind around random buildings, solved with OpenFOAM (Debian package `openfoam`).

    Writes the RandomBuildingsDataset's layout with a dataset card. Interrupt it when you like: the same
    command continues.

        farfield generate urban-wind --preset quick --out data/urban-quick --workers 2
    """
    from farfield.datasets import urban_generation

    if preset not in urban_generation.PRESETS:
        raise ValueError(f"unknown preset {preset!r}; expected one of {', '.join(urban_generation.PRESETS)}")
    out = out or Path("data") / f"urban-wind-{preset}"
    index = urban_generation.generate_urban_wind(out, urban_generation.PRESETS[preset], workers, seed)
    print(f"wrote {index} and {index.with_name('README.md')}")
