"""Small things that several tests share: datasets of a few cells, and the normalisation of a wind that never blew."""

import csv

import torch
from safetensors.torch import load_file

from farfield.problems import problem_named
from farfield.problems.generation import DatasetConfig
from farfield.problems.urban_wind.sampling import UrbanNormalisation
from farfield.runs.run import Run


def tiny_dataset(problem: str, seed: int = 0) -> DatasetConfig:
    """Three splits with two or three simulations, on a few cells, of a few steps."""
    config = problem_named(problem).generation.configure("quick", seed)
    scales = {"train": (1, 1), "test": (1, 1), "s2": (2, 1)}  # along x, y
    splits = {
        name: {"simulations": 3 if name == "train" else 2, "scale": scale[: len(config.cells)]}
        for name, scale in scales.items()
    }
    if len(config.cells) == 1:
        return config.replace(cells=(40,), extent=(50.0,), states=6, splits=splits)
    return config.replace(cells=(24, 16), extent=(24.0, 16.0), save_every=40, states=4, splits=splits)


def generate(config: DatasetConfig, out, *arguments, **options) -> list[str]:
    """Make a dataset with the solver of its problem."""
    return problem_named(config.problem).generation.generate(config, out, *arguments, **options)


def solve_split(config: DatasetConfig, *arguments):
    """Simulations of a split, not written."""
    return problem_named(config.problem).generation.solve_split(config, *arguments)


def training_run(problem: str, *arguments, **options):
    """The configuration of a run of a preset."""
    return problem_named(problem).run(*arguments, **options)


NORMALISATION = UrbanNormalisation(
    fields=("velocity", "pressure", "k", "epsilon"),
    target_mean=(4.0, 0.1, -0.2, -1.0, -0.5, -3.0),
    target_std=(2.0, 1.0, 0.5, 5.0, 1.0, 1.5),
    profile_mean=(4.0, 293.15, 0.8, 0.1),
    profile_std=(1.5, 1.0, 0.4, 0.2),
    terrain_mean=(-1.5, 0.0),
    terrain_std=(0.9, 1.0),  # ln z0 varied, 1/L never did
    cells=2500.0,
    ground_area=99_000.0,
    building_height=(10.0, 38.0),
    plan_density=(0.05, 0.3),
)


def spec_of(config: DatasetConfig):
    """The contract of a dataset."""
    return problem_named(config.problem).generation.spec(config)


def losses(run: Run, file: str = "losses.csv") -> list[tuple[int, float]]:
    with (run.folder / file).open() as rows:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(rows)]


def assert_same_run(one: Run, other: Run) -> None:
    """Bit for bit: weights, losses, validations."""
    assert losses(one) == losses(other)
    assert losses(one, "validation.csv") == losses(other, "validation.csv")
    for name in ("last.safetensors", "best.safetensors"):
        a, b = load_file(one.folder / name), load_file(other.folder / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
