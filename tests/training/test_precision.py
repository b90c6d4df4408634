"""Half precision, forced on every machine: products are rounded, positions never."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from small import assert_same_run
from test_loop import loss_values, stop_after_the_first_step, train

from farfield.data.samples import step_pairs
from farfield.files import read_description
from farfield.models import TransformerOperator
from farfield.models.ab_swift import AbSwift
from farfield.problems import PROBLEMS, problem_named
from farfield.problems.urban_wind.config import UrbanRun
from farfield.runs.config import TrainingConfig
from farfield.runs.run import Run
from farfield.studies.reproduce import reproduce
from farfield.training import loop
from farfield.training.loop import Diverged, Interrupted, computing_dtype, fit

HALF = ["bfloat16", "float16"]


@pytest.fixture
def seen(monkeypatch) -> list[torch.Tensor]:
    """What a transformer operator gets as positions, call by call."""
    received, original = [], TransformerOperator.forward

    def forward(self, features, positions):
        received.append(positions.detach().clone())
        return original(self, features, positions)

    monkeypatch.setattr(TransformerOperator, "forward", forward)
    return received


@pytest.mark.parametrize("precision", HALF)
def test_positions_pass_no_cast_in_training_and_validation(tiny, tmp_path, seen, precision):
    run = train(tiny.changed({"training.precision": precision, "training.steps": 2}), tmp_path)
    exact = step_pairs(tiny.dataset, "train")[0].positions
    assert len(seen) > 2  # two steps and the validation
    assert all(positions.dtype == torch.float32 and torch.equal(positions, exact) for positions in seen)
    assert read_description(run.provenance_path)["precision"] == precision
    assert np.isfinite(loss_values(run, "validation.csv")).all()


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_training_in_half_precision_follows_float32(tiny, tmp_path, encoding, precision):
    config = tiny.changed({"encoding.name": encoding, "encoding.decay_length": None if encoding == "rope" else 250.0})
    exact = loss_values(train(config, tmp_path / "exact"))
    rounded = loss_values(train(config.changed({"training.precision": precision}), tmp_path / "rounded"))
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("precision", HALF)
def test_a_half_precision_run_continues_exactly(tiny, tmp_path, precision):
    config = tiny.changed({"training.precision": precision, "training.optimiser": "muon", "training.average": 0.9})
    whole = train(config, tmp_path / "whole")
    part = Run(tmp_path / "part")
    stop_after_the_first_step(part)
    with pytest.raises(Interrupted):
        train(config, part.folder)
    state = torch.load(part.state_path, weights_only=True)
    assert ("scale" in state["scaler"]) == (precision == "float16")
    train(config, part.folder, resume=True)
    assert_same_run(part, whole)


def test_float16_gradients_that_overflow_are_left_out_and_scaled_down(tiny, tmp_path, monkeypatch):
    original = torch.amp.GradScaler.__init__
    monkeypatch.setattr(
        torch.amp.GradScaler, "__init__", lambda self, device, **options: original(self, device, 2.0**40, **options)
    )
    run = train(tiny.changed({"training.precision": "float16"}), tmp_path)
    state = torch.load(run.state_path, weights_only=True)
    assert 1 < state["scaler"]["scale"] < 2.0**40
    assert np.isfinite(loss_values(run)).all()


def test_a_diverging_float16_run_stops(tiny, tmp_path):
    with pytest.raises(Diverged):
        train(tiny.changed({"training.precision": "float16", "training.learning_rate": 1e30}), tmp_path)


@pytest.mark.parametrize("precision", HALF)
@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_ab_swift_gets_its_positions_as_they_are(urban_data, tmp_path, monkeypatch, encoding, precision):
    from urban_layout import TINY_AB_SWIFT

    config = UrbanRun.parse({"dataset": str(urban_data), "encoding": {"name": encoding}})
    config = config.changed(TINY_AB_SWIFT).changed({"training.steps": 2, "training.precision": precision})
    received, original = [], AbSwift.encode
    monkeypatch.setattr(AbSwift, "encode", lambda self, **city: (received.append(city), original(self, **city))[1])
    run = train(config, tmp_path)
    exact = problem_named(config.problem).task(config).validation_data[0].city()
    for name in ("anchors", "obstacle_points", "terrain_points", "terrain_features", "profile"):
        assert all(city[name].dtype == torch.float32 for city in received)
        torch.testing.assert_close(received[-1][name], exact[name][None], rtol=0, atol=0)
    assert np.isfinite(loss_values(run)).all()


@pytest.mark.parametrize("precision", HALF)
def test_the_whole_experiment_runs_in_half_precision(tiny_swe, tmp_path, precision):
    settings = {**tiny_swe.settings, "training.precision": precision}
    del settings["encoding.decay_length"]  # RoPE has none
    plan = replace(tiny_swe, settings=settings)
    page = reproduce(plan, ["rope", "laspe", "laape"], [0], tmp_path / "out", console=Console(quiet=True))
    assert Path(page).exists()
    for name in ("rope", "laspe", "laape"):
        rows = (tmp_path / "out" / f"{name}-seed0" / "evaluation.csv").read_text()
        assert ",3,h,l1_step," in rows and "nan" not in rows


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_is_made_for_cpus_names_its_precision(problem):
    made = problem_named(problem)
    for name in made.presets:
        if name != "paper":  # for any GPU: the best that it has
            assert made.run(name, "laape", "data", 0).training.precision != "auto"


@pytest.mark.parametrize("has_units", [True, False])
def test_emulated_bfloat16_is_said_at_the_start(tiny, tmp_path, monkeypatch, has_units):
    monkeypatch.setattr(loop, "_cpu_has_bfloat16", lambda: has_units)
    console = Console(record=True, width=200, file=io.StringIO())
    config = tiny.changed({"training.precision": "bfloat16", "training.steps": 1})
    fit(problem_named(config.problem), config, Run(tmp_path), console=console)
    assert ("--set training.precision=float32 is faster here" in console.export_text()) != has_units


def test_auto_is_what_the_machine_or_the_environment_says(monkeypatch):
    cpu, config = torch.device("cpu"), TrainingConfig(steps=1)
    for name in ("float32", *HALF):
        assert computing_dtype(config.model_copy(update={"precision": name}), cpu) == getattr(torch, name)
        monkeypatch.setenv("FARFIELD_PRECISION", name)
        assert computing_dtype(config, cpu) == getattr(torch, name)
    monkeypatch.setenv("FARFIELD_PRECISION", "float8")
    with pytest.raises(ValueError, match="FARFIELD_PRECISION must be one of auto, float32, bfloat16, float16"):
        computing_dtype(config, cpu)
    monkeypatch.delenv("FARFIELD_PRECISION")
    assert computing_dtype(config, cpu) in (torch.float32, torch.bfloat16)
