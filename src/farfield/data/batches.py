"""Training items of a user's data: steps or steady fields, on clouds of any size, standardised.

Shapes: B items on the same points, N points, P space axes, F predicted channels, C feature channels, K parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from farfield.data.dataset import to_scale
from farfield.data.domain import boundary_flags
from farfield.data.source import Cloud, Source


class Group(NamedTuple):
    """Items of a batch that share their points."""

    features: Tensor  # (B, N, C): the state, where there is one, then inputs and boundary flags
    targets: Tensor  # (B, N, F)
    before: Tensor | None  # (B, N, F), the state before, standardised; NaN where there is none
    conditions: Tensor | None  # (B, K)
    positions: Tensor  # (N, P), normalised
    period: tuple[float | None, ...] | None


class Place(NamedTuple):
    """Points as the network sees them."""

    positions: Tensor  # (N, P), normalised
    flags: Tensor  # (N, axes that end)
    period: tuple[float | None, ...] | None


class Item(NamedTuple):
    """One item, before it meets the others of its batch."""

    place: Place
    features: Tensor
    targets: Tensor
    before: Tensor | None
    conditions: Tensor | None


class Samples(TorchDataset[Item]):
    """All steps of all simulations of a source, or all its steady fields; read when they are asked for.

    ``statistics`` are those of the training simulations (:meth:`farfield.data.dataset.Dataset.statistics`); ``history``
    adds the state before, which pushforward needs.
    """

    def __init__(self, source: Source, statistics: Mapping[str, Mapping[str, Sequence[float]]], history: bool = False):
        self.source, self.spec, self.history = source, source.spec, history
        self._moments = {
            kind: (np.asarray(found["mean"]), np.asarray(found["std"])) for kind, found in statistics.items()
        }
        steps = 1 if self.spec.kind == "stepping" else 0
        self._items = [(i, k) for i in range(len(source)) for k in range(source.states(i) - steps)]
        self._places: dict[Any, Place] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Item:
        simulation, state = self._items[index]
        spec, cloud = self.spec, self.source.cloud(simulation)
        place = self._placed(simulation, cloud)
        inputs = self._standard(to_scale(self.source.inputs(simulation), spec.inputs, spec), "inputs")
        features = [torch.from_numpy(inputs), place.flags]
        before = None
        if spec.kind == "stepping":
            first = state - 1 if self.history and state > 0 else state
            states = to_scale(self.source.read(simulation, slice(first, state + 2)), spec.fields, spec).astype(
                np.float64
            )
            now, later = states[-2], states[-1]
            features.insert(0, torch.from_numpy(self._standard(now, "states")))
            targets = torch.from_numpy(self._standard(later - now, "changes"))
            if self.history:
                before = torch.from_numpy(self._standard(states[0], "states"))
                if first == state:
                    before = torch.full_like(before, torch.nan)
        else:
            values = to_scale(self.source.read(simulation)[0], spec.fields, spec)
            targets = torch.from_numpy(self._standard(values, "states"))
        conditions = None
        if spec.parameters:
            conditions = torch.from_numpy(self._standard(self.source.parameters(simulation), "parameters"))
        return Item(place, torch.cat(features, dim=-1), targets, before, conditions)

    def _placed(self, simulation: int, cloud: Cloud) -> Place:
        """The points of a simulation; one object for all simulations on the same grid."""
        key = simulation if cloud.cells is None else (cloud.cells, cloud.extent)
        if key not in self._places:
            flags = boundary_flags(cloud.points)[:, list(self.spec.bounded)] if cloud.flags is None else cloud.flags
            positions = self.spec.normalise_positions(cloud.points - cloud.points.min(0))
            place = Place(
                torch.from_numpy(positions),
                torch.from_numpy(np.ascontiguousarray(flags)),
                self.spec.period(cloud.extent),
            )
            if cloud.cells is None and len(self._places) > 1000:  # clouds of their own: memory for a thousand of them
                return place
            self._places[key] = place
        return self._places[key]

    def _standard(self, values: NDArray, kind: str) -> NDArray[np.float32]:
        mean, std = self._moments[kind]
        return ((values - mean) / std).astype(np.float32)


def collate(items: list[Item]) -> list[Group]:
    """A batch: items on the same points stacked, one group for each set of points."""
    by_place: dict[int, list[Item]] = {}
    for item in items:
        by_place.setdefault(id(item.place), []).append(item)

    def stack(parts: list[Any]) -> Any:
        return None if parts[0] is None else torch.stack(parts)

    return [
        Group(
            stack([i.features for i in same]),
            stack([i.targets for i in same]),
            stack([i.before for i in same]),
            stack([i.conditions for i in same]),
            same[0].place.positions,
            same[0].place.period,
        )
        for same in by_place.values()
    ]
