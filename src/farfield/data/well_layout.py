"""What one HDF5 file in The Well's layout holds, and whether several hold the same; see :mod:`.the_well`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.hints import BOUNDARIES
from farfield.files import check_memory

_ORDERS = ("t0_fields", "t1_fields", "t2_fields")


class Damaged(ValueError):
    """A file that cannot be read, or not to its end."""


@dataclass(frozen=True)
class WellField:
    """One dataset of a file, and how to read a trajectory of it."""

    group: str
    name: str
    order: int
    time_varying: bool
    sample_varying: bool
    dim_varying: tuple[bool, ...]


@dataclass(frozen=True)
class Layout:
    """What one file holds."""

    path: Path
    trajectories: int
    times: NDArray[np.float64]
    axes: tuple[str, ...]
    coordinates: tuple[NDArray[np.float64], ...]
    fields: tuple[WellField, ...]
    scalars: dict[str, NDArray[np.float64]]
    boundaries: tuple[str, ...]
    grid_type: str
    units: dict[str, str]

    @property
    def extent(self) -> tuple[float, ...]:
        return tuple(float(len(c) * np.median(np.diff(c))) for c in self.coordinates)


def is_the_wells(path: Path) -> bool:
    """Whether a file of HDF5 is in The Well's layout, or means to be: plain arrays have none of its groups."""
    with opened(path) as file:
        return bool({"dimensions", "boundary_conditions", *_ORDERS} & set(file))


def opened(path: Path, remedy: str = "") -> h5py.File:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise Damaged(f"{path} is truncated, damaged or not HDF5 ({error}){remedy}") from None


def read_layout(path: Path, remedy: str = "") -> Layout:
    with opened(path, remedy) as file:
        try:
            dimensions = file["dimensions"]
            axes = tuple(map(_text, dimensions.attrs.get("spatial_dims", sorted(set(dimensions) - {"time"}))))
            fields = [
                _field(group, name, order, file[group][name], len(axes))
                for order, group in enumerate(_ORDERS)
                if group in file
                for name in _names(file[group])
            ]
            coordinates = tuple(_coordinates(dimensions[axis], f"{axis} of {path}") for axis in axes)
            times = np.asarray(dimensions["time"], dtype=np.float64) if "time" in dimensions else None
            if times is not None and times.ndim > 1:
                times = times[0]
            found = next((file[f.group][f.name].shape for f in fields if f.time_varying and f.sample_varying), (1, 1))
            times = np.full(found[1], np.nan) if times is None else times
            scalars = {
                name: np.atleast_1d(np.asarray(file["scalars"][name], dtype=np.float64))
                for name in (_names(file["scalars"]) if "scalars" in file else ())
                if not file["scalars"][name].attrs.get("time_varying", False)
            }
            trajectories = int(file.attrs.get("n_trajectories", found[0]))
            _check_shapes(file, fields, trajectories, len(times), coordinates)
            units = {
                f.name: _text(file[f.group][f.name].attrs["units"])
                for f in fields
                if "units" in file[f.group][f.name].attrs
            }
            return Layout(
                path, trajectories, times, axes, coordinates, tuple(fields), scalars, _boundaries(file, axes),
                _text(file.attrs.get("grid_type", "cartesian")), units,
            )  # fmt: skip
        except KeyError as error:
            raise ValueError(f"{path} is not in The Well's layout: it lacks {error}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _field(group: str, name: str, order: int, data: h5py.Dataset, axes: int) -> WellField:
    varying = tuple(bool(v) for v in data.attrs.get("dim_varying", [True] * axes))
    in_time, by_sample = (bool(data.attrs.get(f"{kind}_varying", True)) for kind in ("time", "sample"))
    return WellField(group, name, order, in_time, by_sample, varying)


def _check_shapes(
    file: h5py.File, fields: Sequence[WellField], trajectories: int, times: int, coordinates: Sequence[NDArray]
) -> None:
    for f in fields:
        lead = [n for n, varies in ((trajectories, f.sample_varying), (times, f.time_varying)) if varies]
        inside = [len(c) for c, varies in zip(coordinates, f.dim_varying, strict=True) if varies]
        expected = (*lead, *inside, *[len(coordinates)] * f.order)
        if file[f.group][f.name].shape != expected:
            raise ValueError(
                f"field {f.name} must have the shape {expected} (trajectories, times, cells, components, as far as it "
                f"varies with them), got {file[f.group][f.name].shape}"
            )


def _coordinates(data: h5py.Dataset, axis: str) -> NDArray[np.float64]:
    check_memory(8 * data.size, f"the axis {axis}")
    values = np.asarray(data, dtype=np.float64)
    if values.ndim > 1:
        values = values.reshape(-1, values.shape[-1])
        if np.ptp(values, axis=0).any():
            raise ValueError(f"its coordinates {axis} differ between trajectories: one file per mesh is read")
        values = values[0]
    return values


def _boundaries(file: h5py.File, axes: tuple[str, ...]) -> tuple[str, ...]:
    """One per axis; none where nothing is said of them."""
    if "boundary_conditions" not in file:
        return ()
    found = dict.fromkeys(axes, "open")
    for condition in file["boundary_conditions"].values():
        kind = _text(condition.attrs["bc_type"]).lower()
        if kind not in BOUNDARIES:
            raise ValueError(f"its boundary condition {kind.upper()} is none of WALL, OPEN, PERIODIC")
        for axis in map(_text, condition.attrs["associated_dims"]):
            found[axis] = kind
    return tuple(found.values())


def compare_layouts(first: Layout, other: Layout) -> None:
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


def _names(group: h5py.Group) -> list[str]:
    return [_text(name) for name in group.attrs.get("field_names", list(group))]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
