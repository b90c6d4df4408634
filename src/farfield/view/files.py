"""``farfield view``: from a file of a prediction to a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.files import atomic_write_text, read_arrays, refuse_overwriting
from farfield.view.player import Rollout

MESHES = (".vtu", ".vtk", ".vtp", ".vti", ".vtr", ".vts", ".pvtu", ".pvti")
SURFACES = (".stl", ".obj", ".ply", ".vtk", ".vtp")
STATES = (".npz", ".hdf5", ".h5")


def write_view(
    source: Path,
    out: Path | None = None,
    truth: Path | None = None,
    buildings: Path | None = None,
    simulation: int = 0,
    *,
    force: bool = False,
) -> tuple[Path, str]:
    """Write the page of a file, over another one only with ``force``; returns its path, and what it shows, in words."""
    out = out or source.with_suffix(".html")
    if out.suffix != ".html":
        raise ValueError(f"expected a name that ends in .html for --out, got {out.name}")
    if source.suffix not in (*MESHES, *STATES):
        raise ValueError(f"cannot view {source.name}: expected a file that ends in {', '.join((*MESHES, *STATES))}")
    if truth is not None and truth.suffix not in (*MESHES, *STATES):
        raise ValueError(f"cannot compare with {truth.name}: expected {', '.join((*MESHES, *STATES))}")
    refuse_overwriting([out], force)
    if source.suffix in MESHES or _is_cloud(source):
        text, told = _scene(source, truth, buildings)
    else:
        if buildings is not None:
            raise ValueError(f"--buildings is for wind in three dimensions, {source.name} holds states on a grid")
        text, told = _player(source, truth, simulation)
    atomic_write_text(out, text)
    return out, told


def _is_cloud(path: Path) -> bool:
    """NumPy's points in three dimensions: of steady wind, not of steps."""
    if path.suffix != ".npz":
        return False
    arrays = read_arrays(path)
    positions = arrays.pop("positions", None)
    return (
        positions is not None
        and positions.ndim == 2
        and positions.shape[1] == 3
        and any(len(a) == len(positions) for a in arrays.values() if a.ndim)
    )


def _scene(source: Path, truth: Path | None, buildings: Path | None) -> tuple[str, str]:
    from farfield.view.scene import scene_page
    from farfield.view.volume import grid_for, resampled

    mesh = _mesh(source)
    grid = grid_for(mesh)
    volumes = {"prediction": resampled(mesh, grid)}
    fields = volumes["prediction"].fields
    if not fields:
        raise ValueError(f"{source} has no fields to show: `farfield predict` writes velocity, pressure, k and epsilon")
    if truth is not None:
        volumes["truth"] = resampled(_mesh(truth), grid)
        missing = [name for name in fields if name not in volumes["truth"].fields]
        if len(missing) == len(fields):
            raise ValueError(
                f"{truth} has none of the fields of {source.name} ({', '.join(fields)}), only "
                f"{', '.join(volumes['truth'].fields) or 'none'}"
            )
        for name in missing:
            del volumes["prediction"].fields[name]  # type: ignore[attr-defined]
    triangles = None if buildings is None else _triangles(buildings)
    return scene_page(volumes, triangles), volumes["prediction"].told


def _mesh(path: Path):  # type: ignore[no-untyped-def]  # of pyvista, which has no types
    import pyvista as pv

    if path.suffix == ".npz":
        arrays = read_arrays(path)
        points = arrays.pop("positions", None)
        if points is None:
            raise ValueError(f"{path} has no array 'positions', only {', '.join(arrays) or 'none'}")
        cloud = pv.PolyData(np.asarray(points, dtype=np.float64))
        for name, values in arrays.items():
            if values.ndim and len(values) == len(points):
                cloud.point_data[name] = values
        return cloud
    if path.suffix not in MESHES:
        raise ValueError(f"expected a mesh, one of {', '.join(MESHES)}, got {path.name}")
    try:
        mesh = pv.read(path)
    except Exception as error:  # pyvista and VTK raise what they like
        raise ValueError(f"{path} is damaged or not VTK ({error})") from None
    if not isinstance(mesh, pv.DataSet) or mesh.n_points == 0:
        raise ValueError(f"{path} holds no points, or is damaged")
    return mesh


def _triangles(path: Path) -> NDArray[np.float32]:
    import pyvista as pv

    if path.suffix not in SURFACES:
        raise ValueError(f"expected buildings in a file that ends in {', '.join(SURFACES)}, got {path.name}")
    surface = pv.read(path).extract_surface(algorithm=None).triangulate()
    if surface.n_cells == 0:
        raise ValueError(f"{path} holds no surface")
    return np.asarray(surface.points, dtype=np.float32)[surface.regular_faces]


