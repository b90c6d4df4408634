"""Own data from arrays to predictions: train, evaluate, finetune, predict, report, in Python and by commands."""

import csv

import h5py
import numpy as np
import pytest
import pyvista as pv
import torch
from rich.console import Console
from typer.testing import CliRunner

import farfield as ff
from farfield.cli import app
from farfield.data import dataset
from farfield.data.samples import Samples, collate
from farfield.models.for_data import build_network
from farfield.problems.own import default_run
from farfield.training.tasks import Spoiling

QUIET = Console(quiet=True)
SMALL = {
    "model.width": 16,
    "model.depth": 1,
    "training.steps": 12,
    "training.validate_every": 6,
    "training.batch_size": 4,
}


def waves(simulations=5, times=5, cells=(8, 6), seed=0) -> ff.Dataset:
    """A scalar and a vector on a grid, with an input and a parameter."""
    rng = np.random.default_rng(seed)
    start = rng.random((simulations, 1, *cells))
    speed = 1 + np.arange(simulations) / simulations
    drift = speed[:, None, None, None] * np.arange(times)[None, :, None, None]
    T = 1 + start + 0.1 * drift * (1 + start)
    v = np.stack([T, 2 - T], axis=-1)
    return ff.Dataset.from_arrays(
        {"T": T, "v": v},
        spacing=(1.0, 1.0),
        time_step=0.5,
        boundary="wall",
        inputs={"k": rng.random((simulations, *cells)) + 0.5},
        parameters={"speed": speed},
        log=["T"],
        name="waves",
    )


def plates(simulations=5, seed=0, extent=1.0) -> ff.Dataset:
    """Steady fields on points, each simulation with its own number of them."""
    rng = np.random.default_rng(seed)
    items = []
    for i in range(simulations):
        points = extent * rng.random((30 + 2 * i, 2))
        d = np.sin(points[:, 0])
        items.append({"positions": points, "inputs": {"d": d}, "outputs": {"T": d**2 + points[:, 1]}})
    return ff.Dataset.from_points(items, name="plates")


@pytest.fixture(scope="module")
def stepping_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    return ff.train(waves(), out=folder, settings=SMALL, console=QUIET)


@pytest.fixture(scope="module")
def steady_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "run"
    return ff.train(plates(8), out=folder, settings=SMALL, console=QUIET)


def test_a_step_is_what_the_network_says_in_physical_units(stepping_run):
    data, predictor = waves(), ff.load(stepping_run.folder)
    values, inputs = data.source.read(0), data.source.inputs(0)
    state = {"T": values[0, :, 0].reshape(8, 6), "v": values[0, :, 1:].reshape(8, 6, 2)}
    given = {"inputs": {"k": inputs[:, 0].reshape(8, 6)}, "parameters": {"speed": 1.0}}
    found = predictor.step(state, **given)
    assert found["T"].shape == (8, 6) and found["v"].shape == (8, 6, 2)
    # by hand: the logarithm of T is learned, standardised, with the change predicted and added
    described = stepping_run.dataset()
    scaled = np.concatenate([np.log(values[0, :, :1]), values[0, :, 1:]], axis=-1)

    def standard(x, kind):
        return (x - np.asarray(described[kind]["mean"])) / np.asarray(described[kind]["std"])

    flags = np.zeros((8, 6, 2))
    flags[[0, -1], :, 0] = flags[:, [0, -1], 1] = 1
    features = np.concatenate([standard(scaled, "states"), standard(inputs, "inputs"), flags.reshape(-1, 2)], axis=-1)
    where = torch.from_numpy(data.spec.normalise_positions(data.source.cloud(0).points))
    conditions = torch.tensor(standard(np.array([[1.0]]), "parameters"), dtype=torch.float32)
    with torch.no_grad():
        change = (
            predictor.model(torch.tensor(features, dtype=torch.float32)[None], where, conditions)[0].double().numpy()
        )
    after = scaled + change * np.asarray(described["changes"]["std"]) + np.asarray(described["changes"]["mean"])
    np.testing.assert_allclose(found["T"].ravel(), np.exp(after[:, 0]), rtol=1e-4)
    np.testing.assert_allclose(found["v"].reshape(-1, 2), after[:, 1:], rtol=1e-4, atol=1e-5)


