"""What has been evaluated of a run, on disk: what is done is not done again.

RUN/evaluation.csv    one row per number (see :class:`farfield.evaluation.rows.Row`)
RUN/evaluation.json   which weights were evaluated, and on how many samples
RUN/samples.npz       the few arrays that pictures need
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from math import inf

import numpy as np
from numpy.typing import NDArray

from farfield.evaluation.rows import Row, read_rows, scale_order, write_rows
from farfield.files import atomic_path, atomic_write_text
from farfield.training.runs import Run


@dataclass
class Record:
    """What has been evaluated of a run, on disk."""

    run: Run
    weights: str
    done: dict[str, dict[str, int]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    pictures: dict[str, NDArray] = field(default_factory=dict)

    @classmethod
    def open(cls, run: Run) -> Record:
        """What the folder holds, unless it is about other weights."""
        record = cls(run, hashlib.sha256(run.best_path.read_bytes()).hexdigest())
        path = run.folder / "evaluation.json"
        if path.exists():
            held = json.loads(path.read_text(encoding="utf-8"))
            if held["weights"] == record.weights:
                record.done = held["scales"]
                record.rows = read_rows(run.folder / "evaluation.csv")
                with np.load(run.folder / "samples.npz") as arrays:
                    record.pictures = dict(arrays)
        return record

    def has(self, scale: str, wanted: dict[str, int]) -> bool:
        """Whether at least as much is done; a kind that is not counted is unlimited."""
        done = self.done.get(scale)
        return done is not None and all(done.get(kind, inf) >= wanted.get(kind, inf) for kind in done | wanted)

    def add(self, scale: str, amount: dict[str, int], rows: list[Row], pictures: dict[str, NDArray]) -> None:
        """Replace what is known about a scale; the file that says it is done comes last."""
        kept = [row for row in self.rows if row.scale != scale]
        self.rows = sorted([*kept, *rows], key=lambda row: scale_order(row.scale))
        self.pictures |= {f"s{scale}_{name}": values for name, values in pictures.items()}
        self.done |= {scale: amount}
        write_rows(self.run.folder / "evaluation.csv", self.rows)
        with atomic_path(self.run.folder / "samples.npz") as partial, partial.open("wb") as file:
            np.savez_compressed(file, **self.pictures)  # type: ignore[arg-type]
        described = {"weights": self.weights, "scales": self.done}
        atomic_write_text(self.run.folder / "evaluation.json", json.dumps(described, indent=1) + "\n")
