"""Evaluation of a trained model on domains of rising size: its error over one step, and over rollouts.

One step: every pair of successive states of the test split, or ``limit`` of them drawn once and for all. The paper's
metric, on the change between the two.

Rollouts: from each simulation's first state, predictions fed back. The same metric on the change since the start,

    sum |predicted state - true state| / sum |true state - first state|,

because a prediction's last step alone says nothing about where it has drifted to, and the states' own size (one metre
of water) would hide it. At horizon 1 both errors are the same thing, there over first states only.

RUN/evaluation.csv    one row per number (see :class:`farfield.evaluation.rows.Row`)
RUN/evaluation.json   which weights were evaluated, and on how many samples: what is done is not done again
RUN/samples.npz       the few arrays that pictures need
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import Tensor

from farfield.datasets.generation import scale_text
from farfield.datasets.storage import Split
from farfield.evaluation.metrics import mean_error, relative_errors
from farfield.evaluation.rows import Row, read_rows, scale_order, write_rows
from farfield.files import atomic_path, atomic_write_text
from farfield.models import load
from farfield.solvers.rollout import rollout
from farfield.training.runs import Run

PICTURED_SCALES = ("1", "3", "10")  # the paper's figures
PICTURED_STEPS = 3  # of a rollout in two dimensions; in one dimension all of them are kept
PICTURED_CELLS = 512  # along each axis of a map: more would not be seen
_POINTS = 1 << 18  # read at a time


@dataclass(frozen=True)
class Amount:
    """How much is evaluated at a scale; None for all there is."""

    pairs: int | None = None
    rollouts: int | None = None

    def of(self, split: Split) -> dict[str, int]:
        """Resolved against what the split holds."""
        pairs, rollouts = split.simulations * (split.states - 1), split.simulations
        return {
            "pairs": pairs if self.pairs is None else min(self.pairs, pairs),
            "rollouts": rollouts if self.rollouts is None else min(self.rollouts, rollouts),
        }


def evaluate(
    run_folder: str | Path,
    scales: list[str],
    *,
    amount: Amount = Amount(),
    data: str | Path | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Evaluate a run at these scales, skipping what is done; returns all rows of ``RUN/evaluation.csv``."""
    run = Run(run_folder)
    config = run.config()
    predictor = load(run.folder, device=device)
    splits = _test_splits(Path(data or config.dataset), scales, run)
    record = _Record.open(run)
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description:>8}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        wanted = {scale: amount.of(split) for scale, split in splits.items()}
        todo = [scale for scale in splits if not record.has(scale, wanted[scale])]
        tasks = {s: bars.add_task(f"s = {s}", total=_steps(splits[s], wanted[s])) for s in todo}
        for scale in todo:
            split = splits[scale]
            began, predicted = time.perf_counter(), 0

            def advance(states: int, task: Any = tasks[scale]) -> None:
                nonlocal predicted
                predicted += states
                bars.advance(task, states)

            step = predictor.on(split.domain.points())
            first: list[Tensor] = []  # the first simulation's rollout
            found = [
                *_one_step(step, split, wanted[scale]["pairs"], advance),
                *_rollouts(step, split, wanted[scale]["rollouts"], advance, first),
            ]
            seconds = (time.perf_counter() - began) / predicted
            found.append(("", "seconds", 1, float(f"{seconds:.3g}"), predicted))
            pictures = _pictures(step, split, first) if scale in PICTURED_SCALES else {}
            rows = [Row(config.case, config.encoding.name, config.seed, scale, *numbers) for numbers in found]
            record.add(scale, wanted[scale], rows, pictures)
            errors = ", ".join(f"{name} {100 * v:.2f} %" for name, metric, _, v, _ in found if metric == "l1_step")
            console.print(f"{config.encoding.name}, s = {scale}: {errors}", highlight=False)
    return record.rows


def _steps(split: Split, wanted: dict[str, int]) -> int:
    return wanted["pairs"] + wanted["rollouts"] * (split.states - 1)


Step = Callable[[Tensor], Tensor]
Numbers = tuple[str, str, int, float, int]  # field, metric, horizon, value, samples


def _one_step(step: Step, split: Split, pairs: int, advance: Callable[[int], None]) -> Iterator[Numbers]:
    """The errors of single steps from true states."""
    chosen = np.sort(np.random.default_rng(0).permutation(split.simulations * (split.states - 1))[:pairs])
    errors: dict[str, list[Tensor]] = {}
    for group in _groups(chosen, split):
        states = [split.read(i, slice(k, k + 2)) for i, k in (divmod(int(pair), split.states - 1) for pair in group)]
        now, later = (_points(np.stack(states)[:, time]) for time in (0, 1))
        for name, values in relative_errors(step(now).cpu() - now, later - now).items():
            errors.setdefault(name, []).append(values)
        advance(len(group))
    for name, parts in errors.items():
        yield from _means(f"{name}_step", 1, torch.cat(parts), split)


