"""The picture of a city's wind: its speed at pedestrian height on a map with the buildings, north up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import trimesh
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from farfield.datasets.urban_card import PEDESTRIAN_HEIGHT
from farfield.datasets.urban_site import Site
from farfield.files import atomic_path

Array = NDArray[np.floating]

MARGIN = 40.0  # m around the buildings
PIXELS = 300  # along the longer side, at most
SMALLEST_PIXEL = 1.0  # m


@dataclass(frozen=True)
class PedestrianMap:
    """A raster over the buildings, row by row."""

    x: Array
    y: Array
    in_domain: NDArray[np.bool_]  # near enough to the buildings to be predicted
    shown: NDArray[np.bool_]  # of these, the points in the air
    positions: Array  # (N, 3) of the shown points, in the user's coordinates

    @classmethod
    def over(cls, site: Site) -> PedestrianMap:
        """The built rectangle with a margin."""
        corners = site.to_user(np.asarray(site.buildings.vertices))[:, :2]
        low, high = corners.min(0) - MARGIN, corners.max(0) + MARGIN
        pixel = max(SMALLEST_PIXEL, float((high - low).max()) / PIXELS)
        x, y = (np.linspace(a, b, round((b - a) / pixel)) for a, b in zip(low, high, strict=True))
        every = np.stack([*np.meshgrid(x, y), np.full((len(y), len(x)), PEDESTRIAN_HEIGHT)], axis=-1).reshape(-1, 3)
        in_wind = site.to_wind(every)
        in_domain = site.in_domain(in_wind)
        shown = in_domain & site.in_air(in_wind)
        return cls(x, y, in_domain, shown, every[shown])

    def draw(self, path: Path, site: Site, velocity: Array, title: str) -> None:
        """Write a PNG from the velocities (N, 3) at ``positions``."""
        matplotlib.use("Agg")
        from matplotlib import pyplot
        from matplotlib.collections import LineCollection, PolyCollection

        def plan(corners: Array) -> list[Array]:
            return list(site.to_user(corners.reshape(-1, 3)).reshape(*corners.shape)[..., :2])

        speed = np.full(len(self.shown), np.nan)
        speed[self.shown] = np.linalg.norm(velocity, axis=1)
        raster = (len(self.y), len(self.x))
        # Pixels on a wall are shown with the wind beside it; the footprint, drawn on top, ends where the wall stands.
        nearest = distance_transform_edt(~self.shown.reshape(raster), return_distances=False, return_indices=True)
        filled = np.where(self.in_domain.reshape(raster), speed.reshape(raster)[tuple(nearest)], np.nan)
        aspect = np.ptp(self.y) / np.ptp(self.x)
        figure, axes = pyplot.subplots(figsize=(9, float(np.clip(1.1 + 6.9 * aspect, 3, 14))), layout="constrained")
        map_ = axes.pcolormesh(self.x, self.y, filled, cmap="viridis", rasterized=True)
        axes.set(xlim=self.x[[0, -1]], ylim=self.y[[0, -1]], aspect="equal")
        axes.set(xlabel="x, east [m]", ylabel="y, north [m]")
        axes.set_title(title, loc="right", pad=20)  # room for the arrow above the map
        roofs = PolyCollection(plan(np.asarray(site.buildings.triangles)), facecolors="0.85", edgecolors="none")
        axes.add_collection(roofs)
        walls = trimesh.intersections.mesh_plane(site.buildings, [0, 0, 1], [0, 0, PEDESTRIAN_HEIGHT])
        axes.add_collection(LineCollection(plan(walls), colors="0.2", linewidths=0.6))
        east, north = site.basis[0, :2]
        arrow: dict[str, Any] = {"angles": "uv", "pivot": "mid", "scale_units": "inches", "scale": 2.6, "width": 0.007}
        above = 1 + 0.24 / (6.9 * aspect)  # inches over the map's height
        axes.quiver(0.03, above, east, north, color="crimson", transform=axes.transAxes, clip_on=False, **arrow)
        figure.colorbar(map_, ax=axes, label=f"wind speed at {PEDESTRIAN_HEIGHT:g} m [m/s]")
        with atomic_path(path) as partial:
            figure.savefig(partial, dpi=110, format="png")
        pyplot.close(figure)
