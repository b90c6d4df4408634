"""A user's own city, put where a network knows cities: wind along +x, the middle of the buildings at x = y = 0.

The user's coordinates are east, north, up; a wind direction is the meteorologist's: where the wind comes from, in
degrees clockwise from north. Both are used here and nowhere else: what lies behind a :class:`Site` is in wind axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import pyvista as pv
import trimesh
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import UrbanDomain, inside_buildings, plan_area, walls_and_roofs
from farfield.problems.urban_wind.files import UrbanCase
from farfield.problems.urban_wind.lattice import Lattice
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.sampling import UrbanNormalisation

Array = NDArray[np.floating]

SMALLEST_CELL, LARGEST_CELL = 0.5, 25.0  # m
USUAL_SPREAD = 2.0  # standard deviations; a uniform distribution ends at 1.7
OBLIQUE = 5.0  # degrees between a wall and the wind that data with walls along it do not have


@dataclass(frozen=True)
class Site:
    """A city in wind axes, and how to get there and back."""

    buildings: trimesh.Trimesh  # in wind axes
    wind_direction: float  # degrees clockwise from north, where it comes from
    roughness: float  # z0, m
    inverse_length: float  # 1/L, 1/m
    basis: Array  # (3, 3), rows: downwind, left of it, up; in the user's axes
    origin: Array  # (3,): where the wind axes start, in the user's coordinates
    cell: float  # m between the buildings, as in training
    usual_density: tuple[float, float]  # lowest and highest share of roofs in training

    @classmethod
    def facing(
        cls,
        buildings: trimesh.Trimesh,
        wind_direction: float,
        roughness: float,
        inverse_length: float,
        normalisation: UrbanNormalisation,
    ) -> Site:
        """Turn the user's buildings into the wind."""
        for name, value in (("wind direction", wind_direction), ("1/L", inverse_length), ("roughness", roughness)):
            if not np.isfinite(value):
                raise ValueError(f"the {name} must be a finite number, got {value}")
        if not roughness > 0:
            raise ValueError(f"the roughness length must be positive, got {roughness} m")
        if not 0 <= wind_direction <= 360:
            raise ValueError(
                f"the wind direction must be from 0 to 360 degrees (0 north, 90 east), got {wind_direction:g}"
            )
        basis = wind_axes(wind_direction)
        middle = buildings.bounds.mean(0) * [1, 1, 0]
        turned = (np.asarray(buildings.vertices) - middle) @ basis.T
        shift = (turned.min(0) + turned.max(0)) / 2 * [1, 1, 0]
        # To the micrometre: a city that was moved, or turned with its wind, comes out the same to the last bit.
        vertices = np.round(turned - shift, 6)
        in_wind = trimesh.Trimesh(vertices, buildings.faces, process=False)
        cell, densities = training_cell(normalisation.cells), normalisation.plan_density
        origin = middle + shift @ basis
        return cls(in_wind, wind_direction, roughness, inverse_length, basis, origin, cell, densities)

    @cached_property
    def case(self) -> UrbanCase:
        """Points of the air and of surfaces, as dense as in training; in wind axes, without fields."""
        case = UrbanCase.around(self.buildings, self.roughness, self.inverse_length, self.cell, self.cell / 2)
        # In training every hectare of city has the same number of surface points. A user's city need not fill a
        # hectare: sparser or denser than all training cities, it counts as the sparsest or densest with its roofs.
        lowest, highest = self.usual_density
        hectares = np.clip(self.built_area, case.roof_area / highest, case.roof_area / lowest) / 1e4
        return replace(case, scale=float(np.sqrt(hectares)))

    @cached_property
    def obstacles(self) -> Array:
        """Triangles (T, 3, 3) of walls and roofs, in wind axes."""
        return walls_and_roofs(self.buildings)

    @cached_property
    def built_area(self) -> float:
        """Of the smallest rectangle around the buildings, at whatever angle, m²."""
        return float(np.prod(trimesh.bounds.oriented_bounds_2D(self.buildings.vertices[:, :2])[1]))

    @cached_property
    def domain(self) -> UrbanDomain:
        """The box of air that the network is told about, in wind axes."""
        return UrbanDomain.around(self.buildings)

    @cached_property
    def lattice(self) -> Lattice:
        """The columns of that air."""
        return Lattice.around(self.obstacles, self.domain)

    def to_wind(self, points: Array) -> Array:
        """Points (N, 3) in the user's coordinates -> wind axes."""
        return (points - self.origin) @ self.basis.T

    def to_user(self, points: Array) -> Array:
        """Points (N, 3) in wind axes -> the user's coordinates."""
        return points @ self.basis + self.origin

    def turn_back(self, vectors: Array) -> Array:
        """Vectors (N, 3) along the wind axes -> along the user's."""
        return vectors @ self.basis

    def in_air(self, points: Array) -> NDArray[np.bool_]:
        """Which points (N, 3), in wind axes, lie above the ground and outside the buildings."""
        return (points[:, 2] >= 0) & ~inside_buildings(self.buildings, points)

    def in_domain(self, points: Array) -> NDArray[np.bool_]:
        """Which points (N, 3), in wind axes, lie in :attr:`domain`."""
        low, high = self.domain.bounds.T
        return ((points >= low) & (points <= high)).all(1)

    def mesh(self, cell: float | None = None) -> pv.UnstructuredGrid:
        """Hexahedra around the buildings in the user's coordinates, fine at the ground and between the buildings.

        They are those whose middle is in the air, along the wind axes; ``cell`` metres wide between the buildings.
        """
        cell = self.cell if cell is None else cell
        if not SMALLEST_CELL <= cell <= LARGEST_CELL:
            raise ValueError(f"the spacing must be from {SMALLEST_CELL} to {LARGEST_CELL} m, got {cell} m")
        lines = CartesianMesh.around(self.domain, [], cell, cell / 2)
        box = pv.RectilinearGrid(lines.x, lines.y, lines.z).cast_to_structured_grid()
        mesh = box.extract_cells(np.flatnonzero(self.in_air(lines.cell_centres())))  # type: ignore[arg-type]
        mesh.clear_data()
        mesh.points = self.to_user(np.asarray(mesh.points, dtype=float))
        return mesh

    def surprises(self, normalisation: UrbanNormalisation, oblique: bool = True) -> list[str]:
        """What of this city and its wind is off what the network was trained on by more than that varied there.

        ``oblique`` says whether walls at an angle to the wind were among it.
        """
        found = []
        for what, value, (low, high), unit in (
            ("the tallest building is", float(self.buildings.bounds[1, 2]), normalisation.building_height, " m high"),
            (
                "the share of roofs in the built rectangle is",
                plan_area(self.obstacles) / self.built_area,
                normalisation.plan_density,
                "",
            ),
        ):
            if not low - (high - low) / 2 <= value <= high + (high - low) / 2:
                found.append(f"{what} {value:.3g}{unit}, in training it was {low:.3g} to {high:.3g}{unit}")
        (mean, neutral), (spread, air_spread) = normalisation.terrain_mean, normalisation.terrain_std
        if abs(np.log(self.roughness) - mean) > _usual(spread):
            usual = f"always {np.exp(mean):.3g} m"
            if _usual(spread) > NEVER_VARIED:
                low, high = np.exp([mean - _usual(spread), mean + _usual(spread)])
                usual = f"{low:.2g} to {high:.2g} m"
            found.append(f"the roughness length is {self.roughness:.3g} m, in training it was {usual}")
        if abs(self.inverse_length - neutral) > _usual(air_spread):
            usual = (
                f"{neutral:.3g} ± {air_spread:.2g}" if _usual(air_spread) > NEVER_VARIED else f"always {neutral:.3g}"
            )
            found.append(f"1/L is {self.inverse_length:.3g}, in training it was {usual} 1/m")
        if not oblique and self.oblique_share > 0.1:
            found.append(f"walls stand at more than {OBLIQUE:g}° to the wind and to its normal, in training none did")
        return found

    @cached_property
    def oblique_share(self) -> float:
        """Share of the wall area that is neither along nor across the wind."""
        edges = self.obstacles[:, 1:] - self.obstacles[:, :1]
        normal = np.cross(edges[:, 0], edges[:, 1])
        area = np.linalg.norm(normal, axis=1)
        walls = np.abs(normal[:, 2]) < 0.1 * area
        angle = np.rad2deg(np.arctan2(normal[:, 1], normal[:, 0])) % 90
        oblique = np.minimum(angle, 90 - angle) > OBLIQUE
        return float(area[walls & oblique].sum() / max(area[walls].sum(), 1e-9))


NEVER_VARIED = 1e-6


def _usual(spread: float) -> float:
    """How far a quantity with this standard deviation in training may be off its mean."""
    return (
        NEVER_VARIED if spread == 1.0 else USUAL_SPREAD * spread
    )  # 1: how the normalisation notes that it is constant


def wind_axes(wind_direction: float) -> Array:
    """Rows (3, 3): where the wind blows to, left of it, up. 270 degrees, from the west, is the identity."""
    angle = np.deg2rad(wind_direction % 360)
    # Rounded, so that winds along the coordinate axes turn exactly.
    east, north = np.round([-np.sin(angle), -np.cos(angle)], 15)
    return np.array([[east, north, 0.0], [-north, east, 0.0], [0.0, 0.0, 1.0]])


@lru_cache
def training_cell(cells: float) -> float:
    """The cell size (m) with which the mesh of a training city has so many cells: the spacing of the training data."""
    fine, coarse = SMALLEST_CELL, LARGEST_CELL
    for _ in range(12):
        middle = np.sqrt(fine * coarse)
        count = CartesianMesh.around(UrbanDomain.square(1), [], middle, middle / 2).cell_count
        fine, coarse = (middle, coarse) if count > cells else (fine, middle)
    return float(np.sqrt(fine * coarse))
