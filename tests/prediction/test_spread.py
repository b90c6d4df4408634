"""A domain that is predicted in parts gives the files that it gives as a whole."""

import subprocess
import sys

import h5py
import numpy as np
import pytest
import pyvista as pv
import torch

import farfield as ff
from farfield.attention import InTurn
from farfield.data.spec import SampleSpec
from farfield.models import PatchTokens
from farfield.prediction.files import predict_file
from farfield.prediction.stepping import Predictor

CELLS = (20, 13)


@pytest.fixture(scope="module")
def predictor():
    return untrained()


def untrained(tokens=None):
    """A predictor of two axes, with weights that were never trained."""
    torch.manual_seed(0)
    encoding = ff.LAAPE(300.0, rotary=ff.RoPE(min_wavelength=250, max_wavelength=2000))
    options = {"encoding": encoding, "tokens": tokens, "width": 16, "depth": 2, "heads": 2, "backend": "tiled"}
    model = ff.TransformerOperator(4, 2, 2, tolerance=1e-7, **options)
    for parameter in model.parameters():  # a network of patches begins with zeros
        torch.nn.init.normal_(parameter, std=0.1)
    spec = SampleSpec(
        problem="mine", fields=("u", "v"), field_units=("", ""), axes=("x", "y"), length_unit="m",
        training_extent=(8.0, 8.0), spacing=(1.0, 1.0), boundary="wall", time_step=0.5, time_unit="s",
    )  # fmt: skip
    moments = {kind: {"mean": [0.0, 0.1], "std": [1.0, 0.8]} for kind in ("states", "changes")}
    return Predictor(model, {"spec": spec.model_dump(mode="json"), **moments}, "laape")


@pytest.fixture
def states(tmp_path):
    """The same states as points and as a grid."""
    rng = np.random.default_rng(0)
    u, v = rng.normal(size=(2, *CELLS)).astype(np.float32)
    x, y = (np.arange(n) + 0.5 for n in CELLS)
    points = np.stack([axis.ravel() for axis in np.meshgrid(x, y, indexing="ij")], axis=-1)
    mixed = rng.permutation(len(points))
    flat = {"u": u.ravel()[mixed], "v": v.ravel()[mixed]}
    np.savez(tmp_path / "in.npz", positions=points[mixed], **flat)
    with h5py.File(tmp_path / "in.hdf5", "w") as file:
        file.attrs["n"] = 3
        for axis, centres in (("x", x), ("y", y)):
            file[f"dimensions/{axis}"] = centres
        for name, values in (("u", u), ("v", v)):
            file[f"t0_fields/{name}"] = values[None, None]
    return tmp_path


@pytest.mark.parametrize("patches", [False, True])
@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_files_of_a_group_equal_those_of_one(states, ending, patches):
    predictor = untrained(PatchTokens(4, 125.0) if patches else None)
    source, whole, parts = (states / f"{name}.{ending}" for name in ("in", "whole", "parts"))
    predict_file(predictor, source, whole, steps=2)
    predict_file(predictor, source, parts, parts=InTurn(3, states).run, steps=2)
    if ending == "npz":
        one, three = np.load(whole), np.load(parts)
        assert set(one) == set(three)
        for name in one:
            np.testing.assert_allclose(three[name], one[name], atol=1e-5)
    else:
        with h5py.File(whole) as one, h5py.File(parts) as three:
            assert three.attrs["n"] == 3
            for name in ("dimensions/time", "t0_fields/u", "t0_fields/v"):
                np.testing.assert_allclose(three[name], one[name], atol=1e-5)
    assert sorted(path.name for path in states.iterdir()) == sorted(
        ["in.npz", "in.hdf5", whole.name, parts.name]
    )  # nothing that waited, nothing half-written


def test_pieces_open_in_vtk_and_equal_the_single_file(predictor, states):
    predict_file(predictor, states / "in.npz", states / "whole.npz")
    whole = np.load(states / "whole.npz")
    predict_file(predictor, states / "in.npz", states / "parts.pvtu", parts=InTurn(3).run)
    mesh = pv.read(states / "parts.pvtu")
    order, expected = (np.lexsort(p[:, :2].T) for p in (mesh.points, whole["positions"]))
    np.testing.assert_allclose(mesh.points[order, :2], whole["positions"][expected])
    for name in ("u", "v"):
        np.testing.assert_allclose(mesh[name][order], whole[name][1][expected], atol=1e-5)
    predict_file(predictor, states / "in.hdf5", states / "grid.pvti", parts=InTurn(3).run)
    image = pv.read(states / "grid.pvti")
    assert image.dimensions == (CELLS[0] + 1, CELLS[1] + 1, 2)
    centres = image.cell_centers().points
    order = np.lexsort(centres[:, :2].T)
    np.testing.assert_allclose(centres[order, :2], whole["positions"][expected])
    np.testing.assert_allclose(image["v"][order], whole["v"][1][expected], atol=1e-5)


def test_a_failing_part_leaves_nothing_behind(predictor, states):
    before = sorted(states.iterdir())

    def spread(work):
        def member(group):
            if group.rank == 1:
                group.maximum = lambda values: 1 / 0
            return work(group)

        return InTurn(2).run(member)

    for ending, source in (("hdf5", "in.hdf5"), ("pvtu", "in.npz"), ("npz", "in.npz")):
        with pytest.raises(ZeroDivisionError):
            predict_file(predictor, states / source, states / f"out.{ending}", parts=spread)
        assert sorted(states.iterdir()) == before


def test_fewer_points_than_members(predictor, states):
    rng = np.random.default_rng(1)
    few = {"positions": np.array([[0.5, 0.5], [3.5, 2.5]]), "u": rng.normal(size=(3, 2)), "v": rng.normal(size=(3, 2))}
    np.savez(states / "few.npz", **few)
    one, five = states / "one.npz", states / "five.npz"
    predict_file(predictor, states / "few.npz", one)
    predict_file(predictor, states / "few.npz", five, parts=InTurn(5).run)
    for name in ("positions", "u", "v"):
        np.testing.assert_allclose(np.load(five)[name], np.load(one)[name], atol=1e-5)
    np.savez(states / "single.npz", **{name: a if name == "positions" else a[0] for name, a in few.items()})
    predict_file(predictor, states / "single.npz", states / "few.pvtu", parts=InTurn(5).run)
    assert pv.read(states / "few.pvtu").n_points == 2


def test_a_folder_that_not_all_can_write_is_refused(predictor, states):
    (states / "file").write_text("")
    with pytest.raises(OSError, match="member 1 of 2 cannot write"):
        predict_file(predictor, states / "in.npz", states / "file" / "out.npz", parts=InTurn(2).run)


def test_the_command_shares_a_domain_among_processes(tmp_path):
    x = np.linspace(0, 300, 385)[:-1]
    state = {"h": 1 + 0.1 * np.exp(-(((x - 100) / 5) ** 2)), "v": np.zeros_like(x)}
    np.savez(tmp_path / "in.npz", positions=x, **state)
    command = [sys.executable, "-m", "farfield", "predict", "--model", "swe-laape", "--devices", "2"]
    files = ["--input", tmp_path / "in.npz", "--out", tmp_path / "out.npz"]
    done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("predicted") == 1
    found, whole = np.load(tmp_path / "out.npz"), ff.load("swe-laape", device="cpu").rollout(state, x, 1)
    for name, values in {"positions": x, **whole}.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 2
