"""Gray-Scott, as runs.

``paper`` is the published set-up, for a GPU; ``cpu`` the best that one core trains in about an hour a run; ``quick``
shows the effect in minutes.
"""

from __future__ import annotations

from pathlib import Path

from farfield.evaluation.evaluate import Amount
from farfield.models.config import EncodingName
from farfield.problems.gray_scott.generation import GENERATION
from farfield.problems.paper import paper_run
from farfield.problems.problem import Preset, SteppingProblem
from farfield.report.saved import Presentation, read_published
from farfield.runs.config import SteppingRun


def paper(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """As published."""
    return paper_run("gray-scott", encoding, dataset, seed)


def cpu(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Gray-Scott on a CPU, half an hour of one core a run; results/ablations/ has what was tried.

    Attention takes most of the time, so an item is a window of 32 x 32 cells, of four the one where most happens. What
    reaches a cell from outside comes over the window's rim, which the loss leaves out; decay lengths of 2, 4 and 8
    cells, one per head, reach no further than a window shows. Rotary wavelengths begin at two cells: shorter ones are
    noise on a grid. Nearly steady states dominate the relative error, so they count as much as lively ones.
    """
    cell = 1000 / 64
    lengths = [[cells * cell] * 2 for cells in (2.0, 4.0, 8.0)]
    per_head = encoding in ("laspe", "laape")
    return paper(encoding, dataset, seed).changed(
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


def quick(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Gray-Scott in minutes: too short to be accurate, long enough to see which encodings hold."""
    return cpu(encoding, dataset, seed).changed(
        {"training.steps": 200, "training.validate_every": 200, "training.validation_items": 20}
    )


PROBLEM = SteppingProblem(
    name="gray-scott",
    shown=Presentation(
        title="Gray-Scott",
        published=read_published(Path(__file__).parent / "published.csv"),
        horizons=(3, 6, 9),  # as in the paper
    ),
    spec=GENERATION.spec(GENERATION.configure("paper")),
    generation=GENERATION,
    presets={
        "quick": Preset(
            quick,
            minutes=10,
            amounts={"7": Amount(4, rollouts=1), "10": Amount(2, rollouts=0)},
            dense_amounts={
                "2": Amount(8, rollouts=1),
                "3": Amount(3, rollouts=1),
                **dict.fromkeys(("7", "10"), Amount(0, rollouts=0)),
            },
        ),
        "cpu": Preset(
            cpu,
            minutes=90,
            amounts={
                "1": Amount(rollouts=20),
                "2": Amount(50, rollouts=5),
                "3": Amount(30, rollouts=3),
                "7": Amount(10, rollouts=1),
                "10": Amount(10, rollouts=1),
            },
            dense_amounts={
                "2": Amount(20, rollouts=2),
                "3": Amount(10, rollouts=1),
                "7": Amount(1, rollouts=0),
                "10": Amount(0, rollouts=0),
            },
        ),
        "paper": Preset(paper, minutes=60 * 24 * 60),  # on two cores; it wants a GPU
    },
)
