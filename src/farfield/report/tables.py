"""Tables, in Markdown, HTML and CSV, from rows alone."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from dataclasses import dataclass
from typing import Any

from farfield.report.saved import Results, Summary
from farfield.style import NAMES


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, under a caption."""

    name: str
    caption: str
    header: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        rule = "| " + " | ".join(["---"] * len(self.header)) + " |"
        lines = [escape_markdown(self.caption), "", _line(self.header), rule, *map(_line, self.rows)]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in self.header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>\n" for row in self.rows
        )
        return (
            f'<p class="caption">{html.escape(self.caption)}</p>\n'
            '<div><span class="hint">scroll sideways for more →</span><div class="scroll"><table>\n'
            f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div></div>\n"
        )

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.header, *self.rows])
        return text.getvalue()


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(escape_markdown, cells)) + " |"


def escape_markdown(text: str) -> str:
    """Text that Markdown shows as it is: one line without HTML, links, pictures, columns, emphasis, headings, lists."""
    one_line = html.escape(" ".join(text.split()), quote=False)
    return re.sub(r"[\\`*_|~#]|\](?=[(\[:])|^[-+](?= )", r"\\\g<0>", one_line)


def percent(fraction: float) -> str:
    """Two digits after the point below 10 %, none from 100 % on."""
    if not math.isfinite(fraction):
        return "diverges"
    value = 100 * fraction
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}" if value < 1e5 else f"{value:.1e}"


def cell(summary: Summary | None) -> str:
    if summary is None:
        return "–"
    if summary.seeds == 1 or not math.isfinite(summary.mean):
        return percent(summary.mean)
    return f"{percent(summary.mean)} ± {percent(summary.spread)}"


def _seeds(results: Results, encoding: str) -> str:
    return str(sum(run.key[1] == encoding for run in results.runs))


def error_table(results: Results) -> Table:
    """The paper's table, ours beside it."""
    rows, shown = [], results.shown
    for encoding in results.encodings:
        cells = [cell(results.summary(encoding, scale, q.field, q.metric)) for _, scale, q in results.columns]
        rows.append([NAMES[encoding], "here", _seeds(results, encoding), *cells, growth(results, encoding)])
        theirs = [results.published(encoding, scale, quantity) for _, scale, quantity in results.columns]
        if any(theirs):
            rows.append([NAMES[encoding], "paper", "", *(cell or "–" for cell in theirs), ""])
    return Table(
        f"{results.problem}-l1",
        f"{shown.title}: L1 error [%] of {shown.error_of}, {shown.where} ± standard deviation over seeds. Growth: the "
        "error at the largest s over that at s = 1.",
        ["encoding", "", "seeds", *_titles(results), "growth"],
        rows,
    )


def growth(results: Results, encoding: str) -> str:
    """How many times larger the error is on the largest domain, per quantity."""
    ratios = []
    for field, metric, *_ in results.quantities:
        ends = [results.summary(encoding, scale, field, metric) for scale in ("1", results.scales[-1])]
        measured = [end.mean for end in ends if end is not None]
        if len(measured) == 2 and measured[0] > 0 and math.isfinite(measured[1]):
            ratio = measured[1] / measured[0]
            ratios.append(f"{ratio:.3g}" if ratio < 1000 else f"{ratio:,.0f}" if ratio < 1e6 else f"{ratio:.1e}")
    return " / ".join(ratios) or "–"


def numbers_csv(results: Results) -> str:
    """The numbers of the paper's table, one per line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    about = ["problem", "encoding", "scale", "field", "metric"]
    writer.writerow([*about, "percent", "spread", "seeds", "samples", "paper_percent"])
    for encoding in results.encodings:
        for _, scale, quantity in results.columns:
            found = results.summary(encoding, scale, quantity.field, quantity.metric)
            if found is not None:
                ours = [f"{100 * found.mean:.6g}", f"{100 * found.spread:.6g}", found.seeds, found.samples]
                theirs = results.published(encoding, scale, quantity)
                writer.writerow([results.problem, encoding, scale, *quantity[:2], *ours, theirs])
    return text.getvalue()


def l2_table(results: Results) -> Table:
    """The same in the other norm."""
    rows = []
    for encoding in results.encodings:
        errors = [results.summary(encoding, s, q.field, q.metric.replace("l1", "l2")) for _, s, q in results.columns]
        rows.append([NAMES[encoding], _seeds(results, encoding), *map(cell, errors)])
    caption = f"{results.shown.title}: relative L2 error [%] of {results.shown.error_of}."
    return Table(f"{results.problem}-l2", caption, ["encoding", "seeds", *_titles(results)], rows)


def rollout_table(results: Results) -> Table:
    """Rollouts at the paper's horizons."""
    horizons = [h for h in results.shown.horizons if h in results.horizons()] or results.horizons()[-1:]
    rows = []
    for encoding in results.encodings:
        for horizon in horizons:
            cells = [
                cell(results.summary(encoding, scale, field, "l1_rollout", horizon))
                for scale in results.scales
                for field in results.fields
            ]
            if any(cell != "–" for cell in cells):
                rows.append([NAMES[encoding], str(horizon), *cells])
    return Table(
        f"{results.problem}-rollouts",
        f"{results.shown.title}: L1 error [%] of the change since the first state, after predictions were fed back for "
        "so many steps: sum |predicted - true state| / sum |true - first state|.",
        ["encoding", "steps", *_titles(results)],
        rows,
    )


def samples_table(results: Results) -> Table:
    """What the means were taken over."""
    rows = []
    for encoding in results.encodings:
        for metric, what in results.shown.counted:
            counts = [results.summary(encoding, scale, results.fields[0], metric) for scale in results.scales]
            rows.append([NAMES[encoding], what, *("0" if count is None else str(count.samples) for count in counts)])
    header = ["encoding", "", *(f"s = {scale}" for scale in results.scales)]
    return Table(f"{results.problem}-samples", f"{results.shown.title}: samples per seed.", header, rows)


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
    return Table(f"{results.problem}-runs", f"{results.shown.title}: the runs.", header, rows)


def times_table(results: Results) -> Table:
    """Wall time of a prediction."""
    unit, per_second = results.shown.time_unit
    rows = []
    for encoding in results.encodings:
        times = [results.summary(encoding, scale, "", "seconds") for scale in results.scales]
        rows.append([NAMES[encoding], *("–" if time is None else f"{per_second * time.mean:.3g}" for time in times)])
    header = ["encoding", *(f"s = {scale}" for scale in results.scales)]
    what = results.shown.predicted
    caption = f"{results.shown.title}: wall time per predicted {what} [{unit}], reading and scoring included."
    return Table(f"{results.problem}-times", caption, header, rows)


def _depth(model: dict[str, Any]) -> str:
    """Of the transformer operator, or of AB-SWIFT's parts."""
    parts = [str(model[name]) for name in ("geometry_depth", "processor_depth", "decoder_depth") if name in model]
    return "+".join(parts) or str(model.get("depth", "–"))


def _titles(results: Results) -> list[str]:
    return [column.title for column in results.columns]


def all_tables(results: Results) -> list[Table]:
    """All tables of a problem, the paper's first."""
    further = results.shown.further_tables
    tables = [error_table(results), *(further(results) if further else [rollout_table(results)]), l2_table(results)]
    return [*tables, times_table(results), samples_table(results), runs_table(results)]
