"""The page about precision: statements, tables and figures from ``stability.csv`` and ``maps.npz`` alone."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from farfield.report.figures import Drawn, in_small_type
from farfield.report.page import Pages
from farfield.report.tables import Table
from farfield.studies.precision.rows import StabilityRow, read_stability
from farfield.style import COLOURS

ENCODINGS = ("LASPE", "LAAPE")
COARSE = ("float16", "bfloat16")
FORMATS = (*COARSE, "float32", "float64")
STYLES = {"published": ("x--", "as published"), "local": ("o-", "local coordinates")}
GROWN, STEADY = 10.0, 1.05  # what counts as broken and as unchanged, in times of the value at the origin


class Numbers:
    """The rows, asked by what they are about."""

    def __init__(self, rows: Iterable[StabilityRow]):
        self.rows = list(rows)

    def curve(
        self, experiment: str, encoding: str, way: str, precision: str, quantity: str
    ) -> list[tuple[float, float]]:
        """(distance, value), in rising order."""
        wanted = (experiment, encoding, way, precision, quantity)
        found = [row for row in self.rows if (*row[:4], row.quantity) == wanted]
        return sorted((row.distance, row.value) for row in found)

    def value(self, experiment: str, encoding: str, way: str, precision: str, quantity: str, at: float = 0.0) -> float:
        """One number; NaN where there is none."""
        found = dict(self.curve(experiment, encoding, way, precision, quantity))
        return found.get(at, math.nan)

    def models(self) -> list[str]:
        """The encodings of the trained models that were tried."""
        return [name for name in ENCODINGS if any(r.experiment == "map" and r.encoding == name for r in self.rows)]


class Statement(NamedTuple):
    """What the experiment must show, in words with its numbers, and whether the rows do."""

    text: str
    holds: bool


def statements(numbers: Numbers) -> list[Statement]:
    """The claims of this page, each decided by the rows."""
    found = []
    for precision in COARSE:
        curve = numbers.curve("attention", "LASPE", "published", precision, "output error")
        start = curve[0][1]
        broken = next((distance for distance, error in curve if error > GROWN * start), math.nan)
        text = (
            f"LASPE as published, {precision}: the error of attention is {_percent(start)} at the origin and passes "
            f"{GROWN:g} times that within {broken:g} decay lengths."
        )
        found.append(Statement(text, math.isfinite(broken)))
    for precision in COARSE:
        curve = numbers.curve("attention", "LAAPE", "published", precision, "output error")
        limit = numbers.value("width", "LAAPE", "formula", precision, "finite width", 0.5)
        inside = [error / curve[0][1] for distance, error in curve if math.isfinite(error)]
        last = max(distance for distance, error in curve if math.isfinite(error))
        beyond = all(not math.isfinite(error) for distance, error in curve if distance > limit)
        text = (
            f"LAAPE as published, {precision}: the error stays within {max(inside):.2f} times its value at the origin "
            f"up to {last:g} decay lengths; beyond its limit of {limit:.1f} the result is not finite."
        )
        found.append(Statement(text, max(inside) < GROWN and beyond and last < limit))
    for encoding in ENCODINGS:
        ratios = []
        for precision in FORMATS[:3]:
            for quantity in ("logit error", "output error"):
                curve = numbers.curve("attention", encoding, "local", precision, quantity)
                ratios += [error / curve[0][1] for _, error in curve]
        text = (
            f"{encoding} in local coordinates: the errors of logits and output stay within {max(ratios):.3f} times "
            f"their value at the origin up to {curve[-1][0]:,.0f} decay lengths, in {', '.join(FORMATS[:3])}."
        )
        found.append(Statement(text, max(ratios) <= STEADY))
    gaps = []
    for precision in FORMATS:
        for encoding in ENCODINGS:
            for origin in (0.0, 0.5):
                computed, searched = (
                    numbers.value("width", encoding, way, precision, "finite width", origin)
                    for way in ("formula", "published")
                )
                gaps.append(abs(searched / computed - 1))
    text = (
        "The widest domain with a finite result, found by search, is the one computed from the formats' limits to "
        f"within {100 * max(gaps):.2g} %."
    )
    found.append(Statement(text, max(gaps) < 0.01))
    for name in numbers.models():
        curve = numbers.curve("shift", name, "local", "bfloat16", "prediction error")
        ratio = curve[-1][1] / curve[0][1]
        text = (
            f"A trained {name} model in local coordinates, bfloat16: moved by {curve[-1][0]:g} decay lengths, its "
            f"error is {ratio:.3f} times that at the origin."
        )
        found.append(Statement(text, ratio <= STEADY))
    return found


def limits_table(numbers: Numbers) -> Table:
    """The paper's table, put right."""
    rows = []
    for precision in FORMATS:
        largest, normal, subnormal = (
            numbers.value("width", "", "formula", precision, f"ln of the {name} number")
            for name in ("largest", "smallest normal", "smallest subnormal")
        )
        published = [
            f"{numbers.value('width', 'LAAPE', way, precision, 'finite width', origin):.1f}"
            for origin in (0.0, 0.5)
            for way in ("formula", "published")
        ]
        ours = numbers.curve("width", "LAAPE", "local", precision, "output error")
        rows.append(
            [
                precision,
                f"{largest:.1f}",
                f"{-normal:.1f}",
                f"{-subnormal:.1f}",
                f"{numbers.value('width', 'LAAPE', 'paper', precision, 'finite width'):.0f}",
                f"{largest - normal:.1f}",
                f"{largest - subnormal:.1f}",
                *published,
                _reached(ours),
            ]
        )
    header = ["format", "ln max", "-ln normal", "-ln subnormal", "paper", "sum, normal", "sum, subnormal"]
    header += ["origin in the middle: computed", "found", "origin in a corner: computed", "found", "local: tried up to"]
    caption = (
        "LAAPE: the widest domain, in decay lengths. ln max, -ln normal and -ln subnormal are the logarithms of the "
        "format's largest and smallest numbers; the paper adds two of them. Computed and found: as published, the "
        "width from which some result is not finite. Local: the widest domain tried, all of it finite and right."
    )
    return Table("stability-limits", caption, header, rows)


