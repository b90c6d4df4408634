"""A user's own data: what is understood of it, what is refused, and that nothing is lost on the way."""

import itertools

import h5py
import numpy as np
import pytest
import pyvista as pv
import yaml
from hypothesis import given
from hypothesis import strategies as st

from farfield.data.dataset import Dataset
from farfield.data.opening import open_dataset
from farfield.data.splits import default_splits

RNG = np.random.default_rng(0)


def grid(simulations=6, times=4, cells=(8, 6)):
    return RNG.random((simulations, times, *cells)) + 1


def from_arrays(**changes) -> Dataset:
    simulations = 6
    options = {
        "fields": {"T": grid(), "v": RNG.random((simulations, 4, 8, 6, 2))},
        "spacing": (0.5, 0.25),
        "time_step": 0.1,
        "boundary": ["periodic", "wall"],
        "inputs": {"k": RNG.random((simulations, 8, 6)) + 1},
        "parameters": {"Pe": np.arange(simulations) + 1.0},
        "units": {"T": "K"},
        "log": ["k"],
        **changes,
    }
    return Dataset.from_arrays(options.pop("fields"), **options)


def clouds(count=5, steady=True, **more):
    items = []
    for i in range(count):
        points = 12 + 3 * i
        values = {"p": RNG.random(points), "u": RNG.random((points, 2))}
        item = {
            "positions": RNG.random((points, 2)),
            "inputs": {"d": RNG.random(points)},
            "parameters": {"Re": 10.0 + i},
        }
        if steady:
            item["outputs"] = values
        else:
            item["states"] = {name: RNG.random((3, *array.shape)) for name, array in values.items()}
        items.append(item | more)
    return items


def assert_same(one: Dataset, other: Dataset) -> None:
    assert one.spec == other.spec
    assert one.splits == other.splits
    for i in range(len(one)):
        np.testing.assert_array_equal(one.source.read(i), other.source.read(i))
        np.testing.assert_array_equal(one.source.inputs(i), other.source.inputs(i))
        np.testing.assert_array_equal(one.source.parameters(i), other.source.parameters(i))
        a, b = one.source.cloud(i), other.source.cloud(i)
        np.testing.assert_allclose(a.points - a.points[0], b.points - b.points[0], atol=1e-12)
        assert a.cells == b.cells and a.extent == pytest.approx(b.extent)


# --- what is understood ----------------------------------------------------------------------------------------------
def test_arrays_become_channels_in_order():
    T, v = grid(), RNG.random((6, 4, 8, 6, 2))
    data = from_arrays(fields={"T": T, "v": v})
    assert data.spec.fields == ("T", "v_x", "v_y")
    assert data.spec.features == ("T", "v_x", "v_y", "k", "boundary_y")  # x is periodic, it has no ends
    read = data.source.read(2, slice(1, 3))
    np.testing.assert_array_equal(read[..., 0], T[2, 1:3].reshape(2, -1).astype(np.float32))
    np.testing.assert_array_equal(read[..., 2], v[2, 1:3, ..., 1].reshape(2, -1).astype(np.float32))
    assert data.spec.period((4.0, 1.5)) == (1000.0, None)  # the widest axis is 1000 wide, all axes by the same factor
    assert data.spec.position_scale == (250.0, 250.0)


def test_a_dataset_says_what_was_understood():
    shown = str(from_arrays())
    for part in (
        "own-data: a stepping problem, 6 simulations of 8x6 cells, 4 states 0.1 apart",
        "T [K]:",
        "v_x",
        "inputs      k: ln ",
        "parameters  Pe: 3.5",
        "x: 4, 0.5 wide cells, periodic",
        "decay lengths 0.5, 0.375",
    ):
        assert part in shown, shown


@given(simulations=st.integers(3, 200))
def test_splits_are_disjoint_and_whole(simulations):
    splits = default_splits(simulations)
    assert sorted(itertools.chain(*splits.values())) == list(range(simulations))
    assert all(splits.values())
    assert len(splits["train"]) >= len(splits["validation"]) == len(splits["test"])


def test_simulations_may_be_left_out_of_all_splits():
    T = grid()
    T[5] = T[0]  # the same twice, but one of them is not used
    data = from_arrays(fields={"T": T}, inputs={}, parameters={}, log=(), splits={"train": [0, 1], "validation": [2]})
    data.check()
    assert data.splits["test"] == []


