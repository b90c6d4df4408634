"""Splits on disk, in The Well's HDF5 layout, and the statistics beside them.

    FOLDER/dataset.yaml                  how it was made: the configuration, all of it
    FOLDER/stats.yaml                    mean, std, rms of the training split's fields and of their changes
    FOLDER/data/<split>/<case>.hdf5 t0_fields/<field> (simulations, states, cells...), dimensions, scalars,
    ... FOLDER/README.md, pictures/ the dataset card

Every file carries its contract (:class:`SampleSpec`), its scale and its provenance as JSON in the attribute
``farfield``. A file is chunked by state (and by tiles of it), with a checksum per chunk, so reading touches
only what is asked for and damage is found.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml
from numpy.typing import NDArray

from farfield.datasets.sample import SampleSpec
from farfield.files import atomic_path
from farfield.geometry.domain import Domain

CHUNK_CELLS = 128  # along each axis: 64 KiB in two dimensions


def split_path(folder: str | Path, case: str, split: str) -> Path:
    return Path(folder) / "data" / split / f"{case}.hdf5"


def write_split(
    path: Path,
    spec: SampleSpec,
    domain: Domain,
    scale: tuple[float, ...],
    states: int,
    simulations: int,
    trajectories: Iterable[NDArray[np.floating]],
    constants: Mapping[str, float],
    provenance: Mapping[str, Any],
) -> None:
    """Write one split, atomically, from batches of (simulations, states, fields, cells...), taken one at a
    time.

    The bytes depend on the arguments only: no times, no paths, no trace of the batches.
    """
    chunk = _chunk(spec, domain, states)
    chunks = simulations * int(np.prod([-(-n // c) for n, c in zip((states, *domain.cells), chunk[1:], strict=True)]))
    size = len(spec.fields) * chunks * (4 * int(np.prod(chunk)) + 200) + (1 << 20)  # index and header included, amply
    try:
        with atomic_path(path) as partial:
            # HDF5 crashes when a write fails, so the room is taken first: once before it opens the file,
            # where a full disk is a plain error, and again after it has emptied the file.
            _reserve(partial, size)
            with h5py.File(partial, "w", libver="v108") as file:
                _reserve(partial, size)
                _write_header(file, spec, domain, scale, states, simulations, constants, provenance)
                done = 0
                for batch in trajectories:
                    for trajectory in batch:  # one by one, so that the file's order does not depend on the batches
                        for index, name in enumerate(spec.fields):
                            file["t0_fields"][name][done] = trajectory[:, index]
                        done += 1
                if done != simulations:
                    raise ValueError(f"expected {simulations} simulations for {path}, got {done}")
            h5py.File(partial, "r+").close()  # gives back what was reserved and not used
    except OSError as error:
        raise OSError(
            f"cannot write {path}: {error}. Nothing is lost: make room (or choose another folder) and run "
            f"the same "
            f"command again, finished splits are kept"
        ) from error


def _chunk(spec: SampleSpec, domain: Domain, states: int) -> tuple[int, ...]:
    """One state per chunk, or in one dimension, where a state is tiny, one simulation."""
    return (1, states if spec.space_dim == 1 else 1, *(min(CHUNK_CELLS, cells) for cells in domain.cells))


def _reserve(path: Path, size: int) -> None:
    with path.open("ab") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _write_header(
    file: h5py.File,
    spec: SampleSpec,
    domain: Domain,
    scale: tuple[float, ...],
    states: int,
    simulations: int,
    constants: Mapping[str, float],
    provenance: Mapping[str, Any],
) -> None:
    file.attrs["dataset_name"] = f"farfield_{spec.case}"
    file.attrs["grid_type"] = "cartesian"
    file.attrs["n_spatial_dims"] = spec.space_dim
    file.attrs["n_trajectories"] = simulations
    file.attrs["simulation_parameters"] = list(constants)
    file.attrs["farfield"] = json.dumps(
        {
            "spec": spec.model_dump(mode="json"),
            "scale": list(scale),
            "extent": list(domain.extent),
            "provenance": dict(provenance),
        },
        sort_keys=True,
    )
    for name, value in constants.items():
        file.attrs[name] = value
    dimensions = file.create_group("dimensions")
    dimensions.attrs["spatial_dims"] = list(spec.axes)
    coordinates = {
        "time": np.arange(states) * spec.time_step,
        **dict(zip(spec.axes, domain.centres(), strict=True)),
    }
    for name, values in coordinates.items():
        dataset = dimensions.create_dataset(name, data=values.astype(np.float32))
        dataset.attrs["sample_varying"] = False
        dataset.attrs["time_varying"] = False
    conditions = file.create_group("boundary_conditions")
    for axis, cells in zip(spec.axes, domain.cells, strict=True):
        condition = conditions.create_group(f"{axis}_{spec.boundary}")
        condition.attrs["associated_dims"] = [axis]
        condition.attrs["associated_fields"] = list(spec.fields)
        condition.attrs["bc_type"] = spec.boundary.upper()
        condition.attrs["sample_varying"] = False
        condition.attrs["time_varying"] = False
        mask = np.zeros(cells, dtype=bool)
        mask[[0, -1]] = True
        condition.create_dataset("mask", data=mask)
    scalars = file.create_group("scalars")
    scalars.attrs["field_names"] = list(constants)
    for name, value in constants.items():
        scalar = scalars.create_dataset(name, data=np.float32(value))
        scalar.attrs["sample_varying"] = False
        scalar.attrs["time_varying"] = False
    fields = file.create_group("t0_fields")
    fields.attrs["field_names"] = list(spec.fields)
    chunk = _chunk(spec, domain, states)
    for name in spec.fields:
        dataset = fields.create_dataset(
            name,
            (simulations, states, *domain.cells),
            np.float32,
            chunks=chunk,
            fletcher32=True,
            track_times=False,
        )
        dataset.attrs["dim_varying"] = [True] * spec.space_dim
        dataset.attrs["sample_varying"] = True
        dataset.attrs["time_varying"] = True
    for order in (1, 2):
        empty = file.create_group(f"t{order}_fields")
        empty.attrs["field_names"] = np.array([], dtype="S1")


class Split:
    """One split's file, read lazily; any number of processes may read at once, each opens it for itself."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no dataset file at {self.path}: make it with `farfield generate`")
        self._file: h5py.File | None = None
        self._owner = 0
        self._in_memory: dict[str, NDArray[np.float32]] = {}
        try:
            header = json.loads(self._open().attrs["farfield"])
            self.spec = SampleSpec.model_validate(header["spec"])
            self.scale = tuple(float(factor) for factor in header["scale"])
            self.provenance: dict[str, Any] = header["provenance"]
            shapes = {self._open()["t0_fields"][name].shape for name in self.spec.fields}
            (shape,) = shapes
            self.simulations, self.states = int(shape[0]), int(shape[1])
            self.domain = Domain(shape[2:], tuple(header["extent"]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a dataset file of farfield: expected The Well's layout with an "
                f"attribute "
                f"'farfield' ({error}). Make it with `farfield generate`"
            ) from error

    def _open(self) -> h5py.File:
        """The file, opened by this process: HDF5 handles must not be shared across a fork."""
        if self._file is None or self._owner != os.getpid():
            try:
                self._file, self._owner = h5py.File(self.path, "r"), os.getpid()
            except OSError as error:
                raise self._damaged(error) from error
        return self._file

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.path} is truncated, damaged or not HDF5 ({error}): delete it and run the same `farfield "
            f"generate` "
            f"again, which makes only what is missing"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def read(
        self, simulations: int | slice, states: int | slice, window: tuple[slice, ...] | None = None
    ) -> NDArray[np.float32]:
        """Fields in physical units, (..., fields, cells...); an integer drops its axis, ``window`` crops."""
        window = window or (slice(None),) * self.domain.space_dim
        try:
            fields = [
                (self._in_memory or self._open()["t0_fields"])[name][simulations, states, *window]
                for name in self.spec.fields
            ]
        except OSError as error:
            raise self._damaged(error) from error
        return np.stack(fields, axis=-1 - self.domain.space_dim)

    def preload(self, at_most: int = 2**30) -> None:
        """Keep the split in memory if it has at most so many bytes: a random read then costs much less."""
        cells = int(np.prod(self.domain.cells))
        if 4 * len(self.spec.fields) * self.simulations * self.states * cells <= at_most:
            try:
                self._in_memory = {name: self._open()["t0_fields"][name][...] for name in self.spec.fields}
            except OSError as error:
                raise self._damaged(error) from error


