"""Buildings on flat ground: random city squares, their surfaces as meshes and point sets.

Everything is in metres, the ground is z = 0 and the wind blows along +x. A city of scale s fills the square
\\|x\\|, \\|y\\| < 50 s with the same number of buildings per area; the margins around it do not grow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import trimesh
from numpy.typing import NDArray

from farfield.files import atomic_path

Array = NDArray[np.floating]

BUILDINGS_PER_HECTARE = (4, 10)  # drawn uniformly, both ends included; a hectare is the square of s = 1
FOOTPRINT_SIDE = (8.0, 26.0)  # m
BUILDING_HEIGHT = (6.0, 38.0)  # m
SMALLEST_GAP = 5.0  # m between two buildings
UPWIND_MARGIN, DOWNWIND_MARGIN, SIDE_MARGIN, DOMAIN_HEIGHT = 95.0, 255.0, 60.0, 55.0  # m
LARGEST_OPEN = 6.0  # times the air of s = 1 are enough for any city: its buildings are not higher
DOMAIN_TO_BUILDING_HEIGHT = 1.4  # at least, as with the tallest random building


class Box(NamedTuple):
    """An axis-aligned building that stands on the ground."""

    x_min: float
    x_max: float
    y_min: float
    y_max: float
    height: float


@dataclass(frozen=True)
class UrbanDomain:
    """The box of air around a rectangle of buildings; the margins are the same for every size of city.

    The box lies along the coordinate axes whatever the wind's direction: oblique wind enters through two sides, and
    what lies downwind of a side is as far away as the share of the wind that blows towards it asks for.
    """

    x_min: float  # of the built rectangle
    x_max: float
    y_min: float
    y_max: float
    height: float = DOMAIN_HEIGHT
    wind_angle: float = 0.0  # degrees, anticlockwise from +x: where the wind blows to
    further: float = 0.0  # m of air on every side beyond these margins

    @classmethod
    def square(cls, scale: float, wind_angle: float = 0.0) -> UrbanDomain:
        """The domain of a random city of scale s: the built square is 100 s wide."""
        if not scale > 0:
            raise ValueError(f"the scale of a city must be positive, got {scale}")
        half = 50.0 * scale
        return cls(-half, half, -half, half, wind_angle=wind_angle)

    @classmethod
    def around(cls, buildings: trimesh.Trimesh) -> UrbanDomain:
        """The domain of given buildings; higher than usual if they are tall."""
        (x_min, y_min, _), (x_max, y_max, top) = buildings.bounds.tolist()
        return cls(x_min, x_max, y_min, y_max, max(DOMAIN_HEIGHT, DOMAIN_TO_BUILDING_HEIGHT * top))

    def in_the_open(self) -> UrbanDomain:
        """The same buildings in a box that is as wide aside of them and as high, for their extent, as that of s = 1.

        The margins of the data are the same for all sizes, so that large cities are in a duct: 600 m of it fill half
        of the air's cross-section, 100 m a sixth, and what passes beside and through them is too fast.
        """
        size = min(max(1.0, self.scale), LARGEST_OPEN)
        columns = np.ceil(SIDE_MARGIN * (size - 1) / 4)  # of the lattice's 4 m: it has the same lines in both boxes
        return replace(self, further=4.0 * float(columns), height=max(self.height, DOMAIN_HEIGHT * size))

    @property
    def wind(self) -> Array:
        """(2,): where the wind blows to, of length 1; exact along the axes."""
        angle = np.deg2rad(self.wind_angle)
        return np.round([np.cos(angle), np.sin(angle)], 15)

    @property
    def outlets(self) -> NDArray[np.bool_]:
        """(2, 2) of axis and low or high side: where the wind leaves freely; see :func:`leaves_through`."""
        along_x, along_y = self.wind.tolist()
        return np.array(
            [
                [leaves_through(sign * along, other) for sign in (-1, 1)]
                for along, other in ((along_x, along_y), (along_y, along_x))
            ]
        )

    def margins(self, upwind: float, aside: float, downwind: float) -> Array:
        """(2, 2) of axis and low or high side: m around the buildings, between these by where the wind blows to."""
        towards = np.stack([-self.wind, self.wind], axis=1)  # cosine between the wind and each side's outward normal
        return aside + (downwind - aside) * np.maximum(towards, 0) + (upwind - aside) * np.maximum(-towards, 0)

    @property
    def bounds(self) -> Array:
        """(3, 2): lowest and highest x, y, z of the air."""
        margins = self.margins(UPWIND_MARGIN, SIDE_MARGIN, DOWNWIND_MARGIN) + self.further
        (west, east), (south, north) = margins
        return np.array(
            [
                [self.x_min - west, self.x_max + east],
                [self.y_min - south, self.y_max + north],
                [0.0, self.height],
            ]
        )

    @property
    def scale(self) -> float:
        """Width of a square of the same built area, in units of 100 m."""
        return float(np.sqrt((self.x_max - self.x_min) * (self.y_max - self.y_min)) / 100.0)

    @property
    def ground_area(self) -> float:
        """Area of the ground below the air, m²."""
        (x0, x1), (y0, y1) = self.bounds[:2]
        return float((x1 - x0) * (y1 - y0))


def leaves_through(towards: float, aside: float) -> bool:
    """Whether wakes leave through a side, of a wind that blows so much ``towards`` it and so much along it (m/s, or 1).

    A wind that nearly follows the side leaves through the end first. An outlet with a pressure of 0 so close beside the
    buildings would let half of the wind escape sideways: at a tenth of a degree, a city of s = 5 would have another
    wind altogether than at none.
    """
    return towards > abs(aside) * SIDE_MARGIN / DOWNWIND_MARGIN


def random_buildings(
    rng: np.random.Generator, scale: float = 1.0, module: float | None = None, count: int | None = None
) -> list[Box]:
    """Draw non-overlapping boxes in the square of a city of this scale.

    ``module`` puts every wall on a multiple of that length from the square's corner, which makes the walls
    coincide with the lines of a mesh of that cell size. ``count`` overrides the random number of buildings.
    """
    half = 50.0 * scale
    if count is None:
        count = round(int(rng.integers(BUILDINGS_PER_HECTARE[0], BUILDINGS_PER_HECTARE[1] + 1)) * scale**2)
    for _ in range(100):
        sides = rng.uniform(*FOOTPRINT_SIDE, (count, 2))
        heights = rng.uniform(*BUILDING_HEIGHT, count)
        if module is not None:
            sides = np.maximum(1, np.round(sides / module)) * module
        placed = np.empty((0, 4))  # x_min, x_max, y_min, y_max
        for side in sides[np.argsort(-sides.prod(1))]:  # the largest first: small ones still find room
            for _ in range(200):
                corner = rng.uniform(-half, half - side)
                if module is not None:
                    corner = -half + np.round((corner + half) / module) * module
                x0, y0 = corner
                x1, y1 = corner + side
                gap_x = np.maximum(placed[:, 0] - x1, x0 - placed[:, 1])
                gap_y = np.maximum(placed[:, 2] - y1, y0 - placed[:, 3])
                if np.all(np.maximum(gap_x, gap_y) >= SMALLEST_GAP) and max(x1, y1) <= half + 1e-9:
                    placed = np.vstack([placed, [x0, x1, y0, y1]])
                    break
            else:
                break  # no room left: draw other sizes
        if len(placed) == count:
            return [Box(*numbers) for numbers in np.column_stack([placed, heights]).tolist()]
    raise RuntimeError(f"{count} buildings with gaps of {SMALLEST_GAP} m do not fit a square of {2 * half} m")


def boxes_to_mesh(boxes: list[Box], foundation: float = 0.0) -> trimesh.Trimesh:
    """Closed surface of the boxes, reaching ``foundation`` metres below the ground."""
    meshes = [
        trimesh.creation.box(bounds=[[b.x_min, b.y_min, -foundation], [b.x_max, b.y_max, b.height]]) for b in boxes
    ]
    return cast(trimesh.Trimesh, trimesh.util.concatenate(meshes))


def sample_surface(triangles: Array, count: int, rng: np.random.Generator) -> Array:
    """``count`` points spread evenly over triangles (T, 3, 3), each with a chance given by its area."""
    edges = triangles[:, 1:] - triangles[:, :1]
    areas = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1)
    if not areas.sum() > 0:
        raise ValueError(f"cannot sample a surface without area ({len(triangles)} triangles)")
    chosen = rng.choice(len(triangles), count, p=areas / areas.sum())
    u, v = rng.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)  # fold the square onto the triangle
    return triangles[chosen, 0] + u * edges[chosen, 0] + v * edges[chosen, 1]


def walls_and_roofs(mesh: trimesh.Trimesh) -> Array:
    """Triangles (T, 3, 3) of the surface that the wind touches: cut off at the ground, without floors on it."""
    vertices, faces = mesh.vertices, mesh.faces
    if mesh.bounds[0, 2] < 0:
        vertices, faces, _ = trimesh.intersections.slice_faces_plane(vertices, faces, [0, 0, 1], [0, 0, 0])
    triangles = np.asarray(vertices, dtype=float)[faces]
    return triangles[triangles[:, :, 2].max(1) > 1e-6]


def plan_area(triangles: Array) -> float:
    """Of the roofs among walls and roofs (T, 3, 3), seen from above, m²."""
    edges = triangles[:, 1:, :2] - triangles[:, :1, :2]
    seen = np.abs(edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0]) / 2
    return float(seen[triangles[..., 2].max(1) > 1e-3].sum())  # no floors


def inside_buildings(mesh: trimesh.Trimesh, points: Array) -> NDArray[np.bool_]:
    """Which points (N, 3) lie inside the closed surfaces, which may touch or overlap one another.

    The ray from a point straight up leaves a building through a face that looks up and enters one through a face that
    looks down: the difference of their numbers is that of the buildings around the point.
    """
    # Moved by less than a micrometre, so that no ray meets an edge, which belongs to two faces.
    x, y, z = np.asarray(points, dtype=float).T + np.array([[1.7e-7], [2.3e-7], [0.0]])
    order = np.argsort(x)
    x, y, z = x[order], y[order], z[order]
    around = np.zeros(len(x), dtype=int)
    triangles = np.asarray(mesh.triangles)
    first, last = np.searchsorted(x, triangles[..., 0].min(1)), np.searchsorted(x, triangles[..., 0].max(1))
    corner, to_b, to_c = triangles[:, 0], triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0]
    twice_area = to_b[:, 0] * to_c[:, 1] - to_b[:, 1] * to_c[:, 0]  # seen from above; 0 for a wall
    for t in np.flatnonzero((twice_area != 0) & (last > first)):
        near = slice(first[t], last[t])
        dx, dy = x[near] - corner[t, 0], y[near] - corner[t, 1]
        along_b = (dx * to_c[t, 1] - dy * to_c[t, 0]) / twice_area[t]
        along_c = (dy * to_b[t, 0] - dx * to_b[t, 1]) / twice_area[t]
        above = corner[t, 2] + along_b * to_b[t, 2] + along_c * to_c[t, 2] > z[near]
        met = (along_b >= 0) & (along_c >= 0) & (along_b + along_c <= 1) & above
        around[near] += int(np.sign(twice_area[t])) * met
    inside = np.empty(len(x), dtype=bool)
    inside[order] = around != 0
    return inside


def write_stl(path: str | Path, mesh: trimesh.Trimesh) -> None:
    """Write the surface as a binary STL."""
    with atomic_path(path) as partial:
        partial.write_bytes(trimesh.exchange.stl.export_stl(mesh))


def merged(triangles: Array) -> trimesh.Trimesh:
    """A surface of triangles (T, 3, 3): equal corners are one, triangles without three of them are left out."""
    mesh = trimesh.Trimesh(triangles.reshape(-1, 3), np.arange(3 * len(triangles)).reshape(-1, 3), process=True)
    a, b, c = np.asarray(mesh.faces).T
    mesh.update_faces((a != b) & (b != c) & (c != a))
    return mesh


def bodies_of(mesh: trimesh.Trimesh) -> tuple[list[trimesh.Trimesh], NDArray[np.integer]]:
    """The parts that share no corner with each other, and to which each face belongs.

    Houses in a row with common corners are one part.
    """
    labels = trimesh.graph.connected_component_labels(mesh.edges, node_count=len(mesh.vertices))
    of_face = np.unique(labels[mesh.faces[:, 0]], return_inverse=True)[1]
    order = np.argsort(of_face, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(of_face[order])) + 1)
    return cast(list[trimesh.Trimesh], mesh.submesh(groups, repair=False)), of_face


def overlapping_pairs(bodies: list[trimesh.Trimesh]) -> list[tuple[int, int]]:
    """Pairs of bodies whose interiors meet; bodies that only touch do not count."""
    low = np.array([body.bounds[0] for body in bodies])
    high = np.array([body.bounds[1] for body in bodies])
    pairs = []
    for i in range(len(bodies)):
        depth = np.minimum(high[i], high[i + 1 :]) - np.maximum(low[i], low[i + 1 :])
        for j in i + 1 + np.flatnonzero((depth > 1e-3).all(1)):
            # Points just inside one body's surface that are inside the other: also finds crossing slabs.
            for one, other in ((bodies[i], bodies[j]), (bodies[j], bodies[i])):
                rng = np.random.default_rng(0)
                surface = np.vstack([sample_surface(np.asarray(one.triangles), 256, rng), one.vertices])
                inner = surface + 1e-3 * (one.centroid - surface)
                if inside_buildings(other, inner).any():
                    pairs.append((i, int(j)))
                    break
    return pairs
