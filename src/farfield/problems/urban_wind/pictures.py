"""Pictures of the wind: speeds at a height and in a cut along it, of saved predictions and of a user's city."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import trimesh
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from farfield.files import atomic_path
from farfield.problems.urban_wind.card import PEDESTRIAN_HEIGHT
from farfield.problems.urban_wind.site import Site
from farfield.report.figures import Drawn
from farfield.report.saved import Results, SavedRun
from farfield.style import ERROR_MAP, FIELD_MAP, NAMES

Array = NDArray[np.floating]

BUILDINGS = "0.75"  # grey
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
        figure = Figure(figsize=(9, float(np.clip(1.1 + 6.9 * aspect, 3, 14))), layout="constrained")
        axes = figure.subplots()
        map_ = axes.pcolormesh(self.x, self.y, filled, cmap=FIELD_MAP, rasterized=True)
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


def pictures(results: Results, scale: str) -> Iterator[Drawn]:
    """What a report shows of a scale: the first test city."""
    for kind in ("map", "cut"):
        if runs := results.pictured(f"s{scale}_{kind}_truth"):
            yield wind_speeds(results.problem, runs, scale, kind)


def wind_speeds(problem: str, runs: dict[str, SavedRun], scale: str, kind: str) -> Drawn:
    """Wind speed on a plane, ``kind`` "map" (horizontal) or "cut" (along the wind): one row per encoding."""
    first = next(iter(runs.values())).pictures
    truth, bounds = first[f"s{scale}_{kind}_truth"], first[f"s{scale}_{kind}_bounds"]
    x0, x1, y0, y1, z0, z1 = (float(bound) for bound in bounds)
    box = (x0, x1, y0, y1) if kind == "map" else (x0, x1, z0, z1)
    height = 4.5 * (y1 - y0) / (x1 - x0) + 0.3 if kind == "map" else 1.5
    figure = Figure(figsize=(10.2, height * (1 + len(runs)) + 1.1), layout="constrained")
    panels = figure.subplots(1 + len(runs), 2, sharex=True, sharey=True, squeeze=False)
    fastest = float(np.nanmax(truth))

    def speed(axes: Axes, values: NDArray, title: str) -> AxesImage:
        axes.set_title(title, fontsize="medium")
        return _plane(axes, values, box, FIELD_MAP, 0.0, fastest)

    shown = speed(panels[0][0], truth, "CFD")
    panels[0][1].axis("off")
    for row, (encoding, run) in zip(panels[1:], runs.items(), strict=True):
        predicted = run.pictures[f"s{scale}_{kind}_prediction"]
        speed(row[0], predicted, NAMES[encoding])
        error = predicted - truth
        row[1].set_title(f"{NAMES[encoding]}: error, mean {np.nanmean(np.abs(error)):.2f} m/s", fontsize="medium")
        wrong = _plane(row[1], error, box, ERROR_MAP, -fastest / 2, fastest / 2)
    for row in panels:
        row[0].set_ylabel("y [m]" if kind == "map" else "z [m]")
    for axes in panels[-1]:
        axes.set_xlabel("x [m], along the wind")
    for image, side, label in ((shown, panels[:, 0], "wind speed [m/s]"), (wrong, panels[:, 1], "error [m/s]")):
        figure.colorbar(image, ax=side, label=label, location="bottom", shrink=0.7, aspect=40)
    where = f"at {z0:g} m above the ground" if kind == "map" else f"in the plane y = {y0:.0f} m, through the tallest"
    where += "" if kind == "map" else " building (heights are stretched)"
    caption = f"Wind speed {where}, s = {scale}: the first test city, one draw of points. Buildings are grey."
    return Drawn(f"{problem}-s{scale}-{kind}", caption, figure)


def _plane(
    axes: Axes, values: NDArray, box: tuple[float, float, float, float], colours: str, low: float, high: float
) -> AxesImage:
    shades = mpl.colormaps[colours].with_extremes(bad=BUILDINGS)
    flat = box[3] - box[2] < 100  # a cut, too flat to be seen as it is
    return axes.imshow(
        values.T, origin="lower", extent=box, cmap=shades, vmin=low, vmax=high, aspect="auto" if flat else "equal"
    )
