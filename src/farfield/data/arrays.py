"""A user's own arrays as data: grids of any number of axes, and points without a grid; in memory, NPZ or HDF5 files.

A grid's file holds, by these names:

    <field>                (simulations, times, cells...), components of vectors last; a steady one without times
    spacing                (P,) the cells' widths; or coordinates, one array per axis: x, y, z
    time_step              one number; a steady problem has none
    boundary               "wall", "open" or "periodic", one or one per axis
    inputs/<name>          (simulations, cells...), what is given and does not change
    parameters/<name>      (simulations,)

A file of points is one simulation: positions (N, P), and outputs/<name> (N,) or (N, components), or for a problem in
time states/<name> (times, N) or (times, N, components); inputs/<name>, parameters/<name> likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from farfield.data.domain import Domain
from farfield.data.source import Cloud
from farfield.data.spec import Boundary, SampleSpec

AXES = ("x", "y", "z")
BOUNDARIES = ("wall", "open", "periodic")


@dataclass(frozen=True)
class Hints:
    """What a user says about data beside the numbers: all optional, all by name."""

    problem: str = "own-data"
    kind: str | None = None
    boundary: str | Sequence[str] | None = None
    time_step: float | None = None
    time_unit: str = ""
    length_unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()


class GridArrays:
    """Grids in memory, memory-mapped or in an HDF5 file: all simulations of one shape.

    ``fields`` and ``inputs`` hold arrays (simulations, times, cells..., components), without times where the problem is
    steady, and (simulations, cells..., components); see :meth:`Dataset.from_arrays` for what a user gives.
    """

    def __init__(
        self,
        spec: SampleSpec,
        fields: Sequence[NDArray],
        inputs: Sequence[NDArray],
        parameters: NDArray,
        domain: Domain,
    ):
        self.spec, self.domain = spec, domain
        self._fields, self._inputs, self._parameters = list(fields), list(inputs), parameters
        self._cloud = Cloud(domain.points(), domain.extent, domain.cells)
        self.paths: list[Path] = []

    def __len__(self) -> int:
        return len(self._fields[0])

    def name(self, simulation: int) -> str:
        return f"simulation {simulation}"

    def states(self, simulation: int) -> int:
        return 1 if self.spec.kind == "steady" else self._fields[0].shape[1]

    def cloud(self, simulation: int) -> Cloud:
        return self._cloud

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        steady = self.spec.kind == "steady"
        read = [array[simulation][None] if steady else array[simulation, states] for array in self._fields]
        parts = [np.asarray(array, dtype=np.float32) for array in read]
        return np.concatenate([part.reshape(len(part), len(self._cloud), -1) for part in parts], axis=-1)

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        parts = [np.asarray(array[simulation], dtype=np.float32) for array in self._inputs]
        flat = [part.reshape(len(self._cloud), -1) for part in parts]
        return np.concatenate(flat, axis=-1) if flat else np.zeros((len(self._cloud), 0), np.float32)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return self._parameters[simulation]


def grid_arrays(
    fields: Mapping[str, ArrayLike],
    *,
    spacing: float | Sequence[float],
    inputs: Mapping[str, ArrayLike] | None = None,
    parameters: Mapping[str, ArrayLike] | None = None,
    hints: Hints = Hints(),
) -> GridArrays:
    """Check a user's arrays against one another and name what they are."""
    if not fields:
        raise ValueError("expected at least one field, as {name: array}, got none")
    arrays = {name: _array(array) for name, array in fields.items()}
    given = {name: _array(array) for name, array in (inputs or {}).items()}
    widths = tuple(np.atleast_1d(np.asarray(spacing, dtype=np.float64)).tolist())
    axes = len(widths)
    if not 1 <= axes <= len(AXES):
        raise ValueError(f"expected a spacing for each of 1 to 3 axes, got {spacing}")
    steady = (hints.kind or ("stepping" if hints.time_step is not None else "steady")) == "steady"
    _check_time_step(hints, steady)
    leading = 1 if steady else 2
    first, shape = next(iter(arrays)), next(iter(arrays.values())).shape[: leading + axes]
    form = "(simulations, " + ("" if steady else "times, ") + ", ".join(f"n{axis}" for axis in AXES[:axes]) + ")"
    if len(shape) != leading + axes:
        raise ValueError(
            f"field {first} must have the shape {form}, with components last if it is a vector, as there "
            f"{'is' if axes == 1 else 'are'} {axes} spacing{'s' * (axes > 1)}; got {arrays[first].shape}"
        )
    if twice := sorted(set(arrays) & set(given)):
        raise ValueError(f"expected every name once, got {', '.join(twice)} as a field and as an input")
    for name, array in {**arrays, **given}.items():
        expected = shape if name in arrays else (shape[0], *shape[leading:])
        _check_numbers(name, array)
        if array.shape[: len(expected)] != expected or array.ndim > len(expected) + 1:
            raise ValueError(
                f"{'field' if name in arrays else 'input'} {name} must have the shape {expected}, as {first} has, with "
                f"components last if it is a vector; got {array.shape}"
            )
    if not steady and shape[1] < 2:
        raise ValueError(f"expected at least two times, to learn the change from one to the next, got {shape[1]}")
    cells = shape[leading:]
    if min(cells) < 2:
        raise ValueError(
            f"expected at least two cells along every axis, got {cells}: leave out an axis of one cell "
            "(array.squeeze) and its spacing"
        )
    domain = Domain(cells, tuple(n * float(w) for n, w in zip(cells, widths, strict=True)))
    numbers = _parameters(parameters or {}, shape[0])
    fields_, units, vectors = _channels(arrays, len(shape), hints, AXES[:axes])
    inputs_, input_units, more = _channels(given, len(shape) - leading + 1, hints, AXES[:axes])
    spec = make_spec(
        hints, steady, fields_, units, inputs_, input_units, tuple(parameters or {}), {**vectors, **more},
        AXES[:axes], domain.extent, domain.spacing,
    )  # fmt: skip
    return GridArrays(spec, list(arrays.values()), list(given.values()), numbers, domain)


