"""Fields in three dimensions on a grid that a browser can show: resampled from a mesh or from scattered points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyvista as pv
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates
from scipy.spatial import cKDTree

ACROSS, LEVELS = 144, 20  # points along the longer side and in height, at most
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Volume:
    """Fields (components, nx, ny, nz) at the points of a grid; NaN where there is no air."""

    x: Array
    y: Array
    z: Array
    fields: Mapping[str, NDArray[np.float32]]
    given: int
    """How many cells or points they are from."""

    @property
    def told(self) -> str:
        """How much of what was given is shown, in words."""
        grid = " x ".join(map(str, self.shape))
        how = "thinned to" if self.given > np.prod(self.shape) else "shown on"
        return f"{self.given:,} cells or points, {how} a grid of {grid}"

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.x), len(self.y), len(self.z)


def grid_for(mesh: pv.DataSet, across: int = ACROSS) -> tuple[Array, Array, Array]:
    """Where a mesh or a cloud is looked at: as finely as a browser draws easily."""
    points = np.asarray(mesh.cell_centers().points if mesh.n_cells and not _scattered(mesh) else mesh.points)
    x0, x1, y0, y1, *_ = mesh.bounds
    spacing = max(x1 - x0, y1 - y0) / across
    # points half a spacing inside: those on the rim belong to the mesh
    x, y = (np.arange(a + spacing / 2, b, spacing) if b > a else np.array([a]) for a, b in ((x0, x1), (y0, y1)))
    levels = np.unique(points[:, 2].round(3))
    if len(levels) > LEVELS:  # more of them where there are more points, which is near the ground
        levels = np.unique(np.quantile(points[:, 2], np.linspace(0.01, 0.99, LEVELS)).round(2))
    return x, y, levels.astype(np.float64)


def resampled(mesh: pv.DataSet, grid: tuple[Array, Array, Array]) -> Volume:
    """A mesh' cells, or the nearest of scattered points, on a grid."""
    data = mesh.point_data if _scattered(mesh) or not len(mesh.cell_data) else mesh.cell_data
    names = [name for name, values in data.items() if values.dtype.kind in "fiu" and not name.startswith("vtk")]
    shape = tuple(map(len, grid))
    if _scattered(mesh):
        where = np.stack([axis.ravel() for axis in np.meshgrid(*grid, indexing="ij")], axis=-1)
        tree = cKDTree(mesh.points)
        distance, index = tree.query(where)
        some = mesh.points[:: -(-mesh.n_points // 2000)]  # the fourth neighbour: the first may be one of a fine axis
        usual = float(np.median(tree.query(some, k=min(5, mesh.n_points))[0][:, -1]))
        air = distance <= 1.5 * usual
        values = {name: np.where(air, np.asarray(data[name], dtype=np.float32)[index].T, np.nan) for name in names}
        fields = {name: found.reshape(-1, *shape) for name, found in values.items()}
        return Volume(*grid, fields, mesh.n_points)
    sampled = pv.RectilinearGrid(*grid).sample(mesh)
    air = sampled["vtkValidPointMask"].astype(bool)
    fields = {}
    for name in names:
        found = np.where(air, np.asarray(sampled[name], dtype=np.float32).T, np.nan)
        fields[name] = found.reshape(-1, *shape[::-1]).transpose(0, 3, 2, 1)  # VTK counts x first
    return Volume(*grid, fields, mesh.n_cells)


def _scattered(mesh: pv.DataSet) -> bool:
    """Points that no volume or surface connects."""
    return mesh.n_cells == 0 or mesh.n_cells == mesh.n_points


def streamlines(volume: Volume, name: str, count: int = 130, steps: int = 90) -> tuple[NDArray, NDArray]:
    """Segments (2 n, 3) along the wind through ``count`` places among the lower air, and the speeds at their ends."""
    velocity = np.nan_to_num(volume.fields[name])
    air = np.argwhere(np.isfinite(volume.fields[name][0][:, :, : max(1, len(volume.z) // 2)]))
    if not len(air):
        return np.empty((0, 3), np.float32), np.empty(0, np.float32)
    seeds = air[np.random.default_rng(0).choice(len(air), min(count, len(air)), replace=False)]
    axes = (volume.x, volume.y, volume.z)
    start = np.stack([axis[seeds[:, i]] for i, axis in enumerate(axes)], axis=-1)
    step = 2 * float(np.diff(volume.x).mean()) if len(volume.x) > 1 else 1.0

    def at(places: Array) -> Array:
        index = [np.interp(places[:, i], axis, np.arange(len(axis))) for i, axis in enumerate(axes)]
        return np.stack([map_coordinates(component, index, order=1, mode="nearest") for component in velocity], axis=-1)

    segments, speeds = [], []
    low, high = (np.array([edge(axis) for axis in axes]) for edge in (np.min, np.max))
    for sign in (1.0, -1.0):
        places, going = start.copy(), np.ones(len(start), bool)
        for _ in range(steps):
            wind = at(places)
            speed = np.linalg.norm(wind, axis=-1)
            middle = places + 0.5 * sign * step * wind / np.maximum(speed, 1e-9)[:, None]  # the midpoint rule
            wind = at(middle)
            following = places + sign * step * wind / np.maximum(np.linalg.norm(wind, axis=-1), 1e-9)[:, None]
            going &= (speed > 1e-2 * np.nanmax(np.abs(velocity))) & ((following >= low) & (following <= high)).all(-1)
            if not going.any():
                break
            segments.append(np.stack([places[going], following[going]], axis=1).reshape(-1, 3))
            speeds.append(np.repeat(speed[going], 2))
            places = np.where(going[:, None], following, places)
    return np.concatenate(segments).astype(np.float32), np.concatenate(speeds).astype(np.float32)


def blocks(volume: Volume) -> NDArray[np.float32]:
    """Triangles (n, 3, 3) around what is no air at the ground: the buildings, where no file says what they are."""
    solid = np.isnan(next(iter(volume.fields.values()))[0])
    height = np.cumprod(solid, axis=2).sum(2)  # levels that are solid from the ground up
    floors = np.concatenate([[0.0], 0.5 * (volume.z[1:] + volume.z[:-1]), volume.z[-1:]])
    top = np.pad(floors[height], 1)
    x, y = (edges(axis) for axis in (volume.x, volume.y))
    quads = []
    for i, j in np.argwhere(height > 0):
        a, b, c, d, h = x[i], x[i + 1], y[j], y[j + 1], top[i + 1, j + 1]
        quads.append(((a, c, h), (b, c, h), (b, d, h), (a, d, h)))
        for (p, q), beside in (
            (((a, c), (a, d)), top[i, j + 1]), (((b, c), (b, d)), top[i + 2, j + 1]),
            (((a, c), (b, c)), top[i + 1, j]), (((a, d), (b, d)), top[i + 1, j + 2]),
        ):  # fmt: skip
            if beside < h:
                quads.append(((*p, beside), (*q, beside), (*q, h), (*p, h)))
    corners = np.array(quads, dtype=np.float32).reshape(-1, 4, 3)
    return corners[:, [0, 1, 2, 0, 2, 3]].reshape(-1, 3, 3)


def edges(axis: Array) -> Array:
    """The sides of the cells around evenly spaced centres."""
    half = 0.5 * (axis[1] - axis[0]) if len(axis) > 1 else 0.5
    return np.concatenate([axis - half, axis[-1:] + half])
