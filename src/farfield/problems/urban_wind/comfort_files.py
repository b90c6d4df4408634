"""Buildings and a weather file in, pedestrian comfort and safety out: a map, a table, and a file for ParaView."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyvista as pv
import shapely
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.patches import Patch
from numpy.typing import NDArray
from rich.console import Console

from farfield.data.vtk import write_vtk
from farfield.files import atomic_path, atomic_write_text, refuse_overwriting, write_table
from farfield.problems.urban_wind.buildings import DOMAIN_HEIGHT, SIDE_MARGIN
from farfield.problems.urban_wind.city_files import inputs, place, progress, read_points
from farfield.problems.urban_wind.comfort import HEIGHT, SCALES, SPEEDS, Scale
from farfield.problems.urban_wind.formats import Buildings, read_buildings
from farfield.problems.urban_wind.inflow_profiles import REFERENCE_SPEED
from farfield.problems.urban_wind.pictures import MARGIN, Raster
from farfield.problems.urban_wind.prediction import WindPredictor, note
from farfield.problems.urban_wind.probes import Probes
from farfield.problems.urban_wind.site import Site
from farfield.problems.urban_wind.weather import STATION_HEIGHT, STATION_ROUGHNESS, Weather, read_weather
from farfield.report.tables import Table
from farfield.version import __version__

Array = NDArray[np.floating]

FEWEST_DIRECTIONS = 8
COLOURS = "RdYlGn_r"  # from calm to windy
TRAINED = (
    f"The network has learned from cities 100 m wide in boxes of air with {SIDE_MARGIN:g} m beside them, "
    f"{DOMAIN_HEIGHT:g} m high. Around a larger city the air that its physics knows of is as much wider and higher; "
    "the result was compared with one simulation in such a box, of a city 200 m wide."
)


@dataclass(frozen=True)
class Comfort:
    """What the weather makes of points (N,)."""

    exceeded: dict[float, Array]  # share of hours, by speed
    mean_speed: Array  # m/s
    classes: dict[str, NDArray[np.int64]]  # by scale

    @classmethod
    def of(cls, weather: Weather, speeds: Array, directions: Sequence[float], roughness: float) -> Comfort:
        """From local speeds (D, N) in winds of 6 m/s at 80 m from each direction."""
        factors = speeds / REFERENCE_SPEED * weather.at_site(roughness)
        shares = weather.exceedance(factors, directions, SPEEDS)
        exceeded = dict(zip(SPEEDS, shares, strict=True))
        mean = weather.mean_speed(factors, directions)
        return cls(exceeded, mean, {scale.name: scale.classes(exceeded) for scale in SCALES})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything by name: shares in per cent of the hours."""
        shares = {f"hours_above_{speed:g}": (100 * share).astype(np.float32) for speed, share in self.exceeded.items()}
        return {**self.classes, **shares, "mean_speed": self.mean_speed.astype(np.float32)}


