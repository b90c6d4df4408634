"""Tables, in Markdown, HTML and CSV, from rows alone."""

from __future__ import annotations

import csv
import html
import io
import math
from dataclasses import dataclass
from typing import Any

from farfield.report.saved import HORIZONS, NAMES, REGIONS, Column, Results, Summary, published


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, under a caption."""

    name: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        lines = [self.caption, "", _line(self.header), _line(["---"] * len(self.header)), *map(_line, self.rows)]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows
        )
        return (
            f'<p class="caption">{html.escape(self.caption)}</p>\n<div class="scroll"><table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def percent(fraction: float) -> str:
    """Two digits after the point below 10 %, none from 100 % on."""
    if not math.isfinite(fraction):
        return "diverges"
    value = 100 * fraction
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}" if value < 1e5 else f"{value:.1e}"


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    if summary.seeds == 1 or not math.isfinite(summary.mean):
        return percent(summary.mean)
    return f"{percent(summary.mean)} ± {percent(summary.spread)}"


def _seeds(results: Results, encoding: str) -> str:
    return str(sum(run.key[1] == encoding for run in results.runs))


CAPTIONS = {
    "urban-wind": "L1 error [%] of the velocity, in the square of buildings and in the rest of the domain (wake), for "
    "cities s times as wide as those of training. Mean over cities and draws of points",
}
STEP_CAPTION = (
    "L1 error [%] of the change over one step, on test domains of s times the training domain's size along each axis. "
    "Mean"
)


def error_table(results: Results) -> Table:
    """The paper's table, ours beside it."""
    rows = []
    for encoding in results.encodings:
        cells = [_cell(results.summary(encoding, scale, q.field, q.metric)) for _, scale, q in results.columns]
        rows.append([NAMES[encoding], "here", _seeds(results, encoding), *cells, growth(results, encoding)])
        theirs = [_published(results, encoding, column) for column in results.columns]
        if any(theirs):
            rows.append([NAMES[encoding], "paper", "", *(cell or "–" for cell in theirs), ""])
    return Table(
        f"{results.case}-l1",
        f"{results.title}: {CAPTIONS.get(results.case, STEP_CAPTION)} ± standard deviation over seeds. Growth: the "
        "error at the largest s over that at s = 1.",
        ["encoding", "", "seeds", *_titles(results), "growth"],
        rows,
    )


def _published(results: Results, encoding: str, column: Column) -> str:
    _, scale, quantity = column
    return published().get((results.case, encoding, scale, quantity.field, quantity.metric), "")


def growth(results: Results, encoding: str) -> str:
    """How many times larger the error is on the largest domain, per quantity."""
    ratios = []
    for field, metric, *_ in results.quantities:
        ends = [results.summary(encoding, scale, field, metric) for scale in ("1", results.scales[-1])]
        measured = [end.mean for end in ends if end is not None]
        if len(measured) == 2 and measured[0] > 0 and math.isfinite(measured[1]):
            ratios.append(f"{measured[1] / measured[0]:.3g}")
    return " / ".join(ratios) or "–"


def numbers_csv(results: Results) -> str:
    """The numbers of the paper's table, one per line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    about = ["case", "encoding", "scale", "field", "metric"]
    writer.writerow([*about, "percent", "spread", "seeds", "samples", "paper_percent"])
    for encoding in results.encodings:
        for column in results.columns:
            _, scale, quantity = column
            found = results.summary(encoding, scale, quantity.field, quantity.metric)
            if found is not None:
                ours = [f"{100 * found.mean:.6g}", f"{100 * found.spread:.6g}", found.seeds, found.samples]
                theirs = _published(results, encoding, column)
                writer.writerow([results.case, encoding, scale, *quantity[:2], *ours, theirs])
    return text.getvalue()


def l2_table(results: Results) -> Table:
    """The same in the other norm."""
    rows = []
    for encoding in results.encodings:
        errors = [results.summary(encoding, s, q.field, q.metric.replace("l1", "l2")) for _, s, q in results.columns]
        rows.append([NAMES[encoding], _seeds(results, encoding), *map(_cell, errors)])
    what = "the velocity" if results.case == "urban-wind" else "the change over one step"
    caption = f"{results.title}: relative L2 error [%] of {what}."
    return Table(f"{results.case}-l2", caption, ["encoding", "seeds", *_titles(results)], rows)


def fields_table(results: Results) -> Table:
    """Urban wind: all that is predicted, by region."""
    rows = []
    for encoding in results.encodings:
        for region, metric in REGIONS.items():
            errors = [results.summary(encoding, s, field, metric) for s in results.scales for field in results.fields]
            rows.append([NAMES[encoding], region, *map(_cell, errors)])
    header = ["encoding", "region", *(f"s = {s}, {field}" for s in results.scales for field in results.fields)]
    return Table(f"{results.case}-fields", f"{results.title}: L1 error [%] of every field.", header, rows)


def rollout_table(results: Results) -> Table:
    """Rollouts at the paper's horizons."""
    horizons = [h for h in HORIZONS.get(results.case, ()) if h in results.horizons()] or results.horizons()[-1:]
    rows = []
    for encoding in results.encodings:
        for horizon in horizons:
            cells = [
                _cell(results.summary(encoding, scale, field, "l1_rollout", horizon))
                for scale in results.scales
                for field in results.fields
            ]
            if any(cell != "–" for cell in cells):
                rows.append([NAMES[encoding], str(horizon), *cells])
    return Table(
        f"{results.case}-rollouts",
        f"{results.title}: L1 error [%] of the change since the first state, after predictions were fed back for so "
        "many steps: sum |predicted - true state| / sum |true - first state|.",
        ["encoding", "steps", *_titles(results)],
        rows,
    )


