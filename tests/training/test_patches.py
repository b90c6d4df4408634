"""Training on patches of whole domains: continued exactly, and in the unit of the tables."""

import pytest
import torch

from farfield.data.samples import collate, step_pairs
from farfield.evaluation.metrics import relative_errors
from farfield.problems import problem_named
from farfield.runs.run import Run
from farfield.training.loop import Interrupted, fit
from farfield.training.progress import StopRequest
from farfield.training.tasks import batch_loss


@pytest.fixture
def run_of_patches(tmp_path):
    """The cpu preset on a few cells: Muon, averaged weights, mirror images, levels."""
    from small import generate, tiny_dataset

    config = tiny_dataset("gray-scott")
    splits = {name: {"simulations": 4, "scale": (1, 1)} for name in ("train", "validation")}
    generate(config.replace(cells=(24, 24), extent=(24.0, 24.0), splits=splits), tmp_path / "data")
    run = problem_named("gray-scott").run("cpu", "laape", str(tmp_path / "data"))
    return run.changed(
        {
            "encoding.decay_length": 200.0,
            "model.width": 24,
            "model.heads": 2,
            "model.depth": 1,
            "training.steps": 12,
            "training.validate_every": 4,
            "training.validation_items": 2,
            "training.checkpoint_every": 5,
        }
    )


def test_a_stopped_run_continues_exactly(run_of_patches, tmp_path, monkeypatch):
    from small import assert_same_run

    problem = problem_named("gray-scott")
    whole, stopped = Run(tmp_path / "whole"), Run(tmp_path / "stopped")
    fit(problem, run_of_patches, whole)
    asked = iter([False] * 6 + [True] * 100)
    monkeypatch.setattr(
        StopRequest, "requested", property(lambda self: next(asked), lambda self, value: None), raising=False
    )
    with pytest.raises(Interrupted, match="stopped after step 7"):
        fit(problem, run_of_patches, stopped)
    monkeypatch.undo()
    fit(problem, run_of_patches, stopped, resume=True)
    assert_same_run(whole, stopped)


def test_the_l1_loss_is_the_error_of_the_tables(run_of_patches):
    data = step_pairs(run_of_patches.dataset, "train")
    (batch,) = collate([data[0], data[4]])

    def model(features, positions):
        return torch.sin(features[..., :2])

    still = data.standardise["changes"].zero()
    physical = [data.standardise["changes"].inverse(x) for x in (model(batch.features, None), batch.targets)]
    expected = relative_errors(*physical)["l1"].mean()
    assert float(batch_loss(model, [batch], "l1", still)) == pytest.approx(float(expected), rel=1e-5)
