"""Errors of a model that predicts steps, on domains of rising size: over one step, and over rollouts.

One step: every pair of successive states of the test split, or ``limit`` of them drawn once and for all. The paper's
metric, on the change between the two; also by the state that the step leads to (``l1_step_to``), because where little
changes any more the relative error is large.

Rollouts: from each simulation's first state, predictions fed back. The same metric on the change since the start,

    sum |predicted state - true state| / sum |true state - first state|,

because a prediction's last step alone says nothing about where it has drifted to, and the states' own size (one metre
of water) would hide it. At horizon 1 both errors are the same thing, there over first states only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.data.domain import rollout
from farfield.data.spec import SampleSpec
from farfield.data.the_well import Split, held_out_splits
from farfield.evaluation.evaluate import Advance, Amount, Numbers, Pictures, in_order
from farfield.evaluation.metrics import mean_error, relative_errors, variance_scaled_error
from farfield.files import fingerprint
from farfield.prediction.stepping import Predictor
from farfield.runs.run import Run
from farfield.runs.weights import Device

PICTURED_SCALES = ("1", "3", "10")  # the paper's figures
PICTURED_STEPS = 3  # of a rollout in two dimensions; in one dimension all of them are kept
PICTURED_CELLS = 512  # along each axis of a map: more would not be seen
_POINTS = 1 << 18  # read at a time


class StepPairSubject:
    """A run of a problem of steps, on the test splits in ``folder``."""

    default_scales: tuple[str, ...] = ("1", "2", "3", "7", "10")
    shown: tuple[str, ...] = ("l1_step",)

    def __init__(self, run: Run, folder: str | Path, device: Device):
        self.run, self.folder = run, Path(folder)
        self.predictor = Predictor.load(run, device)
        self.splits: dict[str, Split] = {}

    def open(self, scales: list[str]) -> None:
        self.splits = test_splits(self.folder, scales, self.run)

    def data(self, scale: str) -> str:
        split = self.splits[scale]
        shape = f"{split.simulations} {split.states} {split.domain}"
        return fingerprint(shape.encode(), split.read(0, slice(None)).tobytes())

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        split = self.splits[scale]
        pairs, rollouts = split.simulations * (split.states - 1), split.simulations
        return {
            "pairs": pairs if amount.samples is None else min(amount.samples, pairs),
            "rollouts": rollouts if amount.rollouts is None else min(amount.rollouts, rollouts),
        }

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        return wanted["pairs"] + wanted["rollouts"] * (self.splits[scale].states - 1)

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        split = self.splits[scale]
        step = self.predictor.on(split.domain.points())
        first: list[Tensor] = []  # the first simulation's rollout
        found = [
            *one_step_errors(step, split, wanted["pairs"], advance),
            *_rollouts(step, split, wanted["rollouts"], advance, first),
        ]
        return found, lambda: _pictures(step, split, first) if scale in PICTURED_SCALES else {}


Step = Callable[[Tensor], Tensor]


def one_step_errors(step: Step, split: Split, pairs: int, advance: Advance) -> Iterator[Numbers]:
    """The errors of single steps from true states."""
    chosen = np.sort(np.random.default_rng(0).permutation(split.simulations * (split.states - 1))[:pairs])
    errors: dict[str, list[Tensor]] = {}
    for group in _groups(chosen, split):
        states = [split.read(i, slice(k, k + 2)) for i, k in (divmod(int(pair), split.states - 1) for pair in group)]
        now, later = (_points(np.stack(states)[:, time]) for time in (0, 1))
        predicted = step(now).cpu()
        found = relative_errors(predicted - now, later - now) | {"vrmse": variance_scaled_error(predicted, later)}
        for name, values in found.items():
            errors.setdefault(name, []).append(values)
        advance(len(group))
    led_to = torch.from_numpy(chosen % (split.states - 1) + 1)
    for name, parts in errors.items():
        yield from _means(f"{name}_step", 1, torch.cat(parts), split)
        for state in led_to.unique().tolist() if name == "l1" else ():
            yield from _means("l1_step_to", state, torch.cat(parts)[led_to == state], split)


def _rollouts(step: Step, split: Split, simulations: int, advance: Advance, kept: list[Tensor]) -> Iterator[Numbers]:
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
            found = relative_errors(state.cpu() - first, truth - first)
            for name, values in (found | {"vrmse": variance_scaled_error(state.cpu(), truth)}).items():
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

    middle = min(split.states // 2, split.states - 2)
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


def test_splits(folder: Path, scales: list[str], run: Run) -> dict[str, Split]:
    """The test split of each scale."""
    found = held_out_splits(folder)
    if not found:
        raise FileNotFoundError(f"no test data in {folder}: make it with `farfield generate`, or name it with --data")
    spec = SampleSpec.model_validate(run.dataset()["spec"])
    splits = {}
    for scale in scales:
        if scale not in found:
            raise ValueError(
                f"{folder} has no test data at s = {scale}, only at {', '.join(in_order(found))}: make it "
                f"with `farfield generate {spec.problem} --scales {scale} --out {folder}` and the dataset's --preset"
            )
        ours, theirs = spec.model_dump(mode="json"), found[scale].spec.model_dump(mode="json")
        differing = [f"{k} is {ours[k]} there and {theirs[k]} here" for k in ours if ours[k] != theirs[k]]
        if differing:
            raise ValueError(f"{run} was trained on other data than {folder}: {'; '.join(differing)}")
        splits[scale] = found[scale]
    return splits
