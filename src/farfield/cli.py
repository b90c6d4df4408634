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


@generate.command("urban-wind")
def generate_urban_wind(
    preset: Annotated[str, typer.Option(help="quick (minutes), cpu (an hour), paper (a day)")] = "quick",
    out: Annotated[Path, typer.Option(help="folder; resumes what is there")] = Path("data/urban-wind"),
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
    index = urban_generation.generate_urban_wind(out, urban_generation.PRESETS[preset], workers, seed)
    print(f"wrote {index} and {index.with_name('README.md')}")


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
        Console(stderr=True).print(f"[bold red]error:[/] {type(error).__name__}: {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
