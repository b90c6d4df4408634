"""Urban wind by columns: the runs of the column network, on the data of ``urban-wind``.

``cpu`` is what a core trains in an hour; ``short`` is the same in seven minutes, for comparing encodings; ``quick``
shows that everything works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from farfield.evaluation.evaluate import Amount, Subject
from farfield.models.config import EncodingName
from farfield.problems.problem import Preset, Problem, folder_of
from farfield.problems.urban_wind.column_config import ColumnRun
from farfield.problems.urban_wind.recipe import SCALES, UrbanGeneration, calibrate_wind, predict_wind_file
from farfield.problems.urban_wind.shown import SHOWN
from farfield.runs.config import RunConfig
from farfield.runs.run import Run
from farfield.runs.weights import Device

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset
    from farfield.problems.urban_wind.column_prediction import ColumnPredictor
    from farfield.training.loop import Task


def cpu(encoding: EncodingName, dataset: str, seed: int = 0) -> ColumnRun:
    """The shipped network's settings: an hour and a half of one core that has units for bfloat16.

    Products are in bfloat16 everywhere, so that a run gives the same numbers on every machine; the physics, the first
    and the last layers are float32.
    """
    return ColumnRun.parse(
        {
            "dataset": dataset,
            "seed": seed,
            "encoding": {"name": encoding},
            "training": {
                "optimiser": "muon",
                "learning_rate": 2e-3,
                "final_learning_rate": 1e-5,
                "warmup": 0.03,
                "weight_decay": 0.02,
                "gradient_clip": 1.0,
                "batch_size": 1,
                "steps": 19_000,
                "average": 0.999,
                "precision": "bfloat16",
                "validate_every": 1000,
                "checkpoint_every": 250,
            },
        }
    )


def short(encoding: EncodingName, dataset: str, seed: int = 0) -> ColumnRun:
    """The same in eight minutes."""
    return cpu(encoding, dataset, seed).changed(
        {"training.steps": 2000, "training.validate_every": 500, "training.average": 0.995}
    )


def quick(encoding: EncodingName, dataset: str, seed: int = 0) -> ColumnRun:
    """In minutes: too short to be accurate."""
    return cpu(encoding, dataset, seed).changed(
        {
            "points": 4000,
            "training.precision": "float32",
            "training.steps": 200,
            "training.validate_every": 100,
            "training.average": 0.98,
        }
    )


@dataclass(frozen=True)
class UrbanColumns(Problem):
    """Buildings -> the steady wind around them, by columns."""

    run_type: ClassVar[type[RunConfig]] = ColumnRun

    def task(self, config: ColumnRun) -> Task:
        from farfield.problems.urban_wind.column_training import column_task

        return column_task(config)

    def predictor(self, run: Run, device: Device = None) -> ColumnPredictor:
        from farfield.problems.urban_wind.column_prediction import ColumnPredictor

        return ColumnPredictor.load(run, device)

    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        from farfield.problems.urban_wind.scoring import UrbanSubject

        return UrbanSubject(self.predictor(run, device), folder_of(run, data))

    def calibrate(self, run: Run, data: str | Path | None = None, device: Device = None) -> str:
        config = ColumnRun.parse(run.settings(), str(run.config_path))
        folders = [Path(data)] if data else [Path(folder) for folder in (config.dataset, *config.also)]
        return calibrate_wind(self, run, folders, device)

    def predict_file(self, run: Run, options: Mapping[str, Any], out: Path, device: Device = None) -> str:
        return predict_wind_file(self, run, options, out, device)


ONE_DRAW = dict.fromkeys(SCALES, Amount(draws=1))  # nothing is drawn: one prediction says all
PROBLEM = UrbanColumns(
    name="urban-columns",
    shown=replace(SHOWN, title="Urban wind by columns", counted=(("l1_buildings", "cities"),)),
    generation=UrbanGeneration(),
    presets={
        "quick": Preset(quick, minutes=4, scales=SCALES, amounts=ONE_DRAW),
        "short": Preset(short, minutes=8, scales=SCALES, amounts=ONE_DRAW),
        "cpu": Preset(cpu, minutes=90, scales=SCALES, amounts=ONE_DRAW),
    },
)
