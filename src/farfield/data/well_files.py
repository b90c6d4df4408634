"""The Well's HDF5 files as they are: any number of them, each with any number of trajectories.

    t0_fields, t1_fields, t2_fields    scalars, vectors, tensors; those that vary in time are the state, others inputs
    scalars                            numbers; those that differ between trajectories or files are parameters
    boundary_conditions                WALL, OPEN or PERIODIC along each axis
    dimensions                         time, and the coordinates along each axis

A trajectory of one time only is a steady problem if ``dataset.yaml`` says which fields are its outputs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.hints import BOUNDARIES, Hints, component_names, make_spec
from farfield.data.source import Cloud

_ORDERS = ("t0_fields", "t1_fields", "t2_fields")


@dataclass(frozen=True)
class _Field:
    """One dataset of a file, and how to read a trajectory of it."""

    group: str
    name: str
    order: int
    time_varying: bool
    sample_varying: bool
    dim_varying: tuple[bool, ...]


@dataclass(frozen=True)
class _Layout:
    """What one file holds."""

    path: Path
    trajectories: int
    times: NDArray[np.float64]
    axes: tuple[str, ...]
    coordinates: tuple[NDArray[np.float64], ...]
    fields: tuple[_Field, ...]
    scalars: dict[str, NDArray[np.float64]]
    boundaries: tuple[str, ...]
    grid_type: str
    units: dict[str, str]


class WellFiles:
    """All trajectories of some of The Well's files, one after the other, read when they are asked for."""

    def __init__(self, paths: Sequence[Path], hints: Hints = Hints()):
        self._layouts = [_layout(path) for path in paths]
        first = self._layouts[0]
        self.notes: list[str] = []
        for other in self._layouts[1:]:
            _compare(first, other)
        fields = [f for f in first.fields if f.name not in hints.ignore]
        known = {f.name for f in first.fields} | set(first.scalars)
        for name in (*hints.roles, *hints.log, *hints.ignore):
            if name not in known:
                raise ValueError(f"{first.path} has no field {name!r}; it has {', '.join(sorted(known))}")
        steady = hints.kind == "steady" or (hints.kind is None and "output" in hints.roles.values())
        self._predicted, self._given = _roles(fields, hints, steady, first.path)
        time_step = None if steady else _time_step(self._layouts, hints)
        self.notes += [f"{f.name} is left out, as asked" for f in first.fields if f.name in hints.ignore]
        names = [name for name in first.scalars if name not in hints.ignore]
        table = np.concatenate([_scalar_rows(layout, names) for layout in self._layouts])
        varying = [bool(np.ptp(table[:, i]) > 0) for i in range(len(names))]
        self.constants = {name: float(table[0, i]) for i, name in enumerate(names) if not varying[i]}
        self._parameters = table[:, varying]
        if self.constants:
            told = ", ".join(f"{name} = {value:g}" for name, value in self.constants.items())
            self.notes.append(f"the same in every simulation, so nothing is learned from it: {told}")
        self._clouds = [_cloud(layout) for layout in self._layouts]
        spacing = tuple(float(np.median(np.diff(c))) for c in first.coordinates)
        fields_, units, vectors = self._channels(self._predicted, first, hints)
        inputs, input_units, more = self._channels(self._given, first, hints)
        boundary = hints.boundary or first.boundaries
        told_hints = Hints(
            **{
                **hints.__dict__,
                "boundary": boundary,
                "time_step": time_step,
                "kind": "steady" if steady else "stepping",
            }
        )
        extents = {cloud.extent for cloud in self._clouds}
        self.spec = make_spec(
            told_hints, steady, fields_, units, inputs, input_units,
            tuple(name for name, varies in zip(names, varying, strict=True) if varies), {**vectors, **more},
            first.axes, min(extents, key=np.prod), spacing,
        )  # fmt: skip
        self._where = [(i, j) for i, layout in enumerate(self._layouts) for j in range(layout.trajectories)]
        self.paths = [self._layouts[file].path for file, _ in self._where]
        self._open: dict[int, h5py.File] = {}
        self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}}

    def __len__(self) -> int:
        return len(self._where)

    def name(self, simulation: int) -> str:
        file, trajectory = self._where[simulation]
        return f"{self._layouts[file].path}, trajectory {trajectory}"

    def states(self, simulation: int) -> int:
        layout = self._layouts[self._where[simulation][0]]
        return 1 if self.spec.kind == "steady" else len(layout.times)

    def cloud(self, simulation: int) -> Cloud:
        return self._clouds[self._where[simulation][0]]

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        file, trajectory = self._where[simulation]
        wanted = range(self.states(simulation))[states]
        parts = [
            self._read(file, trajectory, f, slice(wanted.start, wanted.stop, wanted.step)) for f in self._predicted
        ]
        return np.concatenate(parts, axis=-1)

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        file, trajectory = self._where[simulation]
        parts = [self._read(file, trajectory, f, slice(0, 1))[0] for f in self._given]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((len(self._clouds[file]), 0), np.float32)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return self._parameters[simulation]

    def _file(self, number: int) -> h5py.File:
        if self._owner != os.getpid():  # HDF5 handles must not be shared across a fork
            self._open, self._owner = {}, os.getpid()
        if number not in self._open:
            self._open[number] = _opened(self._layouts[number].path)
        return self._open[number]

    def _read(self, file: int, trajectory: int, field: _Field, times: slice) -> NDArray[np.float32]:
        """(T, N, components)."""
        layout, cells = self._layouts[file], self._clouds[file].cells
        assert cells is not None
        dataset = self._file(file)[field.group][field.name]
        index: list[Any] = [trajectory] if field.sample_varying else []
        if field.time_varying:
            index.append(times)
        try:
            values = np.asarray(dataset[tuple(index)], dtype=np.float32)
        except OSError as error:
            raise ValueError(f"{layout.path} is damaged at {field.name}, trajectory {trajectory} ({error})") from None
        if not field.time_varying:
            values = values[None]
        components = values.shape[1 + sum(field.dim_varying) :]
        shape = (
            len(values),
            *(n if varies else 1 for n, varies in zip(cells, field.dim_varying, strict=True)),
            *components,
        )
        whole = np.broadcast_to(values.reshape(shape), (len(values), *cells, *components))
        return whole.reshape(len(values), int(np.prod(cells)), -1)

    def _channels(
        self, fields: Sequence[_Field], layout: _Layout, hints: Hints
    ) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
        names: list[str] = []
        units: list[str] = []
        vectors = {}
        for field in fields:
            parts: tuple[str, ...] = (field.name,)
            if field.order == 1:
                parts = vectors[field.name] = component_names(field.name, len(layout.axes), layout.axes)
            elif field.order == 2:
                pairs = itertools.product(layout.axes, repeat=2)
                parts = vectors[field.name] = tuple(f"{field.name}_{a}{b}" for a, b in pairs)
            names.extend(parts)
            units.extend([hints.units.get(field.name, layout.units.get(field.name, ""))] * len(parts))
        return tuple(names), tuple(units), vectors


