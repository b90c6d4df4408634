"""Errors of a model that predicts steps, on domains of rising size: over one step, and over rollouts.

One step: every pair of successive states of the test data, or some of them drawn once and for all. The paper's
metric, on the change between the two; also by the state that the step leads to (``l1_step_to``), because where little
changes any more the relative error is large.

Rollouts: from each simulation's first state, predictions fed back. The same metric on the change since the start,

    sum |predicted state - true state| / sum |true state - first state|,

because a prediction's last step alone says nothing about where it has drifted to, and the states' own size (one metre
of water) would hide it. At horizon 1 both errors are the same thing, there over first states only.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.data.domain import Domain, rollout
from farfield.data.generated import Split, held_out_splits
from farfield.data.source import Source, place_of
from farfield.data.spec import SampleSpec
from farfield.evaluation.evaluate import Advance, Amount, Numbers, Pictures, in_order
from farfield.evaluation.metrics import ErrorsByName, relative_errors, variance_scaled_error
from farfield.files import fingerprint
from farfield.prediction.stepping import Predictor
from farfield.runs.run import Run
from farfield.runs.weights import Device

PAPER_SCALES = ("1", "2", "3", "7", "10")
PICTURED_SCALES = ("1", "3", "10")  # the paper's figures
PICTURED_STEPS = 3  # of a rollout in two dimensions; in one dimension all of them are kept
PICTURED_CELLS = 512  # along each axis of a map: more would not be seen
_POINTS = 1 << 18  # read at a time

Step = Callable[[Tensor], Tensor]


class SteppingSubject:
    """A trained model of steps, and its test data by scale, which ``find`` opens."""

    shown: tuple[str, ...] = ("l1_step",)

    def __init__(
        self, predictor: Predictor, find: Callable[[list[str]], dict[str, Source]], default_scales: Sequence[str]
    ):
        self.predictor, self._find, self.default_scales = predictor, find, tuple(default_scales)
        self.sources: dict[str, Source] = {}

    def open(self, scales: list[str]) -> None:
        self.sources = self._find(scales)

    def data(self, scale: str) -> str:
        source = self.sources[scale]
        cloud, states = source.cloud(0), {source.states(i) for i in range(len(source))}
        told = Domain(cloud.cells, cloud.extent) if cloud.cells else len(cloud)
        shape = f"{len(source)} {' '.join(map(str, sorted(states)))} {told}"
        return fingerprint(shape.encode(), np.ascontiguousarray(source.read(0).swapaxes(1, 2)).tobytes())

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        source = self.sources[scale]
        pairs, rollouts = len(_pairs(source)), len(source)
        return {
            "pairs": pairs if amount.samples is None else min(amount.samples, pairs),
            "rollouts": rollouts if amount.rollouts is None else min(amount.rollouts, rollouts),
        }

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        source = self.sources[scale]
        return wanted["pairs"] + sum(source.states(i) - 1 for i in range(wanted["rollouts"]))

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        source = self.sources[scale]
        first: list[Tensor] = []  # the first simulation's rollout
        found = [
            *one_step_errors(self.predictor, source, wanted["pairs"], advance),
            *_rollouts(self.predictor, source, wanted["rollouts"], advance, first),
        ]
        pictured = scale in PICTURED_SCALES and len(source.cloud(0).cells or ()) in (1, 2)
        return found, lambda: _pictures(self.predictor, source, first) if pictured else {}


def generated_subject(run: Run, folder: str | Path, device: Device) -> SteppingSubject:
    """A run on what ``farfield generate`` made, with the test splits in ``folder``."""

    def find(scales: list[str]) -> dict[str, Source]:
        return dict(test_splits(Path(folder), scales, run))

    return SteppingSubject(Predictor.load(run, device), find, PAPER_SCALES)


def one_step_errors(predictor: Predictor, source: Source, pairs: int, advance: Advance) -> Iterator[Numbers]:
    """The errors of single steps from true states."""
    every = _pairs(source)
    chosen = [every[i] for i in np.sort(np.random.default_rng(0).permutation(len(every))[:pairs])]
    errors, led_to = ErrorsByName(source.spec.fields), torch.tensor([state + 1 for _, state in chosen])
    for step, group in _groups(predictor, source, chosen):
        states = np.stack([source.read(i, slice(k, k + 2)) for i, k in group])
        now, later = (_tensor(states[:, time]) for time in (0, 1))
        predicted = step(now).cpu()
        found = relative_errors(predicted - now, later - now)
        errors.add(found | {"vrmse": variance_scaled_error(predicted, later)})
        advance(len(group))
    yield from errors.means("{}_step", 1)
    for state in led_to.unique().tolist():
        yield from errors.means("{}_step_to", state, led_to == state, names=("l1",))


def _rollouts(
    predictor: Predictor, source: Source, simulations: int, advance: Advance, kept: list[Tensor]
) -> Iterator[Numbers]:
    """The errors of predictions fed back, at every horizon; what pictures need of them goes into ``kept``."""
    errors: dict[int, ErrorsByName] = {}
    chosen = [(i, source.states(i)) for i in range(simulations)]
    for step, alike in _groups(predictor, source, chosen):
        for states, members in itertools.groupby(alike, key=lambda pair: pair[1]):
            group = [simulation for simulation, _ in members]
            first = _states(source, group, 0)
            for horizon, state in enumerate(rollout(step, first, states - 1)):
                if group[0] == 0 and horizon <= _pictured_steps(source):
                    kept.append(state[:1].cpu())
                if horizon == 0:
                    continue
                truth = _states(source, group, horizon)
                found = relative_errors(state.cpu() - first, truth - first)
                errors.setdefault(horizon, ErrorsByName(source.spec.fields)).add(
                    found | {"vrmse": variance_scaled_error(state.cpu(), truth)}
                )
                advance(len(group))
    for horizon, of_horizon in errors.items():
        yield from of_horizon.means("{}_rollout", horizon)


def _pairs(source: Source) -> list[tuple[int, int]]:
    """All pairs of successive states: simulation, and the first of the two."""
    return [(i, k) for i in range(len(source)) for k in range(source.states(i) - 1)]


def _groups(
    predictor: Predictor, source: Source, chosen: Sequence[tuple[int, int]]
) -> Iterator[tuple[Step, list[tuple[int, int]]]]:
    """Items (simulation, ...) that can be stepped together, with the step: on the same points, given the same."""
    alone = bool(source.spec.inputs or source.spec.parameters)
    step: Step | None = None
    known = None
    for key, same in itertools.groupby(
        chosen, key=lambda item: item[0] if alone else place_of(source.cloud(item[0]), item[0])
    ):
        members = list(same)
        cloud = source.cloud(members[0][0])
        if step is None or key != known:
            given = predictor.given(source.inputs(members[0][0]), source.parameters(members[0][0]))
            step, known = predictor.on(cloud.points, cloud.flags, extent=cloud.extent, **given), key
        size = max(1, _POINTS // len(cloud))
        for start in range(0, len(members), size):
            yield step, members[start : start + size]


def _pictured_steps(source: Source) -> int:
    last = source.states(0) - 1
    return last if source.spec.space_dim == 1 else min(PICTURED_STEPS, last)


def _pictures(predictor: Predictor, source: Source, predicted: list[Tensor]) -> dict[str, NDArray]:
    """Of the first simulation: the change from its middle state, and its rollout; truth and prediction."""
    cloud = source.cloud(0)
    assert cloud.cells is not None
    cells = cloud.cells
    thinned = tuple(slice(None, None, -(-n // PICTURED_CELLS)) if len(cells) > 1 else slice(None) for n in cells)

    def grid(state: Tensor) -> NDArray[np.float32]:
        """(1, N, F) -> (F, cells...)"""
        fields = state[0].T.reshape(-1, *cells).numpy().astype(np.float32)
        return fields[:, *thinned]

    def truth(time: int) -> Tensor:
        return _states(source, [0], time)

    middle = min(source.states(0) // 2, source.states(0) - 2)
    now = truth(middle)
    ((step, _),) = _groups(predictor, source, [(0, middle)])
    pictures = {
        "extent": np.array(cloud.extent),
        "change_from": np.array(middle),
        "change_truth": grid(truth(middle + 1) - now),
        "change_prediction": grid(step(now).cpu() - now),
    }
    if predicted:
        pictures["rollout_truth"] = np.stack([grid(truth(time)) for time in range(len(predicted))])
        pictures["rollout_prediction"] = np.stack([grid(state) for state in predicted])
    return pictures


def _states(source: Source, simulations: Sequence[int], state: int) -> Tensor:
    """One state of several simulations on the same points, (B, N, F)."""
    return _tensor(np.concatenate([source.read(i, slice(state, state + 1)) for i in simulations]))


def _tensor(values: NDArray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


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