class PointClouds:
    """Simulations on points of their own; what is not yet read is a function that reads it.

    What has been read is kept as long as there is room for it: items of a training come in any order.
    """

    def __init__(self, spec: SampleSpec, clouds: Sequence[Any], paths: Sequence[Path] = (), room: int = 1 << 30):
        self.spec, self._clouds, self.paths = spec, list(clouds), list(paths)
        self._held: dict[int, Simulation] = {}
        self._room = room  # bytes

    def __len__(self) -> int:
        return len(self._clouds)

    def name(self, simulation: int) -> str:
        return str(self.paths[simulation]) if self.paths else f"simulation {simulation}"

    def _at(self, simulation: int) -> Simulation:
        entry = self._clouds[simulation]
        if not callable(entry):
            return entry
        if simulation not in self._held:
            read = entry()
            while self._held and self._room < read.nbytes:
                self._room += self._held.pop(next(iter(self._held))).nbytes
            self._held[simulation] = read
            self._room -= read.nbytes
        return self._held[simulation]

    def states(self, simulation: int) -> int:
        return len(self._at(simulation).values)

    def cloud(self, simulation: int) -> Cloud:
        return self._at(simulation).cloud

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        return self._at(simulation).values[states]

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        return self._at(simulation).inputs

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return self._at(simulation).parameters


@dataclass(frozen=True)
class Simulation:
    """One simulation in memory: its points and channels."""

    cloud: Cloud
    values: NDArray[np.float32]  # (T, N, F)
    inputs: NDArray[np.float32]  # (N, I)
    parameters: NDArray[np.float64]  # (K,)

    @property
    def nbytes(self) -> int:
        return self.cloud.points.nbytes + self.values.nbytes + self.inputs.nbytes


def point_clouds(items: Sequence[Mapping[str, Any]], hints: Hints = Hints()) -> PointClouds:
    """Check a user's clouds against one another and name what they are."""
    if not items:
        raise ValueError("expected at least one simulation, got none")
    for number, item in enumerate(items):
        if not np.isfinite(np.asarray(item.get("positions", 0.0), dtype=np.float64)).all():
            raise ValueError(f"simulation {number}: positions must be finite, they hold NaN or infinity")
    spec = cloud_spec(items[0], hints, items)
    return PointClouds(spec, [cloud_simulation(item, spec, f"simulation {i}") for i, item in enumerate(items)])


