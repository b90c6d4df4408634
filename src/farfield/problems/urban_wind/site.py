"""A user's own city, put where a network knows cities: wind along +x, the middle of the buildings at x = y = 0.

The user's coordinates are east, north, up; a wind direction is the meteorologist's: where the wind comes from, in
degrees clockwise from north. Both are used here and nowhere else: what lies behind a :class:`Site` is in wind axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyvista as pv
import trimesh
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import UrbanDomain, inside_buildings
from farfield.problems.urban_wind.files import UrbanCase
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.sampling import UrbanNormalisation

Array = NDArray[np.floating]

SMALLEST_CELL, LARGEST_CELL = 0.5, 25.0  # m
USUAL_SPREAD = 2.0  # standard deviations; a uniform distribution ends at 1.7


@dataclass(frozen=True)
class Site:
    """A city in wind axes, and how to get there and back."""

    buildings: trimesh.Trimesh  # in wind axes
    case: UrbanCase  # points of the air and surfaces as in training; in wind axes, without fields
    basis: Array  # (3, 3), rows: downwind, left of it, up; in the user's axes
    origin: Array  # (3,): where the wind axes start, in the user's coordinates
    cell: float  # m between the buildings, as in training

    @classmethod
    def facing(
        cls,
        buildings: trimesh.Trimesh,
        wind_direction: float,
        roughness: float,
        inverse_length: float,
        normalisation: UrbanNormalisation,
    ) -> Site:
        """Turn the user's buildings into the wind and put points around them, as dense as in training."""
        for name, value in (("wind direction", wind_direction), ("1/L", inverse_length), ("roughness", roughness)):
            if not np.isfinite(value):
                raise ValueError(f"the {name} must be a finite number, got {value}")
        if not roughness > 0:
            raise ValueError(f"the roughness length must be positive, got {roughness} m")
        basis = wind_axes(wind_direction)
        middle = buildings.bounds.mean(0) * [1, 1, 0]
        turned = (np.asarray(buildings.vertices) - middle) @ basis.T
        shift = (turned.min(0) + turned.max(0)) / 2 * [1, 1, 0]
        # To the micrometre: a city that was moved, or turned with its wind, comes out the same to the last bit.
        vertices = np.round(turned - shift, 6)
        in_wind = trimesh.Trimesh(vertices, buildings.faces, process=False)
        cell = training_cell(normalisation.cells)
        case = UrbanCase.around(in_wind, roughness, inverse_length, cell, cell / 2)
        # In training every hectare of city has the same number of surface points. A user's city need not fill a
        # hectare: sparser or denser than all training cities, it counts as the sparsest or densest with its roofs.
        lowest, highest = normalisation.plan_density
        hectares = np.clip(_built_area(in_wind), case.roof_area / highest, case.roof_area / lowest) / 1e4
        case = replace(case, scale=float(np.sqrt(hectares)))
        return cls(in_wind, case, basis, middle + shift @ basis, cell)

    @property
    def domain(self) -> UrbanDomain:
        """The box of air that the network is told about, in wind axes."""
        return UrbanDomain.around(self.buildings)

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

    def surprises(self, normalisation: UrbanNormalisation) -> list[str]:
        """What of this city and its wind lies outside what the network was trained on."""
        found = []
        density = self.case.roof_area / _built_area(self.buildings)
        for what, value, (low, high), unit in (
            ("the tallest building is", self.case.building_height, normalisation.building_height, " m high"),
            ("the share of roofs in the built rectangle is", density, normalisation.plan_density, ""),
        ):
            if not low * 0.999 <= value <= high * 1.001:
                found.append(f"{what} {value:.3g}{unit}, in training it was {low:.3g} to {high:.3g}{unit}")
        air = zip(
            ("the logarithm of the roughness", "1/L"),
            (np.log(self.case.roughness), self.case.inverse_length),
            normalisation.terrain_mean,
            normalisation.terrain_std,
            strict=True,
        )
        for what, value, mean, std in air:
            never_varied = std == 1.0  # how the normalisation notes it; no dataset has such a spread
            if abs(value - mean) > (1e-6 if never_varied else USUAL_SPREAD * std):
                usual = f"always {mean:.3g}" if never_varied else f"{mean:.3g} ± {std:.2g}"
                found.append(f"{what} is {value:.3g}, in training it was {usual}")
        return found


def wind_axes(wind_direction: float) -> Array:
    """Rows (3, 3): where the wind blows to, left of it, up. 270 degrees, from the west, is the identity."""
    angle = np.deg2rad(wind_direction % 360)
    # Rounded, so that winds along the coordinate axes turn exactly.
    east, north = np.round([-np.sin(angle), -np.cos(angle)], 15)
    return np.array([[east, north, 0.0], [-north, east, 0.0], [0.0, 0.0, 1.0]])


def training_cell(cells: float) -> float:
    """The cell size (m) with which the mesh of a training city has so many cells: the spacing of the training data."""
    fine, coarse = SMALLEST_CELL, LARGEST_CELL
    for _ in range(12):
        middle = np.sqrt(fine * coarse)
        count = CartesianMesh.around(UrbanDomain.square(1), [], middle, middle / 2).cell_count
        fine, coarse = (middle, coarse) if count > cells else (fine, middle)
    return float(np.sqrt(fine * coarse))


def _built_area(buildings: trimesh.Trimesh) -> float:
    """Of the smallest rectangle around the buildings, at whatever angle, m²."""
    return float(np.prod(trimesh.bounds.oriented_bounds_2D(buildings.vertices[:, :2])[1]))
