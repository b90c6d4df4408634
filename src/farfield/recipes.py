"""The experiments, one function each: a preset is the paper's configuration, or derived from one.

``paper`` is the published set-up, for a GPU; ``cpu`` the best that one core trains in about an hour a run; ``quick``
shows the effect in two minutes a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from farfield.datasets import urban_generation
from farfield.datasets.generation import DatasetConfig, configure
from farfield.datasets.urban_generation import UrbanPreset
from farfield.evaluation.subject import Amount
from farfield.training.config import (
    AcademicRun,
    EncodingConfig,
    EncodingName,
    ModelConfig,
    RunConfig,
    TrainingConfig,
    UrbanRun,
)

Case = Literal["swe", "gray-scott"]

# The paper's appendix "Training setup", the same for all cases but for epochs and batches.
PAPER_TRAINING: dict[str, Any] = {
    "optimiser": "lion",
    "learning_rate": 5e-5,
    "final_learning_rate": 1e-6,
    "warmup": 0.05,
    "weight_decay": 0.05,
    "gradient_clip": 0.25,
    "precision": "auto",
}


def paper(case: Case, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """The paper's academic set-up (appendix "Training setup"), the same for both cases."""
    return AcademicRun(
        case=case,
        dataset=dataset,
        seed=seed,
        encoding=EncodingConfig(name=encoding, decay_length=None if encoding == "rope" else 250.0),
        model=ModelConfig(width=192, depth=6, heads=3, expansion=4),
        training=TrainingConfig(**PAPER_TRAINING, batch_size=32, epochs=100),
    )