def is_the_wells(path: Path) -> bool:
    """Whether a file of HDF5 is in The Well's layout, or means to be: plain arrays have none of its groups."""
    with _opened(path) as file:
        return bool({"dimensions", "boundary_conditions", *_ORDERS} & set(file))


def _opened(path: Path) -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is not an HDF5 file, or truncated ({error})") from None


def _layout(path: Path) -> _Layout:
    with _opened(path) as file:
        try:
            axes = tuple(_text(a) for a in file["dimensions"].attrs["spatial_dims"])
            fields = [
                _Field(
                    group, _text(name), order, bool(data.attrs["time_varying"]), bool(data.attrs["sample_varying"]),
                    tuple(bool(v) for v in data.attrs["dim_varying"]),
                )
                for order, group in enumerate(_ORDERS)
                if group in file
                for name in _names(file[group])
                for data in [file[group][name]]
            ]  # fmt: skip
            coordinates = []
            for axis in axes:
                values = np.asarray(file["dimensions"][axis], dtype=np.float64)
                if values.ndim > 1:
                    values = values.reshape(-1, values.shape[-1])
                    if np.ptp(values, axis=0).any():
                        raise ValueError(
                            f"its coordinates {axis} differ between trajectories: one file per mesh is read"
                        )
                    values = values[0]
                coordinates.append(values)
            times = (
                np.asarray(file["dimensions"]["time"], dtype=np.float64)
                if "time" in file["dimensions"]
                else np.zeros(1)
            )
            scalars = {}
            for name in _names(file["scalars"]) if "scalars" in file else ():
                if not file["scalars"][name].attrs["time_varying"]:
                    scalars[_text(name)] = np.atleast_1d(np.asarray(file["scalars"][name], dtype=np.float64))
            units = {
                f.name: _text(file[f.group][f.name].attrs["units"])
                for f in fields
                if "units" in file[f.group][f.name].attrs
            }
            return _Layout(
                path, int(file.attrs["n_trajectories"]), times[0] if times.ndim > 1 else times, axes,
                tuple(coordinates), tuple(fields), scalars, _boundaries(file, axes),
                _text(file.attrs.get("grid_type", "cartesian")), units,
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"{path} is not in The Well's layout: it lacks {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _boundaries(file: h5py.File, axes: tuple[str, ...]) -> tuple[str, ...]:
    found = dict.fromkeys(axes, "open")
    for condition in file.get("boundary_conditions", {}).values():
        kind = _text(condition.attrs["bc_type"]).lower()
        if kind not in BOUNDARIES:
            raise ValueError(f"its boundary condition {kind.upper()} is none of WALL, OPEN, PERIODIC")
        for axis in map(_text, condition.attrs["associated_dims"]):
            found[axis] = kind
    return tuple(found.values())


def _compare(first: _Layout, other: _Layout) -> None:
    """All files of a dataset hold the same fields, on grids of the same spacing."""
    ours, theirs = ({f.name: (f.order, f.time_varying) for f in layout.fields} for layout in (first, other))
    if missing := sorted(set(ours) ^ set(theirs)):
        lacking = other.path if missing[0] in ours else first.path
        raise ValueError(
            f"{lacking} has no field {missing[0]!r}, other files of the dataset have it ({first.path.name})"
        )
    for name, kind in ours.items():
        if theirs[name] != kind:
            raise ValueError(
                f"field {name} is of another kind (order, varying in time) in {other.path} than in {first.path}"
            )
    if other.axes != first.axes or other.boundaries != first.boundaries or set(other.scalars) != set(first.scalars):
        raise ValueError(
            f"{other.path} differs from {first.path} in axes, boundaries or scalars: "
            f"{other.axes} {other.boundaries} {sorted(other.scalars)}, "
            f"{first.axes} {first.boundaries} {sorted(first.scalars)}"
        )
    for axis, a, b in zip(first.axes, first.coordinates, other.coordinates, strict=True):
        ours_, theirs_ = (float(np.median(np.diff(c))) for c in (a, b))
        if abs(ours_ - theirs_) > 1e-3 * abs(ours_):
            raise ValueError(
                f"cells are {theirs_:g} wide along {axis} in {other.path}, {ours_:g} in {first.path}: all "
                "simulations of a dataset share one spacing"
            )
    for name, unit in first.units.items():
        if other.units.get(name, unit) != unit:
            raise ValueError(f"field {name} is in {other.units[name]} in {other.path}, in {unit} in {first.path}")


def _cloud(layout: _Layout) -> Cloud:
    if layout.grid_type != "cartesian":
        raise ValueError(f"{layout.path} has a {layout.grid_type} grid: only cartesian ones are read")
    for axis, values in zip(layout.axes, layout.coordinates, strict=True):
        steps = np.diff(values)
        if len(values) < 2 or (steps <= 0).any():
            raise ValueError(
                f"{layout.path}: expected at least two rising coordinates along {axis}, got {len(values)}"
                + ("" if len(values) < 2 else ", not rising")
            )
    grid = np.meshgrid(*layout.coordinates, indexing="ij")
    extent = tuple(float(len(c) * np.median(np.diff(c))) for c in layout.coordinates)
    cells = tuple(len(c) for c in layout.coordinates)
    return Cloud(np.stack([axis.ravel() for axis in grid], axis=-1), extent, cells)


def _roles(fields: Sequence[_Field], hints: Hints, steady: bool, path: Path) -> tuple[list[_Field], list[_Field]]:
    predicted: list[_Field] = []
    given: list[_Field] = []
    for field in fields:
        default = ("output" if steady else "state") if field.time_varying else "input"
        role = hints.roles.get(field.name, default)
        if role not in ("state", "input", "output"):
            raise ValueError(
                f"{path}: field {field.name} has the unknown role {role!r}: expected state, input or output"
            )
        (given if role == "input" else predicted).append(field)
    if not predicted:
        raise ValueError(f"{path}: no field changes in time, and none is named as output: nothing to predict")
    return predicted, given


def _time_step(layouts: Sequence[_Layout], hints: Hints) -> float:
    if hints.time_step is not None:
        return hints.time_step
    steps = {float(np.median(np.diff(layout.times))) for layout in layouts if len(layout.times) > 1}
    if not steps:
        raise ValueError(
            f"{layouts[0].path} has one time only: expected at least two states, or outputs in dataset.yaml"
        )
    if max(steps) - min(steps) > 1e-3 * max(steps):
        raise ValueError(
            f"states are {min(steps):g} apart in some files and {max(steps):g} in others: expected one time step"
        )
    return float(f"{max(steps):.6g}")


def _scalar_rows(layout: _Layout, names: Sequence[str]) -> NDArray[np.float64]:
    columns = [np.broadcast_to(layout.scalars[name].ravel(), (layout.trajectories,)) for name in names]
    return np.stack(columns, axis=-1) if columns else np.zeros((layout.trajectories, 0))


def _names(group: h5py.Group) -> list[str]:
    return [_text(name) for name in group.attrs["field_names"]]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
