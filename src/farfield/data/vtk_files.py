"""VTK files as data, through pyvista: one file per simulation (steady), or numbered files or a .pvd each (in time).

Values at points live at the points, values of cells at their centres; a file has one or the other, or both and
``dataset.yaml`` names the wanted ones. A mesh in the plane has two axes: a coordinate that never changes is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from numpy.typing import NDArray

from farfield.data.clouds import PointClouds, Simulation, cloud_simulation, cloud_spec
from farfield.data.hints import Hints

_NUMBERED = re.compile(r"^(.*?)[_\-.]?(\d+)$")
_HELPERS = ("vtkOriginalPointIds", "vtkOriginalCellIds", "vtkGhostType", "vtkValidPointMask")


def vtk_files(paths: Sequence[Path], hints: Hints = Hints()) -> PointClouds:
    """The simulations in some files; the first is looked at now, the others when they are asked for."""
    if hints.kind != "steady" and hints.time_step is None:
        hints = replace(hints, time_step=_time_step(_collections(paths)))
    series = _series(paths, hints)
    first = _read(series[0], hints)
    spec = cloud_spec(first, hints, [first, *(_read(group, hints) for group in series[1:4])])

    def reader(number: int) -> Any:
        def read() -> Simulation:
            return cloud_simulation(_read(series[number], hints), spec, str(series[number][0]), hints)

        return read

    return PointClouds(spec, [reader(i) for i in range(len(series))], [group[0] for group in series])


def _collections(paths: Sequence[Path]) -> list[Path]:
    """The .pvd files among these: they name the others, one simulation each."""
    return [path for path in paths if path.suffix == ".pvd"]


def _time_step(collections: Sequence[Path]) -> float | None:
    """Between the times that .pvd files tell; None where each has one."""
    steps = []
    for path in collections:
        times = np.asarray(pv.get_reader(str(path)).time_values)
        steps += np.diff(times).tolist()
    if not steps:
        return None
    if max(steps) - min(steps) > 1e-3 * max(steps):
        raise ValueError(
            f"times are {min(steps):g} to {max(steps):g} apart in {collections[0]} and others: expected one time step; "
            "say it in dataset.yaml (time_step) if the times are wrong"
        )
    return float(f"{max(steps):.6g}")


def _series(paths: Sequence[Path], hints: Hints) -> list[list[Path]]:
    """The files of each simulation, in the order of time."""
    in_time = hints.kind == "stepping" or hints.time_step is not None
    if collections := _collections(paths):
        return [[path] for path in collections]
    if not in_time:
        return [[path] for path in paths]
    groups: dict[tuple[Path, str], list[tuple[int, Path]]] = {}
    for path in paths:
        match = _NUMBERED.match(path.stem)
        if match is None and len(paths) == 1 and hints.to_predict:
            return [[path]]
        if match is None:
            raise ValueError(f"{path} has no number at its end: a series in time is numbered, e.g. run_0000.vtu")
        groups.setdefault((path.parent, match[1]), []).append((int(match[2]), path))
    return [[path for _, path in sorted(group)] for group in groups.values()]


def _read(files: Sequence[Path], hints: Hints) -> dict[str, Any]:
    """One simulation as a mapping (see :func:`farfield.data.clouds.point_clouds`)."""
    meshes = list(_meshes(files))
    first = meshes[0]
    data, where = _located(first, files[0], hints)
    points = np.asarray(first.points if where == "point" else first.cell_centers().points, dtype=np.float64)
    flat = np.ptp(points, axis=0) > 1e-9 * max(float(np.ptp(points)), 1e-300)
    item: dict[str, Any] = {"positions": points[:, flat], "inputs": {}, "parameters": {}}
    in_time = hints.kind == "stepping" or hints.time_step is not None
    predicted = item.setdefault("states" if in_time else "outputs", {})
    for name in data:
        role = hints.roles.get(name, "state" if in_time else "output")
        if role not in ("state", "input", "output"):
            raise ValueError(f"{files[0]}: field {name} has the unknown role {role!r}: expected state, input or output")
        if role == "input":
            item["inputs"][name] = _values(first, where, name, flat)
        elif in_time:
            predicted[name] = np.stack([_same_points(m, first, f, where, name, flat) for m, f in _pairs(meshes, files)])
        else:
            predicted[name] = _values(first, where, name, flat)
    for name in first.field_data:
        values = np.asarray(first.field_data[name])
        if (
            values.size == 1
            and values.dtype.kind in "fiu"
            and name not in (*hints.ignore, "TimeValue", "TIME", "CYCLE")
        ):
            item["parameters"][name] = float(values.ravel()[0])
    return item


def _meshes(files: Sequence[Path]) -> Iterator[Any]:
    """One mesh for each time."""
    if files[0].suffix != ".pvd":
        yield from (_one_block(pv.read(path), path) for path in files)
        return
    reader = pv.get_reader(str(files[0]))
    for time in reader.time_values:
        reader.set_active_time_value(time)
        yield _one_block(reader.read(), files[0])


def first_mesh(path: Path) -> Any:
    """The mesh of a simulation."""
    return next(_meshes([path]))


def _located(mesh: Any, path: Path, hints: Hints) -> tuple[list[str], str]:
    """The wanted fields, and whether they live at points or in cells."""

    def wanted(data: Any) -> list[str]:
        names = [n for n in data if n not in (*_HELPERS, *hints.ignore) and data[n].dtype.kind in "fiu"]
        return [n for n in names if n in hints.roles] if hints.roles else names

    found = {"point": wanted(mesh.point_data), "cell": wanted(mesh.cell_data)}
    there = [where for where, names in found.items() if names]
    if not there and hints.to_predict and "input" not in hints.roles.values():
        return [], "point"  # what is predicted follows from the geometry alone
    if len(there) != 1:
        raise ValueError(
            f"{path} has the point data {', '.join(mesh.point_data.keys()) or 'none'} and the cell data "
            f"{', '.join(mesh.cell_data.keys()) or 'none'}: expected fields of one of the two; name those to use in "
            "dataset.yaml (`farfield check` writes a first one)"
        )
    names = found[there[0]]
    missing = sorted(set(hints.roles) - set(names))
    if missing := [n for n in missing if not (hints.to_predict and hints.roles[n] == "output")]:
        raise ValueError(f"{path} has no {there[0]} data {missing[0]!r}; it has {', '.join(names)}")
    return names, there[0]


def _one_block(mesh: Any, path: Path) -> Any:
    if isinstance(mesh, pv.MultiBlock):
        if len(mesh) != 1:
            raise ValueError(f"{path} holds {len(mesh)} blocks: expected one mesh")
        mesh = mesh[0]
    if mesh.n_points < 2:
        raise ValueError(f"{path} is not a VTK file that can be read, or holds no mesh")
    return mesh


def _values(mesh: Any, where: str, name: str, flat: NDArray[np.bool_]) -> NDArray:
    values = np.asarray((mesh.point_data if where == "point" else mesh.cell_data)[name])
    # a vector in the plane: VTK always stores three components
    return values[:, flat] if values.ndim == 2 and values.shape[1] == 3 and not flat.all() else values


def _same_points(mesh: Any, first: Any, path: Path, where: str, name: str, flat: NDArray[np.bool_]) -> NDArray:
    if mesh.n_points != first.n_points or mesh.n_cells != first.n_cells:
        raise ValueError(
            f"{path} has {mesh.n_points} points and {mesh.n_cells} cells, the first of its series {first.n_points} and "
            f"{first.n_cells}: a simulation's mesh must not change in time"
        )
    data = mesh.point_data if where == "point" else mesh.cell_data
    if name not in data:
        raise ValueError(f"{path} has no {where} data {name!r}, the first of its series has")
    return _values(mesh, where, name, flat)


def _pairs(meshes: Sequence[Any], files: Sequence[Path]) -> list[tuple[Any, Path]]:
    return [(mesh, files[min(i, len(files) - 1)]) for i, mesh in enumerate(meshes)]
