import json
import math
import shutil

import h5py
import numpy as np
import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

import farfield as ff
from farfield.api import evaluate
from farfield.data.generated import open_split
from farfield.evaluation.evaluate import Amount
from farfield.evaluation.rows import Row, read_rows, write_rows
from farfield.runs.weights import load_weights, save_weights

QUIET = Console(quiet=True)


def value(rows: list[Row], **about) -> float:
    (found,) = [row for row in rows if all(getattr(row, name) == wanted for name, wanted in about.items())]
    return found.value


def states_of(plan, name: str, simulation: int) -> dict[str, np.ndarray]:
    """(states, N) per field."""
    split = open_split(plan.data, name)
    states = split.grids(simulation).astype(np.float64)
    return {field: states[:, i].reshape(split.states(0), -1) for i, field in enumerate(split.spec.fields)}


def test_the_error_of_a_scale_is_the_mean_over_all_samples_and_steps(reproduced):
    plan, out, _ = reproduced
    rows = read_rows(out / "laape-seed0" / "evaluation.csv")
    predictor = ff.load(out / "laape-seed0")
    points = open_split(plan.data, "s2").domain.points()
    errors = {name: [] for name in predictor.fields}
    for simulation in range(2):
        states = states_of(plan, "s2", simulation)
        for k in range(plan.dataset.states - 1):
            predicted = predictor.step({name: values[k] for name, values in states.items()}, points)
            for name, values in states.items():
                truth = values[k + 1] - values[k]
                errors[name].append(np.abs(predicted[name] - values[k + 1]).sum() / np.abs(truth).sum())
    for name, all_errors in errors.items():
        assert value(rows, scale="2", field=name, metric="l1_step") == pytest.approx(np.mean(all_errors), rel=1e-4)


def test_a_rollout_is_measured_by_the_change_since_the_start(reproduced):
    plan, out, _ = reproduced
    rows = read_rows(out / "laape-seed0" / "evaluation.csv")
    predictor = ff.load(out / "laape-seed0")
    points = open_split(plan.data, "s3").domain.points()
    horizon = plan.dataset.states - 1
    errors = {name: [] for name in predictor.fields}
    for simulation in range(2):
        states = states_of(plan, "s3", simulation)
        predicted = predictor.rollout({name: values[0] for name, values in states.items()}, points, horizon)
        for name, values in states.items():
            change = values[horizon] - values[0]
            errors[name].append(np.abs(predicted[name][horizon] - values[horizon]).sum() / np.abs(change).sum())
    for name, all_errors in errors.items():
        found = value(rows, scale="3", field=name, metric="l1_rollout", horizon=horizon)
        assert found == pytest.approx(np.mean(all_errors), rel=1e-4)


def test_every_number_has_one_row(reproduced):
    plan, out, _ = reproduced
    rows = read_rows(out / "laspe-seed0" / "evaluation.csv")
    keys = [row[:7] for row in rows]
    assert len(keys) == len(set(keys))
    steps = plan.dataset.states - 1
    by_state = [row for row in rows if row.metric == "l1_step_to"]
    assert len(rows) - len(by_state) == 3 * (2 * 3 * (1 + steps) + 1)  # scales x (fields x metrics x horizons + time)
    for step in (row for row in rows if row.metric == "l1_step"):  # the mean over the states is the whole
        parts = [row for row in by_state if (row.scale, row.field) == (step.scale, step.field)]
        assert sum(part.samples for part in parts) == step.samples
        assert sum(part.samples * part.value for part in parts) / step.samples == pytest.approx(step.value, rel=1e-4)
    assert {row.samples for row in rows if row.metric == "l1_step"} <= set(range(1, 2 * steps + 1))
    assert {row.samples for row in rows if row.metric == "l1_rollout"} == {2}


def test_what_is_done_is_not_done_again(reproduced, run_copy):
    plan, *_ = reproduced
    path = run_copy / "evaluation.csv"
    before = path.read_bytes(), path.stat().st_mtime_ns
    rows = read_rows(path)
    evaluate(run_copy, scales=["1", "3"], amount=Amount(2, 1), data=plan.data, console=QUIET)  # less than is there
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    record = json.loads((run_copy / "evaluation.json").read_text())
    del record["scales"]["2"]  # as if it had been killed before the end of s = 2
    (run_copy / "evaluation.json").write_text(json.dumps(record))
    again = evaluate(run_copy, scales=["1", "2", "3"], data=plan.data, console=QUIET)
    assert [row for row in again if row.metric != "seconds"] == [row for row in rows if row.metric != "seconds"]
    assert read_rows(path) == again
    assert path.stat().st_mtime_ns != before[1]


def test_nothing_is_known_worse_than_before(reproduced, run_copy):
    """More rollouts from fewer pairs: the pairs stay as many as they were."""
    plan, *_ = reproduced
    (run_copy / "evaluation.json").unlink()
    few = evaluate(run_copy, scales=["1"], amount=Amount(4, 1), data=plan.data, console=QUIET)
    more = evaluate(run_copy, scales=["1"], amount=Amount(1, 2), data=plan.data, console=QUIET)
    done = json.loads((run_copy / "evaluation.json").read_text())
    assert done["scales"]["1"] == {"pairs": 4, "rollouts": 2}
    assert len(done["commands"]) == 1
    assert [row for row in few if row.metric == "l1_step"] == [row for row in more if row.metric == "l1_step"]


