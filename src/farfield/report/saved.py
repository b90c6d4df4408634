"""What a report is made of: the files that runs have left behind, and the published numbers."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from farfield.evaluation.rows import Row, read_rows, scale_order
from farfield.files import read_description
from farfield.runs.run import Run
from farfield.style import NAMES

if TYPE_CHECKING:
    from farfield.report.figures import Drawn
    from farfield.report.tables import Table


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
        return row.problem, row.encoding, row.seed

    @property
    def label(self) -> str:
        return f"{NAMES[self.key[1]]}, seed {self.key[2]}"


def read_runs(folders: Iterable[str | Path]) -> list[SavedRun]:
    """Read evaluated runs, in the order of the encodings; two of the same problem, encoding and seed are refused."""
    found: dict[tuple[str, str, int], tuple[SavedRun, Run]] = {}
    for run in map(Run, folders):
        if not run.rows_path.is_file():
            raise FileNotFoundError(f"{run} has not been evaluated: run `farfield evaluate {run}` first")
        evaluation, weights = run.evaluation(), run.weights_fingerprint()
        if evaluation and weights and evaluation.get("weights") != weights:  # trained further since
            raise ValueError(
                f"{run} was evaluated with other weights than it has now: run `farfield evaluate {run}` again"
            )
        rows = read_rows(run.rows_path)
        errors = [row.value for row in rows if row.metric != "seconds"]
        if errors and all(map(math.isnan, errors)):
            raise ValueError(
                f"{run.rows_path}: none of its {len(errors)} errors is a number, as where nothing changes in the test "
                f"data: look at that, and evaluate {run} again"
            )
        if len({row[:3] for row in rows}) != 1 or rows[0].encoding not in NAMES:
            raise ValueError(f"{run.rows_path} does not hold the rows of one run of a known encoding")
        saved = SavedRun(
            rows,
            _mapping(run.config_path),
            _mapping(run.dataset_path),
            run.provenance(),
            evaluation,
            run.losses(),
            run.validations(),
            run.samples(),
        )
        if saved.key in found:
            raise ValueError(
                f"{run} and {found[saved.key][1]} are both {' '.join(map(str, saved.key))}: give one of them"
            )
        found[saved.key] = saved, run
    order = list(NAMES)
    runs = sorted((run for run, _ in found.values()), key=lambda run: (run.key[0], order.index(run.key[1]), run.key[2]))
    _check_one_experiment(runs)
    return runs


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


class Quantity(NamedTuple):
    """What the table of a problem is about."""

    field: str
    metric: str
    name: str
    """In a sentence."""
    column: str
    """At the head of a column."""


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
    """The rows of one problem, by what they are about, and how they are to be shown."""

    def __init__(self, problem: str, runs: Sequence[SavedRun], shown: Presentation):
        self.problem, self.shown = problem, shown
        self.runs = [run for run in runs if run.key[0] == problem]
        rows = [row for run in self.runs for row in run.rows]
        self.encodings = list(dict.fromkeys(row.encoding for row in rows))
        self.scales = sorted({row.scale for row in rows}, key=scale_order)
        self.fields = list(dict.fromkeys(row.field for row in rows if row.field))
        self._by_key: dict[tuple, list[Row]] = {}
        for row in rows:
            key = (row.encoding, row.scale, row.field, row.metric, row.horizon)
            self._by_key.setdefault(key, []).append(row)

    @property
    def quantities(self) -> list[Quantity]:
        """What the paper reports, or what a user's problem is about."""
        return list(self.shown.quantities(self.fields))

    @property
    def columns(self) -> list[Column]:
        """In the paper's order: the quantities of a scale stand together, or the scales of a quantity."""
        pairs = [(scale, quantity) for scale in self.scales for quantity in self.quantities]
        if self.shown.scales_together:
            pairs = [(scale, quantity) for quantity in self.quantities for scale in self.scales]
        return [Column(f"s = {scale}, {quantity.column}", scale, quantity) for scale, quantity in pairs]

    def published(self, encoding: str, scale: str, quantity: Quantity) -> str:
        """The paper's number in per cent, as printed; empty where there is none."""
        return self.shown.published.get((encoding, scale, quantity.field, quantity.metric), "")

    def horizons(self, metric: str = "l1_rollout") -> list[int]:
        """All horizons that rollouts, or another metric, were measured at."""
        return sorted({key[4] for key in self._by_key if key[3] == metric})

    def summary(self, encoding: str, scale: str, field: str, metric: str, horizon: int = 1) -> Summary | None:
        """The mean and spread over seeds of a number, if it was measured."""
        rows = [
            row for row in self._by_key.get((encoding, scale, field, metric, horizon), ()) if row.value == row.value
        ]
        if not rows:  # or none that is a number: an error relative to nothing
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


Published = Mapping[tuple[str, str, str, str], str]


def read_published(path: Path) -> Published:
    """The paper's table of a problem: (encoding, scale, field, metric) -> L1 error in per cent, as printed."""
    with path.open(newline="", encoding="utf-8") as file:
        about = ("encoding", "scale", "field", "metric")
        return {tuple(row[name] for name in about): row["percent"] for row in csv.DictReader(file)}  # type: ignore[misc]


def changes(fields: Sequence[str]) -> list[Quantity]:
    """Of a problem of steps: the change of every field over one step."""
    return [Quantity(field, "l1_step", field, f"Δ{field}") for field in fields]


@dataclass(frozen=True)
class Presentation:
    """Which table and pictures a problem gets; the defaults are those of a problem of steps."""

    title: str
    """The problem's name in a heading."""
    published: Published = field(default_factory=dict)
    """The numbers to stand beside ours."""
    quantities: Callable[[Sequence[str]], Sequence[Quantity]] = changes
    """What the first table is about, from the fields that were predicted."""
    scales_together: bool = False
    """Whether the scales of a quantity stand together in the table, instead of the quantities of a scale."""
    error_of: str = "the change over one step"
    """What the errors are of."""
    where: str = "on test domains of s times the training domain's size along each axis. Mean"
    """The rest of the first table's caption."""
    figure_title: str = "change of {}"
    """Above a quantity's panel."""
    error_name: str = "One-step error"
    horizons: tuple[int, ...] = ()
    """Steps at which rollouts are told; the last one measured unless given."""
    counted: tuple[tuple[str, str], ...] = (("l1_step", "pairs of states"), ("l1_rollout", "simulations rolled out"))
    """Metrics whose numbers of samples are told, and what these samples are."""
    predicted: str = "state"
    """What one prediction gives."""
    time_unit: tuple[str, float] = ("ms", 1000.0)
    """In which the time of a prediction is told, and how many of it make a second."""
    further_tables: Callable[[Results], Iterable[Table]] | None = None
    """Tables beside the first one; those of rollouts unless given."""
    pictures: Callable[[Results, str], Iterable[Drawn]] | None = None
    """Pictures of a scale; maps or profiles of states unless given."""
    scene: Callable[[Results], tuple[str, str] | None] | None = None
    """A caption and a page to look around in; an animation of a rollout unless given, and none where no run has one."""