def samples_table(results: Results) -> Table:
    """What the means were taken over."""
    rows = []
    counted = [("l1_step", "pairs of states"), ("l1_rollout", "simulations rolled out")]
    if results.case == "urban-wind":
        counted = [("l1_buildings", "draws of points, over all cities")]
    for encoding in results.encodings:
        for metric, what in counted:
            counts = [results.summary(encoding, scale, results.fields[0], metric) for scale in results.scales]
            rows.append([NAMES[encoding], what, *("0" if count is None else str(count.samples) for count in counts)])
    header = ["encoding", "", *(f"s = {scale}" for scale in results.scales)]
    return Table(f"{results.case}-samples", f"{results.title}: samples per seed.", header, rows)


def runs_table(results: Results) -> Table:
    """What was trained, and how long it took."""
    rows = []
    for run in results.runs:
        model, training = run.config.get("model", {}), run.config.get("training", {})
        time = f"{run.losses[-1]['seconds'] / 60:.1f}" if run.losses else "–"
        steps = f"{run.losses[-1]['step']:.0f}" if run.losses else "–"
        rows.append(
            [
                run.label,
                f"{model.get('width', '–')} x {_depth(model)}, {model.get('heads', '–')} heads",
                f"{training.get('optimiser', '–')}, {training.get('learning_rate', '–')}",
                f"{steps} of {training.get('batch_size', '–')}",
                time,
                " ".join(cell for cell in (str(run.provenance.get("cores", "–")), "cores")),
                ", ".join(f"{name} {version}" for name, version in run.provenance.get("versions", {}).items()),
            ]
        )
    header = ["run", "width x depth", "optimiser, rate", "steps of batch", "training [min]", "machine", "versions"]
    return Table(f"{results.case}-runs", f"{results.title}: the runs.", header, rows)


def times_table(results: Results) -> Table:
    """Wall time of a prediction."""
    what, unit, per_second = ("city", "s", 1) if results.case == "urban-wind" else ("state", "ms", 1000)
    rows = []
    for encoding in results.encodings:
        times = [results.summary(encoding, scale, "", "seconds") for scale in results.scales]
        rows.append([NAMES[encoding], *("–" if time is None else f"{per_second * time.mean:.3g}" for time in times)])
    header = ["encoding", *(f"s = {scale}" for scale in results.scales)]
    caption = f"{results.title}: wall time per predicted {what} [{unit}], reading and scoring included."
    return Table(f"{results.case}-times", caption, header, rows)


def _depth(model: dict[str, Any]) -> str:
    """Of the transformer operator, or of AB-SWIFT's parts."""
    parts = [str(model[name]) for name in ("geometry_depth", "processor_depth", "decoder_depth") if name in model]
    return "+".join(parts) or str(model.get("depth", "–"))


def _titles(results: Results) -> list[str]:
    return [column.title for column in results.columns]


def case_tables(results: Results) -> list[Table]:
    """All tables of a case, the paper's first."""
    further = fields_table(results) if results.case == "urban-wind" else rollout_table(results)
    tables = [error_table(results), further, l2_table(results)]
    return [*tables, times_table(results), samples_table(results), runs_table(results)]