def predict_comfort(
    predictor: WindPredictor,
    buildings: Buildings | str | Path,
    weather: Weather | str | Path,
    out: str | Path,
    *,
    roughness: float,
    directions: int = 16,
    speed_height: float = STATION_HEIGHT,
    station_roughness: float = STATION_ROUGHNESS,
    points: str | Path | None = None,
    seed: int = 0,
    draws: int = 1,
    force: bool = False,
    console: Console | None = None,
) -> list[Path]:
    """Judge the wind at 1.75 m by what a weather station has measured; returns what was written.

    ``out`` ends in .vtu for a map of the city: beside it a picture, and a table of areas as CSV and Markdown. With
    ``points`` (a CSV of probes, or NumPy's) it ends in .csv: the classes at these points.

    Args:
        weather: an EPW file or a CSV (:func:`read_weather`).
        roughness: z0 of the ground around the city, m.
        directions: from which the wind is predicted, evenly around the compass.
        speed_height: of the station's anemometer, m.
        station_roughness: z0 of the ground around the station, m.
        points, seed, draws: as of :func:`predict_city`.
    """
    out = Path(out)
    if out.suffix != (expected := ".csv" if points is not None else ".vtu"):
        what = "classes at points" if points is not None else "a map of comfort (with --points: a table)"
        raise ValueError(f"{what} is written to a file that ends in {expected}, got {out.name}")
    if not FEWEST_DIRECTIONS <= directions <= 360:
        raise ValueError(f"comfort is judged by {FEWEST_DIRECTIONS} to 360 directions, got {directions}")
    predictor.wanted(["velocity"])
    outs = [out] if points is not None else [out.with_suffix(kind) for kind in (".vtu", ".png", ".csv", ".md")]
    refuse_overwriting(outs, force, inputs(buildings, weather, points))
    if not isinstance(weather, Weather):
        weather = read_weather(weather, speed_height, station_roughness)
    weather.at_site(roughness)  # refuses impossible numbers
    city = buildings if isinstance(buildings, Buildings) else read_buildings(buildings)
    given = None if points is None else read_points(points, city.frame)
    if isinstance(given, pv.DataSet):
        raise ValueError(f"{points}: comfort is judged at points from .csv, .npy or .npz")
    every = np.arange(directions) * 360.0 / directions
    sites = predictor.sites(city.mesh, every.tolist(), roughness)
    raster = _raster(sites[0])
    probes = given if given is None or isinstance(given, Probes) else Probes(np.asarray(given, dtype=float))

    speeds = []
    at = raster.positions if probes is None else probes.positions
    with progress(f"wind at {len(at):,} points from {directions} directions", draws * directions, console) as advance:
        for site in sites:
            found = predictor.at(site, at, fields=["velocity"], seed=seed, draws=draws, advance=advance)
            speeds.append(np.linalg.norm(found["velocity"], axis=1))
    comfort = Comfort.of(weather, np.stack(speeds), every.tolist(), roughness)
    if probes is not None:
        header, rows = probes.table(_named(comfort))
        write_table(out, header, rows)
        return outs
    described = {
        "weather": f"{weather.name}, {weather.calm:.1%} calm, {weather.height:g} m over z0 = {weather.roughness:g} m",
        "directions": directions,
        "roughness": roughness,
        "height": HEIGHT,
        "model": predictor.name or repr(predictor),
        "farfield": __version__,
        "units": "hours_above_* per cent of the hours (* in m/s), mean_speed m/s",
        **{scale.name: "; ".join(f"{i} {one.name}" for i, one in enumerate(scale.levels)) for scale in SCALES},
        **place(city.frame),
    }
    table = area_table(raster, comfort, weather)
    write_vtk(outs[0], _grid(raster, comfort, described))
    draw_comfort(outs[1], raster, sites[0], comfort, f"{weather.name}, {directions} directions, at {HEIGHT:g} m")
    write_table(outs[2], table.header, table.rows)
    atomic_write_text(outs[3], _markdown(table, described))
    return outs


def _raster(site: Site) -> Raster:
    """Cells of the city and a margin around its hull: the network is told of more air than that, in any wind."""
    corners = site.to_user(np.asarray(site.buildings.vertices))[:, :2]
    area = shapely.MultiPoint(corners).convex_hull.buffer(MARGIN)
    low, high = np.array(area.bounds).reshape(2, 2)
    return Raster.over(site, low, high, HEIGHT, area)


def _named(comfort: Comfort) -> dict[str, NDArray[Any]]:
    """The arrays with the classes' names instead of numbers; nothing where there is no wind."""
    outside = np.isnan(comfort.mean_speed)
    arrays = comfort.arrays()
    for scale in SCALES:
        names = np.array([level.name for level in scale.levels])[arrays[scale.name]]
        arrays[scale.name] = np.where(outside, "", names)
    return arrays


