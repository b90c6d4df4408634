"""Gray-Scott, as runs.

``paper`` is the published set-up, for a GPU; ``cpu`` what one core trains in 18 minutes; ``quick`` shows the effect
in minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farfield.evaluation.evaluate import Amount
from farfield.models.config import EncodingName
from farfield.problems.paper import paper_run
from farfield.problems.problem import Imported, Preset, SteppingProblem
from farfield.report.saved import Presentation, read_published
from farfield.runs.config import SteppingRun


def paper(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """As published."""
    return paper_run("gray-scott", encoding, dataset, seed)


def cpu(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Gray-Scott on a CPU, 18 minutes of one core a run; results/ablations/ has what was tried.

    Tokens are patches of 8 x 8 cells inside two levels of convolutions, at a half and a quarter of the resolution, so
    that whole domains are items and what happens within a patch is learned by convolutions; attention is as short as a
    layer needs (6 to 10 cells, one length per head). Rotary wavelengths begin at two tokens: shorter ones are noise.
    The loss is the error of the tables, in which a nearly steady state counts as much as a violent one; every item is
    shown as one of the square's eight mirror images. The precision is bfloat16 also where a processor only emulates it,
    so that a run gives the same everywhere.
    """
    return paper(encoding, dataset, seed).changed(
        {
            **_lengths(encoding, 128, patch=8),
            "model.width": 128,
            "model.heads": 4,
            "model.depth": 3,
            "model.expansion": 2,
            "model.tokens.patch": 8,
            "model.tokens.levels": [48, 96],
            "model.tolerance": 1e-3,
            "sampling.symmetries": True,
            "training.loss": "l1",
            "training.optimiser": "muon",
            "training.learning_rate": 2e-3,
            "training.final_learning_rate": 1e-5,
            "training.gradient_clip": 1.0,
            "training.average": 0.998,
            "training.precision": "bfloat16",
            "training.batch_size": 2,
            "training.steps": 6000,
            "training.validate_every": 2000,
            "training.validation_items": 60,
            "training.checkpoint_every": 100,
        }
    )


def quick(encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """Gray-Scott in minutes, on domains of 64 x 64: not yet accurate, long enough to see which encodings hold.

    Patches of 4 x 4 cells and no levels: attention alone carries the pattern from patch to patch, so that what an
    encoding does on larger domains is not hidden by convolutions, which are local whatever the encoding.
    """
    return cpu(encoding, dataset, seed).changed(
        {
            **_lengths(encoding, 64, patch=4),
            "model.depth": 4,
            "model.expansion": 4,
            "model.tokens.patch": 4,
            "model.tokens.levels": [],
            "training.precision": "float32",
            "training.average": 0.99,
            "training.batch_size": 4,
            "training.steps": 500,
            "training.validate_every": 250,
            "training.validation_items": 20,
        }
    )


def _lengths(encoding: EncodingName, cells: int, patch: int) -> dict[str, Any]:
    """Decay lengths (about one patch) and wavelengths, for a training domain of so many cells along each axis."""
    cell = 1000 / cells
    lengths = [[share * patch * cell] * 2 for share in (0.75, 1.0, 1.25, 1.25)]
    one = None if encoding == "rope" else patch * cell
    return {
        "encoding.decay_length": lengths if encoding in ("laspe", "laape") else one,
        "encoding.rotary.min_wavelength": 2 * patch * cell,
        "encoding.rotary.max_wavelength": 68 * cell,
    }


PROBLEM = SteppingProblem(
    name="gray-scott",
    shown=Presentation(
        title="Gray-Scott",
        published=read_published(Path(__file__).parent / "published.csv"),
        horizons=(3, 6, 9),  # as in the paper
    ),
    generation=Imported("farfield.problems.gray_scott.generation", "GENERATION"),
    presets={
        "quick": Preset(
            quick,
            minutes=2,
            amounts={"7": Amount(4, rollouts=1), "10": Amount(2, rollouts=0)},
            dense_amounts={
                "2": Amount(8, rollouts=1),
                "3": Amount(3, rollouts=1),
                "7": Amount(1, rollouts=0),
                "10": Amount(1, rollouts=0),
            },
        ),
        "cpu": Preset(
            cpu,
            minutes=20,
            # every pair of every scale; a rollout has ten steps
            amounts={
                "2": Amount(rollouts=20),
                "3": Amount(rollouts=20),
                "7": Amount(rollouts=3),
                "10": Amount(rollouts=2),
            },
            dense_amounts={
                "2": Amount(100, rollouts=10),
                "3": Amount(30, rollouts=2),
                "7": Amount(2, rollouts=0),
                "10": Amount(1, rollouts=0),
            },
        ),
        "paper": Preset(paper, minutes=60 * 24 * 60),  # on two cores; it wants a GPU
    },
)