def test_a_parameter_matters_once_it_is_learned(stepping_run):
    predictor, data = ff.load(stepping_run.folder), waves()
    values = data.source.read(0)[0]
    state = {"T": values[:, 0], "v": values[:, 1:]}
    points, inputs = data.source.cloud(0).points, {"k": data.source.inputs(0)[:, 0]}
    slow, fast = (predictor.step(state, points, inputs=inputs, parameters={"speed": s})["T"] for s in (1.0, 1.8))
    assert not np.allclose(slow, fast)
    with pytest.raises(ValueError, match="expected the parameters speed, got none"):
        predictor.step(state, points, inputs=inputs)
    with pytest.raises(ValueError, match="expected the inputs k, got none"):
        predictor.step(state, points, parameters={"speed": 1.0})


def test_rollouts_begin_with_the_given_state(stepping_run):
    predictor, data = ff.load(stepping_run.folder), waves()
    values = data.source.read(1)[0]
    options = {"inputs": {"k": data.source.inputs(1)[:, 0]}, "parameters": {"speed": 1.2}}
    states = predictor.rollout({"T": values[:, 0], "v": values[:, 1:]}, data.source.cloud(1).points, 3, **options)
    assert states["T"].shape == (4, 48) and states["v"].shape == (4, 48, 2)
    np.testing.assert_allclose(states["T"][0], values[:, 0], rtol=1e-6)


def test_evaluation_names_scale_fields_and_metrics(stepping_run):
    rows = ff.evaluate(stepping_run.folder, console=QUIET)
    assert {row.scale for row in rows} == {"1"}
    assert {"l1_step", "l2_step", "vrmse_step", "l1_rollout"} <= {row.metric for row in rows}
    assert {row.field for row in rows if row.metric == "l1_step"} == {"T", "v_x", "v_y"}
    rows = ff.evaluate(stepping_run.folder, waves(3, cells=(24, 18), seed=1), console=QUIET)
    large = [row for row in rows if row.scale == "3"]
    assert {row.samples for row in large if row.metric == "l1_step"} == {3 * 4}
    with pytest.raises(ValueError, match="trained on data of another kind: its kind is stepping, here it is steady"):
        ff.evaluate(stepping_run.folder, plates(), console=QUIET)


def test_data_of_other_fields_is_refused_before_anything_is_computed(stepping_run, tmp_path):
    rng = np.random.default_rng(0)
    other = ff.Dataset.from_arrays({"p": rng.random((3, 3, 8, 6))}, spacing=(1.0, 1.0), time_step=0.5, boundary="wall")
    other.save(tmp_path / "other")
    sentence = r"was trained on data of another kind: its fields is \('T', 'v_x', 'v_y'\), here it is \('p',\)"
    with pytest.raises(ValueError, match=sentence):
        ff.evaluate(stepping_run.folder, other, console=QUIET)
    with pytest.raises(ValueError, match=sentence):
        ff.finetune(stepping_run.folder, other, out=tmp_path / "tuned", console=QUIET)
    assert not (tmp_path / "tuned").exists()
    with pytest.raises(ValueError, match="the model was trained with T, v: here is no T, only p"):
        farfield("predict", "--model", stepping_run.folder, "--input", tmp_path / "other", "--out", tmp_path / "out")


def test_steady_fields_are_predicted_at_any_points(steady_run):
    predictor, data = ff.load(steady_run.folder), plates(extent=2.0, seed=3)
    cloud = data.source.cloud(2)
    found = predictor.predict(cloud.points, inputs={"d": data.source.inputs(2)[:, 0]})
    assert found["T"].shape == (len(cloud),) and np.isfinite(found["T"]).all()
    rows = ff.evaluate(steady_run.folder, data, console=QUIET)
    assert {"l1", "l2", "vrmse"} <= {row.metric for row in rows if row.scale == "2"}


