"""``farfield generate`` and ``check``: where data comes from, and what is understood of it."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from farfield.cli.words import require_files, say_next


def generate(
    problem: str = typer.Argument(help="swe, gray-scott or urban-wind (with OpenFOAM: Debian package openfoam)."),
    preset: str | None = typer.Option(
        None,
        help="quick, cpu (the best for two cores) or paper (as published).  [default: cpu; urban-wind: quick]",
    ),
    out: Path | None = typer.Option(None, help="Folder of the dataset.  [default: data/PROBLEM-PRESET]"),
    workers: int | None = typer.Option(None, help="Simulations solved at once.  [default: one per core]"),
    seed: int = typer.Option(0, help="The same seed gives the same data, whatever the number of workers."),
    scales: str | None = typer.Option(
        None, help="Larger domains instead of the preset's, e.g. `2,10,100`, or `2x1` for two axes; not for urban-wind."
    ),
    changes: list[str] = typer.Option(
        [], "--set", help="Change a setting of `dataset.yaml`, e.g. `states=21`; repeatable; not for urban-wind."
    ),
    part: str | None = typer.Option(
        None,
        help="Make one of n parts, e.g. `2/8`, as one of several jobs with the same --out; the last one joins them.",
    ),
    merge: bool = typer.Option(False, "--merge", help="Only join what all parts have made."),
) -> None:
    """Make a dataset with the built-in solvers.

    Example: `farfield generate swe --preset quick --out data/swe`

    Run it again to continue after a crash: what is complete is kept. Several jobs make one dataset, byte for byte the
    same; in a SLURM array of eight: `farfield generate swe --out data/swe --part $SLURM_ARRAY_TASK_ID/8`
    """
    from farfield.problems import problem_named
    from farfield.problems.share import Share

    share = Share.parse(part, merge)
    generation = problem_named(problem).generation
    if generation is None:
        raise ValueError(f"the data of {problem} is not made here")
    preset = preset or generation.default_preset
    settings = generation.configure(preset, seed, scales, changes)
    out = out or Path("data") / f"{problem}-{preset}"
    print(generation.make(settings, out, workers, Console(stderr=True), share))
    if (out / "README.md").exists():  # of several jobs, the last one joins all parts and writes it
        say_next(f"farfield train {problem} --preset {preset} --data {out}")


def check(
    data: Path = typer.Argument(help="A folder or a file: The Well's HDF5, VTK, NPZ."),
    write: bool = typer.Option(True, help="Write a first dataset.yaml where there is none, to be corrected by hand."),
) -> None:
    """Say what is understood of your own data, and what is wrong with it, before any training.

    Example: `farfield check data/mine`

    Fields, roles, units, spacing, extent, boundaries, statistics and proposed decay lengths. What cannot be guessed
    (which fields are inputs, a time step, a periodic axis) goes into `dataset.yaml` beside the files.
    """
    require_files(data)
    from farfield.data.description import DESCRIPTION, write_description
    from farfield.data.opening import open_dataset

    opened = open_dataset(data)
    opened.check()
    print(opened)
    if write and data.is_dir() and not (data / DESCRIPTION).exists():
        write_description(data / DESCRIPTION, opened.spec)
        print(f"{data / DESCRIPTION} says what was understood: correct it where it is wrong, and check again")
    say_next(f"farfield train {data} --minutes 20 --out runs/mine")
