"""Columns of air on a lattice that lies along the wind, and how much of each cell is inside a building.

The lattice is turned with the wind, not with the streets: whatever the direction, the wind blows along +x and a wall
enters as the share of each cell that it fills. So a city that is turned together with its wind gives nearly the same
numbers, and no direction is special. The lattice is a rectangle along the wind; the air that is asked about may be less
of it (a box of CFD is not turned with the wind), which is marked.

Letters: Z levels, Y and X columns across and along the wind, T triangles.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numba
import numpy as np
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import DOMAIN_HEIGHT, UrbanDomain
from farfield.problems.urban_wind.mesh import GROWTH_UPWARD, growing_cells

Array = NDArray[np.floating]
Mask = NDArray[np.bool_]

SPACING = 4.0  # m between columns, as between the cells of the data
# The levels of the data's mesh: faces of cells that grow from 2 m at the ground.
LEVELS: Array = np.concatenate([[0.0], np.cumsum(growing_cells(DOMAIN_HEIGHT, 2.0, GROWTH_UPWARD, 1.3 * SPACING))])
HEIGHTS: Array = (LEVELS[1:] + LEVELS[:-1]) / 2
GROWTH_ABOVE = 1.5  # of the levels above these
RAYS = 4  # its square is the number of rays per column; no two share an x or a y, so walls are seen to a 32nd of one


@dataclass(frozen=True)
class Lattice:
    """Columns (Y, X) around a city in wind axes; the outermost ring lies outside, where the wind enters and leaves."""

    origin: tuple[float, float]  # x and y of the lowest corner, m
    solid: NDArray[np.floating]  # (Z, Y, X): share of each cell inside a building
    air: Mask  # (Y, X): the middle of the column is in the air that is asked about
    spacing: float = SPACING
    levels: Array = field(default_factory=lambda: LEVELS)  # (Z + 1,): heights of the cells' faces, m
    # What only physics asks for:
    moments: NDArray[np.floating] | None = None  # (2, Z, Y, X): of the solid share, see :func:`solid_moments`
    outflow: Mask | None = None  # (Y, X): the wind leaves into this column

    @classmethod
    def around(
        cls,
        triangles: Array,
        domain: UrbanDomain,
        phase: tuple[float, float] = (0.0, 0.0),
        spacing: float = SPACING,
        levels: Array = LEVELS,
    ) -> Lattice:
        """The lattice of buildings (T, 3, 3), given in wind axes, in the air of ``domain``.

        ``domain`` lies along the axes in which its ``wind_angle`` is told. ``phase`` moves the lattice by so many
        columns, each from 0 to 1, without changing what it covers: with 0 its lines meet the corner of the built
        rectangle.
        """
        turn = np.array([domain.wind, [-domain.wind[1], domain.wind[0]]])
        (west, east), (south, north) = domain.bounds[:2]
        corners = np.array([[west, south], [west, north], [east, south], [east, north]]) @ turn.T
        anchor = np.array([domain.x_min, domain.y_min]) @ turn.T + spacing * np.asarray(phase)
        # A column is in the air if its middle is: half a column less, then the ring.
        low = anchor + spacing * (np.floor((corners.min(0) - anchor) / spacing + 0.5) - 1)
        nx, ny = (np.ceil((corners.max(0) - low) / spacing - 0.5) + 1).astype(int)
        middle = np.stack(
            np.meshgrid(*(low[a] + spacing * (np.arange(n) + 0.5) for a, n in ((0, nx), (1, ny)))), axis=-1
        )
        at = middle @ turn  # (Y, X, 2) in the axes of the domain
        beyond = np.stack([at <= domain.bounds[:2, 0], at >= domain.bounds[:2, 1]], axis=-1)  # (Y, X, axis, side)
        air = np.asarray(~beyond.any((2, 3)))
        outflow = np.asarray(~air & ~(beyond & ~domain.outlets).any((2, 3)))
        origin = (float(low[0]), float(low[1]))
        solid, *moments = solid_moments(triangles, origin, (int(ny), int(nx)), levels, spacing) * air
        return cls(origin, solid, air, spacing, levels, np.stack(moments), outflow)

    def bare(self) -> Lattice:
        """Without what only physics asks for."""
        return replace(self, moments=None, outflow=None)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(Z, Y, X)."""
        levels, across, along = self.solid.shape
        return levels, across, along

    @cached_property
    def heights(self) -> Array:
        """(Z,): the middles of the levels, m."""
        return np.asarray((self.levels[1:] + self.levels[:-1]) / 2)

    @property
    def fluid(self) -> NDArray[np.float32]:
        """(Z, Y, X): share of each cell that is air."""
        return np.float32(1) - self.solid

    @cached_property
    def _air_of_cells(self) -> NDArray[np.float32]:
        """Share of air of each cell, in the order (Y, X, Z), and a little everywhere."""
        return (self.fluid.transpose(1, 2, 0) + np.float32(1e-3)).reshape(-1)

    def columns_of(self, points: Array) -> NDArray[np.int64]:
        """The column (N, 2: across, along) that each point (N, 3) is in; beyond the lattice, the nearest."""
        at = np.floor((points[:, 1::-1] - self.origin[::-1]) / self.spacing).astype(np.int64)
        return np.clip(at, 0, np.array(self.shape[1:]) - 1)

    def corners(self, points: Array) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The cells around each point (N, 3), as indices into (Y, X, Z), and their weights: (N, K) each, K up to 8.

        Weights are linear in each axis, times the share of air: what is inside a wall does not leak into the air
        beside it. Beyond the lattice the nearest cells count. Corners that none of the points needs are left out:
        the cells of the data lie at the heights of the levels.
        """
        index = np.empty((len(points), 8), dtype=np.int64)
        weight = np.empty((len(points), 8), dtype=np.float32)
        needed = np.zeros(8, dtype=np.bool_)
        points = np.asarray(points, dtype=np.float64)
        where = (self.origin[0], self.origin[1], self.spacing, self.heights)
        _weigh_corners(points, *where, self._air_of_cells, self.shape, index, weight, needed)
        return _only(index, needed), _only(weight, needed)


def levels_up_to(height: float) -> Array:
    """The levels of the data, and thicker ones above them up to a height (m) at least."""
    levels = LEVELS.tolist()
    while levels[-1] < height - 1e-6:
        levels.append(levels[-1] + GROWTH_ABOVE * (levels[-1] - levels[-2]))
    return np.array(levels)


def solid_fractions(
    triangles: Array, origin: tuple[float, float], shape: tuple[int, int], levels: Array, spacing: float
) -> NDArray[np.float32]:
    """Share of each cell (Z, Y, X) that lies inside closed surfaces: the first of :func:`solid_moments`."""
    return np.asarray(solid_moments(triangles, origin, shape, levels, spacing)[0])


def solid_moments(
    triangles: Array, origin: tuple[float, float], shape: tuple[int, int], levels: Array, spacing: float
) -> NDArray[np.float32]:
    """(3, Z, Y, X): how much of each cell is inside closed surfaces (T, 3, 3), on the ground or not, and where.

    The first is the share of the cell; the others are its moments, the mean over the cell of
    solid * (x - x of the middle) / half a column  and likewise for y. They say on which side of a cell a wall is that
    does not lie along the lattice.

    A vertical ray is inside a building below a face that looks up and outside below one that looks down, so a cell
    from a to b holds  sum over faces of  sign * clip((z - a) / (b - a), 0, 1),  the mean over the rays of its column.
    Floors on the ground (z <= 0) contribute nothing and may be missing. Where buildings overlap the sum is cut at 1.
    """
    triangles = np.ascontiguousarray(triangles, dtype=np.float64)
    out = np.zeros((3, len(levels) - 1, *shape))
    if len(triangles):
        edge, other = triangles[:, 1, :2] - triangles[:, 0, :2], triangles[:, 2, :2] - triangles[:, 0, :2]
        plan = edge[:, 0] * other[:, 1] - edge[:, 1] * other[:, 0]  # twice the area seen from above
        # Some writers let the normals point into the buildings: then the volume below the faces is negative.
        outward = 1.0 if (plan * triangles[:, :, 2].mean(1)).sum() >= 0 else -1.0
        _add_columns(triangles, plan * outward, origin[0], origin[1], spacing / RAYS, np.asarray(levels, float), out)
    return np.clip(out / RAYS**2, [[[[0]]], [[[-1]]], [[[-1]]]], 1).astype(np.float32)


@numba.njit(cache=True)
def _weigh_corners(
    points: Array,
    west: float,
    south: float,
    spacing: float,
    heights: Array,
    air: NDArray[np.float32],
    shape: tuple[int, int, int],
    index: NDArray[np.int64],
    weight: NDArray[np.float32],
    needed: Mask,
) -> None:  # pragma: no cover - compiled
    """The eight cells around each point, their weights, and which any point needs."""
    levels, across, along = shape
    for n in range(len(points)):
        # The data's cells are multiples of half a column; single precision would put them beside those.
        at_x = min(max(np.rint(((points[n, 0] - west) / spacing - 0.5) * 1e4) / 1e4, 0.0), along - 1.0)
        at_y = min(max(np.rint(((points[n, 1] - south) / spacing - 0.5) * 1e4) / 1e4, 0.0), across - 1.0)
        height = min(max(points[n, 2], heights[0]), heights[-1])
        k = 0
        while k < levels - 2 and height >= heights[k + 1]:
            k += 1
        at_z = k + np.rint((height - heights[k]) / (heights[k + 1] - heights[k]) * 1e4) / 1e4
        i, j, k = int(at_x), int(at_y), int(at_z)
        x, y, z = np.float32(at_x - i), np.float32(at_y - j), np.float32(at_z - k)
        total = np.float32(0)
        for corner in range(8):
            right, behind, above = corner >> 2, corner >> 1 & 1, corner & 1
            linear = (x if right else 1 - x) * (y if behind else 1 - y) * (z if above else 1 - z)
            column = min(j + behind, across - 1) * along + min(i + right, along - 1)
            index[n, corner] = cell = column * levels + min(k + above, levels - 1)
            weight[n, corner] = share = np.float32(linear * air[cell])
            needed[corner] |= linear > 0
            total += share
        for corner in range(8):
            weight[n, corner] /= total


@numba.njit(cache=True)
def _only(rows: NDArray, needed: Mask) -> NDArray:  # pragma: no cover - compiled
    """The columns that are needed, moved together in place: what reads them wants them side by side."""
    kept = np.flatnonzero(needed)
    if len(kept) == rows.shape[1]:
        return rows
    flat, to = rows.ravel(), 0
    for n in range(len(rows)):
        for column in kept:
            flat[to] = rows[n, column]
            to += 1
    return flat[:to].reshape(len(rows), len(kept))


@numba.njit(cache=True)
def _add_columns(
    triangles: Array, plan: Array, x0: float, y0: float, step: float, levels: Array, out: Array
) -> None:  # pragma: no cover - compiled
    """Add every face, from the ground up to it, to the rays that meet it."""
    _, count_z, count_y, count_x = out.shape
    for t in range(len(triangles)):
        if plan[t] == 0.0:
            continue
        a, b, c = triangles[t, 0], triangles[t, 1], triangles[t, 2]
        # Rays are moved by less than a micrometre, so that none meets an edge, which belongs to two faces.
        ax, ay = a[0] - x0 - 1.7e-7, a[1] - y0 - 2.3e-7
        bx, by, cx, cy = b[0] - a[0], b[1] - a[1], c[0] - a[0], c[1] - a[1]
        area = bx * cy - by * cx
        first_i = max(0, int(np.floor((ax + min(0.0, bx, cx)) / step - 1.0)))
        last_i = min(RAYS * count_x - 1, int(np.ceil((ax + max(0.0, bx, cx)) / step)))
        first_j = max(0, int(np.floor((ay + min(0.0, by, cy)) / step - 1.0)))
        last_j = min(RAYS * count_y - 1, int(np.ceil((ay + max(0.0, by, cy)) / step)))
        sign = 1.0 if plan[t] > 0 else -1.0
        for j in range(first_j, last_j + 1):
            for i in range(first_i, last_i + 1):
                # each ray of a column has an x and a y of its own: a wall along an axis passes them one by one
                shift_x, shift_y = (j % RAYS + 0.5) / RAYS, (i % RAYS + 0.5) / RAYS
                dx, dy = (i + shift_x) * step - ax, (j + shift_y) * step - ay
                along_b, along_c = (dx * cy - dy * cx) / area, (dy * bx - dx * by) / area
                if along_b < 0 or along_c < 0 or along_b + along_c > 1:
                    continue
                z = a[2] + along_b * (b[2] - a[2]) + along_c * (c[2] - a[2])
                at_x, at_y = (i % RAYS + shift_x) * 2 / RAYS - 1, (j % RAYS + shift_y) * 2 / RAYS - 1
                for k in range(count_z):
                    if z <= levels[k]:
                        break
                    full = (z - levels[k]) / (levels[k + 1] - levels[k])
                    inside = sign * min(full, 1.0)
                    out[0, k, j // RAYS, i // RAYS] += inside
                    out[1, k, j // RAYS, i // RAYS] += inside * at_x
                    out[2, k, j // RAYS, i // RAYS] += inside * at_y
