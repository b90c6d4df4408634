"""Whatever is wrong with own data, `farfield check` and `farfield train` say what and where, before any training."""

import shutil
import sys

import h5py
import numpy as np
import pytest
import yaml
from test_dataset import plane_mesh, well_file

from farfield import cli
from farfield.data.dataset import Dataset


def saved(folder, simulations=5, cells=(8, 6)):
    """One NPZ per simulation, of T and a vector v."""
    rng = np.random.default_rng(0)
    T, v = 1 + rng.random((simulations, 4, *cells)), rng.random((simulations, 4, *cells, 2))
    Dataset.from_arrays({"T": T, "v": v}, spacing=(0.5, 0.25), time_step=0.1).save(folder)
    return folder


def changed(path, **arrays):
    """An NPZ file with some arrays replaced (None: left out)."""
    with np.load(path) as file:
        held = dict(file) | arrays
    np.savez(path, **{name: array for name, array in held.items() if array is not None})


def different_shapes(folder):
    folder.mkdir()
    grids = {"T": np.ones((6, 4, 8, 6)), "S": np.ones((6, 4, 8, 7))}
    np.savez(folder / "all.npz", **grids, spacing=[0.5, 0.25], time_step=0.1)


def different_shapes_in_a_file(folder):
    changed(saved(folder) / "simulation_3.npz", **{"states/T": np.ones((4, 8, 5))})


def nan(folder):
    T = np.ones((4, 8, 6))
    T[2, 3, 2] = np.nan
    changed(saved(folder) / "simulation_3.npz", **{"states/T": T})


def single(folder):
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.savez(folder / "all.npz", T=rng.random((1, 4, 8, 6)), spacing=[0.5, 0.25], time_step=0.1)


def other_spacing(folder):
    changed(saved(folder) / "simulation_3.npz", spacing=np.array([0.5, 0.3]))


def other_spacing_of_the_well(folder):
    well_file(folder / "a.hdf5")
    well_file(folder / "b.hdf5", dx=0.6)


def meshes(folder, scale=1.0, without=None):
    folder.mkdir()
    for number in range(4):
        mesh = plane_mesh(40, number)
        if number == 2:
            mesh.points *= scale
        for name in ("T", "d"):
            if (number, name) != without:
                mesh.point_data[name] = np.random.default_rng(number).random(mesh.n_points)
        mesh.save(folder / f"plate_{number}.vtu")
    (folder / "dataset.yaml").write_text(yaml.safe_dump({"fields": {"T": {"role": "output"}, "d": {"role": "input"}}}))


def missing_field(folder):
    changed(saved(folder) / "simulation_3.npz", **{"states/v": None})


def missing_field_of_the_well(folder):
    well_file(folder / "a.hdf5")
    well_file(folder / "b.hdf5", leave_out=("velocity",))


def role(folder):
    saved(folder)
    described = yaml.safe_load((folder / "dataset.yaml").read_text())
    described["fields"]["T"]["role"] = "outcome"
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))


def units(folder):
    for name, unit in (("a", "kg/m3"), ("b", "g/cm3")):
        well_file(folder / f"{name}.hdf5")
        with h5py.File(folder / f"{name}.hdf5", "r+") as file:
            file["t0_fields/density"].attrs["units"] = unit


def validation_is_training(folder):
    well_file(folder / "data/train/a.hdf5")
    well_file(folder / "data/test/a.hdf5")
    (folder / "data/valid").mkdir()
    shutil.copy(folder / "data/train/a.hdf5", folder / "data/valid/a.hdf5")


def splits_overlap(folder):
    saved(folder)
    described = yaml.safe_load((folder / "dataset.yaml").read_text())
    described["splits"] = {"train": [0, 1, 2], "validation": [2], "test": [4]}
    (folder / "dataset.yaml").write_text(yaml.safe_dump(described))


