"""The Well's HDF5 files as they are: any number of them, each with any number of trajectories.

    t0_fields, t1_fields, t2_fields    scalars, vectors, tensors; those that vary in time are the state, others inputs
    scalars                            numbers; those that differ between trajectories or files are parameters
    boundary_conditions                WALL, OPEN or PERIODIC along each axis
    dimensions                         time, and the coordinates along each axis

A trajectory of one time only is a steady problem if ``dataset.yaml`` says which fields are its outputs. What a file
written by hand leaves out (names of fields, what varies) is taken as its arrays suggest; shapes must agree.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.hints import Hints, component_names, make_spec
from farfield.data.source import Cloud
from farfield.data.well_layout import Damaged, Layout, WellField, compare_layouts, opened, read_layout


class WellFiles:
    """All trajectories of some of The Well's files, one after the other, read when they are asked for.

    Any number of processes may read at once, each opens the files for itself.
    """

    remedy = ""  # what to do about a damaged file, for the message

    def __init__(self, paths: Sequence[Path], hints: Hints = Hints()):
        self._layouts = [read_layout(path, self.remedy) for path in paths]
        first = self._layouts[0]
        self.notes: list[str] = []
        for other in self._layouts[1:]:
            compare_layouts(first, other)
        known = {f.name: f for f in first.fields}
        unknowable = hints.to_predict and hints.kind == "steady"
        for name in (*hints.roles, *hints.log, *hints.ignore):
            if name not in {*known, *first.scalars} and not (unknowable and hints.roles.get(name) == "output"):
                told = ", ".join(sorted({*known, *first.scalars}))
                raise ValueError(f"{first.path} has no field {name!r}; it has {told}")
        steady = hints.kind == "steady" or (hints.kind is None and "output" in hints.roles.values())
        self.predicted, self._given = _roles(
            list(hints.chosen(known, "state", "output", "input").values()), hints, steady, first.path
        )
        time_step = None if steady else _time_step(self._layouts, hints)
        self.notes += [f"{f.name} is left out, as asked" for f in first.fields if f.name in hints.ignore]
        names = list(hints.chosen(first.scalars))
        table = np.concatenate([_scalar_rows(layout, names) for layout in self._layouts])
        varying = [hints.contract is not None or bool(np.ptp(table[:, i]) > 0) for i in range(len(names))]
        self._parameters = table[:, varying]
        if not all(varying):
            same = {name: table[0, i] for i, name in enumerate(names) if not varying[i]}
            told = ", ".join(f"{name} = {value:g}" for name, value in same.items())
            self.notes.append(f"the same in every simulation, so nothing is learned from it: {told}")
        for layout in self._layouts:
            self._check_grid(layout)
        self._clouds: dict[int, Cloud] = {}  # made when they are asked for: a part of a large grid needs no more
        spacing = tuple(float(np.median(np.diff(c))) for c in first.coordinates)
        fields, units, vectors = self._channels(self.predicted, first, hints)
        inputs, input_units, more = self._channels(self._given, first, hints)
        if hints.contract is not None and not fields:  # outputs that are not known yet
            fields, units, vectors = hints.contract.fields, hints.contract.field_units, hints.contract.vectors
        told_hints = replace(
            hints, boundary=hints.boundary or first.boundaries, time_step=time_step,
            kind="steady" if steady else "stepping",
        )  # fmt: skip
        self.spec = make_spec(
            told_hints, steady, fields, units, inputs, input_units,
            tuple(name for name, varies in zip(names, varying, strict=True) if varies), {**vectors, **more},
            first.axes, min({layout.extent for layout in self._layouts}, key=np.prod), spacing,
        )  # fmt: skip
        self._where = [(i, j) for i, layout in enumerate(self._layouts) for j in range(layout.trajectories)]
        self.paths = [self._layouts[file].path for file, _ in self._where]
        self._open: dict[int, h5py.File] = {}
        self._owner = os.getpid()
        self._in_memory: dict[tuple[int, str], NDArray[np.float32]] = {}

    @staticmethod
    def _check_grid(layout: Layout) -> None:
        if layout.grid_type != "cartesian":
            raise ValueError(f"{layout.path} has a {layout.grid_type} grid: only cartesian ones are read")
        for axis, values in zip(layout.axes, layout.coordinates, strict=True):
            steps = np.diff(values)
            if len(values) < 2 or (steps <= 0).any():
                raise ValueError(
                    f"{layout.path}: expected at least two rising coordinates along {axis}, got {len(values)}"
                    + ("" if len(values) < 2 else ", not rising")
                )

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
        file = self._where[simulation][0]
        if file not in self._clouds:
            grid = np.meshgrid(*self._layouts[file].coordinates, indexing="ij")
            points = np.stack([axis.ravel() for axis in grid], axis=-1)
            self._clouds[file] = Cloud(points, self._layouts[file].extent, self._shape(file))
        return self._clouds[file]

    @property
    def coordinates(self) -> tuple[NDArray[np.float64], ...]:
        """Along each axis, of the first file."""
        return self._layouts[0].coordinates

    @property
    def extent(self) -> tuple[float, ...]:
        """Of the first file's domain."""
        return self._layouts[0].extent

    def _shape(self, file: int) -> tuple[int, ...]:
        return tuple(map(len, self._layouts[file].coordinates))

    def read(
        self, simulation: int, states: slice = slice(None), block: tuple[slice, ...] | None = None
    ) -> NDArray[np.float32]:
        """(T, N, F); of a block of cells only, where one is given."""
        file, trajectory = self._where[simulation]
        wanted = range(self.states(simulation))[states]
        times = slice(wanted.start, wanted.stop, wanted.step)
        parts = [self._read(file, trajectory, f, times, block) for f in self.predicted]
        if not parts:
            return np.full((len(wanted), int(np.prod(self._shape(file))), len(self.spec.fields)), np.nan, np.float32)
        return np.concatenate(parts, axis=-1)

    def preload(self, at_most: int = 2**31) -> None:
        """Keep everything in memory if it has at most so many bytes: a random read then costs much less."""
        names = [(file, f) for file in range(len(self._layouts)) for f in (*self.predicted, *self._given)]
        if sum(4 * self._dataset(file, f).size for file, f in names) <= at_most:
            for file, f in names:
                with self._naming(file, f.name):
                    self._in_memory[file, f.name] = np.asarray(self._dataset(file, f)[...], dtype=np.float32)

    def inputs(self, simulation: int, block: tuple[slice, ...] | None = None) -> NDArray[np.float32]:
        """(N, I); of a block of cells only, where one is given."""
        file, trajectory = self._where[simulation]
        parts = [self._read(file, trajectory, f, slice(0, 1), block)[0] for f in self._given]
        shape = self._shape(file) if block is None else [cut.stop - cut.start for cut in block]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((int(np.prod(shape)), 0), np.float32)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return self._parameters[simulation]

    def _dataset(self, file: int, field: WellField) -> Any:
        if (file, field.name) in self._in_memory:
            return self._in_memory[file, field.name]
        if self._owner != os.getpid():  # HDF5 handles must not be shared across a fork
            self._open, self._owner = {}, os.getpid()
        if file not in self._open:
            self._open[file] = opened(self._layouts[file].path, self.remedy)
        return self._open[file][field.group][field.name]

    @contextlib.contextmanager
    def _naming(self, file: int, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = self._layouts[file].path
            raise Damaged(f"{path} is truncated, damaged or not HDF5: {what} ({error}){self.remedy}") from None

    def _read(
        self, file: int, trajectory: int, field: WellField, times: slice, block: tuple[slice, ...] | None = None
    ) -> NDArray[np.float32]:
        """(T, N, components)."""
        cuts = block or tuple(slice(0, n) for n in self._shape(file))
        index: list[Any] = [trajectory] if field.sample_varying else []
        if field.time_varying:
            index.append(times)
        index += [cut for cut, varies in zip(cuts, field.dim_varying, strict=True) if varies]
        with self._naming(file, f"{field.name}, trajectory {trajectory}"):
            values = np.asarray(self._dataset(file, field)[tuple(index)], dtype=np.float32)
        if not field.time_varying:
            values = values[None]
        components = values.shape[1 + sum(field.dim_varying) :]
        shape = tuple(cut.stop - cut.start for cut in cuts)
        thin = (n if varies else 1 for n, varies in zip(shape, field.dim_varying, strict=True))
        whole = np.broadcast_to(values.reshape(len(values), *thin, *components), (len(values), *shape, *components))
        return whole.reshape(len(values), int(np.prod(shape)), -1)

    def _channels(
        self, fields: Sequence[WellField], layout: Layout, hints: Hints
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


def _roles(
    fields: Sequence[WellField], hints: Hints, steady: bool, path: Path
) -> tuple[list[WellField], list[WellField]]:
    predicted: list[WellField] = []
    given: list[WellField] = []
    for field in fields:
        default = ("output" if steady else "state") if field.time_varying else "input"
        role = hints.roles.get(field.name, default)
        if role not in ("state", "input", "output"):
            raise ValueError(
                f"{path}: field {field.name} has the unknown role {role!r}: expected state, input or output"
            )
        (given if role == "input" else predicted).append(field)
    if not predicted and not hints.to_predict:
        raise ValueError(f"{path}: no field changes in time, and none is named as output: nothing to predict")
    return predicted, given


def _time_step(layouts: Sequence[Layout], hints: Hints) -> float:
    if hints.time_step is not None:
        return hints.time_step
    steps = {float(np.median(np.diff(layout.times))) for layout in layouts if len(layout.times) > 1}
    steps = {step for step in steps if np.isfinite(step)}
    if not steps and hints.step is not None:
        return hints.step
    if not steps:
        raise ValueError(
            f"{layouts[0].path} has one time only, or none (dimensions/time): expected at least two, a time_step or "
            "outputs in dataset.yaml"
        )
    if max(steps) - min(steps) > 1e-3 * max(steps):
        raise ValueError(
            f"states are {min(steps):g} apart in some files and {max(steps):g} in others: expected one time step"
        )
    return float(f"{max(steps):.6g}")


def _scalar_rows(layout: Layout, names: Sequence[str]) -> NDArray[np.float64]:
    columns = [np.broadcast_to(layout.scalars[name].ravel(), (layout.trajectories,)) for name in names]
    return np.stack(columns, axis=-1) if columns else np.zeros((layout.trajectories, 0))
