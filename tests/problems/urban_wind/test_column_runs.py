"""Runs of the column network: trained, resumed, loaded, predicted and scored like any other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from small import assert_same_run, losses, training_run

from farfield.api import evaluate, load
from farfield.evaluation.evaluate import Amount
from farfield.problems import problem_named
from farfield.problems.urban_wind.buildings import Box, boxes_to_mesh, write_stl
from farfield.problems.urban_wind.city import CHANNELS, City, base_fields
from farfield.problems.urban_wind.column_config import ColumnRun
from farfield.problems.urban_wind.column_prediction import ColumnPredictor
from farfield.problems.urban_wind.column_training import Cities
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.runs.run import Run
from farfield.runs.weights import save_weights
from farfield.training.loop import Interrupted, fit

TINY = {
    "model.width": 16,
    "model.heads": 2,
    "model.depth": 1,
    "model.columns": 8,
    "model.decoder_depth": 1,
    "model.level_features": 4,
    "model.query_width": 8,
    "points": 50,
    "training.steps": 8,
    "training.validate_every": 4,
    "training.checkpoint_every": 3,
    "training.precision": "float32",
}


@pytest.fixture
def columns(urban_data: Path) -> ColumnRun:
    return training_run("urban-columns", "quick", "laape", str(urban_data)).changed(TINY)


def train(config: ColumnRun, folder: Path, **options: object) -> Run:
    fit(problem_named(config.problem), config, Run(folder), console=Console(quiet=True), **options)
    return Run(folder)


@pytest.fixture(scope="module")
def trained(urban_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = training_run("urban-columns", "quick", "laape", str(urban_data)).changed(TINY)
    return train(config, tmp_path_factory.mktemp("columns"))


def test_a_run_stopped_and_resumed_ends_with_the_same_weights(columns: ColumnRun, tmp_path: Path) -> None:
    whole = train(columns, tmp_path / "whole")
    run = Run(tmp_path / "stopped")

    def stop_in_the_middle() -> None:
        while not (run.losses_path.exists() and len(run.losses_path.read_bytes().splitlines()) > 3):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_in_the_middle).start()
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 8"):
        train(columns, run.folder)
    assert 3 <= len(losses(run)) < 8
    train(columns, run.folder, resume=True)
    assert_same_run(run, whole)


def test_the_loss_falls(columns: ColumnRun, tmp_path: Path) -> None:
    run = train(columns.changed({"training.steps": 60, "training.learning_rate": 5e-3}), tmp_path)
    values = [loss for _, loss in losses(run)]
    assert np.mean(values[-10:]) < 0.9 * np.mean(values[:10])


def test_only_cities_in_neutral_air_are_learned(columns: ColumnRun, urban_data: Path) -> None:
    task = problem_named("urban-columns").task(columns)
    assert len(task.training_data) == 2, "one of three is stratified"  # type: ignore[arg-type]
    twice = problem_named("urban-columns").task(columns.changed({"also": [str(urban_data)]}))
    assert len(twice.training_data) == 4  # type: ignore[arg-type]


def test_cities_of_twice_the_size_are_learned_from_as_well(
    columns: ColumnRun, urban_data: Path, tmp_path: Path
) -> None:
    task = problem_named("urban-columns").task(columns.changed({"wide": [str(urban_data)]}))
    assert len(task.training_data) == 3  # type: ignore[arg-type]
    small = shutil.copytree(urban_data, tmp_path / "small", ignore=shutil.ignore_patterns("*_ls_*", "*_vls_*"))
    with pytest.raises(ValueError, match="no cities of s = 2"):
        problem_named("urban-columns").task(columns.changed({"wide": [str(small)]}))


def test_a_run_begins_with_the_weights_of_another(columns: ColumnRun, trained: Run) -> None:
    task = problem_named("urban-columns").task(columns.changed({"starts_from": str(trained.folder)}))
    begun = columns.build()
    trained.load_weights(begun)
    assert all(torch.equal(a, b) for a, b in zip(task.model.parameters(), begun.parameters(), strict=True))
    assert task.dataset["corrections"] == trained.dataset()["corrections"], "they answer in units of their own spread"
    with pytest.raises(ValueError, match="holds the weights of another model"):
        problem_named("urban-columns").task(
            columns.changed({"starts_from": str(trained.folder), "model.width": 32, "model.heads": 4})
        )


def test_a_network_that_was_told_less_begins_a_larger_one_and_predicts_as_before(
    columns: ColumnRun, trained: Run, urban_data: Path, tmp_path: Path
) -> None:
    """A run of an earlier version knows the channels without the moments of solids, and no blocks on 2 x 2 columns."""
    earlier = Run(shutil.copytree(trained.folder, tmp_path / "earlier"))
    torch.manual_seed(1)
    model = columns.build(channels=len(CHANNELS) - 2)
    dataset = {key: value for key, value in earlier.dataset().items() if key != "channels"}
    earlier.dataset_path.write_text(json.dumps(dataset))
    save_weights(earlier.best_path, model)
    before = problem_named("urban-columns").predictor(earlier)
    assert before.model.channels == len(CHANNELS) - 2
    changes = {"starts_from": str(earlier.folder), "model.coarser_depth": 1, "model.coarser_width": 16}
    grown = ColumnPredictor(
        problem_named("urban-columns").task(columns.changed(changes)).model, before.normalisation, before.scale
    )
    case = UrbanWindFiles(urban_data).load("test", UrbanWindFiles(urban_data).ids("test")[0])
    a, b = (p.from_case(case, case.positions, np.random.default_rng(0)) for p in (before, grown))
    assert np.allclose(a, b, rtol=1e-4, atol=1e-4)
    dataset["channels"] = ["solid", "wall_of_another_kind"]
    earlier.dataset_path.write_text(json.dumps(dataset))
    with pytest.raises(ValueError, match="wall_of_another_kind, this version computes solid"):
        problem_named("urban-columns").predictor(earlier)


def test_a_deeper_network_begins_with_the_blocks_of_another_and_predicts_as_it_does(
    columns: ColumnRun, urban_data: Path, tmp_path: Path
) -> None:
    small = {"model.stem_depth": 1, "model.decoder_depth": 1, "model.coarser_depth": 1, "model.coarser_width": 16}
    run = train(columns.changed({**small, "training.steps": 2}), tmp_path / "small")
    before = problem_named("urban-columns").predictor(run)
    deeper = {**small, "model.stem_depth": 2, "model.decoder_depth": 2, "model.coarser_depth": 3}
    model = problem_named("urban-columns").task(columns.changed({**deeper, "starts_from": str(run.folder)})).model
    assert [len(chain) for chain in (model.stem, model.decoder, model.coarser.blocks)] == [3, 3, 4]  # and a norm
    grown = ColumnPredictor(model, before.normalisation, before.scale)
    case = UrbanWindFiles(urban_data).load("test", UrbanWindFiles(urban_data).ids("test")[0])
    a, b = (p.from_case(case, case.positions, np.random.default_rng(0)) for p in (before, grown))
    assert np.allclose(a, b, rtol=1e-4, atol=1e-4)
    model.train().requires_grad_(True)
    task = problem_named("urban-columns").task(columns)
    loss = task.loss(model, [task.validation_data[0]])
    loss.backward()
    for block in (model.stem[1], model.decoder[1], model.coarser.blocks[2]):  # what adds nothing yet can learn to
        assert block.mlp[2].weight.grad.abs().max() > 0


def test_a_step_draws_new_cells_and_the_same_step_the_same(columns: ColumnRun) -> None:
    task = problem_named("urban-columns").task(columns)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(task.training_data[0].truth)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert torch.equal(task.validation_data[0].truth, task.validation_data[0].truth)


def test_a_turned_city_is_learned_whole_now_and_then_and_judged_whole(urban_data: Path) -> None:
    case = UrbanWindFiles(urban_data).load("train", 0).in_wind_axes(30.0)
    whole = City.around(case)
    near = whole.near_buildings()
    assert near.lattice.shape[1] < whole.lattice.shape[1]
    torch.manual_seed(0)
    drawn = Cities([case], 10, 4, drawn=True)
    rows = [drawn[0].cells.shape[0] for _ in range(20)]
    # The lattice lies elsewhere each time: by part of a column, so that there may be one more or less.
    is_whole, is_near = ([abs(count - city.lattice.shape[1]) <= 1 for count in rows] for city in (whole, near))
    assert any(is_whole) and any(is_near) and all(a or b for a, b in zip(is_whole, is_near, strict=True))
    assert Cities([case], 10, 4, drawn=False)[0].cells.shape[0] == whole.lattice.shape[1]


def test_a_mirrored_item_has_the_same_loss_as_its_city(columns: ColumnRun, urban_data: Path) -> None:
    """Of a network that says nothing: what physics leaves over does not depend on the mirror."""
    case = UrbanWindFiles(urban_data).load("train", 0)
    city = City.around(case)
    for one, sign in ((city, 1.0), (city.mirrored(), -1.0)):
        query = one.query(case.positions * np.array([1, sign, 1], dtype=np.float32))
        flat = one.cells().reshape(-1, len(CHANNELS))
        base = base_fields((flat[query.cells] * query.weights[..., None]).sum(1), query)
        if sign > 0:
            straight = base
    assert torch.allclose(base * torch.tensor([1.0, -1, 1, 1, 1, 1]), straight, atol=1e-4)
    assert isinstance(Cities([case], 10, 4, drawn=False)[0].phase, tuple)
    task = problem_named("urban-columns").task(columns)
    assert float(task.loss(task.model, [task.validation_data[0]])) > 0


@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape", "none"])
def test_every_encoding_trains_in_bfloat16(columns: ColumnRun, tmp_path: Path, encoding: str) -> None:
    changes = {"encoding.name": encoding, "training.steps": 2, "training.precision": "bfloat16"}
    run = train(columns.changed(changes), tmp_path)
    assert np.isfinite([loss for _, loss in losses(run)]).all()


def test_without_attention_there_are_no_heads(columns: ColumnRun) -> None:
    network = columns.changed({"encoding.name": "none"}).build()
    assert not any("attention" in name for name, _ in network.named_parameters())


def test_a_trained_network_is_loaded_and_scored(trained: Run, urban_data: Path) -> None:
    rows = evaluate(trained.folder, scales=["1", "2"], amount=Amount(draws=1), console=Console(quiet=True))
    found = {(row.scale, row.field, row.metric): row.value for row in rows}
    predictor = load(trained.folder, device="cpu")
    assert repr(predictor) == "ColumnPredictor(laape: velocity, pressure, k, epsilon of the wind around buildings)"
    case = UrbanWindFiles(urban_data).load("ls", 0)
    velocity = predictor.from_case(case, case.positions, np.random.default_rng(0))[:, :3]
    truth, inside = case.fields["velocity"], case.in_square
    expected = np.abs(velocity - truth)[inside].sum() / np.abs(truth)[inside].sum()
    assert found["2", "velocity", "l1_buildings"] == pytest.approx(expected, rel=1e-4)


def test_the_wind_around_buildings_turns_with_them(trained: Run, tmp_path: Path) -> None:
    """The same city, once as it is and once turned by a right angle together with the wind."""
    predictor = load(trained.folder, device="cpu")
    boxes = [Box(-20, -4, -8, 8, 20), Box(10, 22, -20, 4, 12)]
    mesh = boxes_to_mesh(boxes)
    points = np.array([[-30.0, 0, 5], [40, 3, 10], [0, 25, 30], [80, -10, 2]])
    straight = predictor.predict(mesh, roughness=0.3, wind_direction=270, points=points)
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    turned = mesh.copy()
    turned.vertices = np.asarray(mesh.vertices) @ turn.T
    after = predictor.predict(turned, roughness=0.3, wind_direction=180, points=points @ turn.T)
    assert np.allclose(after["velocity"], straight["velocity"] @ turn.T, atol=2e-2)
    assert np.allclose(after["k"], straight["k"], rtol=1e-2)
    write_stl(tmp_path / "city.stl", mesh)
    from_file = predictor.predict(tmp_path / "city.stl", roughness=0.3, wind_direction=270, points=points)
    assert np.allclose(from_file["velocity"], straight["velocity"], atol=1e-3)


def test_ten_times_the_wind_gives_ten_times_the_velocity(trained: Run) -> None:
    predictor = load(trained.folder, device="cpu")
    points = np.array([[-30.0, 0, 5], [40, 3, 10]])

    def wind(speed: float, height: float = 10.0) -> dict[str, np.ndarray]:
        mesh = boxes_to_mesh([Box(-9, 9, -9, 9, 20)])
        found = predictor.predict(mesh, roughness=0.3, wind_speed=speed, speed_height=height, points=points)
        return {name: np.asarray(found[name]) for name in ("velocity", "pressure", "k", "epsilon")}

    slow, fast = wind(1.5), wind(15.0)
    for name, factor in (("velocity", 10), ("pressure", 100), ("k", 100), ("epsilon", 1000)):
        assert np.allclose(fast[name], factor * slow[name], rtol=1e-5)
    assert np.allclose(wind(6.0, 80.0)["velocity"], predictor.predict(
        boxes_to_mesh([Box(-9, 9, -9, 9, 20)]), roughness=0.3, points=points)["velocity"])  # fmt: skip
    for speed, height, problem in ((-1.0, 10.0, "wind speed"), (np.nan, 10.0, "wind speed"), (5.0, 0.0, "height")):
        with pytest.raises(ValueError, match=problem):
            wind(speed, height)


def test_stratified_air_is_refused(trained: Run) -> None:
    predictor = load(trained.folder, device="cpu")
    with (
        pytest.warns(UserWarning, match="outside the training data"),
        pytest.raises(ValueError, match="neutral air only"),
    ):
        predictor.predict(boxes_to_mesh([Box(-9, 9, -9, 9, 20)]), roughness=0.3, inverse_length=0.01)