def _player(source: Path, truth: Path | None, simulation: int) -> tuple[str, str]:
    fields, axes, times = _states(source, simulation)
    states = {}
    if truth is not None:
        true_fields, *_ = _states(truth, simulation)
        if missing := [name for name in fields if name not in true_fields]:
            raise ValueError(f"{truth} has no {', '.join(missing)}, only {', '.join(true_fields) or 'none'}")
        shapes = {name: (fields[name].shape[1:], true_fields[name].shape[1:]) for name in fields}
        for name, (ours, theirs) in shapes.items():
            if ours != theirs:
                raise ValueError(f"{truth}: {name} has {theirs} cells, that of {source.name} has {ours}")
        common = min(len(next(iter(fields.values()))), len(next(iter(true_fields.values()))))
        states["truth"] = np.stack([true_fields[name][:common] for name in fields], axis=1)
        fields = {name: values[:common] for name, values in fields.items()}
    states["prediction"] = np.stack(list(fields.values()), axis=1)
    extent = [float(len(a) * (a[-1] - a[0]) / max(1, len(a) - 1)) for a in axes]
    names = ("x", "y", "z")[: len(axes)]
    count = len(states["prediction"])
    told = times[:count] if times is not None else np.arange(count)
    shown = [f"{time:.4g}" for time in told]
    page = Rollout(states, list(fields), [""] * len(fields), names, extent, shown).page()
    return page, f"{count} states of {', '.join(fields)} on {' x '.join(str(len(a)) for a in axes)} cells"


def _states(path: Path, simulation: int) -> tuple[dict[str, NDArray], list[NDArray], NDArray | None]:
    """Fields (T, cells...) of one simulation, the centres along each axis, and the times if they are known."""
    if path.suffix != ".npz":
        return _well_states(path, simulation)
    arrays = read_arrays(path)
    positions, times = arrays.pop("positions", None), arrays.pop("time", None)
    arrays.pop("boundary", None)
    if positions is None or not arrays:
        raise ValueError(
            f"{path} holds no states: expected 'positions' and a field (states, points), got "
            f"{', '.join(arrays) or 'positions only' if positions is not None else ', '.join(arrays) or 'nothing'}"
        )
    points = positions[:, None] if positions.ndim == 1 else positions
    axes, order = _grid(path, points)
    cells = tuple(map(len, axes))
    fields = {}
    for name, values in _scalars(arrays, len(points)).items():
        if values.shape[-1:] != (len(points),):
            raise ValueError(f"{path}: {name} must end with the {len(points)} points, got {values.shape}")
        if values.ndim == 3:  # several simulations: (states, simulations, points)
            if not 0 <= simulation < values.shape[1]:
                raise ValueError(f"{path} has {values.shape[1]} simulations, there is no {simulation}")
            values = values[:, simulation]
        fields[name] = np.atleast_2d(values)[:, order].reshape(-1, *cells)
    return fields, axes, times


def _scalars(arrays: dict[str, NDArray], points: int) -> dict[str, NDArray]:
    """Fields by name; of a vector, whose components come last, each one by its own."""
    found: dict[str, NDArray] = {}
    for name, values in arrays.items():
        if values.ndim > 1 and values.shape[-2] == points and values.shape[-1] <= 3:
            found |= {f"{name} {'xyz'[i]}": values[..., i] for i in range(values.shape[-1])}
        else:
            found[name] = values
    return found


def _grid(path: Path, points: NDArray) -> tuple[list[NDArray], NDArray]:
    """The axes of points that make a full grid, and the order that sorts them into it."""
    found = [np.unique(points[:, i].round(9), return_inverse=True) for i in range(points.shape[1])]
    axes, index = [axis for axis, _ in found], [place for _, place in found]
    if len(points) != np.prod([len(axis) for axis in axes]):
        raise ValueError(f"{path}: its {len(points)} points make no grid, which an animation needs; write .vtu instead")
    return axes, np.lexsort(index[::-1])


def _well_states(path: Path, simulation: int) -> tuple[dict[str, NDArray], list[NDArray], NDArray | None]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            if "t0_fields" not in file or "dimensions" not in file or not len(file["t0_fields"]):
                raise ValueError(f"{path} is no file in The Well's layout with scalar fields (t0_fields, dimensions)")
            dimensions, scalars = file["dimensions"], file["t0_fields"]
            axes = [np.asarray(dimensions[name]) for name in ("x", "y", "z") if name in dimensions]
            steps = {name: data for name, data in scalars.items() if data.ndim == 2 + len(axes)}
            if not steps:
                raise ValueError(f"{path} has no field (simulations, states, cells), only {', '.join(scalars)}")
            count = next(iter(steps.values())).shape[0]
            if not 0 <= simulation < count:
                raise ValueError(f"{path} has {count} simulations, there is no {simulation}")
            times = np.asarray(dimensions["time"]) if "time" in dimensions else None
            return {name: data[simulation] for name, data in steps.items()}, axes, times
    except OSError as error:
        raise ValueError(f"{path} is truncated, damaged or not HDF5 ({error})") from None
