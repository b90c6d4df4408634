"""``evaluation.csv``: one row per number, the only thing that tables and curves are made of."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from farfield.files import atomic_write_text


class Row(NamedTuple):
    """One number, and all that says what it is."""

    case: str
    encoding: str
    seed: int
    scale: str
    """Times the training domain along every axis: "10", or "2x1" where they differ."""
    field: str
    """Empty where a number belongs to all fields."""
    metric: str
    """l1_step, l2_step: of the change over one step. l1_rollout, l2_rollout: of the change since the start, after
    ``horizon`` predictions fed back. seconds: wall time per predicted state."""
    horizon: int
    """Steps predicted."""
    value: float
    """Relative, 0.01 for one per cent; the mean over samples. inf where a prediction is no longer a number."""
    samples: int
    """What the mean was taken over: pairs of states for one step, simulations for rollouts."""


def read_rows(path: str | Path) -> list[Row]:
    """Read a file of rows."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != Row._fields:
            raise ValueError(
                f"{path} is not a table of results: expected the columns {', '.join(Row._fields)}, got "
                f"{', '.join(reader.fieldnames or ()) or 'none'}"
            )
        try:
            return [
                Row(
                    case=r["case"],
                    encoding=r["encoding"],
                    seed=int(r["seed"]),
                    scale=r["scale"],
                    field=r["field"],
                    metric=r["metric"],
                    horizon=int(r["horizon"]),
                    value=float(r["value"]),
                    samples=int(r["samples"]),
                )
                for r in reader
            ]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


def write_rows(path: str | Path, rows: Iterable[Row]) -> None:
    """Write a file of rows, in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows)
    atomic_write_text(path, text.getvalue())


def scale_order(scale: str) -> tuple[float, ...]:
    """Sorts scales by their size."""
    return tuple(float(factor) for factor in scale.split("x"))
