"""A user's own values at points without a grid as data, each simulation with its own points.

A simulation, as a mapping or a file: positions (N, P), and outputs/<name> (N,) or (N, components), or for a problem in
time states/<name> (times, N) or (times, N, components); inputs/<name>, parameters/<name> likewise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from farfield.data.domain import check_flags
from farfield.data.hints import AXES, Hints, channels_of, check_numbers, check_time_step, make_spec
from farfield.data.source import Cloud
from farfield.data.spec import SampleSpec


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
    steady = hints.kind == "steady" if hints.to_predict else "outputs" in first
    if "positions" not in first or unknown or (("outputs" in first) == ("states" in first) and not hints.to_predict):
        raise ValueError(
            "a simulation on points is {'positions': (N, P), 'inputs': {...}, 'outputs': {...}, 'parameters': {...}}, "
            f"or with 'states' (times, N) instead of 'outputs' for a problem in time; got the keys {', '.join(first)}"
        )
    check_time_step(hints, steady)
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
    predicted, given = first.get("outputs" if steady else "states", {}), first.get("inputs", {})
    arrays = {name: np.asarray(a) for name, a in hints.chosen(predicted, "state", "output").items()}
    fields, units, vectors = channels_of(arrays, 1 if steady else 2, hints, axes)
    arrays = {name: np.asarray(a) for name, a in hints.chosen(given, "input").items()}
    inputs, input_units, more = channels_of(arrays, 1, hints, axes)
    if steady and hints.to_predict and hints.contract is not None:  # known of the model, not of the data
        fields, units, vectors = hints.contract.fields, hints.contract.field_units, hints.contract.vectors
    parameters = tuple(hints.chosen(first.get("parameters", {})))
    return make_spec(
        hints, steady, fields, units, inputs, input_units, parameters, {**vectors, **more}, axes, extent,
        (usual,) * len(axes),
    )  # fmt: skip


def cloud_simulation(item: Mapping[str, Any], spec: SampleSpec, where: str, hints: Hints = Hints()) -> Simulation:
    """One cloud's mapping as a simulation, or an error that names it."""
    points = np.asarray(item["positions"], dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != spec.space_dim or not np.isfinite(points).all():
        raise ValueError(
            f"{where}: positions must be finite, of the shape (N, {spec.space_dim}), got {points.shape}"
            + ("" if points.ndim != 2 or np.isfinite(points).all() else " with NaN or infinity among them")
        )
    steady = spec.kind == "steady"
    if steady and hints.to_predict:
        values = np.full((len(points), len(spec.fields)), np.nan, np.float32)
    else:
        predicted = hints.chosen(item.get("outputs" if steady else "states", {}), "state", "output")
        values = _stack(predicted, spec.fields, spec, len(points), where, lead=0 if steady else 1)
    given = _stack(hints.chosen(item.get("inputs", {}), "input"), spec.inputs, spec, len(points), where, lead=0)
    numbers = hints.chosen(item.get("parameters", {}))
    if set(numbers) != set(spec.parameters):
        raise ValueError(f"{where}: expected the parameters {_listed(spec.parameters)}, got {_listed(numbers)}")
    extent = tuple(float(x) for x in item.get("extent", np.ptp(points, axis=0)))
    flags = item.get("boundary")
    if flags is not None:
        flags = np.asarray(flags, dtype=np.float32).reshape(len(points), -1)
        if flags.shape[1] not in (1, len(spec.flags)):
            raise ValueError(f"{where}: boundary must have the shape ({len(points)}, {len(spec.flags)})")
        try:
            check_flags(flags)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        flags = np.broadcast_to(flags, (len(points), len(spec.flags)))
    parameters = np.array([float(numbers[name]) for name in spec.parameters])
    return Simulation(Cloud(points, extent, None, flags), values[None] if steady else values, given, parameters)


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
        check_numbers(f"{where}: {name}", array)
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
