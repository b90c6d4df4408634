"""Training items of any data: steps or steady fields on grids or clouds, standardised.

Shapes: B items of a batch, N points, P space axes, F predicted channels, C feature channels, K parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from farfield.data.domain import boundary_flags
from farfield.data.generated import open_split
from farfield.data.source import Cloud, Source, place_of
from farfield.data.standardise import Standardiser, described_statistics, read_statistics, to_scale


class Place(NamedTuple):
    """The points of a simulation as the network sees them."""

    positions: Tensor  # (N, P), normalised
    flags: Tensor  # (N, axes that end)
    period: tuple[float | None, ...] | None


class Item(NamedTuple):
    """One item, before it meets the others of its batch."""

    features: Tensor  # (N, C): the state, where there is one, then inputs and boundary flags as 0 or 1; standardised
    positions: Tensor  # (N, P), normalised
    targets: Tensor  # (N, F), standardised: the change of the fields over a saved step, or the steady fields
    weights: Tensor  # (N,): 1 where the loss counts, 0 on a window's rim, whose targets depend on what was cut away
    before: Tensor | None  # (N, F), the state before, standardised; NaN where there is none
    conditions: Tensor | None  # (K,)
    place: Place


class Group(NamedTuple):
    """Items of a batch that share their points, or are windows of one size."""

    features: Tensor  # (B, N, C)
    positions: Tensor  # (N, P), of windows (B, N, P)
    targets: Tensor  # (B, N, F)
    weights: Tensor  # (B, N)
    before: Tensor | None  # (B, N, F)
    conditions: Tensor | None  # (B, K)
    period: tuple[float | None, ...] | None


class Samples(TorchDataset[Item]):
    """All steps of all simulations of a source, or all its steady fields; read when they are asked for.

    ``crop`` takes a random window of that many cells per axis of a grid; cells closer than ``rim`` to a side of the
    window that is not a side of the domain get weight 0. Of ``candidates`` windows the one is kept in which the fields
    change most: where nothing happens, there is little to learn. ``points`` then draws that many points without
    replacement. ``symmetries`` shows each item as one of a grid's mirror images and turns, for fields that are scalars.
    Positions and flags always are those of the whole domain. Draws come from torch's generator: `torch.manual_seed`
    repeats them.

    ``statistics`` are those of the training simulations, ``{"states": {"mean": [...], "std": [...]}, ...}``;
    ``history`` adds the state before, which pushforward needs.
    """

    def __init__(
        self,
        source: Source,
        statistics: Mapping[str, Mapping[str, Sequence[float]]],
        *,
        crop: Sequence[int] | None = None,
        rim: int = 0,
        candidates: int = 1,
        points: int | None = None,
        symmetries: bool = False,
        history: bool = False,
    ):
        self.source, self.spec, self.history = source, source.spec, history
        self.crop = None if crop is None else tuple(crop)
        self.rim, self.candidates, self.points, self.symmetries = rim, candidates, points, symmetries
        self._check_windows()
        self.standardise = {kind: Standardiser(found["mean"], found["std"]) for kind, found in statistics.items()}
        steps = 1 if self.spec.kind == "stepping" else 0
        self._items = [(i, k) for i in range(len(source)) for k in range(source.states(i) - steps)]
        self._places: dict[Any, Place] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Item:
        if not 0 <= index < len(self):
            raise IndexError(f"expected an index from 0 to {len(self) - 1}, got {index}")
        simulation, state = self._items[index]
        spec, cloud = self.spec, self.source.cloud(simulation)
        place = self._placed(simulation, cloud)
        inputs = to_scale(self.source.inputs(simulation), spec.inputs, spec)
        if spec.kind == "steady":
            first, values = state, to_scale(self.source.read(simulation), spec.fields, spec)
        else:
            first = state - 1 if self.history and state > 0 else state
            values = to_scale(self.source.read(simulation, slice(first, state + 2)), spec.fields, spec)
        window = self._liveliest(values, cloud)
        if self.symmetries:
            values, inputs = self._turned(values, inputs, cloud)
        chosen, weights = self._chosen(window, cloud)
        values, inputs = values[:, chosen], inputs[chosen]
        features = [self._standard(inputs, "inputs") if spec.inputs else torch.zeros(len(inputs), 0)]
        features.append(place.flags if _is_all(chosen) else place.flags[chosen])
        before = None
        if spec.kind == "stepping":
            now, later = values[-2], values[-1]
            features.insert(0, self._standard(now, "states"))
            targets = self._standard(later - now, "changes")
            if self.history:
                before = self._standard(values[0], "states")
                before = torch.full_like(before, torch.nan) if first == state else before
        else:
            targets = self._standard(values[0], "states")
        conditions = self._standard(self.source.parameters(simulation), "parameters") if spec.parameters else None
        positions = place.positions if _is_all(chosen) else place.positions[chosen]
        return Item(torch.cat(features, dim=-1), positions, targets, weights, before, conditions, place)

    def _standard(self, values: NDArray, kind: str) -> Tensor:
        return self.standardise[kind](torch.from_numpy(np.asarray(values, dtype=np.float64))).float()

    def _placed(self, simulation: int, cloud: Cloud) -> Place:
        """The points of a simulation; one object for all simulations on the same grid."""
        key = place_of(cloud, simulation)
        if key not in self._places:
            flags = boundary_flags(cloud.points)[:, list(self.spec.bounded)] if cloud.flags is None else cloud.flags
            # from the domain's corner, so that rounding to float32 costs nothing however far away it lies
            corner = cloud.points.min(0) - (np.asarray(self.spec.spacing) / 2 if cloud.cells else 0)
            place = Place(
                torch.from_numpy(self.spec.normalise_positions(cloud.points - corner)),
                torch.from_numpy(np.ascontiguousarray(flags)),
                self.spec.period(cloud.extent),
            )
            if cloud.cells is None and len(self._places) > 1000:  # clouds of their own: memory for a thousand of them
                return place
            self._places[key] = place
        return self._places[key]

    # --- which part of the domain an item shows ----------------------------------------------------------------------
    def _check_windows(self) -> None:
        cloud = self.source.cloud(0)
        cells = cloud.cells
        if (self.crop or self.symmetries) and cells is None:
            raise ValueError("windows (crop) and symmetries are for grids, these are points without one")
        shown = self.crop or cells or (len(cloud),)
        if self.crop and cells:
            if len(shown) != len(cells) or not all(1 <= n <= most for n, most in zip(shown, cells, strict=True)):
                raise ValueError(f"expected a crop of 1 to {cells} cells per axis, got {self.crop}")
            if self.symmetries and shown != cells:
                raise ValueError(f"symmetries are those of the whole domain, they do not go with a crop of {shown}")
        if not 0 <= 2 * self.rim < min(shown):
            raise ValueError(f"expected a rim of at least 0 and below half of the crop {shown}, got {self.rim}")
        if self.candidates < 1:
            raise ValueError(f"expected at least one candidate window, got {self.candidates}")
        if self.points is not None and not 1 <= self.points <= np.prod(shown):
            raise ValueError(f"expected 1 to {np.prod(shown)} points per sample, got {self.points}")
        if self.symmetries and self.spec.vectors:
            raise ValueError(f"symmetries are for scalars, {', '.join(self.spec.vectors)} would have to be turned, too")

    def _liveliest(self, values: NDArray, cloud: Cloud) -> tuple[slice, ...] | None:
        """Of some windows drawn at random, that in which (T, N, F) values change most; None for the whole domain."""
        if self.crop is None or cloud.cells is None:
            return None
        sizes = [min(size, cells) for size, cells in zip(self.crop, cloud.cells, strict=True)]
        windows = []
        for _ in range(self.candidates):
            starts = [
                int(torch.randint(cells - size + 1, ())) if size < cells else 0
                for size, cells in zip(sizes, cloud.cells, strict=True)
            ]
            windows.append(tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True)))
        if self.candidates == 1:
            return windows[0]
        change = np.abs(values[-1] - values[-2] if len(values) > 1 else values[0]).sum(-1).reshape(cloud.cells)
        return max(windows, key=lambda window: change[window].sum())

    def _chosen(self, window: tuple[slice, ...] | None, cloud: Cloud) -> tuple[slice | NDArray, Tensor]:
        """Which points are shown, and their weights."""
        chosen: slice | NDArray = slice(None)
        weights = torch.ones(len(cloud))
        if window is not None and cloud.cells is not None:
            chosen = np.arange(len(cloud)).reshape(cloud.cells)[window].ravel()
            grid = torch.ones([cut.stop - cut.start for cut in window])
            for axis, (cut, cells) in enumerate(zip(window, cloud.cells, strict=True)):
                if cut.start > 0:
                    grid.narrow(axis, 0, self.rim).zero_()
                if cut.stop < cells:
                    grid.narrow(axis, grid.shape[axis] - self.rim, self.rim).zero_()
            weights = grid.flatten()
        if self.points is not None:
            drawn = torch.randperm(len(weights))[: self.points]
            chosen = drawn.numpy() if _is_all(chosen) else np.asarray(chosen)[drawn.numpy()]
            weights = weights[drawn]
        return chosen, weights

    def _turned(self, values: NDArray, inputs: NDArray, cloud: Cloud) -> tuple[NDArray, NDArray]:
        """Values (T, N, F) and inputs (N, I) mirrored along random axes, with random axes of equal length exchanged.

        The domain and its boundary flags are their own mirror images, so only the fields are turned.
        """
        assert cloud.cells is not None
        axes = range(len(cloud.cells))
        flipped = [axis for axis in axes if torch.rand(()) < 0.5]
        sides = list(zip(cloud.cells, cloud.extent, self.spec.boundaries, strict=True))
        order = list(axes)
        for axis in axes:
            same = [other for other in axes if other >= axis and sides[other] == sides[axis]]
            other = same[int(torch.randint(len(same), ()))]
            order[axis], order[other] = order[other], order[axis]

        def turn(channels: NDArray) -> NDArray:
            grid = channels.reshape(*channels.shape[:-2], *cloud.cells, channels.shape[-1])  # type: ignore[misc]
            lead = channels.ndim - 2
            grid = np.flip(grid, tuple(lead + axis for axis in flipped))
            turned = grid.transpose(*range(lead), *(lead + axis for axis in order), grid.ndim - 1)
            return turned.reshape(channels.shape)

        return turn(values), turn(inputs)


def _is_all(chosen: slice | NDArray) -> bool:
    return isinstance(chosen, slice)


def collate(items: list[Item]) -> list[Group]:
    """A batch: items on the same points stacked, one group for each set of points, or for windows of one size."""
    groups: dict[tuple, list[Item]] = {}
    for item in items:
        whole = item.positions is item.place.positions
        groups.setdefault((id(item.place), whole, len(item.positions)), []).append(item)

    def stack(parts: list[Any]) -> Any:
        return None if parts[0] is None else torch.stack(parts)

    return [
        Group(
            features=stack([i.features for i in same]),
            positions=same[0].positions if whole else stack([i.positions for i in same]),
            targets=stack([i.targets for i in same]),
            weights=stack([i.weights for i in same]),
            before=stack([i.before for i in same]),
            conditions=stack([i.conditions for i in same]),
            period=same[0].place.period,
        )
        for (_, whole, _), same in groups.items()
    ]


def step_pairs(folder: str | Path, split: str = "train", **options: Any) -> Samples:
    """The items of a split that ``farfield generate`` made; see :class:`Samples` for the options."""
    opened = open_split(folder, split)
    statistics = described_statistics(read_statistics(folder), opened.spec.fields)
    return Samples(opened, statistics, **options)