@pytest.mark.parametrize("kind", ["grid", "steady grid", "points", "points in time"])
def test_what_is_saved_is_what_is_read(tmp_path, kind):
    if kind == "grid":
        data = from_arrays()
    elif kind == "steady grid":
        data = from_arrays(fields={"T": RNG.random((6, 8, 6))}, time_step=None)
    else:
        steady = kind == "points"
        data = Dataset.from_points(clouds(steady=steady), time_step=None if steady else 0.5, boundary="wall")
    data.save(tmp_path / "saved")
    assert_same(open_dataset(tmp_path / "saved"), data)
    with pytest.raises(ValueError, match="already holds a dataset"):
        data.save(tmp_path / "saved")


def test_one_npz_holds_a_grids_simulations(tmp_path):
    T, k = grid(), RNG.random((6, 8, 6))
    more = {"inputs/k": k, "parameters/Pe": np.arange(6.0)}
    np.savez(tmp_path / "all.npz", T=T, spacing=[0.5, 0.25], time_step=0.1, boundary="periodic", **more)
    expected = Dataset.from_arrays(
        {"T": T},
        spacing=(0.5, 0.25),
        time_step=0.1,
        boundary="periodic",
        inputs={"k": k},
        parameters={"Pe": np.arange(6.0)},
    )
    assert_same(open_dataset(tmp_path / "all.npz"), expected)
    assert_same(open_dataset(tmp_path), expected)


@pytest.mark.parametrize("steady", [False, True])
def test_plain_hdf5_is_read_as_it_is_and_when_it_is_asked_for(tmp_path, steady):
    rng = np.random.default_rng(0)
    T, k = rng.random((5, 8, 6) if steady else (5, 4, 8, 6)), rng.random((5, 8, 6))
    with h5py.File(tmp_path / "mine.h5", "w") as file:
        file["T"], file["inputs/k"], file["parameters/Pe"] = T, k, np.arange(5.0)
        file.attrs["spacing"] = [0.5, 0.25]
        file.attrs["boundary"] = ["periodic", "wall"]
        if not steady:
            file.attrs["time_step"] = 0.1
    data = open_dataset(tmp_path / "mine.h5")
    assert data.spec.kind == ("steady" if steady else "stepping") and data.spec.boundaries == ("periodic", "wall")
    assert isinstance(data.source._fields[0], h5py.Dataset)
    np.testing.assert_array_equal(data.source.read(3)[..., 0], T[3].reshape(-1, 48).astype(np.float32))
    np.testing.assert_array_equal(data.source.inputs(2)[:, 0], k[2].ravel().astype(np.float32))
    assert data.source.parameters(4).tolist() == [4.0]
    data.check()


def test_statistics_are_those_of_numpy():
    data = from_arrays()
    train = data.splits["train"]
    states = np.stack([data.source.read(i) for i in train]).astype(np.float64)
    found = data.statistics()
    np.testing.assert_allclose(found["states"]["mean"], states.mean((0, 1, 2)), rtol=1e-9)
    np.testing.assert_allclose(found["changes"]["std"], np.diff(states, axis=1).std((0, 1, 2)), rtol=1e-9)
    logs = np.log(np.stack([data.source.inputs(i) for i in train]).astype(np.float64))
    np.testing.assert_allclose(found["inputs"]["std"], logs.std((0, 1)), rtol=1e-9)


