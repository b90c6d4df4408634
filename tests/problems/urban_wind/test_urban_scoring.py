"""Errors of urban wind by region, over cities and draws; what pictures need is kept."""

import json
import shutil
from dataclasses import asdict

import numpy as np
import pytest
import torch
from rich.console import Console

from farfield.api import evaluate
from farfield.evaluation.evaluate import Amount
from farfield.evaluation.rows import read_rows
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.prediction import UrbanPredictor
from farfield.problems.urban_wind.sampling import PointCounts, UrbanSample, UrbanWindDataset
from farfield.runs.run import Run

QUIET = Console(quiet=True)


@pytest.fixture
def evaluated_run(urban_reproduced, tmp_path):
    """An evaluated run that a test may spoil."""
    return shutil.copytree(urban_reproduced[1] / "laape-seed0", tmp_path / "run")


def test_errors_are_means_over_neutral_cities_and_draws_of_all_cells_of_a_region(urban_reproduced):
    plan, out, _ = urban_reproduced
    rows = {(r.scale, r.field, r.metric): r for r in read_rows(out / "laape-seed0" / "evaluation.csv")}
    predictor = UrbanPredictor.load(Run(out / "laape-seed0"))
    model, normalisation = predictor.model, predictor.normalisation
    files = UrbanWindFiles(plan.data)
    points = {**asdict(predictor.counts), "queries": None}
    for scale, split, numbers in (("1", "test", (4, 6)), ("2", "ls", (0,))):
        errors = {}
        for number in numbers:
            case = files.load(split, number)
            square = (np.abs(case.positions[:, :2]) < 50 * float(scale)).all(1)
            for draw in range(2):
                data = UrbanWindDataset(files, split, normalisation, PointCounts(**points), draw=draw)
                sample = UrbanSample.stack([data[data.ids.index(number)]])  # every cell is a query
                with torch.no_grad():
                    predicted = model.decode(model.encode(**sample.city()), sample.queries)
                fields = normalisation.decode_targets(predicted)[0].double().numpy()
                columns = {"velocity": slice(0, 3), "pressure": slice(3, 4), "epsilon": slice(5, 6)}
                for region, cells in (("buildings", square), ("wake", ~square)):
                    for field, channels in columns.items():
                        truth = case.fields[field].reshape(len(square), -1)[cells]
                        error = np.abs(fields[cells, channels] - truth).sum() / np.abs(truth).sum()
                        errors.setdefault((field, region), []).append(error)
        for (field, region), values in errors.items():
            row = rows[scale, field, f"l1_{region}"]
            assert row.value == pytest.approx(np.mean(values), rel=1e-4)
            assert row.samples == len(values) == 2 * len(numbers)


def test_every_number_has_one_row_and_the_time_is_there(urban_reproduced):
    _, out, said = urban_reproduced
    rows = read_rows(out / "rope-seed0" / "evaluation.csv")
    assert len({row[:7] for row in rows}) == len(rows)
    assert len(rows) == 3 * (4 * 2 * 2 + 1)  # scales x (fields x regions x norms, and the time)
    assert {(row.problem, row.encoding) for row in rows} == {("urban-wind", "rope")}
    assert [row.samples for row in rows if row.metric == "seconds"] == [4, 2, 2]
    assert "rope, s = 5: velocity (buildings) " in said


def test_pictures_are_the_fields_on_two_planes(urban_reproduced):
    plan, out, _ = urban_reproduced
    with np.load(out / "laape-seed0" / "samples.npz") as arrays:
        pictures = dict(arrays)
    case = UrbanWindFiles(plan.data).load("vls", 0)
    speed = np.linalg.norm(case.fields["velocity"], axis=1)
    ground = case.positions[:, 2] < 20  # the lowest of three layers
    truth = pictures["s5_map_truth"]
    assert truth.shape == pictures["s5_map_prediction"].shape == (400, 195)  # 2250 m x 1100 m
    assert np.isfinite(truth).all()
    assert speed[ground].min() - 1e-3 <= truth.min() < truth.max() <= speed[ground].max() + 1e-3
    assert pictures["s5_map_bounds"] == pytest.approx([-725, 1525, -550, 550, 2, 2])
    assert pictures["s1_cut_bounds"][2:4] == pytest.approx([0, 0], abs=5)  # the building stands there
    assert pictures["s2_cut_truth"].shape == (400, 100)