def open_split(folder: str | Path, split: str) -> Split:
    """Open one split of a dataset folder by name."""
    found = {path.parent.name: path for path in sorted(Path(folder).glob("data/*/*.hdf5"))}
    if not found:
        raise FileNotFoundError(f"no dataset in {folder}: make one with `farfield generate ... --out {folder}`")
    if split not in found:
        raise ValueError(f"unknown split {split!r}: {folder} holds {', '.join(found)}")
    return Split(found[split])


Statistics = dict[str, dict[str, float]]


def compute_statistics(split: Split, stride: int = 1) -> Statistics:
    """Mean, std, rms of each field over all states, and (``*_delta``) of its change over ``stride`` steps."""
    check_stride(split, stride)
    axes = (0, *range(2, 2 + split.domain.space_dim))
    moments = np.zeros((2, 2, len(split.spec.fields)))  # (state, change), (mean, mean of squares), field
    for simulation in range(split.simulations):
        states = split.read(simulation, slice(None)).astype(np.float64)
        for kind, values in enumerate((states, states[stride:] - states[:-stride])):
            moments[kind] += values.mean(axis=axes), (values**2).mean(axis=axes)
    moments /= split.simulations
    statistics: Statistics = {}
    for suffix, (mean, square) in zip(("", "_delta"), moments, strict=True):
        numbers = {"mean": mean, "std": np.sqrt(np.maximum(square - mean**2, 0)), "rms": np.sqrt(square)}
        for name, values in numbers.items():
            statistics[name + suffix] = dict(zip(split.spec.fields, values.tolist(), strict=True))
    return statistics


def check_stride(split: Split, stride: int) -> None:
    if not 1 <= stride < split.states:
        raise ValueError(f"expected a stride of 1 to {split.states - 1} saved steps in {split.path}, got {stride}")


def read_statistics(folder: str | Path, stride: int = 1) -> Statistics:
    """The training split's statistics: those of one saved step are stored, others are computed anew."""
    if stride != 1:
        return compute_statistics(open_split(folder, "train"), stride)
    path = Path(folder) / "stats.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"no statistics at {path}: run `farfield generate` again, it makes only what is missing"
        )
    statistics: Statistics = yaml.safe_load(path.read_text(encoding="utf-8"))
    return statistics