def one_cell(folder):
    folder.mkdir()
    np.savez(folder / "all.npz", T=np.ones((6, 4, 8, 1)), spacing=[0.5, 0.25], time_step=0.1)


def one_cell_of_the_well(folder):
    well_file(folder / "a.hdf5", cells=(6, 1))


def changing_mesh(folder):
    folder.mkdir()
    for time, points in enumerate((40, 41)):
        mesh = plane_mesh(points)
        mesh.point_data["T"] = np.ones(points)
        mesh.save(folder / f"run_{time}.vtu")
    (folder / "dataset.yaml").write_text("time_step: 0.5\n")


BAD = {
    "fields of different shapes": (different_shapes, r"field S must have the shape \(6, 4, 8, 6\), as T has"),
    "shapes in one file": (different_shapes_in_a_file, r"simulation_3\.npz: field v must have the shape"),
    "NaN": (nan, r"simulation_3\.npz, state 2: T holds 1 values that are NaN or infinite, the first at point 20"),
    "one simulation": (single, "at least three simulations, one each to train on, to validate and to test, got 1"),
    "spacing": (
        other_spacing,
        r"cells are \(0\.5, 0\.3\) wide in .*simulation_3\.npz, \(0\.5, 0\.25\) in simulation_0",
    ),
    "The Well's spacing": (other_spacing_of_the_well, r"cells are 0\.6 wide along x in .*b\.hdf5, 0\.5 in .*a\.hdf5"),
    "spacing of points": (
        lambda folder: meshes(folder, scale=1000.0),
        r"plate_2\.vtu: its points lie .* apart, in other simulations .*: all simulations .* share one spacing",
    ),
    "missing state": (missing_field, r"simulation_3\.npz has the fields T, simulation_0\.npz has T, v_x, v_y"),
    "The Well's missing state": (missing_field_of_the_well, r"b\.hdf5 has no field 'velocity'"),
    "a mesh's missing field": (
        lambda folder: meshes(folder, without=(2, "T")),
        r"plate_2\.vtu has no point data 'T'; it has d",
    ),
    "unknown role": (role, r"fields\.T\.role: Input should be 'state', 'input' or 'output'"),
    "units": (units, r"field density is in g/cm3 in .*b\.hdf5, in kg/m3 in .*a\.hdf5"),
    "validation is training": (
        validation_is_training,
        r"train/a\.hdf5, trajectory 0 \(train\) and .*valid/a\.hdf5, trajectory 0 \(validation\) are the same",
    ),
    "splits overlap": (splits_overlap, "simulation 2 is in train and in validation: a model must not be judged"),
    "one cell": (one_cell, r"at least two cells along every axis, got \(8, 1\): leave out an axis of one cell"),
    "The Well's one cell": (one_cell_of_the_well, "at least two rising coordinates along y, got 1"),
    "a mesh that changes": (changing_mesh, "has 41 points .*: a simulation's mesh must not change in time"),
}


def refused(monkeypatch, capsys, *words) -> str:
    """What a command says that is refused: one line."""
    monkeypatch.setattr(sys, "argv", ["farfield", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code not in (0, None)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_refused_before_any_training(case, tmp_path, monkeypatch, capsys):
    make, message = BAD[case]
    make(tmp_path / "mine")
    for words in (["check", tmp_path / "mine"], ["train", tmp_path / "mine", "--out", tmp_path / "run"]):
        with pytest.raises(ValueError, match=message):
            raise ValueError(refused(monkeypatch, capsys, *words))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_decay_lengths_longer_than_the_domain_are_refused(tmp_path, monkeypatch, capsys):
    words = ["train", saved(tmp_path / "mine"), "--out", tmp_path / "run", "--set", "encoding.decay_length=5000"]
    said = refused(monkeypatch, capsys, *words)
    assert "encoding.decay_length 5000 is longer than the domain, which is 1000 wide in units of position" in said
    assert not (tmp_path / "run" / "config.yaml").exists()