def _rollouts(
    step: Step, split: Split, simulations: int, advance: Callable[[int], None], kept: list[Tensor]
) -> Iterator[Numbers]:
    """The errors of predictions fed back, at every horizon; what pictures need of them goes into ``kept``."""
    errors: dict[tuple[str, int], list[Tensor]] = {}
    for group in _groups(np.arange(simulations), split):
        several = slice(int(group[0]), int(group[-1]) + 1)
        first = _points(split.read(several, 0))
        for horizon, state in enumerate(rollout(step, first, split.states - 1)):
            if group[0] == 0 and horizon <= _pictured_steps(split):
                kept.append(state[:1].cpu())
            if horizon == 0:
                continue
            truth = _points(split.read(several, horizon))
            for name, values in relative_errors(state.cpu() - first, truth - first).items():
                errors.setdefault((name, horizon), []).append(values)
            advance(len(group))
    for (name, horizon), parts in errors.items():
        yield from _means(f"{name}_rollout", horizon, torch.cat(parts), split)


def _means(metric: str, horizon: int, errors: Tensor, split: Split) -> Iterator[Numbers]:
    for index, name in enumerate(split.spec.fields):
        value, samples = mean_error(errors[:, index])
        yield name, metric, horizon, float(f"{value:.6g}"), samples


def _pictured_steps(split: Split) -> int:
    return split.states - 1 if split.domain.space_dim == 1 else min(PICTURED_STEPS, split.states - 1)


def _pictures(step: Step, split: Split, predicted: list[Tensor]) -> dict[str, NDArray]:
    """Of the first simulation: the change from its middle state, and its rollout; truth and prediction."""
    cells, space_dim = split.domain.cells, split.domain.space_dim
    thinned = tuple(slice(None, None, -(-n // PICTURED_CELLS)) if space_dim > 1 else slice(None) for n in cells)

    def grid(state: Tensor) -> NDArray[np.float32]:
        """(1, N, F) -> (F, cells...)"""
        fields = state[0].T.reshape(-1, *cells).numpy().astype(np.float32)
        return fields[:, *thinned]

    def truth(time: int) -> Tensor:
        return _points(split.read(slice(0, 1), time))

    middle = split.states // 2
    now = truth(middle)
    pictures = {
        "extent": np.array(split.domain.extent),
        "change_from": np.array(middle),
        "change_truth": grid(truth(middle + 1) - now),
        "change_prediction": grid(step(now).cpu() - now),
    }
    if predicted:
        pictures["rollout_truth"] = np.stack([grid(truth(time)) for time in range(len(predicted))])
        pictures["rollout_prediction"] = np.stack([grid(state) for state in predicted])
    return pictures


def _groups(chosen: NDArray, split: Split) -> list[NDArray]:
    size = max(1, _POINTS // int(np.prod(split.domain.cells)))
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


def _points(states: NDArray[np.float32]) -> Tensor:
    """(B, F, cells...) -> (B, N, F) in float64, so that differences of states are exact"""
    return torch.from_numpy(states.reshape(*states.shape[:2], -1).swapaxes(1, 2)).double()


def _test_splits(folder: Path, scales: list[str], run: Run) -> dict[str, Split]:
    """The test split of each scale, in rising order."""
    found: dict[str, Split] = {}
    for path in sorted(folder.glob("data/*/*.hdf5")):
        if path.parent.name not in ("train", "validation"):
            split = Split(path)
            found[scale_text(split.scale)] = split
    if not found:
        raise FileNotFoundError(f"no test data in {folder}: make it with `farfield generate`, or name it with --data")
    spec = run.dataset()["spec"]
    splits = {}
    for scale in sorted(dict.fromkeys(scales), key=_order):
        if scale not in found:
            raise ValueError(
                f"{folder} has no test data at s = {scale}, only at {', '.join(sorted(found, key=_order))}: make it "
                f"with `farfield generate {spec['case']} --scales {scale} --out {folder}` and the dataset's --preset"
            )
        theirs = found[scale].spec.model_dump(mode="json")
        differing = [f"{k} is {spec[k]} there and {theirs[k]} here" for k in spec if spec[k] != theirs[k]]
        if differing:
            raise ValueError(f"{run} was trained on other data than {folder}: {'; '.join(differing)}")
        splits[scale] = found[scale]
    return splits


def _order(scale: str) -> tuple[float, ...]:
    try:
        return scale_order(scale)
    except ValueError:
        raise ValueError(f"expected scales like 1, 10 or 2x1, got {scale!r}") from None


@dataclass
class _Record:
    """What has been evaluated of a run, on disk."""

    run: Run
    weights: str
    done: dict[str, dict[str, int]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    pictures: dict[str, NDArray] = field(default_factory=dict)

    @classmethod
    def open(cls, run: Run) -> _Record:
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
        return scale in self.done and all(self.done[scale][kind] >= count for kind, count in wanted.items())

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