@pytest.mark.parametrize("kind", ["stepping", "steady"])
def test_training_lowers_the_error(tmp_path, kind):
    data = waves(8) if kind == "stepping" else plates(8)
    run = ff.train(data, out=tmp_path / "run", settings={**SMALL, "training.steps": 80}, console=QUIET)
    losses = [row["loss"] for row in run.losses()]
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])


@pytest.mark.parametrize(("noise", "pushforward"), [(0.5, 0.0), (0.0, 1.0), (0.1, 1.0)])
def test_spoiled_states_aim_at_the_true_next_one(noise, pushforward):
    data = waves()
    statistics = data.statistics()
    samples = Samples(data.source, statistics, history=True)
    (group,) = collate([samples[1], samples[2], samples[0]])  # the last begins a simulation: there is no state before

    def model(features, positions, **options):  # says that nothing changes, but for 0.3 of the usual
        return torch.full((*features.shape[:2], 3), 0.3)

    spoiling = Spoiling(noise, pushforward, statistics)
    features, targets = spoiling.spoil(model, group, {}, push=pushforward > 0)
    state, change = (samples.standardise[kind] for kind in ("states", "changes"))

    def next_state(features, targets):
        return state.inverse(features[..., :3].double()) + change.inverse(targets.double())

    true_next = next_state(group.features, group.targets)
    assert torch.allclose(next_state(features, targets), true_next, atol=1e-5)
    assert torch.equal(features[..., 3:], group.features[..., 3:])  # inputs and flags are never spoiled
    moved = (features - group.features)[..., :3].abs().amax((1, 2))
    assert (moved[:2] > 1e-3).all()
    assert (moved[2] > 1e-3) == (noise > 0)
    if pushforward and not noise:  # from the state before, what the network says comes next
        before = state.inverse(group.before[0].double()) + change.inverse(torch.full((48, 3), 0.3).double())
        assert torch.allclose(state.inverse(features[0, :, :3].double()), before, atol=1e-5)


def test_noise_and_pushforward_train(tmp_path):
    settings = {**SMALL, "training.steps": 6, "noise": 0.1, "pushforward": 0.5}
    run = ff.train(waves(), out=tmp_path / "run", settings=settings, console=QUIET)
    assert np.isfinite([row["loss"] for row in run.losses()]).all()
    with pytest.raises(ValueError, match="noise and pushforward are for steps"):
        ff.train(plates(), out=tmp_path / "steady", settings={**SMALL, "noise": 0.1}, console=QUIET)


def test_windows_and_mirror_images_keep_fields_and_inputs_together():
    rng = np.random.default_rng(0)
    T = 1 + rng.random((3, 3, 8, 8))
    data = ff.Dataset.from_arrays({"T": T}, spacing=(1.0, 1.0), time_step=0.5, inputs={"k": 3 * T[:, 0]})
    for options in ({"crop": (4, 3), "rim": 1}, {"points": 20}, {"symmetries": True}):
        samples = Samples(data.source, data.statistics(), **options)
        for _ in range(5):
            item = samples[2]  # the first state of the second simulation, of which k is three times
            state, inputs = (samples.standardise[kind] for kind in ("states", "inputs"))
            shown, given = state.inverse(item.features[:, :1]), inputs.inverse(item.features[:, 1:2])
            assert torch.allclose(given, 3 * shown, rtol=1e-5)
    with pytest.raises(ValueError, match="symmetries are for scalars, v would have to be turned"):
        Samples(waves().source, waves().statistics(), symmetries=True)
    with pytest.raises(ValueError, match="are for grids"):
        Samples(plates().source, plates().statistics(), crop=(3, 3))