# --- The Well --------------------------------------------------------------------------------------------------------
def well_file(path, trajectories=2, times=3, cells=(6, 4), reynolds=10.0, dx=0.5, leave_out=()):
    """A file written by hand to The Well's specification: scalar, vector, constant fields, scalars, a periodic axis."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "density": RNG.random((trajectories, times, *cells)).astype(np.float32),
        "velocity": RNG.random((trajectories, times, *cells, 2)).astype(np.float32),
        "mask": RNG.random(cells).astype(np.float32),
        "stripe": RNG.random((trajectories, cells[1])).astype(np.float32),
    }
    with h5py.File(path, "w") as file:
        file.attrs.update(
            {"dataset_name": "toy", "grid_type": "cartesian", "n_spatial_dims": 2, "n_trajectories": trajectories}
        )
        file.attrs["simulation_parameters"] = ["Re"]
        file.attrs["Re"] = reynolds
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        for name, array in {
            "time": 0.25 * np.arange(times),
            "x": dx * np.arange(cells[0]),
            "y": 2.0 * np.arange(cells[1]),
        }.items():
            made = dimensions.create_dataset(name, data=array.astype(np.float32))
            made.attrs.update({"sample_varying": False, "time_varying": False})
        conditions = file.create_group("boundary_conditions")
        for axis, kind, cells_ in (("x", "PERIODIC", cells[0]), ("y", "WALL", cells[1])):
            condition = conditions.create_group(f"{axis}_{kind}")
            condition.attrs.update({"bc_type": kind, "sample_varying": False, "time_varying": False})
            condition.attrs["associated_dims"], condition.attrs["associated_fields"] = [axis], ["density"]
            mask = np.zeros(cells_, dtype=bool)
            mask[[0, -1]] = True
            condition.create_dataset("mask", data=mask)
        scalars = file.create_group("scalars")
        scalars.attrs["field_names"] = ["Re", "seed"]
        for name, value, varies in (
            ("Re", np.float32(reynolds), False),
            ("seed", np.arange(trajectories, dtype=np.float32), True),
        ):
            scalars.create_dataset(name, data=value).attrs.update({"sample_varying": varies, "time_varying": False})
        layout = {
            "t0_fields": {
                "density": (True, True, [True, True]),
                "mask": (False, False, [True, True]),
                "stripe": (True, False, [False, True]),
            },
            "t1_fields": {"velocity": (True, True, [True, True])},
            "t2_fields": {},
        }
        for group, fields in layout.items():
            made = file.create_group(group)
            names = [name for name in fields if name not in leave_out]
            made.attrs["field_names"] = names if names else np.array([], dtype="S1")
            for name in names:
                sample, time, dims = fields[name]
                data = made.create_dataset(name, data=values[name])
                data.attrs.update({"sample_varying": sample, "time_varying": time, "dim_varying": dims})
    return values


def test_a_file_of_the_well_is_read_as_it_is(tmp_path):
    first = well_file(tmp_path / "data/train/a.hdf5", reynolds=10.0)
    second = well_file(tmp_path / "data/train/b.hdf5", trajectories=3, reynolds=20.0)
    well_file(tmp_path / "data/valid/c.hdf5", reynolds=30.0)
    well_file(tmp_path / "data/test/d.hdf5", reynolds=40.0)
    data = open_dataset(tmp_path)
    spec = data.spec
    assert spec.fields == ("density", "velocity_x", "velocity_y") and spec.inputs == ("mask", "stripe")
    assert spec.parameters == ("Re", "seed") and spec.boundaries == ("periodic", "wall")
    assert (spec.time_step, spec.spacing, spec.training_extent) == (0.25, (0.5, 2.0), (3.0, 8.0))
    assert [len(data.splits[name]) for name in ("train", "validation", "test")] == [5, 2, 2]
    files = sorted(["train/a", "train/b", "valid/c", "test/d"], key=lambda name: f"data/{name}")
    start = sum(
        {"train/a": 2, "train/b": 3, "valid/c": 2, "test/d": 2}[name] for name in files[: files.index("train/b")]
    )
    read = data.source.read(start + 1)
    np.testing.assert_array_equal(read[..., 0], second["density"][1].reshape(3, -1))
    np.testing.assert_array_equal(read[..., 1:], second["velocity"][1].reshape(3, -1, 2))
    inputs = data.source.inputs(start + 1)
    np.testing.assert_array_equal(inputs[:, 0], second["mask"].ravel())
    np.testing.assert_array_equal(inputs[:, 1].reshape(6, 4), np.broadcast_to(second["stripe"][1], (6, 4)))
    assert data.source.parameters(start + 1).tolist() == [20.0, 1.0]
    np.testing.assert_array_equal(data.source.cloud(0).points[1], [0.0, 2.0])
    assert not np.array_equal(first["density"], second["density"])
    data.check()


def test_the_wells_boundaries_are_read(tmp_path):
    well_file(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["boundary_conditions/y_WALL"].attrs["bc_type"] = "OPEN"
    assert open_dataset(tmp_path / "a.hdf5").spec.boundaries == ("periodic", "open")
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["boundary_conditions/y_WALL"].attrs["bc_type"] = "SYMMETRIC"
    with pytest.raises(ValueError, match="SYMMETRIC is none of WALL, OPEN, PERIODIC"):
        open_dataset(tmp_path / "a.hdf5")


def test_the_wells_own_reader_agrees(tmp_path):
    from the_well.data import WellDataset

    for split in ("train", "valid", "test"):
        well_file(tmp_path / "toy/data" / split / "a.hdf5")
    theirs = WellDataset(path=str(tmp_path / "toy"), well_split_name="train", n_steps_input=1, n_steps_output=1)
    item, ours = theirs[0], open_dataset(tmp_path / "toy")
    simulation = ours.splits["train"][0]
    now = ours.source.read(simulation, slice(0, 1))[0].reshape(6, 4, 3)
    np.testing.assert_array_equal(item["input_fields"][0].numpy(), now)


# --- VTK -------------------------------------------------------------------------------------------------------------
def plane_mesh(points=40, seed=0):
    cloud = np.random.default_rng(seed).random((points, 2))
    return pv.PolyData(np.column_stack([cloud, np.zeros(points)])).delaunay_2d().cast_to_unstructured_grid()


@pytest.mark.parametrize("where", ["point", "cell"])
@pytest.mark.parametrize("ending", ["vtu", "vtk"])
def test_meshes_with_their_fields_are_read(tmp_path, where, ending):
    for i in range(4):
        mesh = plane_mesh(40 + i, i)
        data = mesh.point_data if where == "point" else mesh.cell_data
        count = mesh.n_points if where == "point" else mesh.n_cells
        data["T"] = np.arange(count, dtype=float)
        data["u"] = RNG.random((count, 3))
        data["d"] = RNG.random(count)
        mesh.field_data["Re"] = [100.0 * (i + 1)]
        mesh.save(tmp_path / f"case_{i}.{ending}")
    (tmp_path / "dataset.yaml").write_text(
        yaml.safe_dump({"fields": {"T": {"role": "output"}, "u": {"role": "output"}, "d": {"role": "input"}}})
    )
    data = open_dataset(tmp_path)
    assert data.spec.kind == "steady" and data.spec.axes == ("x", "y")
    assert data.spec.fields == ("T", "u_x", "u_y") and data.spec.inputs == ("d",) and data.spec.parameters == ("Re",)
    mesh = plane_mesh(42, 2)
    points = mesh.points if where == "point" else mesh.cell_centers().points
    np.testing.assert_allclose(data.source.cloud(2).points, points[:, :2], atol=1e-6)
    np.testing.assert_array_equal(data.source.read(2)[0, :, 0], np.arange(len(points)))
    assert data.source.parameters(2).tolist() == [300.0]


@pytest.mark.parametrize("ending", ["vtu", "vtp", "vts", "vti", "vtk", "pvd"])
def test_every_kind_of_vtk_is_read_in_time(tmp_path, ending):
    """Three simulations of four states: numbered files of one kind, or a .pvd that names them with their times."""
    rng = np.random.default_rng(0)
    image = pv.ImageData(dimensions=(5, 4, 1), spacing=(0.1, 0.2, 1.0))
    mesh = {
        "vti": image,
        "vts": image.cast_to_structured_grid(),
        "vtp": image.extract_surface(algorithm="dataset_surface"),
    }.get(ending, image.cast_to_unstructured_grid())
    expected = rng.random((3, 4, mesh.n_points))
    file_ending = "vtu" if ending == "pvd" else ending
    for run in range(3):
        for time in range(4):
            mesh.point_data["T"] = expected[run, time]
            mesh.save(tmp_path / f"run{run}_{time:02d}.{file_ending}")
        if ending == "pvd":
            entries = [f'<DataSet timestep="{0.5 * t}" part="0" file="run{run}_{t:02d}.vtu"/>' for t in range(4)]
            content = '<VTKFile type="Collection" version="0.1"><Collection>' + "".join(entries)
            (tmp_path / f"run{run}.pvd").write_text(content + "</Collection></VTKFile>")
    if ending != "pvd":
        (tmp_path / "dataset.yaml").write_text("time_step: 0.5\n")
    data = open_dataset(tmp_path)
    assert (len(data), data.source.states(0), data.spec.kind, data.spec.time_step) == (3, 4, "stepping", 0.5)
    for run in range(3):
        np.testing.assert_array_equal(data.source.read(run)[..., 0], expected[run].astype(np.float32))
    np.testing.assert_allclose(data.source.cloud(1).points, mesh.points[:, :2], atol=1e-6)


# --- what is refused -------------------------------------------------------------------------------------------------
def nan_in(simulation, state):
    T = grid()
    T[simulation, state, 3, 2] = np.nan
    return T


BAD_ARRAYS = {
    "fields of different shapes": (
        {"fields": {"T": grid(), "S": grid(cells=(8, 7))}},
        r"field S must have the shape \(6, 4, 8, 6\), as T has",
    ),
    "NaN": (
        {"fields": {"T": nan_in(4, 2)}},
        r"simulation 4, state 2: T holds 1 values that are NaN or infinite, the first at point 20",
    ),
    "one simulation": (
        {"fields": {"T": grid(1)}, "inputs": {}, "parameters": {}, "log": ()},
        "at least three simulations",
    ),
    "one time": ({"fields": {"T": grid(times=1)}}, "at least two times"),
    "one cell": ({"fields": {"T": grid(cells=(8, 1))}, "inputs": {}, "log": ()}, "leave out an axis of one cell"),
    "no fields": ({"fields": {}}, "at least one field"),
    "unknown boundary": ({"boundary": "round"}, "boundary must be one of wall, open, periodic"),
    "too many boundaries": ({"boundary": ["wall"] * 3}, "one boundary, or one per axis x, y"),
    "parameter per state": (
        {"parameters": {"Pe": np.zeros((6, 4))}},
        r"parameter Pe must hold one number per simulation \(6,\)",
    ),
    "constant parameter": ({"parameters": {"Pe": np.ones(6)}}, "Pe is the same in all"),
    "still field": (
        {"fields": {"T": np.repeat(grid(times=1), 4, axis=1)}},
        "T never changes from one state to the next",
    ),
    "log of negative": (
        {"inputs": {"k": -np.ones((6, 8, 6))}},
        "k is to be learned on a logarithmic scale but holds -1",
    ),
    "text": ({"fields": {"T": np.full((6, 4, 8, 6), "a")}}, "T must hold real numbers"),
    "no time axis": (
        {"fields": {"T": RNG.random((6, 8, 6))}},
        r"field T must have the shape \(simulations, times, nx, ny\)",
    ),
    "validation is training": (
        {"splits": {"train": [0, 1, 2], "validation": [2], "test": []}},
        "simulation 2 is in train and in validation",
    ),
    "split beyond": (
        {"splits": {"train": [0, 9], "validation": [2], "test": []}},
        "split train names simulation 9, there are 6",
    ),
    "same name twice": ({"inputs": {"T": RNG.random((6, 8, 6))}, "log": ()}, "got T as a field and as an input"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays_are_refused(case):
    changes, message = BAD_ARRAYS[case]
    with pytest.raises(ValueError, match=message):
        from_arrays(**changes).check()


def test_bad_clouds_are_refused():
    other = clouds()
    other[3]["outputs"].pop("p")
    with pytest.raises(ValueError, match="simulation 3: expected the fields p, u, got u"):
        Dataset.from_points(other)
    other = clouds()
    other[2]["inputs"]["d"] = np.zeros(7)
    with pytest.raises(ValueError, match=r"simulation 2: d must have the shape \(18,\), got \(7,\)"):
        Dataset.from_points(other)
    other = clouds()
    other[1]["positions"][4, 1] = np.inf
    with pytest.raises(ValueError, match="simulation 1: positions must be finite"):
        Dataset.from_points(other)
    other = clouds()
    del other[4]["parameters"]["Re"]
    with pytest.raises(ValueError, match="simulation 4: expected the parameters Re, got none"):
        Dataset.from_points(other)
    with pytest.raises(ValueError, match="a problem in time needs time_step"):
        Dataset.from_points(clouds(steady=False))


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data at"):
        open_dataset(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no data that can be read"):
        open_dataset(tmp_path / "empty")
    well_file(tmp_path / "one/a.hdf5")
    well_file(tmp_path / "one/b.hdf5", leave_out=("mask",))
    with pytest.raises(ValueError, match=r"b\.hdf5 has no field 'mask'"):
        open_dataset(tmp_path / "one")
    well_file(tmp_path / "two/a.hdf5")
    well_file(tmp_path / "two/b.hdf5", dx=0.6)
    with pytest.raises(ValueError, match=r"cells are 0\.6 wide along x in .*b\.hdf5, 0\.5 in"):
        open_dataset(tmp_path / "two")
    (tmp_path / "two/b.hdf5").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"b\.hdf5 is truncated, damaged or not HDF5"):
        open_dataset(tmp_path / "two")
    (tmp_path / "one/b.hdf5").unlink()
    (tmp_path / "one/dataset.yaml").write_text("fields: {mask: {role: wall}}")
    with pytest.raises(
        ValueError, match=r"dataset\.yaml: fields\.mask\.role: Input should be 'state', 'input' or 'output'"
    ):
        open_dataset(tmp_path / "one")
    (tmp_path / "one/dataset.yaml").write_text("felds: {}")
    with pytest.raises(ValueError, match="unknown key 'felds': did you mean 'fields'"):
        open_dataset(tmp_path / "one")
    (tmp_path / "one/dataset.yaml").write_text("fields: {pressure: {role: state}}")
    with pytest.raises(ValueError, match="has no field 'pressure'; it has Re, density"):
        open_dataset(tmp_path / "one")
