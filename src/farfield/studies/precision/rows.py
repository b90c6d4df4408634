"""The numbers of the stability experiments on disk: OUT/stability.csv, one row each."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from farfield.files import atomic_write_text


class StabilityRow(NamedTuple):
    """One number, and all that says what it is."""

    experiment: str
    """attention, width, kernel, map or shift."""
    encoding: str
    way: str
    """published, local, formula (computed from a format's limits) or paper (what its table prints)."""
    precision: str
    """The format that q, k, v (and the published way's channels) are rounded to."""
    distance: float
    """From the origin, in decay lengths (a model's shortest). For widths as published, the origin's place: 0 for the
    middle of the domain, 0.5 for its corner. For widths in local coordinates, the width."""
    quantity: str
    """What ``value`` is."""
    value: float
    """inf where a result is not finite."""


def read_stability(path: str | Path) -> list[StabilityRow]:
    """Read ``stability.csv``."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != StabilityRow._fields:
            raise ValueError(f"{path}: expected the columns {', '.join(StabilityRow._fields)}, got {reader.fieldnames}")
        return [
            StabilityRow(
                row["experiment"],
                row["encoding"],
                row["way"],
                row["precision"],
                float(row["distance"]),
                row["quantity"],
                float(row["value"]),
            )
            for row in reader
        ]


def write_stability(path: str | Path, rows: Iterable[StabilityRow]) -> None:
    """Write ``stability.csv``, in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(StabilityRow._fields)
    writer.writerows(row._replace(distance=_short(row.distance), value=_short(row.value)) for row in rows)
    atomic_write_text(path, text.getvalue())


def _short(value: float) -> float:
    return float(f"{value:.6g}")
