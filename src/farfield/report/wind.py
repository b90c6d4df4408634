"""Pictures of the wind: truth, predictions and errors at pedestrian height and in a cut along the wind."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from farfield.report.drawn import Drawn
from farfield.report.saved import NAMES, SavedRun

BUILDINGS = "0.75"


def wind_speeds(case: str, runs: dict[str, SavedRun], scale: str, kind: str) -> Drawn:
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
        return _plane(axes, values, box, "viridis", 0.0, fastest)

    shown = speed(panels[0][0], truth, "CFD")
    panels[0][1].axis("off")
    for row, (encoding, run) in zip(panels[1:], runs.items(), strict=True):
        predicted = run.pictures[f"s{scale}_{kind}_prediction"]
        speed(row[0], predicted, NAMES[encoding])
        error = predicted - truth
        row[1].set_title(f"{NAMES[encoding]}: error, mean {np.nanmean(np.abs(error)):.2f} m/s", fontsize="medium")
        wrong = _plane(row[1], error, box, "RdBu_r", -fastest / 2, fastest / 2)
    for row in panels:
        row[0].set_ylabel("y [m]" if kind == "map" else "z [m]")
    for axes in panels[-1]:
        axes.set_xlabel("x [m], along the wind")
    for image, side, label in ((shown, panels[:, 0], "wind speed [m/s]"), (wrong, panels[:, 1], "error [m/s]")):
        figure.colorbar(image, ax=side, label=label, location="bottom", shrink=0.7, aspect=40)
    where = f"at {z0:g} m above the ground" if kind == "map" else f"in the plane y = {y0:.0f} m, through the tallest"
    where += "" if kind == "map" else " building (heights are stretched)"
    caption = f"Wind speed {where}, s = {scale}: the first test city, one draw of points. Buildings are grey."
    return Drawn(f"{case}-s{scale}-{kind}", caption, figure)


def _plane(
    axes: Axes, values: NDArray, box: tuple[float, float, float, float], colours: str, low: float, high: float
) -> AxesImage:
    shades = mpl.colormaps[colours].with_extremes(bad=BUILDINGS)
    flat = box[3] - box[2] < 100  # a cut, too flat to be seen as it is
    return axes.imshow(
        values.T, origin="lower", extent=box, cmap=shades, vmin=low, vmax=high, aspect="auto" if flat else "equal"
    )
