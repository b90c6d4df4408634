"""Errors of a model of a user's own data, on its test simulations or on any other dataset of the same kind.

The scale of a dataset is how many times as wide as the training domain it is. Stepping: the errors of single steps, and
of predictions fed back, on the *change* (see :mod:`farfield.evaluation.stepping`). Steady: those of the fields
themselves. VRMSE, The Well's metric, is of the fields in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.data.dataset import Dataset, open_dataset
from farfield.data.domain import rollout
from farfield.data.source import Selection, Source
from farfield.data.the_well import scale_text
from farfield.evaluation.evaluate import Advance, Amount, Numbers, Pictures
from farfield.evaluation.metrics import mean_error, relative_errors, variance_scaled_error
from farfield.files import fingerprint
from farfield.prediction.own_files import given_to
from farfield.prediction.steady import SteadyPredictor
from farfield.prediction.stepping import Predictor
from farfield.runs.run import Run
from farfield.runs.weights import Device

_POINTS = 1 << 18  # predicted at a time


def scale_of(data: Dataset, trained: tuple[float, ...]) -> str:
    """How many times as wide as in training, along each axis: "1", "3" or "3x1"; to a tenth, as meshes differ a bit."""
    extents = [data.source.cloud(i).extent for i in range(min(len(data), 8))]
    ratios = np.median(np.asarray(extents), axis=0) / np.asarray(trained)
    return scale_text(tuple(float(round(r)) if abs(r - round(r)) < 0.1 * r else float(f"{r:.2g}") for r in ratios))


class OwnSubject:
    """A run on a user's own data, and what it is to be tested on."""

    shown: tuple[str, ...] = ("l1_step", "l1")

    def __init__(self, run: Run, data: Dataset | str | Path | None, device: Device):
        description = run.dataset()
        steady = description["spec"].get("kind", "stepping") == "steady"
        self.predictor: Any = (SteadyPredictor if steady else Predictor).load(run, device)
        spec = self.predictor.spec
        if data is None:
            own = open_dataset(run.settings()["dataset"])
            source: Source = own.split("test")
            if not len(source):
                raise ValueError(f"{own.folder} has no test simulations: give data to evaluate on")
            self._scale = "1"
        else:
            opened = data if isinstance(data, Dataset) else open_dataset(data)
            spec.require_same(opened.spec, str(run))
            source, self._scale = Selection((opened.source, range(len(opened)))), scale_of(opened, spec.training_extent)
        self.source = source
        self.default_scales: tuple[str, ...] = (self._scale,)

    def open(self, scales: list[str]) -> None:
        if scales != [self._scale]:
            raise ValueError(f"this data is at s = {self._scale}: leave out --scales, got {', '.join(scales)}")

    def data(self, scale: str) -> str:
        shape = f"{len(self.source)} {[self.source.states(i) for i in range(len(self.source))]}"
        return fingerprint(shape.encode(), self.source.read(0).tobytes())

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        if self.predictor.spec.kind == "steady":
            return {"samples": min(len(self.source), amount.samples or len(self.source))}
        pairs = len(self._pairs())
        rollouts = len(self.source)
        return {
            "pairs": pairs if amount.samples is None else min(amount.samples, pairs),
            "rollouts": rollouts if amount.rollouts is None else min(amount.rollouts, rollouts),
        }

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        if "samples" in wanted:
            return wanted["samples"]
        return wanted["pairs"] + sum(self.source.states(i) - 1 for i in range(wanted["rollouts"]))

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        if "samples" in wanted:
            return list(self._steady(wanted["samples"], advance)), dict
        found = [*self._steps(wanted["pairs"], advance), *self._rollouts(wanted["rollouts"], advance)]
        return found, dict

    def _pairs(self) -> list[tuple[int, int]]:
        return [(i, k) for i in range(len(self.source)) for k in range(self.source.states(i) - 1)]

    def _steps(self, count: int, advance: Advance) -> Iterator[Numbers]:
        pairs = self._pairs()
        chosen = np.sort(np.random.default_rng(0).permutation(len(pairs))[:count])
        by_simulation: dict[int, list[int]] = {}
        for number in chosen:
            by_simulation.setdefault(pairs[number][0], []).append(pairs[number][1])
        errors: dict[str, list[Tensor]] = {}
        for simulation, times in by_simulation.items():
            step = self._step(simulation)
            for group in np.array_split(times, -(-len(times) * len(self.source.cloud(simulation)) // _POINTS)):
                states = [_tensor(self.source.read(simulation, slice(k, k + 2))) for k in group.tolist()]
                now, later = (torch.stack([pair[time] for pair in states]) for time in (0, 1))
                predicted = step(now).cpu()
                found = relative_errors(predicted - now, later - now)
                _collect(errors, found | {"vrmse": variance_scaled_error(predicted, later)})
                advance(len(group))
        for name, parts in errors.items():
            yield from self._means(f"{name}_step", 1, torch.cat(parts))

    def _rollouts(self, count: int, advance: Advance) -> Iterator[Numbers]:
        errors: dict[int, dict[str, list[Tensor]]] = {}
        for simulation in range(count):
            truth = _tensor(self.source.read(simulation))
            first = truth[:1]
            for horizon, state in enumerate(rollout(self._step(simulation), first, len(truth) - 1)):
                if horizon:
                    later = truth[horizon : horizon + 1]
                    found = relative_errors(state.cpu() - first, later - first)
                    _collect(
                        errors.setdefault(horizon, {}), found | {"vrmse": variance_scaled_error(state.cpu(), later)}
                    )
                    advance(1)
        for horizon, by_name in errors.items():
            for name, parts in by_name.items():
                yield from self._means(f"{name}_rollout", horizon, torch.cat(parts))

    def _steady(self, count: int, advance: Advance) -> Iterator[Numbers]:
        errors: dict[str, list[Tensor]] = {}
        for simulation in range(count):
            truth = _tensor(self.source.read(simulation))
            cloud = self.source.cloud(simulation)
            found = self.predictor.predict(
                cloud.points,
                extent=cloud.extent,
                boundary=cloud.flags,
                **given_to(self.predictor, self.source, simulation),
            )
            columns = [np.asarray(values).reshape(len(cloud), -1) for values in found.values()]
            predicted = torch.from_numpy(np.concatenate(columns, axis=-1)).double()[None]
            _collect(errors, relative_errors(predicted, truth) | {"vrmse": variance_scaled_error(predicted, truth)})
            advance(1)
        for name, parts in errors.items():
            yield from self._means(name, 1, torch.cat(parts))

    def _step(self, simulation: int) -> Any:
        cloud = self.source.cloud(simulation)
        return self.predictor.on(
            cloud.points, cloud.flags, extent=cloud.extent, **given_to(self.predictor, self.source, simulation)
        )

    def _means(self, metric: str, horizon: int, errors: Tensor) -> Iterator[Numbers]:
        for index, name in enumerate(self.predictor.fields):
            value, samples = mean_error(errors[:, index])
            yield name, metric, horizon, float(f"{value:.6g}"), samples


def _collect(errors: dict[str, list[Tensor]], found: Mapping[str, Tensor]) -> None:
    for name, values in found.items():
        errors.setdefault(name, []).append(values)


def _tensor(values: NDArray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