@pytest.mark.parametrize("encoding", ["rope", "laape"])
def test_shifting_around_a_periodic_domain_shifts_the_prediction(encoding):
    """RoPE sees no images of keys: its wavelengths divide the period instead."""
    T = np.random.default_rng(0).random((3, 2, 8, 8))
    data = ff.Dataset.from_arrays({"T": T}, spacing=(1.0, 1.0), time_step=0.5, boundary="periodic")
    config = default_run(data, "", encoding, changes={"model.width": 24, "model.heads": 2, "model.depth": 2})
    model = build_network(data.spec, config.encoding, config.model)
    features, cloud = torch.randn(1, 8, 8, 1), data.source.cloud(0)
    where, period = torch.from_numpy(data.spec.normalise_positions(cloud.points)), data.spec.period(cloud.extent)
    with torch.no_grad():
        plain, shifted = (
            model(fields.reshape(1, 64, 1), where, period=period).reshape(1, 8, 8, 1)
            for fields in (features, features.roll((3, 5), (1, 2)))
        )
    assert torch.allclose(plain.roll((3, 5), (1, 2)), shifted, atol=1e-4)
    assert not torch.allclose(plain, shifted, atol=1e-2)


def test_minutes_become_steps_that_are_written_down(tmp_path, monkeypatch):
    """And the data is looked through once, however often training asks for it."""
    looks = []
    monkeypatch.setattr(dataset, "check_source", lambda *_: looks.append("all of it"))
    run = ff.train(
        waves(), out=tmp_path / "run", minutes=0.02, settings={"model.width": 16, "model.depth": 1}, console=QUIET
    )
    assert looks == ["all of it"]
    steps = run.settings()["training"]["steps"]
    assert len(run.losses()) == steps >= 20


def test_finetuning_reports_both_sizes_before_and_after(stepping_run, tmp_path):
    large = waves(2 + 1, cells=(16, 12), seed=2)
    run = ff.finetune(stepping_run.folder, large, out=tmp_path / "tuned", settings={"training.steps": 6}, console=QUIET)
    with (run.folder / "finetune.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["stage"], row["data"], row["scale"]) for row in rows} == {
        (stage, *size) for stage in ("before", "after") for size in (("own", "1"), ("new", "2"))
    }
    # what is tested under "own" are the same simulations before and after, none of them trained on
    tested = {(row["stage"], row["data"]): row["samples"] for row in rows if row["metric"] == "l1_step"}
    assert tested["before", "own"] == tested["after", "own"] == "4" and tested["after", "new"] == "12"
    assert ff.evaluate(run.folder, console=QUIET)[0].scale == "1"  # of the first run
    assert run.dataset()["states"] == stepping_run.dataset()["states"]  # the standardisation stays
    assert run.settings()["training"]["learning_rate"] == pytest.approx(2e-4)
    kept = (run.folder / "finetune.csv").read_text()
    (run.folder / "finetune.csv").unlink()  # as if it had been killed before it was done
    farfield("train", "--resume", run.folder)
    assert (run.folder / "finetune.csv").read_text() == kept