def swe_cpu(case: Case, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """Shallow water on a CPU, 40 to 75 minutes of one core a run; results/ablations/ has what was tried.

    In one saved step a wave crosses a cell or two and the scheme reaches ten, so short decay lengths (of 2, 4 and 10
    cells, one per head) learn faster than the paper's 250.
    """
    per_head = encoding in ("laspe", "laape")
    return paper(case, encoding, dataset, seed).changed(
        {
            "encoding.decay_length": None if encoding == "rope" else [[15.0], [30.0], [80.0]] if per_head else 30.0,
            "model.width": 96,
            "model.depth": 4,
            "training.optimiser": "adamw",
            "training.learning_rate": 2e-3,
            "training.final_learning_rate": 1e-5,
            "training.gradient_clip": 1.0,
            "training.precision": "float32",
            "training.batch_size": 16,
            "training.steps": 10_000,
            "training.validation_items": 1000,
        }
    )


def swe_quick(case: Case, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """Shallow water in two minutes a run."""
    return swe_cpu(case, encoding, dataset, seed).changed(
        {
            "training.steps": 700,
            "training.validate_every": 350,
            "training.validation_items": 200,
            "training.checkpoint_every": 100,
        }
    )


def gray_scott_cpu(case: Case, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """Gray-Scott on a CPU, half an hour of one core a run; results/ablations/ has what was tried.

    Attention takes most of the time, so an item is a window of 32 x 32 cells, of four the one where most happens. What
    reaches a cell from outside comes over the window's rim, which the loss leaves out; decay lengths of 2, 4 and 8
    cells, one per head, reach no further than a window shows. Rotary wavelengths begin at two cells: shorter ones are
    noise on a grid. Nearly steady states dominate the relative error, so they count as much as lively ones.
    """
    cell = 1000 / 64
    lengths = [[cells * cell] * 2 for cells in (2.0, 4.0, 8.0)]
    per_head = encoding in ("laspe", "laape")
    return paper(case, encoding, dataset, seed).changed(
        {
            "encoding.decay_length": None if encoding == "rope" else lengths if per_head else 4 * cell,
            "encoding.rotary.min_wavelength": 2 * cell,
            "encoding.rotary.max_wavelength": 1000.0,
            "model.width": 96,
            "model.depth": 4,
            "sampling.crop": [32, 32],
            "sampling.rim": 6,
            "sampling.candidates": 4,
            "training.loss": "relative",
            "training.optimiser": "adamw",
            "training.learning_rate": 2e-3,
            "training.final_learning_rate": 1e-5,
            "training.gradient_clip": 1.0,
            "training.precision": "float32",
            "training.batch_size": 4,
            "training.steps": 1500,
            "training.validate_every": 500,
            "training.validation_items": 40,
            "training.checkpoint_every": 100,
        }
    )


def gray_scott_quick(case: Case, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """Gray-Scott in minutes: too short to be accurate, long enough to see which encodings hold."""
    return gray_scott_cpu(case, encoding, dataset, seed).changed(
        {"training.steps": 200, "training.validate_every": 200, "training.validation_items": 20}
    )


def urban_paper(case: str, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """The paper's AB-SWIFT (table "AB-SWIFT hyperparameters")."""
    return UrbanRun.parse(
        {
            "case": case,
            "dataset": dataset,
            "seed": seed,
            "encoding": {"name": encoding},
            "model": {
                "width": 192,
                "heads": 3,
                "expansion": 4,
                "processor_depth": 3,
                "decoder_depth": 4,
                "obstacle_radius": 1.0,
                "terrain_radius": 5.0,
            },
            "points": {
                "obstacles": 4096,
                "terrain": 4096,
                "obstacle_supernodes": 1024,
                "terrain_supernodes": 1024,
                "anchors": 8192,
            },
            "training": {**PAPER_TRAINING, "batch_size": 1, "epochs": 500},
        }
    )


def urban_cpu(case: str, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """AB-SWIFT on one core in an hour: narrower, with an eighth of the points.

    So few points lie metres apart, hence the larger pooling radii: with the paper's, a supernode would know itself
    alone. Wavelengths below the distance of two anchors would alias; without them the loss falls faster. Queries read
    from few anchors and count in the loss, which shows the network more of the air per step; mirror images double the
    cities.
    """
    return urban_paper(case, encoding, dataset, seed).changed(
        {
            "encoding.rotary.min_wavelength": 60.0,
            "encoding.rotary.max_wavelength": 2000.0,
            "model.width": 96,
            "model.obstacle_radius": 4.0,
            "model.terrain_radius": 12.0,
            "model.max_neighbours": 16,
            "points.obstacles": 2048,
            "points.terrain": 1024,
            "points.obstacle_supernodes": 384,
            "points.terrain_supernodes": 128,
            "points.anchors": 1024,
            "points.queries": 1024,
            "mirrored": True,
            "training.optimiser": "adamw",
            "training.learning_rate": 1e-3,
            "training.final_learning_rate": 1e-5,
            "training.gradient_clip": 1.0,
            "training.precision": "float32",
            "training.steps": 3000,
            "training.validate_every": 500,
            "training.checkpoint_every": 100,
        }
    )


def urban_quick(case: str, encoding: EncodingName, dataset: str, seed: int = 0) -> RunConfig:
    """Urban wind in minutes: too short, and with too few cities, to be accurate."""
    return urban_cpu(case, encoding, dataset, seed).changed(
        {
            "model.width": 48,
            "points.anchors": 512,
            "points.queries": 512,
            "training.steps": 300,
            "training.validate_every": 100,
        }
    )


PRESETS: dict[tuple[str, str], Callable[[Any, EncodingName, str, int], RunConfig]] = {
    ("swe", "paper"): paper,
    ("swe", "cpu"): swe_cpu,
    ("swe", "quick"): swe_quick,
    ("gray-scott", "paper"): paper,
    ("gray-scott", "cpu"): gray_scott_cpu,
    ("gray-scott", "quick"): gray_scott_quick,
    ("urban-wind", "paper"): urban_paper,
    ("urban-wind", "cpu"): urban_cpu,
    ("urban-wind", "quick"): urban_quick,
}


def training_run(case: str, preset: str, encoding: str, dataset: str, seed: int = 0) -> RunConfig:
    """The configuration of one run of a preset, from names as a user types them."""
    if case not in {known for known, _ in PRESETS}:
        raise ValueError(f"unknown case {case!r}: expected one of {', '.join(sorted({c for c, _ in PRESETS}))}")
    if (case, preset) not in PRESETS:
        raise ValueError(
            f"{case} has no preset {preset!r}: expected one of {', '.join(p for c, p in PRESETS if c == case)}"
        )
    if encoding not in get_args(EncodingName):
        raise ValueError(f"unknown encoding {encoding!r}: expected one of {', '.join(get_args(EncodingName))}")
    return PRESETS[case, preset](case, cast(EncodingName, encoding), dataset, seed)


@dataclass(frozen=True)
class Experiment:
    """The paper's experiment on one case: which data, which runs, evaluated how far."""

    case: str
    preset: str
    data: Path
    dataset: DatasetConfig | UrbanPreset
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the preset's runs."""
    scales: tuple[str, ...] = ("1", "2", "3", "7", "10")
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    """How much is evaluated, by scale; everything where not given."""
    dense_amounts: Mapping[str, Amount] = field(default_factory=dict)
    """The same for RoPE, whose cost grows with the square of the points; no pairs or cities: the scale is left out."""
    minutes: float = 0.0
    """Roughly, for training and evaluating one run on two cores."""

    def run(self, encoding: str, seed: int) -> RunConfig:
        """The configuration of one of its runs."""
        run = training_run(self.case, self.preset, encoding, str(self.data), seed)
        return run.changed(self.settings)

    def amount(self, encoding: str, scale: str) -> Amount:
        """How much of a scale is evaluated with an encoding."""
        amount = self.amounts.get(scale, Amount())
        return self.dense_amounts.get(scale, amount) if encoding == "rope" else amount


def experiment(case: str, preset: str, data: Path, settings: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a preset, from names as a user types them."""
    training_run(case, preset, "laape", str(data))  # refuses unknown names
    if case == "urban-wind":
        return _urban_experiment(preset, Path(data), settings or {})
    some: dict[str, Any] = {"minutes": 60 * 24 * (1 if case == "swe" else 60)}  # paper, which wants a GPU
    scales = Experiment.scales
    if (case, preset) == ("swe", "quick"):
        amounts = [Amount(200, 4), Amount(100, 2), Amount(100, 2), Amount(40, 1), Amount(40, 1)]  # as many points each
        some = {"minutes": 2.5, "amounts": dict(zip(scales, amounts, strict=True))}
    elif (case, preset) == ("swe", "cpu"):
        some = {
            "minutes": 75,
            "scales": (*scales, "100"),
            "amounts": dict.fromkeys(scales, Amount(rollouts=20)) | {"100": Amount(pairs=100, rollouts=2)},
            "dense_amounts": {"100": Amount(pairs=20, rollouts=0)},
        }
    elif (case, preset) == ("gray-scott", "quick"):
        some = {
            "minutes": 10,
            "amounts": {"7": Amount(pairs=4, rollouts=1), "10": Amount(pairs=2, rollouts=0)},
            "dense_amounts": {
                "2": Amount(pairs=8, rollouts=1),
                "3": Amount(pairs=3, rollouts=1),
                **dict.fromkeys(("7", "10"), Amount(pairs=0, rollouts=0)),
            },
        }
    elif (case, preset) == ("gray-scott", "cpu"):
        some = {
            "minutes": 90,
            "amounts": {
                "1": Amount(rollouts=20),
                "2": Amount(pairs=50, rollouts=5),
                "3": Amount(pairs=30, rollouts=3),
                "7": Amount(pairs=10, rollouts=1),
                "10": Amount(pairs=10, rollouts=1),
            },
            "dense_amounts": {
                "2": Amount(pairs=20, rollouts=2),
                "3": Amount(pairs=10, rollouts=1),
                "7": Amount(pairs=1, rollouts=0),
                "10": Amount(pairs=0, rollouts=0),
            },
        }
    dataset = configure(case, preset, 0, ",".join(s for s in some.get("scales", scales) if s != "1"))
    return Experiment(case, preset, Path(data), dataset, settings or {}, **some)


def _urban_experiment(preset: str, data: Path, settings: Mapping[str, Any]) -> Experiment:
    some: dict[str, Any] = {"minutes": 60 * 24 * 60}  # paper, which wants a GPU
    if preset == "quick":
        some = {"minutes": 4, "amounts": dict.fromkeys(("1", "2", "5"), Amount(draws=1))}
    elif preset == "cpu":
        some = {
            "minutes": 120,
            # The paper's ten draws, of the largest cities three; each predicts a random share of the cells.
            "amounts": {"1": Amount(cells=2048), "2": Amount(cells=4096), "5": Amount(draws=3, cells=8192)},
        }
    dataset = urban_generation.PRESETS[preset]
    return Experiment("urban-wind", preset, data, dataset, settings, scales=("1", "2", "5"), **some)