def test_other_data_is_evaluated_anew(reproduced, run_copy, tmp_path):
    plan, *_ = reproduced
    other = shutil.copytree(plan.data, tmp_path / "other")
    before = read_rows(run_copy / "evaluation.csv")
    (path,) = (other / "data" / "test").glob("*.hdf5")
    with h5py.File(path, "r+") as file:
        for field in file["t0_fields"].values():
            field[...] = field[...][:, ::-1]
    after = evaluate(run_copy, scales=["1"], data=other, console=QUIET)
    steps = [[row.value for row in rows if row.metric == "l1_step"] for rows in (before, after)]
    assert steps[0][:2] != steps[1][:2] and steps[0][2:] == steps[1][2:]  # of s = 1, and of s = 2 and 3


def test_two_states_are_enough(reproduced, run_copy, tmp_path):
    plan, *_ = reproduced
    short = shutil.copytree(plan.data, tmp_path / "short")
    (path,) = (short / "data" / "test").glob("*.hdf5")
    with h5py.File(path, "r+") as file:
        for name, field in list(file["t0_fields"].items()):
            values, attributes = field[:, :2], dict(field.attrs)
            del file["t0_fields"][name]
            file["t0_fields"].create_dataset(name, data=values).attrs.update(attributes)
        times = file["dimensions/time"][:2]
        del file["dimensions/time"]
        file["dimensions/time"] = times
    rows = evaluate(run_copy, scales=["1"], data=short, console=QUIET)
    assert {row.horizon for row in rows if row.metric == "l1_rollout" and row.scale == "1"} == {1}


def test_other_weights_are_evaluated_anew(reproduced, run_copy):
    plan, *_ = reproduced
    model = ff.load(run_copy).model
    for parameter in model.parameters():
        parameter.zero_()
    save_weights(run_copy / "best.safetensors", model)
    load_weights(run_copy / "best.safetensors", model)
    rows = evaluate(run_copy, scales=["1"], amount=Amount(3, 0), data=plan.data, console=QUIET)
    assert {row.scale for row in rows} == {"1"}
    assert {row.samples for row in rows if row.metric == "l1_step"} <= {1, 2, 3}
    assert not [row for row in rows if row.metric == "l1_rollout"]


def test_rows_survive_the_file(tmp_path):
    rows = [
        Row("swe", "laape", 0, "2x1", "h", "l1_step", 1, 0.125, 3),
        Row("swe", "rope", 1, "10", "", "x", 2, math.inf, 1),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    assert read_rows(tmp_path / "rows.csv") == rows


def test_bad_input_is_named(reproduced, run_copy, tmp_path):
    plan, *_ = reproduced
    with pytest.raises(ValueError, match=r"no test data at s = 50, only at 1, 2, 3: make it with `farfield generate"):
        evaluate(run_copy, scales=["1", "50"], data=plan.data, console=QUIET)
    with pytest.raises(ValueError, match="expected scales like 1, 10 or 2x1, got 'ten'"):
        evaluate(run_copy, scales=["ten"], data=plan.data, console=QUIET)
    with pytest.raises(FileNotFoundError, match="no test data in"):
        evaluate(run_copy, scales=["1"], data=tmp_path, console=QUIET)
    (run_copy / "evaluation.json").unlink()
    with pytest.raises(ValueError, match="nothing to evaluate at s = 1"):
        evaluate(run_copy, scales=["1"], amount=Amount(0, 0), data=plan.data, console=QUIET)
    (run_copy / "evaluation.json").write_text('{"weights": ')
    with pytest.raises(ValueError, match=r"evaluation.json is damaged"):
        evaluate(run_copy, scales=["1"], data=plan.data, console=QUIET)
    with pytest.raises(ValueError, match="is not a run"):
        evaluate(tmp_path, scales=["1"], data=plan.data, console=QUIET)
    described = json.loads((run_copy / "dataset.json").read_text())
    described["spec"]["time_step"] = 7.0
    (run_copy / "dataset.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"dataset.json.* was altered since best.safetensors was trained"):
        evaluate(run_copy, scales=["1"], data=plan.data, console=QUIET)
    weights = load_file(run_copy / "best.safetensors")
    save_file(weights, run_copy / "best.safetensors")  # without the note of what they were trained with
    with pytest.raises(ValueError, match=r"was trained on other data than .*: time_step is 7.0 there and"):
        evaluate(run_copy, scales=["1"], data=plan.data, console=QUIET)
    shutil.copy(__file__, tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="is not a table of results: expected the columns problem, encoding"):
        read_rows(tmp_path / "rows.csv")


def test_rounding_to_bfloat16_changes_an_evaluation_a_little(run_copy):
    exact = {row[:7]: row.value for row in read_rows(run_copy / "evaluation.csv") if row.metric == "l1_step"}
    (run_copy / "evaluation.json").unlink()  # nothing is done
    rows = evaluate(run_copy, scales=["1"], precision="bfloat16", console=QUIET)
    found = {row[:7]: row.value for row in rows if row.metric == "l1_step"}
    assert any(found[key] != exact[key] for key in found)
    assert all(found[key] == pytest.approx(exact[key], rel=0.05) for key in found)
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, got 'float8'"):
        evaluate(run_copy, scales=["1"], precision="float8", console=QUIET)