def test_what_is_done_is_not_done_again(urban_reproduced, evaluated_run):
    plan, *_ = urban_reproduced
    path = evaluated_run / "evaluation.csv"
    before = path.stat().st_mtime_ns
    evaluate(evaluated_run, amount=Amount(draws=2), data=plan.data, console=QUIET)
    assert path.stat().st_mtime_ns == before
    evaluate(evaluated_run, scales=["2"], amount=Amount(draws=3), data=plan.data, console=QUIET)
    assert json.loads((evaluated_run / "evaluation.json").read_text())["scales"]["2"] == {"cities": 1, "draws": 3}
    assert {row.samples for row in read_rows(path) if row.scale == "2"} == {3}


def test_a_random_share_of_the_cells_estimates_the_error_of_all(urban_reproduced, evaluated_run):
    plan, *_ = urban_reproduced
    everywhere = {r[4:6]: r.value for r in read_rows(evaluated_run / "evaluation.csv") if r.scale == "1"}
    smallest = min(len(UrbanWindFiles(plan.data).load("test", n).positions) for n in (4, 6))
    amount = Amount(draws=12, cells=3 * smallest // 4)
    (evaluated_run / "evaluation.json").unlink()  # of what is done to the full, no share would be measured
    evaluate(evaluated_run, scales=["1"], amount=amount, data=plan.data, console=QUIET)
    rows = [r for r in read_rows(evaluated_run / "evaluation.csv") if r.scale == "1" and r.metric.startswith("l1")]
    assert {r.samples for r in rows} == {24}
    for row in rows:
        assert row.value != everywhere[row[4:6]]
        assert row.value == pytest.approx(everywhere[row[4:6]], rel=0.15)
    done = json.loads((evaluated_run / "evaluation.json").read_text())["scales"]["1"]
    assert done == {"cities": 2, "draws": 12, "cells": 3 * smallest // 4}
    evaluate(evaluated_run, scales=["1"], amount=Amount(draws=2), data=plan.data, console=QUIET)  # a share is not all
    assert json.loads((evaluated_run / "evaluation.json").read_text())["scales"]["1"] == {"cities": 2, "draws": 12}
    before = (evaluated_run / "evaluation.json").stat().st_mtime_ns
    evaluate(evaluated_run, scales=["1"], amount=Amount(draws=2, cells=5), data=plan.data, console=QUIET)  # done
    assert (evaluated_run / "evaluation.json").stat().st_mtime_ns == before


def test_bad_input_is_named(urban_reproduced, evaluated_run, tmp_path):
    plan, *_ = urban_reproduced
    with pytest.raises(ValueError, match="urban-wind has cities at s = 1, 2, 5, got 3"):
        evaluate(evaluated_run, scales=["1", "3"], data=plan.data, console=QUIET)
    with pytest.raises(FileNotFoundError, match="not an urban-wind dataset"):
        evaluate(evaluated_run, data=tmp_path, console=QUIET)
    shutil.copytree(plan.data, tmp_path / "small")
    (tmp_path / "small" / "volume_vls_0.vtk").unlink()
    with pytest.raises(ValueError, match="has no neutral cities at s = 5"):
        evaluate(evaluated_run, scales=["5"], data=tmp_path / "small", console=QUIET)
    for name in ("best.safetensors", "last.safetensors"):
        (evaluated_run / name).unlink()
    with pytest.raises(FileNotFoundError, match="has the run reached its first validation"):
        evaluate(evaluated_run, data=plan.data, console=QUIET)