def cloud_spec(first: Mapping[str, Any], hints: Hints, items: Sequence[Mapping[str, Any]] = ()) -> SampleSpec:
    """What a cloud's mapping says it is; extent and spacing are the largest and the usual of some ``items``."""
    unknown = set(first) - {"positions", "inputs", "outputs", "states", "parameters", "boundary", "extent"}
    if "positions" not in first or unknown or ("outputs" in first) == ("states" in first):
        raise ValueError(
            "a simulation on points is {'positions': (N, P), 'inputs': {...}, 'outputs': {...}, 'parameters': {...}}, "
            f"or with 'states' (times, N) instead of 'outputs' for a problem in time; got the keys {', '.join(first)}"
        )
    steady = "outputs" in first
    _check_time_step(hints, steady)
    positions = np.asarray(first["positions"], dtype=np.float64)
    if positions.ndim != 2 or not 1 <= positions.shape[1] <= 3 or len(positions) < 2:
        raise ValueError(f"positions must have the shape (N, P), with 1 to 3 axes P, got {positions.shape}")
    axes = AXES[: positions.shape[1]]
    clouds = [np.asarray(item["positions"], dtype=np.float64) for item in (items or [first])]
    extent = tuple(float(x) for x in np.median([np.ptp(cloud, axis=0) for cloud in clouds], axis=0))
    if min(extent) <= 0:
        raise ValueError(
            f"the points lie in a plane: they extend {extent} along {', '.join(axes)}; leave that axis out"
        )
    usual = float(np.median([usual_distance(cloud) for cloud in clouds[:8]]))
    predicted = {name: np.asarray(a) for name, a in first["outputs" if steady else "states"].items()}
    given = {name: np.asarray(a) for name, a in first.get("inputs", {}).items()}
    fields, units, vectors = _channels(predicted, 1 if steady else 2, hints, axes)
    inputs, input_units, more = _channels(given, 1, hints, axes)
    return make_spec(
        hints, steady, fields, units, inputs, input_units, tuple(first.get("parameters", {})), {**vectors, **more},
        axes, extent, (usual,) * len(axes),
    )  # fmt: skip


