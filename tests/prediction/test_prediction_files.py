import h5py
import numpy as np
import pytest

import farfield as ff
from farfield.data.generated import open_split, split_path
from farfield.prediction.files import predict_file


@pytest.fixture
def states(reproduced):
    """The predictor, and the first states of s = 2 as (simulations, N) per field, with their positions."""
    plan, out, _ = reproduced
    split = open_split(plan.data, "s2")
    first = np.stack([split.grids(simulation)[0] for simulation in range(len(split))])
    fields = {name: first[:, i].reshape(len(first), -1) for i, name in enumerate(split.spec.fields)}
    return ff.load(out / "laape-seed0"), fields, split.domain.points()


def test_a_numpy_file_gives_what_the_predictor_gives(states, tmp_path):
    predictor, fields, points = states
    np.savez(tmp_path / "in.npz", positions=points, **fields)
    predict_file(predictor, tmp_path / "in.npz", tmp_path / "out.npz", steps=2)
    expected = predictor.rollout(fields, points, 2)
    with np.load(tmp_path / "out.npz") as out:
        assert set(out) == {"positions", "time", *fields}
        np.testing.assert_allclose(out["time"], np.arange(3) * predictor.time_step)
        for name, values in expected.items():
            np.testing.assert_array_equal(out[name], values)


def test_an_hdf5_file_comes_back_with_its_states_replaced(states, reproduced, tmp_path):
    predictor, fields, points = states
    plan, *_ = reproduced
    source = split_path(plan.data, plan.problem.name, "s2")
    predict_file(predictor, source, tmp_path / "out.hdf5", steps=2)
    expected = predictor.rollout(fields, points, 2)
    with h5py.File(source) as before, h5py.File(tmp_path / "out.hdf5") as after:
        assert dict(after.attrs).keys() == dict(before.attrs).keys()
        assert set(after["boundary_conditions"]) == set(before["boundary_conditions"])
        for axis in predictor.axes:
            np.testing.assert_array_equal(after["dimensions"][axis], before["dimensions"][axis])
        for name, values in expected.items():
            dataset = after["t0_fields"][name]
            assert dataset.shape == (2, 3, *before["t0_fields"][name].shape[2:])
            np.testing.assert_allclose(dataset[...].reshape(2, 3, -1), values.swapaxes(0, 1), rtol=1e-6)
    predict_file(predictor, tmp_path / "out.hdf5", tmp_path / "further.hdf5", start=-1)  # reads what it wrote
    with h5py.File(tmp_path / "further.hdf5") as further:
        assert float(further["dimensions/time"][1]) == pytest.approx(3 * predictor.time_step)


def test_bad_files_are_named_and_nothing_is_written(states, tmp_path):
    predictor, fields, points = states
    out = tmp_path / "out.npz"

    def refused(message: str, name: str = "in.npz", to=out, **options) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            predict_file(predictor, tmp_path / name, to, **options)
        assert not to.exists()

    refused("no file")
    np.savez(tmp_path / "in.npz", **fields)
    refused("has no array 'positions'")
    one = next(iter(fields))
    np.savez(tmp_path / "in.npz", positions=points, **{one: fields[one]})
    refused("expected the fields")
    np.savez(tmp_path / "in.npz", positions=points, **{**fields, one: fields[one] * np.nan})
    refused("NaN")
    (tmp_path / "in.npz").write_bytes((tmp_path / "in.npz").read_bytes()[:100])
    refused("truncated, damaged or not a NumPy")
    refused(r"a name ending in \.npz, .* for --out, got out\.csv", to=tmp_path / "out.csv")
    (tmp_path / "in.hdf5").write_bytes(b"\x89HDF")
    refused("truncated, damaged or not HDF5", "in.hdf5", tmp_path / "out.hdf5")
    with h5py.File(tmp_path / "in.hdf5", "w") as file:
        file.create_group("dimensions")
    refused("lacks|has no field|trained with", "in.hdf5", tmp_path / "out.hdf5")
