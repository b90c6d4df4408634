"""What has been evaluated of a run, on disk: what is done is not done again.

RUN/evaluation.csv    one row per number (see :class:`farfield.evaluation.rows.Row`)
RUN/evaluation.json   which weights were evaluated, on which data and how many samples, by which commands
RUN/samples.npz       the few arrays that pictures need
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from farfield.evaluation.rows import Row, read_rows, scale_order, write_rows
from farfield.files import atomic_path, atomic_write_text, fingerprint, read_arrays, read_description, this_command
from farfield.training.runs import Run


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
        record = cls(run, fingerprint(run.best_path.read_bytes()), dict(data))
        path = run.folder / "evaluation.json"
        if path.exists():
            held = read_description(path)
            if held["weights"] == record.weights:
                theirs = held.get("data", {})
                other = {scale for scale in data if theirs.get(scale) != data[scale]}
                record.data = theirs | record.data
                record.done = {scale: amount for scale, amount in held["scales"].items() if scale not in other}
                record.commands = held.get("commands", [])
                record.rows = [row for row in read_rows(run.folder / "evaluation.csv") if row.scale not in other]
                if (samples := run.folder / "samples.npz").exists():  # kept results do without it
                    record.pictures = read_arrays(samples)
        return record

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
        """Replace what is known about a scale; the file that says it is done comes last."""
        kept = [row for row in self.rows if row.scale != scale]
        self.rows = sorted([*kept, *rows], key=lambda row: scale_order(row.scale))
        self.pictures |= {f"s{scale}_{name}": values for name, values in pictures.items()}
        self.done |= {scale: amount}
        self.commands = list(dict.fromkeys([*self.commands, this_command()]))
        write_rows(self.run.folder / "evaluation.csv", self.rows)
        with atomic_path(self.run.folder / "samples.npz") as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self.pictures)  # type: ignore[arg-type]
        described = {
            "weights": self.weights,
            "scales": self.done,
            "data": {scale: self.data[scale] for scale in self.done},
            "commands": self.commands,
        }
        atomic_write_text(self.run.folder / "evaluation.json", json.dumps(described, indent=1) + "\n")