def choice_table(numbers: Numbers) -> Table:
    """What a user may count on."""
    rows = []
    for encoding in ENCODINGS:
        for precision in FORMATS:
            ours = numbers.curve("width", encoding, "local", precision, "output error")
            rows.append(
                [
                    encoding,
                    precision,
                    *(
                        _length(numbers.value("width", encoding, "published", precision, quantity, 0.5))
                        for quantity in ("right width", "finite width")
                    ),
                    _reached(ours),
                    _percent(max(error for _, error in ours)),
                ]
            )
    header = ["encoding", "format", "as published: right up to", "finite up to", "local: right up to", "its error"]
    caption = (
        "The widest usable domain, in decay lengths from its corner, where coordinates start in the paper. Right: the "
        "error of attention is below 5 %. In local coordinates the widest domain tried was right, with the largest "
        "error in the last column."
    )
    return Table("stability-choice", caption, header, rows)


def shift_table(numbers: Numbers) -> Table | None:
    """The paper's second experiment in numbers."""
    rows = []
    for encoding in numbers.models():
        for way, (_, words) in STYLES.items():
            for precision in ("float32", "bfloat16"):
                curve = numbers.curve("shift", encoding, way, precision, "prediction error")
                rows.append([encoding, words, precision, *(_percent(error) for _, error in curve)])
    if not rows:
        return None
    shift = numbers.curve("shift", numbers.models()[0], "local", "bfloat16", "prediction error")[-1][0]
    header = ["model", "attention", "format", "at the origin", f"{shift:g} decay lengths away"]
    caption = "Error that rounding adds to a trained Gray-Scott model's prediction: sum |change - exact| / sum |exact|."
    return Table("stability-shift", caption, header, rows)


def _percent(error: float) -> str:
    return f"{100 * error:.2g} %" if math.isfinite(error) else "not finite"


def _length(width: float) -> str:
    if width < 1e6:
        return f"{width:,.1f}" if width < 1000 else f"{width:,.0f}"
    return f"{width:.1e}"


def _reached(curve: list[tuple[float, float]], right: float = 0.05) -> str:
    """The last width before the first that is not right."""
    good = 0.0
    for width, error in curve:
        if not error <= right:
            break
        good = width
    return f"{good:,.0f}"


# --- figures -----------------------------------------------------------------------------------------------------


def distance_figure(numbers: Numbers) -> Drawn:
    """Errors of logits and output against the distance from the origin."""
    quantities = {"logit error": "error of the logits", "output error": "relative error of the output"}
    figure = Figure(figsize=(9.2, 5.6), layout="constrained")
    panels = figure.subplots(2, 3, sharex=True)
    for row, (quantity, label) in zip(panels, quantities.items(), strict=True):
        for axes, precision in zip(row, FORMATS[:3], strict=True):
            for encoding in ENCODINGS:
                for way in STYLES:
                    curve = numbers.curve("attention", encoding, way, precision, quantity)
                    _line(axes, curve, encoding, way)
            axes.set(xscale="log", yscale="log")
            axes.grid(alpha=0.3)
            axes.set_xticks([0.5, 1, 10, 100, 1e3, 1e4, 1e5, 1e6], ["0", "1", "10", "10²", "10³", "", "", "10⁶"])
            axes.minorticks_off()
        row[0].set_ylabel(label)
    for axes, precision in zip(panels[0], FORMATS[:3], strict=True):
        axes.set_title(precision)
    for axes in panels[1]:
        axes.set_xlabel("distance from the origin / decay length")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small", frameon=False)
    caption = (
        "The same points, moved away from the origin. As published (dashed), LASPE loses its bias to rounding (where "
        "its error falls again, all points share one rounded coordinate and no bias is left) and LAAPE ends where its "
        "channels overflow (circle). In local coordinates (solid; both encodings alike) nothing changes."
    )
    return Drawn("stability-distance", caption, figure)


