"""Shallow water, as runs.

``paper`` is the published set-up, for a GPU; ``cpu`` the best that one core trains in about an hour a run; ``quick``
shows the effect in minutes.
"""

from __future__ import annotations

from pathlib import Path

from farfield.evaluation.evaluate import Amount
from farfield.models.config import EncodingName
from farfield.problems.paper import paper_run
from farfield.problems.problem import Imported, Preset, SteppingProblem
from farfield.report.saved import Presentation, read_published
from farfield.runs.config import SteppingRun


def paper(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """As published."""
    return paper_run("swe", encoding, dataset, seed)


def cpu(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Shallow water on a CPU, 40 to 75 minutes of one core a run; results/ablations/ has what was tried.

    In one saved step a wave crosses a cell or two and the scheme reaches ten, so short decay lengths (of 2, 4 and 10
    cells, one per head) learn faster than the paper's 250.
    """
    per_head = encoding in ("laspe", "laape")
    return paper(encoding, dataset, seed).changed(
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


def quick(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Shallow water in two minutes a run."""
    return cpu(encoding, dataset, seed).changed(
        {
            "training.steps": 700,
            "training.validate_every": 350,
            "training.validation_items": 200,
            "training.checkpoint_every": 100,
        }
    )


PROBLEM = SteppingProblem(
    name="swe",
    shown=Presentation(
        title="Shallow water",
        published=read_published(Path(__file__).parent / "published.csv"),
        horizons=(10, 25, 49),  # as in the paper
    ),
    generation=Imported("farfield.problems.swe.generation", "GENERATION"),
    presets={
        "quick": Preset(
            quick,
            minutes=2.5,
            amounts={  # about as many points at each scale
                "1": Amount(200, 4),
                "2": Amount(100, 2),
                "3": Amount(100, 2),
                "7": Amount(40, 1),
                "10": Amount(40, 1),
            },
        ),
        "cpu": Preset(
            cpu,
            minutes=75,
            scales=("1", "2", "3", "7", "10", "100"),
            data_scales="2,3,7,10,100",
            amounts=dict.fromkeys(("1", "2", "3", "7", "10"), Amount(rollouts=20)) | {"100": Amount(100, rollouts=2)},
            dense_amounts={"100": Amount(20, rollouts=0)},
        ),
        "paper": Preset(paper, minutes=60 * 24),  # on two cores; it wants a GPU
    },
)