def cloud_simulation(item: Mapping[str, Any], spec: SampleSpec, where: str) -> Simulation:
    """One cloud's mapping as a simulation, or an error that names it."""
    points = np.asarray(item["positions"], dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != spec.space_dim or not np.isfinite(points).all():
        raise ValueError(
            f"{where}: positions must be finite, of the shape (N, {spec.space_dim}), got {points.shape}"
            + ("" if points.ndim != 2 or np.isfinite(points).all() else " with NaN or infinity among them")
        )
    steady = spec.kind == "steady"
    predicted = item.get("outputs" if steady else "states", {})
    values = _stack(predicted, spec.fields, spec, len(points), where, lead=0 if steady else 1)
    given = _stack(item.get("inputs", {}), spec.inputs, spec, len(points), where, lead=0)
    numbers = item.get("parameters", {})
    if set(numbers) != set(spec.parameters):
        raise ValueError(f"{where}: expected the parameters {_listed(spec.parameters)}, got {_listed(numbers)}")
    extent = tuple(float(x) for x in item.get("extent", np.ptp(points, axis=0)))
    flags = item.get("boundary")
    if flags is not None:
        flags = np.asarray(flags, dtype=np.float32).reshape(len(points), -1)
        if flags.shape[1] not in (1, len(spec.flags)):
            raise ValueError(f"{where}: boundary must have the shape ({len(points)}, {len(spec.flags)})")
        flags = np.broadcast_to(flags, (len(points), len(spec.flags)))
    parameters = np.array([float(numbers[name]) for name in spec.parameters])
    return Simulation(Cloud(points, extent, None, flags), values[None] if steady else values, given, parameters)


def make_spec(
    hints: Hints,
    steady: bool,
    fields: tuple[str, ...],
    units: tuple[str, ...],
    inputs: tuple[str, ...],
    input_units: tuple[str, ...],
    parameters: tuple[str, ...],
    vectors: dict[str, tuple[str, ...]],
    axes: tuple[str, ...],
    extent: tuple[float, ...],
    spacing: tuple[float, ...],
) -> SampleSpec:
    """The contract of a user's data; the same scale along all axes, for physics has no preferred one."""
    log = tuple(channel for name in hints.log for channel in vectors.get(name, (name,)))
    boundary = hints.boundary or "open"
    boundaries = (boundary,) * len(axes) if isinstance(boundary, str) else tuple(boundary)
    for name in boundaries:
        if name not in BOUNDARIES:
            raise ValueError(
                f"boundary must be one of {', '.join(BOUNDARIES)}, or one of them per axis, got {boundary!r}"
            )
    if len(boundaries) != len(axes):
        raise ValueError(f"expected one boundary, or one per axis {', '.join(axes)}, got {boundary!r}")
    return SampleSpec(
        problem=hints.problem, kind="steady" if steady else "stepping", fields=fields, field_units=units, inputs=inputs,
        input_units=input_units, parameters=parameters, vectors=vectors, log=log, axes=axes,
        length_unit=hints.length_unit, training_extent=extent, spacing=spacing, boundary=_simple(boundaries),
        isotropic=True, time_step=0.0 if steady else float(hints.time_step or 0), time_unit=hints.time_unit,
    )  # fmt: skip


def component_names(name: str, components: int, axes: Sequence[str]) -> tuple[str, ...]:
    """The channels of a vector: velocity_x, velocity_y; by number where they are not one per axis."""
    return tuple(f"{name}_{axes[i] if components == len(axes) else i}" for i in range(components))


def _array(values: Any) -> NDArray:
    """An array, or what is sliced like one and read only then: a dataset of an HDF5 file."""
    return values if all(hasattr(values, name) for name in ("shape", "ndim", "dtype")) else np.asarray(values)


def _simple(boundaries: tuple[str, ...]) -> Boundary | tuple[Boundary, ...]:
    checked = cast(tuple[Boundary, ...], boundaries)
    return checked[0] if len(set(checked)) == 1 else checked


def _check_time_step(hints: Hints, steady: bool) -> None:
    if steady and hints.time_step is not None:
        raise ValueError(f"a steady problem has no time step, got {hints.time_step}")
    if not steady and not (hints.time_step and np.isfinite(hints.time_step) and hints.time_step > 0):
        raise ValueError(f"a problem in time needs time_step, the time between two states, got {hints.time_step}")


def _check_numbers(name: str, array: NDArray) -> None:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")


def _parameters(given: Mapping[str, ArrayLike], simulations: int) -> NDArray[np.float64]:
    columns = []
    for name, values in given.items():
        column = np.asarray(values, dtype=np.float64)
        if column.shape != (simulations,):
            raise ValueError(
                f"parameter {name} must hold one number per simulation ({simulations},), got {column.shape}"
            )
        columns.append(column)
    return np.stack(columns, axis=-1) if columns else np.zeros((simulations, 0))


def _channels(
    arrays: Mapping[str, NDArray], scalar_axes: int, hints: Hints, axes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Channel names and units in order, and which belong to a vector."""
    names: list[str] = []
    units: list[str] = []
    vectors = {}
    for name, array in arrays.items():
        channels: tuple[str, ...] = (name,)
        if array.ndim > scalar_axes:
            channels = vectors[name] = component_names(name, array.shape[-1], axes)
        names.extend(channels)
        units.extend([hints.units.get(name, "")] * len(channels))
    return tuple(names), tuple(units), vectors


def _stack(
    given: Mapping[str, ArrayLike], channels: tuple[str, ...], spec: SampleSpec, points: int, where: str, lead: int
) -> NDArray[np.float32]:
    """Named arrays as (..., N, channels), in the order of ``channels``."""
    grouped = {name: parts for name, parts in spec.vectors.items() if parts[0] in channels}
    inside = {part for parts in grouped.values() for part in parts}
    expected = [name for name in channels if name not in inside] + list(grouped)
    if set(given) != set(expected):
        raise ValueError(f"{where}: expected the fields {_listed(expected)}, got {_listed(given)}")
    columns: dict[str, NDArray] = {}
    shape: tuple[int, ...] | None = None
    for name, values in given.items():
        array = np.asarray(values)
        _check_numbers(f"{where}: {name}", array)
        parts = grouped.get(name, (name,))
        flat = array if name in grouped else array[..., None]
        shape = flat.shape[:-1] if shape is None else shape
        if flat.ndim != lead + 2 or flat.shape[-2:] != (points, len(parts)) or flat.shape[:-1] != shape:
            form = ("(times, " if lead else "(") + f"{points}" + (f", {len(parts)})" if name in grouped else ",)")
            raise ValueError(f"{where}: {name} must have the shape {form}, got {array.shape}")
        columns.update({part: flat[..., i] for i, part in enumerate(parts)})
    if not channels:
        return np.zeros((points, 0), np.float32)
    return np.stack([columns[name] for name in channels], axis=-1).astype(np.float32)


def usual_distance(points: NDArray[np.float64]) -> float:
    """The median distance of a point from the next."""
    some = points[:: -(-len(points) // 2000)]
    return float(np.median(cKDTree(points).query(some, k=2)[0][:, 1]))


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
