"""``evaluation.csv``: one row per number, the only thing that tables and curves are made of; and what is done."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from farfield.files import atomic_path, atomic_write_text, locked, remove_partials, this_command, write_table
from farfield.runs.run import Run


class Row(NamedTuple):
    """One number, and all that says what it is."""

    problem: str
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
    with Path(path).open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames and reader.fieldnames[0] == "case":  # as the column was called before version 0.2
            reader.fieldnames = [Row._fields[0], *reader.fieldnames[1:]]
        if tuple(reader.fieldnames or ()) != Row._fields:
            raise ValueError(
                f"{path} is not a table of results: expected the columns {', '.join(Row._fields)}, got "
                f"{', '.join(reader.fieldnames or ()) or 'none'}"
            )
        try:
            return [
                Row(
                    problem=r["problem"],
                    encoding=r["encoding"],
                    seed=int(r["seed"]),
                    scale=_checked_scale(r["scale"]),
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
    write_table(path, Row._fields, rows)


def _checked_scale(scale: str) -> str:
    scale_order(scale)
    return scale


def scale_order(scale: str) -> tuple[float, ...]:
    """Sorts scales by their size."""
    return tuple(float(factor) for factor in scale.split("x"))


@dataclass
class Record:
    """What has been evaluated of a run, on disk."""

    run: Run
    weights: str
    data: dict[str, str] = field(default_factory=dict)
    done: dict[str, dict[str, int]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    pictures: dict[str, NDArray] = field(default_factory=dict)

    @classmethod
    def open(cls, run: Run, data: Mapping[str, str]) -> Record:
        """What the folder holds, unless it is about other weights or, at some scale, other ``data`` (fingerprints)."""
        record = cls(run, run.weights_fingerprint() or "", dict(data))
        record._read()
        return record

    def _read(self) -> None:
        held = self.run.evaluation()
        if held and held.get("weights") == self.weights:
            theirs = held.get("data", {})
            other = {scale for scale in self.data if theirs.get(scale) != self.data[scale]}
            self.data = theirs | self.data
            self.done = {scale: amount for scale, amount in held.get("scales", {}).items() if scale not in other}
            self.commands = held.get("commands", [])
            self.rows = [row for row in read_rows(self.run.rows_path) if row.scale not in other]
            self.pictures = self.run.samples()  # kept results do without them

    def has(self, scale: str, wanted: dict[str, int]) -> bool:
        """Whether at least as much is done; a kind that is not counted is unlimited."""
        done = self.done.get(scale)
        return done is not None and all(done.get(kind, inf) >= wanted.get(kind, inf) for kind in done | wanted)

    def raised(self, scale: str, wanted: dict[str, int]) -> dict[str, int]:
        """What to measure so that nothing is known worse than before: of each kind no less than is done."""
        done = self.done.get(scale)
        if done is None:
            return wanted
        return {kind: max(done[kind], wanted[kind]) for kind in wanted if kind in done}

    def add(self, scale: str, amount: dict[str, int], rows: list[Row], pictures: dict[str, NDArray]) -> None:
        """Replace what is known about a scale; the file that says it is done comes last.

        What another process has found about other scales meanwhile is kept: one at a time reads, adds and writes.
        """
        run = self.run
        with locked(run.folder / ".evaluation.lock"):
            remove_partials(run.rows_path, run.samples_path, run.evaluation_path)
            self._read()
            kept = [row for row in self.rows if row.scale != scale]
            self.rows = sorted([*kept, *rows], key=lambda row: scale_order(row.scale))
            self.pictures |= {f"s{scale}_{name}": values for name, values in pictures.items()}
            self.done |= {scale: amount}
            self.commands = list(dict.fromkeys([*self.commands, this_command()]))
            write_rows(run.rows_path, self.rows)
            with atomic_path(run.samples_path) as partial, partial.open("wb") as file:
                np.savez_compressed(file, **self.pictures)  # type: ignore[arg-type]
            described = {
                "weights": self.weights,
                "scales": self.done,
                "data": {scale: self.data[scale] for scale in self.done if scale in self.data},
                "commands": self.commands,
            }
            atomic_write_text(run.evaluation_path, json.dumps(described, indent=1) + "\n")
