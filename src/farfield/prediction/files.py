"""Files of states in, files of predicted states out: NumPy, and HDF5 in The Well's layout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.files import atomic_path, check_memory, read_arrays
from farfield.prediction.stepping import Predictor


def predict_file(predictor: Predictor, source: str | Path, out: str | Path, steps: int, start: int = 0) -> None:
    """Predict ``steps`` steps from the states in ``source`` into ``out``, of the same format.

    ``start`` says which of an HDF5 file's states to begin with. Raises ``ValueError`` where the file does not hold
    what the model needs; ``out`` then stays as it was.
    """
    source, out = Path(source), Path(out)
    if not source.is_file():
        raise FileNotFoundError(f"no file {source}")
    if source.suffix not in (".npz", ".hdf5", ".h5") or out.suffix != source.suffix:
        raise ValueError(
            f"expected input and output both as .npz (NumPy) or .hdf5 (The Well's layout), got {source.name} and "
            f"{out.name}"
        )
    if source.suffix == ".npz":
        _predict_npz(predictor, source, out, steps)
    else:
        _predict_hdf5(predictor, source, out, steps, start)


def _predict_npz(predictor: Predictor, source: Path, out: Path, steps: int) -> None:
    arrays, positions, boundary = read_states(source)
    predicted = predictor.rollout(arrays, positions, steps, boundary=boundary)
    written: dict[str, Any] = {"positions": positions, "time": np.arange(steps + 1) * predictor.time_step, **predicted}
    if boundary is not None:
        written["boundary"] = boundary
    with atomic_path(out) as partial, partial.open("wb") as opened:
        np.savez(opened, **written)


def read_states(source: Path) -> tuple[dict[str, NDArray], NDArray, NDArray | None]:
    """Fields, positions and boundary flags, if there are any, of an .npz file."""
    arrays = read_arrays(source)
    positions, boundary = arrays.pop("positions", None), arrays.pop("boundary", None)
    if positions is None:
        raise ValueError(f"{source} has no array 'positions', it has {', '.join(arrays) or 'no arrays'}")
    arrays.pop("time", None)  # as in the files written here
    return arrays, positions, boundary


def _predict_hdf5(predictor: Predictor, source: Path, out: Path, steps: int, start: int) -> None:
    """The output is the input with its states replaced: dimensions, boundary conditions and constants are kept."""
    with open_states(predictor, source, start) as (file, centres, fields):
        cells = tuple(len(axis) for axis in centres)
        first = {name: dataset[:, start].reshape(len(dataset), -1) for name, dataset in fields.items()}
        points = np.stack([axis.ravel() for axis in np.meshgrid(*centres, indexing="ij")], axis=-1)
        predicted = predictor.states(first, points, steps)
        with atomic_path(out) as partial:
            copy_frame(predictor, file, partial, steps, start)
            with h5py.File(partial, "r+") as written:
                for time, state in enumerate(predicted):
                    for name, values in state.items():
                        written["t0_fields"][name][:, time] = _grid(values, cells)


@contextmanager
def open_states(
    predictor: Predictor, source: Path, start: int, parts: int = 1
) -> Iterator[tuple[h5py.File, list[NDArray[np.float64]], dict[str, h5py.Dataset]]]:
    """A file in The Well's layout, open: itself, the cells' centres along each axis, and the model's fields.

    One of so many ``parts`` of a state must fit into memory.
    """
    try:
        file = h5py.File(source, "r")
    except OSError as error:
        raise ValueError(f"{source} is truncated, damaged or not HDF5 ({error})") from None
    with file:
        try:
            coordinates = [file["dimensions"][axis] for axis in predictor.axes]
            fields = {name: file["t0_fields"][name] for name in predictor.fields}
            simulations = next(iter(fields.values())).shape[:1]
            needed = 8 * math.prod([*simulations, *(axis.size for axis in coordinates)])
            check_memory(needed * (len(fields) + len(coordinates)) // parts, f"one state of {source}")
            centres = [np.asarray(axis, dtype=np.float64) for axis in coordinates]
        except KeyError as error:
            raise ValueError(
                f"{source} is not a file of {predictor.problem} in The Well's layout: expected dimensions/"
                f"{', '.join(predictor.axes)} and t0_fields/{', '.join(predictor.fields)} ({error.args[0]})"
            ) from None
        cells = tuple(len(axis) for axis in centres)
        for name, dataset in fields.items():
            if dataset.ndim != 2 + len(cells) or dataset.shape[2:] != cells:
                raise ValueError(
                    f"{source}: {name} must have the shape (simulations, states, {', '.join(map(str, cells))}), got "
                    f"{dataset.shape}"
                )
        states = next(iter(fields.values())).shape[1]
        if not -states <= start < states:
            raise ValueError(f"{source} has {states} states, there is no state {start} to start from")
        try:
            yield file, centres, fields
        except OSError as error:
            if "Can't" in str(error) and "read" in str(error):  # HDF5's words
                raise ValueError(f"{source} is truncated or damaged ({error})") from None
            raise


def copy_frame(predictor: Predictor, file: h5py.File, path: Path, steps: int, start: int) -> None:
    """A new file with all of an old one but its states, and room for ``steps`` predicted ones."""
    cells = tuple(len(file["dimensions"][axis]) for axis in predictor.axes)
    with h5py.File(path, "w") as written:
        for name, value in file.attrs.items():
            written.attrs[name] = value
        for name in file:
            if name not in ("t0_fields", "dimensions"):
                file.copy(name, written)
        _copy_all_but(file["dimensions"], written.create_group("dimensions"), {"time"})
        _copy_all_but(file["t0_fields"], written.create_group("t0_fields"), set(predictor.fields))
        begin = float(np.asarray(file["dimensions"]["time"])[start]) if "time" in file["dimensions"] else 0.0
        times = written["dimensions"].create_dataset(
            "time", data=(begin + np.arange(steps + 1) * predictor.time_step).astype(np.float32)
        )
        times.attrs.update({"sample_varying": False, "time_varying": False})
        for name in predictor.fields:
            dataset = file["t0_fields"][name]
            shape = (len(dataset), steps + 1, *cells)
            made = written["t0_fields"].create_dataset(name, shape, np.float32, chunks=(1, 1, *cells))
            made.attrs.update(dict(dataset.attrs))


def _grid(values: NDArray, cells: tuple[int, ...]) -> NDArray[np.float32]:
    return values.reshape(-1, *cells).astype(np.float32)


def _copy_all_but(source: h5py.Group, target: h5py.Group, left_out: set[str]) -> None:
    for name, value in source.attrs.items():
        target.attrs[name] = value
    for name in source:
        if name not in left_out:
            source.copy(name, target)