def farfield(*words) -> str:
    result = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_one_state_in_any_file_is_enough_to_predict_from(stepping_run, tmp_path):
    """Whatever else the file holds, and in whatever order; The Well's comes back with its states replaced."""
    large, predictor = waves(1, times=2, cells=(16, 12), seed=1), ff.load(stepping_run.folder)
    points, k = large.source.cloud(0).points, large.source.inputs(0).reshape(16, 12)
    T, v = np.split(large.source.read(0)[0].reshape(16, 12, 3), [1], axis=-1)
    known = {"inputs": {"k": k.ravel()}, "parameters": {"speed": 1.0}}
    expected = predictor.rollout({"v": v.reshape(-1, 2), "T": T.ravel()}, points, 2, **known)
    given = {"inputs/k": k, "parameters/speed": 1.0, "spacing": [1.0, 1.0]}
    np.savez(tmp_path / "grid.npz", **{"states/v": v[None], "states/T": T[None, ..., 0]}, **given)
    flat = {"positions": points, "T": T.ravel(), "v": v.reshape(-1, 2), "k": k.ravel(), "parameters/speed": 1.0}
    np.savez(tmp_path / "points.npz", **flat)
    with h5py.File(tmp_path / "well.hdf5", "w") as file:  # by hand, with only what is needed
        file["dimensions/x"], file["dimensions/y"] = np.arange(16) + 0.5, np.arange(12) + 0.5
        file["t0_fields/T"], file["t0_fields/k"], file["t0_fields/more"] = T[None, None, ..., 0], k[None], k[None]
        for name in ("k", "more"):
            file[f"t0_fields/{name}"].attrs["time_varying"] = False
        file["t1_fields/v"], file["scalars/speed"] = v[None, None], 1.0
    for name in ("grid.npz", "points.npz", "well.hdf5"):
        out = tmp_path / f"from_{name.replace('.', '_')}.npz"
        farfield("predict", "--model", stepping_run.folder, "--input", tmp_path / name, "--out", out, "--steps", 2)
        with np.load(out) as file:
            for field, values in expected.items():
                np.testing.assert_allclose(file[field], values, rtol=1e-5)
    words = ["--input", tmp_path / "well.hdf5", "--out", tmp_path / "next.hdf5", "--steps", 2]
    farfield("predict", "--model", stepping_run.folder, *words)
    with h5py.File(tmp_path / "next.hdf5") as file:
        np.testing.assert_allclose(file["t1_fields/v"][0].reshape(3, -1, 2), expected["v"], rtol=1e-5)
        np.testing.assert_allclose(file["dimensions/time"], [0, 0.5, 1.0])
        np.testing.assert_array_equal(file["t0_fields/more"][0], k)


def test_a_mesh_comes_back_with_what_is_predicted_on_it(steady_run, tmp_path):
    """Where nobody knows the outputs yet: a steady model is for this."""
    points = 2.0 * np.random.default_rng(3).random((60, 2))
    mesh = pv.PolyData(np.pad(points, ((0, 0), (0, 1)))).delaunay_2d().cast_to_unstructured_grid()
    mesh.point_data["d"], mesh.point_data["other"] = np.sin(points[:, 0]), points[:, 1]
    mesh.save(tmp_path / "plate.vtu")
    np.savez(tmp_path / "plate.npz", positions=points, d=np.sin(points[:, 0]))
    for name, out in (("plate.vtu", "T.vtu"), ("plate.npz", "T.npz")):
        farfield("predict", "--model", steady_run.folder, "--input", tmp_path / name, "--out", tmp_path / out)
    expected = ff.load(steady_run.folder).predict(points, inputs={"d": np.sin(points[:, 0])})
    found = pv.read(tmp_path / "T.vtu")
    assert found.n_cells == mesh.n_cells and "other" in found.point_data
    np.testing.assert_allclose(found.point_data["T"], expected["T"], rtol=1e-4)
    np.testing.assert_array_equal(np.load(tmp_path / "T.npz")["T"], expected["T"])


def test_the_commands_go_the_same_way(tmp_path):
    data, large, run = tmp_path / "mine", tmp_path / "large", tmp_path / "run"
    waves().save(data)
    waves(3, cells=(16, 12), seed=1).save(large)
    shown = farfield("check", data)
    assert "waves: a stepping problem, 5 simulations" in shown and "farfield train" in shown
    changes = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    farfield("train", data, "--out", run, *changes)
    farfield("evaluate", run)
    farfield("evaluate", run, "--data", large)
    assert "index.html" in farfield("report", run, "--out", tmp_path / "report")
    assert "after, s = 2" in farfield(
        "finetune", run, "--data", large, "--out", tmp_path / "t", "--set", "training.steps=4"
    )
    out = tmp_path / "next.npz"
    farfield("predict", "--model", run, "--input", data / "simulation_0.npz", "--out", out, "--steps", 2)
    with np.load(out) as file:
        assert file["T"].shape == (3, 48) and file["v"].shape == (3, 48, 2)
    assert "3 states of T, v x, v y on 8 x 6 cells" in farfield("view", out)
    with pytest.raises(ValueError, match="already holds a run"):
        farfield("train", data, "--out", run, *changes)
