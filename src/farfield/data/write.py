"""Writing a split (:mod:`.generated`): The Well's HDF5 layout, in one step, the same bytes for the same arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.domain import Domain
from farfield.data.spec import SampleSpec
from farfield.files import atomic_path

CHUNK_CELLS = 128  # along each axis: 64 KiB in two dimensions


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
    file.attrs["dataset_name"] = f"farfield_{spec.problem}"
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
    for axis, cells, boundary in zip(spec.axes, domain.cells, spec.boundaries, strict=True):
        condition = conditions.create_group(f"{axis}_{boundary}")
        condition.attrs["associated_dims"] = [axis]
        condition.attrs["associated_fields"] = list(spec.fields)
        condition.attrs["bc_type"] = boundary.upper()
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
