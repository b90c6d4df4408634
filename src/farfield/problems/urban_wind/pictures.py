"""Pictures of the wind: speeds at a height and in a cut along it, of saved predictions and of a user's city."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyvista as pv
import shapely
import trimesh
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from farfield.files import atomic_path
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.site import Site
from farfield.report.figures import Drawn
from farfield.report.saved import Results, SavedRun
from farfield.style import ERROR_MAP, FIELD_MAP, NAMES
from farfield.view.scene import scene_page
from farfield.view.volume import Volume, grid_for, resampled

Array = NDArray[np.floating]

PEDESTRIAN_HEIGHT = 2.0  # m
SCENE_POINTS = 96  # along the longer side of what can be looked at in three dimensions
PICTURED_POINTS = 400  # along a picture's longer side
BUILDINGS = "0.75"  # grey
MARGIN = 40.0  # m around the buildings
WAKE = 160.0  # m downwind of them
EDGE = 8.0  # m of the predicted air whose wind is drawn towards the inflow prescribed there
FADING = 40.0  # m beyond the predicted air over which the wind becomes the inflow
ARROWS = 40  # along the longer side
PIXELS = 300  # along the longer side, at most
SMALLEST_PIXEL = 1.0  # m


def wind_pictures(files: UrbanWindFiles, split: str, number: int, velocity: NDArray) -> dict[str, NDArray]:
    """True and predicted wind speed at pedestrian height and in a cut along the wind; NaN inside buildings."""
    case, volume = files.load(split, number), files.volume(split, number)
    volume.clear_data()
    volume.cell_data["truth"], volume.cell_data["prediction"] = case.fields["velocity"], velocity
    seen = resampled(volume, grid_for(volume, SCENE_POINTS))
    scene = {f"scene_{name}": values.astype(np.float16) for name, values in seen.fields.items()}
    scene |= {f"scene_{axis}": getattr(seen, axis) for axis in "xyz"} | {"scene_cells": np.array(seen.given)}
    for name, vectors in (("truth", case.fields["velocity"]), ("prediction", velocity)):
        volume.cell_data[name] = np.linalg.norm(vectors, axis=1)
    volume = volume.cell_data_to_point_data()
    x0, x1, y0, y1, z0, z1 = volume.bounds
    highest_roof = case.obstacles[case.obstacles[..., 2].mean(1).argmax()]
    through = float(highest_roof[:, 1].mean())
    pictures: dict[str, NDArray] = dict(scene)
    for kind, plane in (
        ("map", (x0, x1, y0, y1, PEDESTRIAN_HEIGHT, PEDESTRIAN_HEIGHT)),
        ("cut", (x0, x1, through, through, z0, z1)),
    ):
        pictures[f"{kind}_bounds"] = np.array(plane)
        pictures |= {f"{kind}_{name}": values for name, values in on_plane(volume, plane).items()}
    return pictures


def wind_scene(results: Results) -> tuple[str, str] | None:
    """The first test city in three dimensions, as the last encoding of the table predicts it."""
    if not (runs := results.pictured("s1_scene_truth")):
        return None
    encoding, run = list(runs.items())[-1]
    saved = {name: run.pictures[f"s1_scene_{name}"] for name in ("x", "y", "z", "truth", "prediction", "cells")}
    axes = saved["x"], saved["y"], saved["z"]
    volumes = {
        name: Volume(*axes, {"velocity": saved[name].astype(np.float32)}, int(saved["cells"]))
        for name in ("prediction", "truth")
    }
    return f"s = 1, the first test city: wind of {NAMES[encoding]}, of the truth, and the error.", scene_page(volumes)


def on_plane(
    volume: pv.DataSet, bounds: tuple[float, ...], names: tuple[str, ...] = ("truth", "prediction")
) -> dict[str, NDArray[np.float32]]:
    """Point data on a regular grid over a plane along two axes: arrays (n, m), NaN where there is no air."""
    low, high = np.array(bounds[::2]), np.array(bounds[1::2])
    counts = np.where(high > low, np.maximum(2, PICTURED_POINTS * (high - low) / (high - low).max()), 1).astype(int)
    if counts.min() == 1 and bounds[5] > bounds[4]:
        counts[2] = PICTURED_POINTS // 4  # the air is flat: a cut shows it stretched
    spacing = np.where(counts > 1, (high - low) / np.maximum(counts - 1, 1), 1.0)
    inset = 1e-6 * (high - low)  # the outermost points belong to the mesh
    grid = pv.ImageData(dimensions=counts, spacing=spacing * (1 - 2e-6), origin=low + inset).sample(volume)
    air = grid["vtkValidPointMask"].astype(bool)
    shape = tuple(int(n) for n in counts if n > 1)
    return {name: np.where(air, grid[name], np.nan).astype(np.float32).reshape(shape, order="F") for name in names}


def draw_pedestrian_wind(volume_file: Path, picture: Path, title: str) -> None:
    """Map of the wind speed at 2 m height, from a file of the dataset."""
    volume = pv.read(volume_file)
    speed = np.linalg.norm(volume.cell_data["velocity"], axis=1)
    volume.clear_data()
    volume.cell_data["speed"] = speed
    x0, x1, y0, y1, *_ = volume.bounds
    height = PEDESTRIAN_HEIGHT
    values = on_plane(volume.cell_data_to_point_data(), (x0, x1, y0, y1, height, height), ("speed",))["speed"]
    figure = Figure(figsize=(9, 1.1 + 7.2 * (y1 - y0) / (x1 - x0)), layout="constrained")
    axes = figure.subplots()
    map_ = draw_plane(axes, values, (x0, x1, y0, y1), FIELD_MAP)
    axes.set(xlabel="x [m], along the wind", ylabel="y [m]", title=title)
    figure.colorbar(map_, ax=axes, label=f"wind speed at {height:g} m [m/s]")
    with atomic_path(picture) as partial:
        figure.savefig(partial, dpi=110, format="png")


def fastest_shown(winds: Sequence[Array]) -> float:
    """Where a scale of colours ends that several maps of velocities (N, 3) share: a round number, few are beyond it."""
    speeds = np.concatenate([np.linalg.norm(velocity, axis=1) for velocity in winds])
    top = float(np.nanpercentile(speeds, 99.5))
    step = 10 ** np.floor(np.log10(max(top, 1e-3))) / 2
    return float(np.ceil(top / step) * step)


@dataclass(frozen=True)
class Raster:
    """Points at a height over the buildings and around them, row by row from south to north."""

    x: Array
    y: Array
    height: float
    within: NDArray[np.bool_]  # (Y, X): in the area that is of interest
    shown: NDArray[np.bool_]  # (Y, X): of these, the points in the air
    positions: Array  # (N, 3) of the shown ones, in the user's coordinates

    @classmethod
    def over(cls, site: Site, low: Array, high: Array, height: float, area: shapely.Geometry | None = None) -> Raster:
        """A rectangle of the user's coordinates, or what of it lies in an ``area``."""
        pixel = max(SMALLEST_PIXEL, float((high - low).max()) / PIXELS)
        x, y = (a + pixel * (np.arange(round((b - a) / pixel)) + 0.5) for a, b in zip(low, high, strict=True))
        every = np.stack([*np.meshgrid(x, y), np.full((len(y), len(x)), height)], axis=-1).reshape(-1, 3)
        within = np.ones(len(every), dtype=bool)
        if area is not None:
            within = shapely.contains_xy(area, every[:, 0], every[:, 1])
        shown = within & site.in_air(site.to_wind(every))
        shape = (len(y), len(x))
        return cls(x, y, height, within.reshape(shape), shown.reshape(shape), every[shown])

    @property
    def pixel(self) -> float:
        """m."""
        return float(self.x[1] - self.x[0])

    def asked(self, site: Site) -> Array:
        """The positions, moved into the air that the network is told about."""
        return site.to_user(self._inside(site))

    def faded(self, site: Site, velocity: Array, ratio: float = 1.0) -> Array:
        """Velocities (N, 3) at the positions from those at :meth:`asked`: beyond that air they become the inflow."""
        beyond = np.linalg.norm(site.to_wind(self.positions) - self._inside(site), axis=1)
        inflow = ratio * inflow_profile(site.roughness, site.inverse_length, np.array([self.height]))[0, 0]
        undisturbed = inflow * site.basis[0]
        return undisturbed + (velocity - undisturbed) * np.exp(-beyond / FADING)[:, None]

    def _inside(self, site: Site) -> Array:
        (west, east), (south, north) = site.domain.bounds[:2] + np.array([EDGE, -EDGE])
        x, y, z = site.to_wind(self.positions).T
        return np.stack([np.clip(x, west, east), np.clip(y, south, north), z], axis=1)

    def image(self, values: Array) -> Array:
        """Values (N,) at the positions as (Y, X); pixels on a wall show what is beside it, to be drawn over.

        NaN outside the area of interest.
        """
        out = np.full(self.shown.shape, np.nan)
        out[self.shown] = values
        nearest = distance_transform_edt(np.isnan(out), return_distances=False, return_indices=True)
        return np.where(self.within, out[tuple(nearest)], np.nan)

    def figure(self, panels: int = 1) -> tuple[Figure, list[Axes]]:
        """A figure with maps side by side, whose axes tell metres."""
        aspect = len(self.y) / len(self.x)
        wide = 9.0 if panels == 1 else 6.6
        size = (wide * panels, float(np.clip(1.3 + 0.78 * wide * aspect, 3, 14)))
        figure = Figure(figsize=size, layout="constrained")
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        half = self.pixel / 2
        for one in axes:
            one.set(xlim=(self.x[0] - half, self.x[-1] + half), ylim=(self.y[0] - half, self.y[-1] + half))
            one.set(aspect="equal", xlabel="x, east [m]", ylabel="y, north [m]")
            for axis in (one.xaxis, one.yaxis):
                axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
                axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            one.tick_params(labelsize="small")
        return figure, axes

    def draw_buildings(self, axes: Axes, site: Site) -> None:
        """Footprints, which end where the walls stand."""

        def plan(corners: Array) -> list[Array]:
            return list(site.to_user(corners.reshape(-1, 3)).reshape(*corners.shape)[..., :2])

        roofs = PolyCollection(plan(np.asarray(site.buildings.triangles)), facecolors="0.85", edgecolors="none")
        axes.add_collection(roofs, autolim=False)
        walls = trimesh.intersections.mesh_plane(site.buildings, [0, 0, 1], [0, 0, self.height])
        axes.add_collection(LineCollection(plan(np.asarray(walls)), colors="0.2", linewidths=0.6), autolim=False)