def _grid(raster: Raster, comfort: Comfort, described: dict[str, Any]) -> pv.UnstructuredGrid:
    """The raster's cells that are in the air, with everything that is known about them."""
    corner = (raster.x[0] - raster.pixel / 2, raster.y[0] - raster.pixel / 2, raster.height)
    image = pv.ImageData(
        dimensions=(len(raster.x) + 1, len(raster.y) + 1, 1), spacing=(raster.pixel, raster.pixel, 1), origin=corner
    )
    grid = image.cast_to_unstructured_grid().extract_cells(np.flatnonzero(raster.shown))  # type: ignore[arg-type]
    grid.clear_data()
    for name, values in comfort.arrays().items():
        grid.cell_data[name] = values
    note(grid, described)
    return grid


def area_table(raster: Raster, comfort: Comfort, weather: Weather) -> Table:
    """How much of the open ground has which class."""
    rows = []
    for scale in SCALES:
        for number, level in enumerate(scale.levels):
            cells = int((comfort.classes[scale.name] == number).sum())
            share = cells / len(comfort.mean_speed)
            rows.append([scale.title, level.name, level.use, f"{cells * raster.pixel**2:.0f}", f"{100 * share:.1f}"])
    header = ["scale", "class", "use", "area [m²]", "share of open ground [%]"]
    caption = f"Classes of the open ground at {HEIGHT:g} m by the weather in {weather.name}"
    return Table("comfort", caption, header, rows)


def _markdown(table: Table, described: dict[str, Any]) -> str:
    sources = "\n".join(f"- {source}" for source in dict.fromkeys(scale.source for scale in SCALES))
    about = f"Predicted by {described['model']} (farfield {described['farfield']}) from {described['directions']} "
    about += f"directions, z0 = {described['roughness']:g} m; weather: {described['weather']}.\n\n{TRAINED}"
    return f"# Pedestrian comfort and safety\n\n{about}\n\n{table.markdown()}\nCriteria:\n\n{sources}\n"


def draw_comfort(path: Path, raster: Raster, site: Site, comfort: Comfort, title: str) -> None:
    """Both scales of comfort side by side; where a place is not safe, it is hatched."""
    figure, panels = raster.figure(2)
    for axes, name in zip(panels, ("lawson", "nen"), strict=True):
        scale, safety = (next(s for s in SCALES if s.name == f"{name}_{what}") for what in ("comfort", "safety"))
        colours = _colours(scale)
        image = raster.image(comfort.classes[scale.name].astype(float))
        norm = BoundaryNorm(np.arange(len(scale.levels) + 1) - 0.5, len(scale.levels))
        axes.pcolormesh(raster.x, raster.y, image, cmap=ListedColormap(colours), norm=norm, rasterized=True)
        unsafe = raster.image((comfort.classes[safety.name] > 0).astype(float))
        if unsafe.any():
            axes.contourf(raster.x, raster.y, unsafe, levels=[0.5, 1.5], colors="none", hatches=["xxx"])
        raster.draw_buildings(axes, site)
        axes.set_title(scale.title)
        shares = np.bincount(comfort.classes[scale.name], minlength=len(scale.levels)) / len(comfort.mean_speed)
        handles = [
            Patch(color=colour, label=f"{level.name} {share:.0%}")
            for colour, level, share in zip(colours, scale.levels, shares, strict=True)
        ]
        if unsafe.any():
            handles.append(Patch(facecolor="none", edgecolor="0.2", hatch="xxx", label="not safe"))
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3, fontsize="small",
                    frameon=False)  # fmt: skip
    figure.suptitle(title)
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=110, format="png")


def _colours(scale: Scale) -> list[Any]:
    """One per class, paler than the map's own, so that walls are seen on them."""
    shades = mpl.colormaps[COLOURS](np.linspace(0.08, 0.95, len(scale.levels)))
    return [tuple(0.25 + 0.75 * shade[:3]) for shade in shades]
