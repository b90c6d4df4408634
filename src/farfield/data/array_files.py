"""NPZ and plain HDF5 files as data: arrays by the names that :mod:`.grids` and :mod:`.clouds` tell.

One file holds all simulations of a grid, or each file one simulation, of a grid (``states/<name>`` or
``outputs/<name>``, as :meth:`farfield.data.dataset.Dataset.save` writes) or of points (``positions``). In HDF5 groups
stand for the slashes, and what is not an array may be an attribute of the file; large arrays stay there until they are
asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from farfield.data.clouds import PointClouds, Simulation, cloud_simulation, cloud_spec
from farfield.data.grids import GridArrays, grid_arrays
from farfield.data.hints import Hints
from farfield.data.well_layout import opened
from farfield.files import read_arrays


def read_file(path: Path) -> dict[str, Any]:
    """A file's arrays; ``inputs/k`` becomes ``["inputs"]["k"]``."""
    flat = read_arrays(path) if path.suffix == ".npz" else _read_hdf5(path)
    nested: dict[str, Any] = {}
    for name, array in flat.items():
        group, slash, inner = name.partition("/")
        if slash:
            nested.setdefault(group, {})[inner] = array if array.ndim else array[()].item()
        else:
            nested[name] = array
    return nested


def _read_hdf5(path: Path) -> dict[str, Any]:
    """Datasets by their names, which are read when they are asked for, and attributes."""
    file = opened(path)
    flat: dict[str, Any] = {name: np.asarray(value) for name, value in file.attrs.items()}

    def add(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            flat[name] = item if item.ndim > 1 else np.asarray(item[()])

    file.visititems(add)
    return {name: array.astype(str) if array.dtype.kind in "SO" else array for name, array in flat.items()}


def array_files(paths: Sequence[Path], hints: Hints, spacing: Sequence[float] | None) -> GridArrays | PointClouds:
    """The simulations in some files."""
    first = read_file(paths[0])
    if "positions" in first:
        return _clouds(paths, hints)
    widths = first.pop("spacing", spacing)
    if widths is None:
        raise ValueError(f"{paths[0]} has neither positions nor spacing: add one, or `spacing: [...]` to dataset.yaml")
    if "states" in first or "outputs" in first:
        return _grids(paths, hints, spacing)
    if len(paths) > 1:
        raise ValueError(
            f"expected one file with all simulations of a grid, or one for each as `save` writes, got {len(paths)}"
        )
    inputs, parameters = first.pop("inputs", {}), first.pop("parameters", {})
    if "time_step" in first:
        step = float(np.asarray(first.pop("time_step")))
        hints = replace(hints, time_step=step if hints.time_step is None else hints.time_step)
    if "boundary" in first:
        told = [str(name) for name in np.atleast_1d(first.pop("boundary"))]
        hints = replace(hints, boundary=hints.boundary or (told[0] if len(told) == 1 else told))
    fields = {name: array for name, array in first.items() if name not in hints.ignore}
    for name, role in hints.roles.items():
        if role == "input" and name in fields:
            inputs[name] = fields.pop(name)
    missing = sorted(set(hints.roles) - set(fields) - set(inputs))
    if unknown := [name for name in missing if not (hints.to_predict and hints.roles[name] == "output")]:
        raise ValueError(f"{paths[0]} has no field {unknown[0]!r}; it has {', '.join([*fields, *inputs])}")
    return grid_arrays(
        fields, spacing=np.atleast_1d(widths).tolist(), inputs=inputs, parameters=parameters, hints=hints
    )


def _clouds(paths: Sequence[Path], hints: Hints) -> PointClouds:
    some = [read_file(path) for path in paths[:8]]
    spec = cloud_spec(some[0], hints, some)

    def reader(path: Path) -> Any:
        return lambda: cloud_simulation(read_file(path), spec, str(path), hints)

    return PointClouds(spec, [reader(path) for path in paths], paths=paths)


def _grids(paths: Sequence[Path], hints: Hints, spacing: Sequence[float] | None) -> PointClouds:
    """One grid per file: read as clouds whose points are the cells."""
    sample = grid_arrays(**_grid_of_one(read_file(paths[0]), spacing), hints=hints)

    def reader(path: Path) -> Any:
        def read() -> Any:
            try:
                one = grid_arrays(**_grid_of_one(read_file(path), spacing), hints=hints)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            for what in ("fields", "inputs", "parameters"):
                ours, theirs = getattr(sample.spec, what), getattr(one.spec, what)
                if ours != theirs:
                    raise ValueError(
                        f"{path} has the {what} {', '.join(theirs) or 'none'}, {paths[0].name} has "
                        f"{', '.join(ours) or 'none'}: all simulations of a dataset have the same"
                    )
            if not np.allclose(one.spec.spacing, sample.spec.spacing, rtol=1e-3):
                raise ValueError(
                    f"cells are {one.spec.spacing} wide in {path}, {sample.spec.spacing} in {paths[0].name}: all "
                    "simulations of a dataset share one spacing"
                )
            return Simulation(one.cloud(0), one.read(0), one.inputs(0), one.parameters(0))

        return read

    return PointClouds(sample.spec, [reader(path) for path in paths], paths=paths)


def _grid_of_one(item: Mapping[str, Any], spacing: Sequence[float] | None) -> dict[str, Any]:
    fields = item.get("states", item.get("outputs", {}))
    widths = item.get("spacing", spacing)
    if widths is None or not isinstance(fields, Mapping):
        raise ValueError(f"expected spacing and states/NAME or outputs/NAME as in the others, got {', '.join(item)}")
    return {
        "fields": {name: np.asarray(array)[None] for name, array in fields.items()},
        "spacing": np.atleast_1d(widths).tolist(),
        "inputs": {name: np.asarray(array)[None] for name, array in item.get("inputs", {}).items()},
        "parameters": {name: [number] for name, number in item.get("parameters", {}).items()},
    }
