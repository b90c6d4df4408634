"""Training of AB-SWIFT: the loss is the formula, points are drawn anew and yet exactly again, bad data is named."""

import json
import os
import shutil
import signal
import threading
import time

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from small import assert_same_run, losses, training_run
from urban_layout import TINY_AB_SWIFT, write_volume

from farfield.models.ab_swift import FIELDS, METRES_PER_UNIT
from farfield.problems import problem_named, problem_of
from farfield.problems.urban_wind.files import FIELD_WIDTHS
from farfield.problems.urban_wind.prediction import UrbanPredictor
from farfield.problems.urban_wind.sampling import POSITION_BOUNDS, POSITION_WIDTH, UrbanNormalisation, UrbanSample
from farfield.problems.urban_wind.training import urban_loss
from farfield.runs.run import Run
from farfield.training.loop import Interrupted, fit


@pytest.fixture
def urban(urban_data):
    """Twelve steps of a tiny AB-SWIFT."""
    return training_run("urban-wind", "quick", "laape", str(urban_data)).changed(TINY_AB_SWIFT)


def task_of(config):
    return problem_named(config.problem).task(config)


def train(config, folder, **options) -> Run:
    fit(problem_named(config.problem), config, Run(folder), console=Console(quiet=True), **options)
    return Run(folder)


def test_the_loss_is_the_mean_squared_error_over_anchors_and_queries(urban):
    task = task_of(urban)
    batch = UrbanSample.stack([task.validation_data[0]])
    predicted = task.model(**batch.city(), queries=batch.queries)
    assert predicted.shape == (1, 24 + 16, 6)
    squares = [
        (predicted[0, :24] - batch.anchor_targets[0]).square(),
        (predicted[0, 24:] - batch.query_targets[0]).square(),
    ]
    assert urban_loss(task.model, batch).item() == pytest.approx(torch.cat(squares).mean().item())
    assert task.points(batch) == 40


def test_a_step_draws_new_points_and_the_same_step_the_same(urban):
    data = task_of(urban).training_data
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append([data[0].anchors, data[0].anchors])
    assert torch.equal(draws[0][0], draws[1][0]) and torch.equal(draws[0][1], draws[1][1])
    assert not torch.equal(draws[0][0], draws[0][1])
    assert not torch.equal(draws[0][0], draws[2][0])
    held_out = task_of(urban).validation_data
    assert torch.equal(held_out[0].anchors, held_out[0].anchors)


def test_a_run_stopped_and_resumed_ends_with_the_same_weights(urban, tmp_path):
    config = urban.changed({"training.batch_size": 2})
    whole = train(config, tmp_path / "whole")
    run = Run(tmp_path / "stopped")

    def stop_in_the_middle():
        while not (run.losses_path.exists() and len(run.losses_path.read_bytes().splitlines()) > 3):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_in_the_middle).start()
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 12"):
        train(config, run.folder)
    assert 3 <= len(losses(run)) < 12
    train(config, run.folder, resume=True)
    assert_same_run(run, whole)


def test_the_loss_falls(urban, tmp_path):
    """Of the tiny cities, the velocity follows from the position; the rest is noise."""
    changes = {"model.fields": {"velocity": 3}, "training.learning_rate": 1e-2, "training.steps": 40}
    run = train(urban.changed(changes), tmp_path)
    values = [loss for _, loss in losses(run)]
    assert np.mean(values[-10:]) < 0.8 * np.mean(values[:10])


def test_the_folder_holds_all_that_a_prediction_needs(urban, urban_data, tmp_path):
    run = train(urban, tmp_path / "run")
    described = json.loads((run.folder / "dataset.json").read_text())
    task = task_of(urban)
    assert UrbanNormalisation.from_dict(described["normalisation"]) == task.training_data.normalisation
    assert described["items"] == {"train": 3, "validation": 1}
    trained = UrbanPredictor.load(run)
    assert problem_of(run).config(run) == urban
    weights = load_file(run.best_path)
    assert all(torch.equal(value, weights[name]) for name, value in trained.model.state_dict().items())
    shutil.copytree(urban_data, tmp_path / "moved")
    train(urban.changed({"dataset": str(tmp_path / "moved")}), run.folder, resume=True)  # the same data elsewhere
    write_volume(tmp_path / "moved" / "volume_0.vtk", 1.0, seed=99)
    with pytest.raises(ValueError, match="was trained on other data: its normalisation is"):
        train(urban.changed({"dataset": str(tmp_path / "moved")}), run.folder, resume=True)


def test_checkpointing_changes_nothing_but_memory(urban, tmp_path):
    plain = train(urban, tmp_path / "plain")
    recomputed = train(urban.changed({"model.checkpointing": True}), tmp_path / "recomputed")
    assert [loss for _, loss in losses(recomputed)] == pytest.approx([loss for _, loss in losses(plain)], rel=1e-5)


@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_every_encoding_trains_in_bfloat16(urban, tmp_path, encoding):
    changes = {"encoding.name": encoding, "training.steps": 2, "training.precision": "bfloat16"}
    run = train(urban.changed(changes), tmp_path)
    assert np.isfinite([loss for _, loss in losses(run)]).all()


def test_fewer_fields_can_be_learned(urban):
    task = task_of(urban.changed({"model.fields": {"velocity": 3}}))
    assert task.training_data[0].anchor_targets.shape == (24, 3)
    assert task.model.fields == {"velocity": 3}


def test_model_and_data_agree_on_fields_and_units():
    low, high = POSITION_BOUNDS.T
    assert pytest.approx(tuple((high - low) / POSITION_WIDTH)) == METRES_PER_UNIT
    assert {name: FIELD_WIDTHS[name] for name in FIELDS} == FIELDS


def test_bad_data_is_named(urban, small_data, tiny, urban_data, tmp_path):
    for dataset in (tmp_path / "nowhere", small_data):
        with pytest.raises(FileNotFoundError, match="not an urban-wind dataset, or its generation is not finished"):
            task_of(urban.changed({"dataset": str(dataset)}))
    with pytest.raises(FileNotFoundError, match="farfield generate"):
        task_of(tiny.changed({"dataset": str(urban_data)}))
    shutil.copytree(urban_data, tmp_path / "lacking")
    write_volume(tmp_path / "lacking" / "volume_1.vtk", 1.0, 0, leave_out="k")
    with pytest.raises(ValueError, match=r"volume_1.vtk has no cell data 'k'; it has velocity"):
        task_of(urban.changed({"dataset": str(tmp_path / "lacking")}))
    with pytest.raises(ValueError, match="unknown field 'wind'"):
        task_of(urban.changed({"model.fields": {"wind": 3}}))
    with pytest.raises(ValueError, match=r"swe-laape.config.yaml: .*sampling"):
        UrbanPredictor.load(Run.find("swe-laape"))