def raster_of_wakes(sites: Sequence[Site]) -> Raster:
    """The built rectangle and as much downwind of it as wakes need, whichever of the sites' winds it is."""
    first = sites[0]
    corners = first.to_user(np.asarray(first.buildings.vertices))[:, :2]
    downwind = np.array([WAKE * site.basis[0, :2] for site in sites])
    low = corners.min(0) - MARGIN + np.minimum(downwind, 0).min(0)
    high = corners.max(0) + MARGIN + np.maximum(downwind, 0).max(0)
    return Raster.over(first, low, high, PEDESTRIAN_HEIGHT)


def draw_wind(path: Path, raster: Raster, site: Site, velocity: Array, title: str, fastest: float) -> None:
    """Write a PNG of the velocities (N, 3) at a raster's points; the colours end at ``fastest`` m/s."""
    figure, (axes,) = raster.figure()
    speed = raster.image(np.linalg.norm(velocity, axis=1))
    colours = axes.pcolormesh(raster.x, raster.y, speed, cmap=FIELD_MAP, vmin=0, vmax=fastest, rasterized=True)
    every = max(1, round(max(speed.shape) / ARROWS))
    some = np.zeros_like(raster.shown)
    some[every // 2 :: every, every // 2 :: every] = True
    chosen = some[raster.shown]
    at, along = raster.positions[chosen], velocity[chosen, :2]
    small: dict[str, Any] = {"scale": 1.2 * fastest / (every * raster.pixel), "width": 0.0016, "headwidth": 4}
    axes.quiver(*at[:, :2].T, *along.T, color="white", alpha=0.75, angles="xy", scale_units="xy", pivot="mid", **small)
    raster.draw_buildings(axes, site)
    large: dict[str, Any] = {"scale": 2.2, "scale_units": "inches", "width": 0.009, "angles": "uv", "pivot": "mid"}
    east, north = site.basis[0, :2]
    axes.quiver(0.05, 0.94, east, north, color="crimson", ec="white", lw=0.8, transform=axes.transAxes, **large)
    axes.set_title(title)
    figure.colorbar(colours, ax=axes, label=f"wind speed at {raster.height:g} m [m/s]", extend="max", shrink=0.8)
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
        return draw_plane(axes, values, box, FIELD_MAP, 0.0, fastest)

    shown = speed(panels[0][0], truth, "CFD")
    panels[0][1].axis("off")
    for row, (encoding, run) in zip(panels[1:], runs.items(), strict=True):
        predicted = run.pictures[f"s{scale}_{kind}_prediction"]
        speed(row[0], predicted, NAMES[encoding])
        error = predicted - truth
        row[1].set_title(f"{NAMES[encoding]}: error, mean {np.nanmean(np.abs(error)):.2f} m/s", fontsize="medium")
        wrong = draw_plane(row[1], error, box, ERROR_MAP, -fastest / 2, fastest / 2)
    for row in panels:
        row[0].set_ylabel("y [m]" if kind == "map" else "z [m]")
    for axes in panels[-1]:
        axes.set_xlabel("x [m], along the wind")
    for image, side, label in ((shown, panels[:, 0], "wind speed [m/s]"), (wrong, panels[:, 1], "error [m/s]")):
        figure.colorbar(image, ax=side, label=label, location="bottom", shrink=0.7, aspect=40)
    where = f"at {z0:g} m above the ground" if kind == "map" else f"in the plane y = {y0:.0f} m, through the tallest"
    where += "" if kind == "map" else " building (heights are stretched)"
    caption = f"Wind speed {where}, s = {scale}: the first test city. Buildings are grey."
    return Drawn(f"{problem}-s{scale}-{kind}", caption, figure)


def draw_plane(
    axes: Axes,
    values: NDArray,
    box: tuple[float, float, float, float],
    colours: str,
    low: float | None = None,
    high: float | None = None,
) -> AxesImage:
    """Values (n, m) on a plane, grey where there is no air; a cut, too flat to be seen as it is, is stretched."""
    shades = mpl.colormaps[colours].with_extremes(bad=BUILDINGS)
    flat = box[3] - box[2] < 100
    return axes.imshow(
        values.T, origin="lower", extent=box, cmap=shades, vmin=low, vmax=high, aspect="auto" if flat else "equal"
    )
