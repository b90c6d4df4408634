"""``farfield predict`` overwrites nothing unasked, and says where states leave what was seen in training."""

import warnings

import numpy as np
import pytest
import pyvista as pv
from typer.testing import CliRunner

import farfield as ff
from farfield.cli import app
from farfield.data.dataset import Dataset
from farfield.data.opening import open_dataset
from farfield.prediction.files import predict_file
from farfield.prediction.trained import Trained


@pytest.fixture(scope="module")
def water(tmp_path_factory):
    x = np.linspace(0.4, 99.6, 128)
    path = tmp_path_factory.mktemp("water") / "state.npz"
    np.savez(path, positions=x, v=0 * x, h=1 + 0.03 * np.exp(-(((x - 50) / 5) ** 2)))
    return path


def predict(source, out, *more):
    result = CliRunner().invoke(
        app, ["predict", "--model", "swe-laape", "--input", str(source), "--out", str(out), *more]
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_what_exists_is_overwritten_by_force_only(water, tmp_path):
    source, out = tmp_path / "state.npz", tmp_path / "next.npz"
    source.write_bytes(water.read_bytes())
    predict(source, out)
    made = out.read_bytes()
    out.write_bytes(b"of great value")
    with pytest.raises(ValueError, match=r"next\.npz exists: choose another --out, or overwrite with --force"):
        predict(source, out)
    with pytest.raises(ValueError, match=r"state\.npz is the input itself: choose another --out"):
        predict(source, tmp_path / "." / "state.npz")
    assert out.read_bytes() == b"of great value" and source.read_bytes() == water.read_bytes()
    predict(source, out, "--force")
    assert out.read_bytes() == made
    predict(source, source, "--force")
    with np.load(source) as written, np.load(out) as expected:
        np.testing.assert_array_equal(written["h"], expected["h"])
    assert {path.name for path in tmp_path.iterdir()} == {"state.npz", "next.npz"}


@pytest.mark.parametrize(
    ("heights", "said"),
    [
        (lambda h: 1000 * h, r"the given state: h reaches 1030, in training it was 1\.01\d ± 0\.01\d"),
        (lambda h: -h, r"the given state: h reaches -1\.03, in training"),
        (lambda h: 1 + 20 * (h - 1), r"the given state: h reaches 1\.59\d, in training"),
    ],
    ids=["millimetres", "negative", "far"],
)
def test_states_beyond_the_training_range_are_told_with_numbers_once(water, heights, said):
    with np.load(water) as state:
        fields = {"v": state["v"], "h": heights(state["h"])}
        positions = state["positions"]
    model = ff.load("swe-laape")
    with pytest.warns(UserWarning, match=said) as told:
        model.rollout(fields, positions, 2)
    assert sum("h reaches" in str(warning.message) for warning in told) == 1


def test_what_the_model_knows_is_not_warned_of(water):
    with np.load(water) as state, warnings.catch_warnings():
        warnings.simplefilter("error")
        ff.load("swe-laape").rollout({"v": state["v"], "h": state["h"]}, state["positions"], 2)


def test_a_prediction_that_is_no_number_any_more_is_told_at_its_step(water):
    model = ff.load("swe-laape")
    model._change = (model._change[0], model._change[1] * 1e200)  # whatever it predicts is far too much
    with np.load(water) as state, pytest.warns(UserWarning, match=r"step 2: \d+ of 128 values of h are not finite"):
        model.rollout({"v": state["v"], "h": state["h"]}, state["positions"], 3)


def test_a_vtk_file_of_steps_holds_the_last_state_however_many_there_are(tmp_path):
    """Also where there are as many states as points, which look alike."""
    waves = np.random.default_rng(0).normal(size=(1, 4, 6))
    Dataset.from_arrays({"T": waves}, spacing=1.0, time_step=0.5).save(tmp_path / "data")
    spec = open_dataset(tmp_path / "data").spec
    adding = Trained.__new__(Trained)  # a model that adds one in every step
    adding.spec, adding.fields, adding.time_step = spec, spec.fields, spec.time_step
    adding.states = lambda state, points, steps, **_: ({"T": state["T"] + k} for k in range(steps + 1))
    predict_file(adding, tmp_path / "data", tmp_path / "out.vtu", steps=5)
    np.testing.assert_allclose(pv.read(tmp_path / "out.vtu").point_data["T"], waves[0, 0] + 5, rtol=1e-6)
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    for inside in (tmp_path / "data", tmp_path / "data" / "more" / "next.npz"):
        with pytest.raises(ValueError, match="lies in the data that is predicted from: choose another --out"):
            predict_file(adding, tmp_path / "data", inside, force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


def test_a_picture_beside_the_output_is_not_overwritten_either(urban_run, city, tmp_path):
    city.export(tmp_path / "city.stl")
    (tmp_path / "flow.png").write_bytes(b"of great value")
    wind = ["--buildings", str(tmp_path / "city.stl"), "--roughness", "0.3", "--wind-direction", "270"]
    result = CliRunner().invoke(
        app, ["predict", "--model", str(urban_run), *wind, "--out", str(tmp_path / "flow.vtu")], catch_exceptions=True
    )
    assert isinstance(result.exception, ValueError)
    assert "flow.png exists: choose another --out, or overwrite with --force" in str(result.exception)
    assert (tmp_path / "flow.png").read_bytes() == b"of great value" and not (tmp_path / "flow.vtu").exists()
