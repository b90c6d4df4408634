"""What a report is made of: the files that runs have left behind, and the published numbers."""

from __future__ import annotations

import csv
import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from farfield.evaluation.rows import Row, read_rows, scale_order
from farfield.files import fingerprint, read_arrays, read_description

NAMES = {
    "rope": "RoPE",
    "laspe": "LASPE",
    "laape": "LAAPE",
    "flashbias": "FlashBias",
    "alibi": "ALiBi",
    "window": "Window",
}
COLOURS = dict(zip(NAMES, ("#D55E00", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9"), strict=True))
TITLES = {"swe": "Shallow water", "gray-scott": "Gray-Scott", "urban-wind": "Urban wind"}
HORIZONS = {"swe": (10, 25, 49), "gray-scott": (3, 6, 9)}  # of rollouts, as in the paper


@dataclass(frozen=True)
class SavedRun:
    """One run's saved files; only the rows must be there."""

    rows: list[Row]
    config: dict[str, Any]
    dataset: dict[str, Any]
    provenance: dict[str, Any]
    evaluation: dict[str, Any]
    losses: list[dict[str, float]]
    validations: list[dict[str, float]]
    pictures: dict[str, NDArray]

    @property
    def key(self) -> tuple[str, str, int]:
        row = self.rows[0]
        return row.case, row.encoding, row.seed

    @property
    def label(self) -> str:
        return f"{NAMES[self.key[1]]}, seed {self.key[2]}"


def read_runs(folders: Iterable[str | Path]) -> list[SavedRun]:
    """Read evaluated runs, in the order of the encodings; two of the same case, encoding and seed are refused."""
    found: dict[tuple[str, str, int], tuple[SavedRun, Path]] = {}
    for folder in map(Path, folders):
        path = folder / "evaluation.csv"
        if not path.is_file():
            raise FileNotFoundError(f"{folder} has not been evaluated: run `farfield evaluate {folder}` first")
        _check_weights(folder)
        rows = read_rows(path)
        if len({(row.case, row.encoding, row.seed) for row in rows}) != 1 or rows[0].encoding not in NAMES:
            raise ValueError(f"{path} does not hold the rows of one run of a known encoding")
        run = SavedRun(
            rows,
            _mapping(folder / "config.yaml"),
            _mapping(folder / "dataset.json"),
            _mapping(folder / "provenance.json"),
            _mapping(folder / "evaluation.json"),
            _table(folder / "losses.csv"),
            _table(folder / "validation.csv"),
            _arrays(folder / "samples.npz"),
        )
        if run.key in found:
            raise ValueError(
                f"{folder} and {found[run.key][1]} are both {' '.join(map(str, run.key))}: give one of them"
            )
        found[run.key] = run, folder
    order = list(NAMES)
    runs = sorted((run for run, _ in found.values()), key=lambda run: (run.key[0], order.index(run.key[1]), run.key[2]))
    _check_one_experiment(runs)
    return runs


def _check_weights(folder: Path) -> None:
    """Rows about weights that have been trained further since are not about this run."""
    record, weights = folder / "evaluation.json", folder / "best.safetensors"
    if not (record.is_file() and weights.is_file()):
        return
    if read_description(record).get("weights") != fingerprint(weights.read_bytes()):
        raise ValueError(
            f"{folder} was evaluated with other weights than it has now: run `farfield evaluate {folder}` again"
        )


def _check_one_experiment(runs: Sequence[SavedRun]) -> None:
    """Means over seeds are of runs that differ in nothing else (where the data lies does not matter)."""
    first: dict[tuple[str, str], SavedRun] = {}
    for run in runs:
        other = first.setdefault(run.key[:2], run)
        if differing := [name for name in _differing(run.config, other.config) if name not in ("seed", "dataset")]:
            raise ValueError(
                f"{run.label} and {other.label} of {run.key[0]} cannot be averaged, they differ in "
                f"{', '.join(differing)}: give runs of one experiment"
            )


def _differing(one: dict[str, Any], other: dict[str, Any], group: str = "") -> Iterator[str]:
    """The settings that two configurations both have, with different values; an older one may lack a newer setting."""
    for name in (name for name in one if name in other):
        mine, theirs = one[name], other[name]
        if isinstance(mine, dict) and isinstance(theirs, dict):
            yield from _differing(mine, theirs, f"{group}{name}.")
        elif mine != theirs:
            yield group + name


def _mapping(path: Path) -> dict[str, Any]:
    return read_description(path) if path.is_file() else {}


def _table(path: Path) -> list[dict[str, float]]:
    """Rows of numbers; one that a killed process left incomplete is passed over."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if all(row.values())]
    return [{name: float(value) for name, value in row.items()} for row in rows]


def _arrays(path: Path) -> dict[str, NDArray]:
    return read_arrays(path) if path.is_file() else {}


class Quantity(NamedTuple):
    """What the paper's table of a case is about."""

    field: str
    metric: str
    name: str
    """In a sentence."""
    column: str
    """At the head of a column."""


REGIONS = {"buildings": "l1_buildings", "wake": "l1_wake"}  # of urban wind


class Column(NamedTuple):
    """A quantity at a scale."""

    title: str
    scale: str
    quantity: Quantity


class Summary(NamedTuple):
    """A number over seeds."""

    mean: float
    spread: float
    """Standard deviation over the seeds; 0 for one seed."""
    seeds: int
    samples: int


class Results:
    """The rows of one case, by what they are about."""

    def __init__(self, case: str, runs: Sequence[SavedRun]):
        self.case = case
        self.runs = [run for run in runs if run.key[0] == case]
        rows = [row for run in self.runs for row in run.rows]
        self.encodings = list(dict.fromkeys(row.encoding for row in rows))
        self.scales = sorted({row.scale for row in rows}, key=scale_order)
        self.fields = list(dict.fromkeys(row.field for row in rows if row.field))
        self._by_key: dict[tuple, list[Row]] = {}
        for row in rows:
            key = (row.encoding, row.scale, row.field, row.metric, row.horizon)
            self._by_key.setdefault(key, []).append(row)

    @property
    def title(self) -> str:
        return TITLES.get(self.case, self.case)

    @property
    def quantities(self) -> list[Quantity]:
        """What the paper reports: one error per field, or of the velocity per region."""
        if self.case == "urban-wind":
            return [Quantity("velocity", metric, f"velocity ({name})", name) for name, metric in REGIONS.items()]
        return [Quantity(field, "l1_step", field, f"Δ{field}") for field in self.fields]

    @property
    def columns(self) -> list[Column]:
        """The paper's columns, in its order: of urban wind the scales of a region stand together."""
        pairs = [(scale, quantity) for scale in self.scales for quantity in self.quantities]
        if self.case == "urban-wind":
            pairs = [(scale, quantity) for quantity in self.quantities for scale in self.scales]
        return [Column(f"s = {scale}, {quantity.column}", scale, quantity) for scale, quantity in pairs]

    def horizons(self, metric: str = "l1_rollout") -> list[int]:
        """All horizons that rollouts, or another metric, were measured at."""
        return sorted({key[4] for key in self._by_key if key[3] == metric})

    def summary(self, encoding: str, scale: str, field: str, metric: str, horizon: int = 1) -> Summary | None:
        """The mean and spread over seeds of a number, if it was measured."""
        rows = self._by_key.get((encoding, scale, field, metric, horizon))
        if not rows:
            return None
        values = [row.value for row in rows]
        finite = all(map(math.isfinite, values))
        spread = statistics.stdev(values) if finite and len(values) > 1 else 0.0
        mean = statistics.fmean(values) if finite else float("inf")
        return Summary(mean, spread, len(values), min(row.samples for row in rows))

    def pictured(self, name: str) -> dict[str, SavedRun]:
        """For each encoding the run of the lowest seed that has this array."""
        found: dict[str, SavedRun] = {}
        for run in self.runs:
            if name in run.pictures:
                found.setdefault(run.key[1], run)
        return found


@functools.cache
def published() -> dict[tuple[str, str, str, str, str], str]:
    """The paper's tables: (case, encoding, scale, field, metric) -> L1 error in per cent, as printed."""
    with (Path(__file__).parent / "published.csv").open(newline="", encoding="utf-8") as file:
        about = ("case", "encoding", "scale", "field", "metric")
        return {tuple(row[name] for name in about): row["percent"] for row in csv.DictReader(file)}  # type: ignore[misc]