def _line(axes: Axes, curve: list[tuple[float, float]], encoding: str, way: str) -> None:
    """A curve over distances, 0 drawn at 0.5; where it stops being finite, its end is marked."""
    marks, words = STYLES[way]
    finite = [(max(distance, 0.5), error) for distance, error in curve if math.isfinite(error)]
    colour = COLOURS[encoding.lower()]
    axes.plot(*np.array(finite).T, marks, color=colour, markersize=4, lw=1.2, label=f"{encoding}, {words}")
    if len(finite) < len(curve):
        axes.plot(*finite[-1], "o", color=colour, markersize=10, fillstyle="none")


def map_figure(numbers: Numbers, pictures: dict[str, NDArray]) -> Drawn | None:
    """Where a prediction in bfloat16 is wrong, over a long domain, and how much at each distance."""
    models = numbers.models()
    if not models:
        return None
    figure = Figure(figsize=(9.2, 2.4 + 2.6 * len(models)), layout="constrained")
    rows = [(name, way) for name in models for way in STYLES]
    panels = figure.subplots(len(rows) + 1, 1, height_ratios=[1] * len(rows) + [1.8])
    for axes, (name, way) in zip(panels[:-1], rows, strict=True):
        exact = pictures[f"map {name} exact"]
        limit = 0.5 * float(np.abs(exact[-1]).max())
        length, height = pictures[f"map {name} extent"]
        image = axes.imshow(
            np.abs(pictures[f"map {name} {way}"] - exact)[-1].T,
            origin="lower", extent=(0, length, 0, height), aspect="auto", vmin=0, vmax=limit, cmap=_colours(),
        )  # fmt: skip
        error = dict(numbers.curve("map", name, way, "bfloat16", "prediction error"))
        axes.set_title(f"{name}, {STYLES[way][1]}: error {_percent(*error.values())}", fontsize="medium", loc="left")
        axes.set_yticks([])
        figure.colorbar(image, ax=axes, pad=0.01, label="|error|")
    for name, way in rows:
        curve = numbers.curve("map", name, way, "bfloat16", "prediction error at this distance")
        _line(panels[-1], curve, name, way) if any(math.isfinite(error) for _, error in curve) else None
    panels[-1].set(yscale="log", xlabel="x / shortest decay length of the model", ylabel="error / mean |change|")
    panels[-1].grid(alpha=0.3)
    panels[-1].set_xlim(0, max(pictures[f"map {name} extent"][0] for name in models))
    panels[-1].legend(fontsize="small", ncols=2)
    caption = (
        "A trained Gray-Scott model on a domain many times as long as the one it was trained on, attention in "
        "bfloat16: what rounding adds to the predicted change of V (grey: not finite), and below the error along the "
        "domain. Coordinates start at the left end, as in the paper."
    )
    return Drawn("stability-map", caption, figure)


def shift_figure(numbers: Numbers, pictures: dict[str, NDArray]) -> Drawn | None:
    """The predictions of the shift experiment."""
    models = numbers.models()
    if not models:
        return None
    shifts = [d for d, _ in numbers.curve("shift", models[0], "local", "bfloat16", "prediction error")]
    kinds = [("published", "float32"), ("published", "bfloat16"), ("local", "bfloat16")]
    figure = Figure(figsize=(9.2, 1.7 * len(kinds) * len(models) + 0.4), layout="constrained")
    parts = figure.subfigures(len(models), 1, squeeze=False)
    for part, name in zip(parts[:, 0], models, strict=True):
        part.suptitle(f"{name}: predicted change of V")
        limit = float(np.abs(pictures[f"shift {name} exact"][-1]).max())
        length, height = pictures[f"shift {name} extent"]
        panels = part.subplots(len(kinds), len(shifts), squeeze=False)
        for row, (way, precision) in zip(panels, kinds, strict=True):
            for axes, shift in zip(row, shifts, strict=True):
                image = axes.imshow(
                    pictures[f"shift {name} {way} {precision} {shift:g}"][-1].T,
                    origin="lower", extent=(shift, shift + length, shift, shift + height), aspect="auto",
                    cmap=_colours("RdBu_r"), vmin=-limit, vmax=limit,
                )  # fmt: skip
                error = numbers.value("shift", name, way, precision, "prediction error", shift)
                where = "at the origin" if shift == 0 else f"moved by {shift:g}"
                axes.set_title(f"{STYLES[way][1]}, {precision}, {where}: {_percent(error)}", fontsize="small")
                axes.tick_params(labelsize="x-small")
        part.colorbar(image, ax=panels, shrink=0.7)
    caption = (
        "The paper's second experiment: one prediction at the origin (left) and with all positions moved (right), axes "
        "in decay lengths of the model. Percentages are what rounding adds."
    )
    return Drawn("stability-shift", caption, figure)


