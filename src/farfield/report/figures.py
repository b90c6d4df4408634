"""Figures, from rows and saved arrays alone: matplotlib figures, drawn here and saved by the page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from farfield.evaluation.rows import scale_order
from farfield.report.saved import Results, SavedRun
from farfield.style import COLOURS, ERROR_MAP, FIELD_MAP, NAMES, labelled

# Decorates what draws a page: its type is smaller than matplotlib's default, which is left alone.
in_small_type = mpl.rc_context({"font.size": 9})


class Drawn(NamedTuple):
    """A figure and what it shows."""

    name: str
    caption: str
    figure: Figure


def all_figures(results: Results) -> Iterator[Drawn]:
    """All figures of a problem that its saved files allow."""
    if results.horizons(results.quantities[0].metric):
        yield error_against_scale(results)
    if results.horizons():
        yield rollout_curves(results)
    if results.horizons("l1_step_to"):
        yield step_curves(results)
    for scale in results.scales:
        yield from (results.shown.pictures or state_pictures)(results, scale)
    for scale in ("3", "2", "1"):  # the paper shows s = 3
        runs = results.pictured(f"s{scale}_rollout_truth")
        if runs and len(next(iter(runs.values())).pictures[f"s{scale}_extent"]) == 2:
            yield rollout_maps(results, runs, scale)
            break
    if any(run.losses for run in results.runs):
        yield training_curves(results)
    yield wall_times(results)


def state_pictures(results: Results, scale: str) -> Iterator[Drawn]:
    """The change over one step, along a line or as maps."""
    if runs := results.pictured(f"s{scale}_change_truth"):
        flat = len(next(iter(runs.values())).pictures[f"s{scale}_extent"]) == 1
        yield (profiles if flat else maps)(results, runs, scale)


def error_against_scale(results: Results) -> Drawn:
    """The message of the paper in one picture."""
    figure = Figure(figsize=(4.2 * len(results.quantities), 3.4), layout="constrained")
    for axes, quantity in zip(_row(figure, len(results.quantities)), results.quantities, strict=True):
        field, metric, name, _ = quantity
        for encoding in results.encodings:
            colour = COLOURS[encoding]
            broad = 1 if encoding == results.encodings[-1] else 1.7  # it may hide an equal curve below it
            found = [(s, results.summary(encoding, s, field, metric)) for s in results.scales]
            points = [(scale_order(s)[0], 100 * n.mean, 100 * n.spread) for s, n in found if n is not None]
            if not points:  # rollouts only
                continue
            x, mean, spread = np.array(points).T
            axes.plot(x, mean, "o-", color=colour, label=NAMES[encoding], lw=1.5 * broad, markersize=4 * broad)
            axes.fill_between(x, np.maximum(mean - spread, mean / 10), mean + spread, color=colour, alpha=0.2, lw=0)
            theirs = [(scale_order(s)[0], results.published(encoding, s, quantity)) for s in results.scales]
            if known := [(s, float(value)) for s, value in theirs if value]:
                axes.plot(*np.array(known).T, "x:", color=colour, label=f"{NAMES[encoding]}, paper", markersize=4)
        title = results.shown.figure_title.format(name)
        axes.set(xscale="log", yscale="log", xlabel="s, times the training domain", title=title)
        _plain_ticks(axes, [scale_order(s)[0] for s in results.scales])
        _plain_numbers(axes)
    figure.axes[0].set_ylabel("L1 error [%]")
    figure.axes[-1].legend(fontsize="small")
    caption = (
        f"{results.shown.error_name} against the size of the test domain; bands are one standard deviation over seeds."
    )
    return Drawn(f"{results.problem}-error-scale", caption, figure)


def rollout_curves(results: Results) -> Drawn:
    """The error of predictions fed back, at every step, for each scale."""
    caption = (
        "Rollouts: the error of the change since the first state, when predictions are fed back. Curves that leave "
        "the picture at the top have diverged."
    )
    return Drawn(f"{results.problem}-rollout-curves", caption, _curves(results, "l1_rollout", "steps"))


def step_curves(results: Results) -> Drawn:
    """The one-step error by state: where little changes any more, it is relative to little."""
    caption = "The one-step error, by the state that the step leads to: relative to what still changes."
    return Drawn(f"{results.problem}-step-curves", caption, _curves(results, "l1_step_to", "state"))


def _curves(results: Results, metric: str, xlabel: str) -> Figure:
    """An error against steps or states: a row of panels per field, a column per scale."""

    def curve(encoding: str, scale: str, field: str) -> list[tuple[int, float]]:
        found = [(h, results.summary(encoding, scale, field, metric, h)) for h in results.horizons(metric)]
        return [(h, 100 * n.mean) for h, n in found if n is not None and np.isfinite(n.mean)]

    scales = [s for s in results.scales if any(curve(e, s, results.fields[0]) for e in results.encodings)]
    size = (2.6 * len(scales) + 0.6, 2.4 * len(results.fields) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(results.fields), len(scales), sharex=True, sharey=True, squeeze=False)
    for row, field in zip(panels, results.fields, strict=True):
        for axes, scale in zip(row, scales, strict=True):
            for encoding in results.encodings:
                if found := curve(encoding, scale, field):
                    axes.plot(*np.array(found).T, color=COLOURS[encoding], label=NAMES[encoding])
            axes.set(yscale="log", xlim=(0, results.horizons(metric)[-1]))
            axes.grid(alpha=0.3)
        row[0].set_ylabel(f"L1 error of {field} [%]")
    for axes, scale in zip(panels[0], scales, strict=True):
        axes.set_title(f"s = {scale}")
    for axes in panels[-1]:
        axes.set_xlabel(xlabel)
    # beyond 1000 % a prediction has nothing to do with the truth
    low, high = panels[0][0].get_ylim()
    panels[0][0].set_ylim(low, min(high, 1000))
    panels[0][0].xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _plain_numbers(panels[0][0])
    panels[0][0].legend(fontsize="small")
    return figure


def profiles(results: Results, runs: dict[str, SavedRun], scale: str) -> Drawn:
    """One dimension: the change over one step along x, and the rollout in space and time."""
    first = next(iter(runs.values()))
    extent = float(first.pictures[f"s{scale}_extent"][0])
    spec = first.dataset["spec"]
    truth = first.pictures[f"s{scale}_change_truth"]
    x = (np.arange(truth.shape[1]) + 0.5) * extent / truth.shape[1]
    fed_back = results.pictured(f"s{scale}_rollout_truth")
    figure = Figure(figsize=(9, 7.4 if fed_back else 4.2), layout="constrained")
    top, *rest = _stacked(figure, (1.25, 1.0) if fed_back else (1.0,))
    panels = top.subplots(len(results.fields), 2, sharex=True, squeeze=False)
    for row, (index, field) in zip(panels, enumerate(results.fields), strict=True):
        row[0].plot(x, truth[index], color="black", lw=1.5, label="truth")
        for encoding, run in runs.items():
            change = run.pictures[f"s{scale}_change_prediction"][index]
            row[0].plot(x, change, color=COLOURS[encoding], lw=0.9, label=NAMES[encoding])
            row[1].plot(x, change - truth[index], color=COLOURS[encoding], lw=0.9)
        row[0].set_ylabel(labelled(f"change of {field}", spec["field_units"][index]))
        size = float(np.abs(truth[index]).max())
        row[0].set_ylim(-1.6 * size, 1.6 * size)  # a prediction that has failed must not hide the others
        row[1].set_ylim(-1.6 * size, 1.6 * size)
        for axes in row:
            axes.grid(alpha=0.3)
            axes.set_xlim(0, extent)
    top.axes[0].set_title("one step: truth and predictions")
    top.axes[1].set_title("their errors, at the same scale")
    top.axes[0].legend(fontsize="small", ncols=2)
    for axes in top.axes[2:]:
        axes.set_xlabel(f"x [{spec['length_unit']}]")
    start = int(first.pictures[f"s{scale}_change_from"])
    caption = f"s = {scale}, the first test simulation. Top: the change over one step from state {start}."
    for bottom in rest:
        _space_time(bottom, results, fed_back, scale)
        caption += " Bottom: a rollout from the first state, in space and time."
    return Drawn(f"{results.problem}-s{scale}", caption, figure)


def _space_time(bottom: SubFigure, results: Results, runs: dict[str, SavedRun], scale: str) -> None:
    """The rollout of the last field in space and time."""
    first = next(iter(runs.values()))
    spec, extent = first.dataset["spec"], float(first.pictures[f"s{scale}_extent"][0])
    states = first.pictures[f"s{scale}_rollout_truth"][:, -1]
    panels = bottom.subplots(1, 1 + len(runs), sharex=True, sharey=True)
    around = float(states[0].min())
    limits = {"vmin": float(states.min()), "vmax": float(around + 0.7 * (states.max() - around))}
    box = (0, extent, 0, (len(states) - 1) * spec["time_step"])
    shown = {"truth": states} | {
        NAMES[encoding]: run.pictures[f"s{scale}_rollout_prediction"][:, -1] for encoding, run in runs.items()
    }
    for axes, (name, values) in zip(panels, shown.items(), strict=True):
        image = axes.imshow(values, origin="lower", aspect="auto", extent=box, cmap=FIELD_MAP, **limits)
        axes.set_title(f"{results.fields[-1]}: {name}" + ("" if name == "truth" else ", fed back"))
        axes.set_xlabel(f"x [{spec['length_unit']}]")
    panels[0].xaxis.set_major_locator(MaxNLocator(3))
    panels[0].set_ylabel(f"time [{spec['time_unit']}]")
    bottom.colorbar(image, ax=panels, label=labelled(results.fields[-1], spec["field_units"][-1]))


def maps(results: Results, runs: dict[str, SavedRun], scale: str) -> Drawn:
    """Two dimensions: the change over one step, truth, predictions and errors."""
    first = next(iter(runs.values()))
    count = len(results.fields)
    figure = Figure(figsize=(2.5 * (1 + len(runs)) + 0.8, 4.6 * count), layout="constrained")
    for part, (index, field) in zip(_stacked(figure, (1.0,) * count), enumerate(results.fields), strict=True):
        truth = first.pictures[f"s{scale}_change_truth"][index]
        limit = float(np.abs(truth).max())
        panels = part.subplots(2, 1 + len(runs), sharex=True, sharey=True)
        shown = [(f"change of {field}: truth", truth)]
        errors: list[tuple[str, NDArray]] = []
        for encoding, run in runs.items():
            change = run.pictures[f"s{scale}_change_prediction"][index]
            shown.append((NAMES[encoding], change))
            errors.append((f"{NAMES[encoding]}: error", change - truth))
        for row, pictures in ((panels[0], shown), (panels[1][1:], errors)):
            for axes, (title, values) in zip(row, pictures, strict=True):
                image = _map(axes, values, first.pictures[f"s{scale}_extent"], limit)
                axes.set_title(title, fontsize="medium")
        panels[1][0].axis("off")
        part.colorbar(image, ax=panels, shrink=0.7)
    start = int(first.pictures[f"s{scale}_change_from"])
    caption = f"s = {scale} x {scale}, the first test simulation: the change over one step from state {start}."
    return Drawn(f"{results.problem}-s{scale}", caption, figure)


def rollout_maps(results: Results, runs: dict[str, SavedRun], scale: str) -> Drawn:
    """The paper's figure: three steps of the last field, predictions fed back."""
    first = next(iter(runs.values()))
    truth = first.pictures[f"s{scale}_rollout_truth"][:, -1]
    rows = [("truth", truth)] + [
        (NAMES[encoding], run.pictures[f"s{scale}_rollout_prediction"][:, -1]) for encoding, run in runs.items()
    ]
    figure = Figure(figsize=(2.3 * len(truth) + 0.8, 2.3 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(truth), sharex=True, sharey=True, squeeze=False)
    low = min(0.0, float(truth.min()))
    for row, (name, states) in zip(panels, rows, strict=True):
        for time, (axes, values) in enumerate(zip(row, states, strict=True)):
            image = _map(axes, values, first.pictures[f"s{scale}_extent"], float(truth.max()), low)
            if name == "truth":
                axes.set_title("first state" if time == 0 else f"step {time}")
        row[0].set_ylabel(name)
    figure.colorbar(image, ax=panels, label=results.fields[-1], shrink=0.7)
    caption = f"{results.fields[-1]} at s = {scale} x {scale}, predictions fed back for {len(truth) - 1} steps."
    return Drawn(f"{results.problem}-rollout", caption, figure)


def _map(axes: Axes, values: NDArray, extent: NDArray, limit: float, low: float | None = None) -> AxesImage:
    box = (0, float(extent[0]), 0, float(extent[1]))
    colours = ERROR_MAP if low is None else FIELD_MAP
    bottom = -limit if low is None else low
    return axes.imshow(values.T, origin="lower", extent=box, cmap=colours, vmin=bottom, vmax=limit)


def training_curves(results: Results) -> Drawn:
    """Loss and validation loss by step."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    losses, validations = _row(figure, 2)
    for run in results.runs:
        colour, style = COLOURS[run.key[1]], ("-", "--", ":", "-.")[run.key[2] % 4]
        for axes, table in ((losses, run.losses), (validations, run.validations)):
            if not table:
                continue
            steps, values = (np.array([row[name] for row in table]) for name in ("step", "loss"))
            if len(values) > 200:  # the mean over a hundredth of the run: single steps scatter
                width = len(values) // 100
                kept = len(values) // width * width
                steps, values = (array[:kept].reshape(-1, width).mean(1) for array in (steps, values))
            axes.plot(steps, values, style, color=colour, label=run.label, marker="o" if len(values) < 20 else None)
    losses.set(yscale="log", xlabel="step", title="training loss")
    validations.set(yscale="log", xlabel="step", title="validation loss")
    for axes in (losses, validations):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    losses.legend(fontsize="small")
    return Drawn(f"{results.problem}-training", "Training: the loss as it was minimised, and on held-out data.", figure)


def wall_times(results: Results) -> Drawn:
    """Seconds per predicted state against the size of the domain, and minutes of training."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    prediction, training = _row(figure, 2)
    for encoding in results.encodings:
        found = [(s, results.summary(encoding, s, "", "seconds")) for s in results.scales]
        points = [(scale_order(s)[0], n.mean) for s, n in found if n is not None]
        if points:
            prediction.plot(
                *np.array(points).T,
                "o-",
                color=COLOURS[encoding],
                label=NAMES[encoding],
                markersize=4,
            )
    prediction.set(xscale="log", yscale="log", xlabel="s, times the training domain", title="seconds per prediction")
    _plain_ticks(prediction, [scale_order(s)[0] for s in results.scales])
    _plain_numbers(prediction)
    if prediction.lines:
        prediction.legend(fontsize="small")
    timed = [run for run in results.runs if run.losses]
    for index, run in enumerate(timed):
        training.barh(index, run.losses[-1]["seconds"] / 60, color=COLOURS[run.key[1]])
    training.set_yticks(range(len(timed)), [run.label for run in timed])
    training.invert_yaxis()
    training.xaxis.set_major_locator(MaxNLocator(5))
    training.set(title="minutes of training")
    return Drawn(f"{results.problem}-times", "Wall times, on the machine named in the table of runs.", figure)


def _stacked(figure: Figure, heights: tuple[float, ...]) -> list[SubFigure]:
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)
    return list(np.asarray(parts)[:, 0])


def _row(figure: Figure, count: int) -> list[Axes]:
    return list(figure.subplots(1, count, squeeze=False)[0])


def _plain_ticks(axes: Axes, ticks: list[float]) -> None:
    axes.set_xticks(sorted(set(ticks)), [f"{tick:g}" for tick in sorted(set(ticks))])
    axes.minorticks_off()
    axes.grid(alpha=0.3)


def _plain_numbers(axes: Axes) -> None:
    """1, 2, 5, 10, ... instead of powers of ten, as errors in per cent are read."""
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