def _colours(name: str = "magma") -> mpl.colors.Colormap:
    return mpl.colormaps[name].with_extremes(bad="0.6")


# --- the page ----------------------------------------------------------------------------------------------------

WHY_THE_TABLE_IS_OFF = (
    "The paper's widths are ln max - ln min, with min the smallest subnormal number for float16 and bfloat16, the "
    "smallest normal one for float64, and for float32 that of bfloat16. Even with one kind of limit throughout the "
    "sum is not attainable: every point needs both exp(x/l) and exp(-x/l), so each end of the domain is bounded by "
    "overflow on its own, and the factor sqrt(D)/2 in front costs 2 ln(sqrt(D)/2) decay lengths more. The paper's "
    "coordinates start at a corner, which halves what is left."
)


@in_small_type
def write_stability_report(folder: str | Path, out: str | Path, command: str) -> Path:
    """Write ``index.html``, ``tables/`` and ``figures/`` about the rows in ``folder``; returns the page's path."""
    folder, pages = Path(folder), Pages(out)
    numbers = Numbers(read_stability(folder / "stability.csv"))
    with np.load(folder / "maps.npz") as arrays:
        pictures = dict(arrays)
    tables = [limits_table(numbers), choice_table(numbers), shift_table(numbers)]
    shown_tables = {table.name: pages.add_table(table) for table in tables if table is not None}
    drawn = [distance_figure(numbers), map_figure(numbers, pictures), shift_figure(numbers, pictures)]
    figures = {figure.name: pages.add_figure(figure) for figure in drawn if figure is not None}
    kernels = pages.add_picture(
        "kernel-shapes", "How far a point sees: the kernels, dots at half of the peak.",
        (folder / "kernel-shapes.png").read_bytes(),
    )  # fmt: skip
    shown = "".join(
        f"<li>{html.escape(text)} {'Holds.' if holds else '<strong>Does not hold.</strong>'}</li>\n"
        for text, holds in statements(numbers)
    )
    models = "".join(f"<p>{html.escape(line)}</p>\n" for line in model_lines(numbers))
    models += "".join(figures.get(name, "") for name in ("stability-map", "stability-shift"))
    models += shown_tables.get("stability-shift", "")
    body = (
        "<p>As published, the bias channels of LASPE and LAAPE are formed from global coordinates and rounded like all "
        "else. Here that is emulated, and compared with farfield's attention, which takes coordinates relative to "
        "each tile of points. Errors are against the formula in float64.</p>\n"
        f"<ul>\n{shown}</ul>\n<h2>Attention, away from the origin</h2>\n{figures['stability-distance']}"
        f"<h2>How wide a domain may be</h2>\n{shown_tables['stability-choice']}{shown_tables['stability-limits']}"
        f"<p>{html.escape(WHY_THE_TABLE_IS_OFF)}</p>\n"
        f"<h2>A trained model</h2>\n{models}"
        f"<h2>The kernels</h2>\n{kernels}<p>Made by <code>{html.escape(command)}</code></p>\n"
    )
    heading = "Precision: where the encodings break, and where not"
    return pages.write("farfield: precision", heading, body, force=True)  # a report of the study's own folder


def model_lines(numbers: Numbers) -> list[str]:
    """What to know about the trained models, or that there was none."""
    if not numbers.models():
        return [
            "Left out: no trained Gray-Scott model with LASPE or LAAPE was given, and none is shipped. Train one with "
            "`farfield train gray-scott --encoding laspe`, then give its folder with --model."
        ]
    lines = []
    for name in numbers.models():
        facts = {row.quantity: row.value for row in numbers.rows if row[:3] == ("map", name, "")}
        line = (
            f"{name}: {facts['cells along x']:.0f} x {facts['cells along y']:.0f} cells, decay lengths from "
            f"{facts['shortest decay length']:.3g} to {facts['longest decay length']:.3g} (the training domain is 1000 "
            f"wide); the domain is {facts['width in shortest decay lengths']:.0f} of the shortest long. The model "
            f"itself is off by {_percent(facts['error of the exact prediction against the solver'])} from the solver."
        )
        lost = max(v for _, v in numbers.curve("map", name, "published", "bfloat16", "share of points not finite"))
        if lost > 0:
            line += f" As published, {100 * lost:.0f} % of its prediction is not finite."
        lines.append(line)
    return lines
