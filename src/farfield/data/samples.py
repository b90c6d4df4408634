"""Step pairs for training: a state's features at N points and the change of its fields over ``stride`` saved
steps.

Shapes: N points, F features (fields, then boundary flags), P space axes, T targets (fields).
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from farfield.data.domain import boundary_flags
from farfield.data.standardise import Standardiser, check_stride, read_statistics
from farfield.data.the_well import open_split


class Sample(NamedTuple):
    """One item, or a batch of them with a leading axis."""

    features: Tensor  # (N, F) standardised fields, then boundary flags as 0 or 1
    positions: Tensor  # (N, P) normalised: the training domain is 1000 wide
    targets: Tensor  # (N, T) standardised change of the fields
    weights: Tensor  # (N,) 1 where the loss counts, 0 on a crop's rim, whose targets depend on what was cut away


class StepPairs(Dataset[Sample]):
    """All pairs (state, change over ``stride`` saved steps) of a split, as a torch dataset.

    ``crop`` takes a random window of that many cells per axis; cells closer than ``rim`` to a side of the
    window that is not a side of the domain get weight 0. ``points`` then draws that many points without
    replacement. Of ``candidates`` windows the one is kept in which the fields change most: where nothing
    happens, there is little to learn. ``symmetries`` shows each item as one of the domain's mirror images and turns,
    for fields that are scalars. Positions and flags always are those of the whole domain. Draws come
    from torch's generator: `torch.manual_seed` repeats them, and a DataLoader gives each worker its own
    stream. Files are read state by state, never as a whole.
    """

    def __init__(
        self,
        folder: str | Path,
        split: str = "train",
        *,
        stride: int = 1,
        points: int | None = None,
        crop: tuple[int, ...] | None = None,
        rim: int = 0,
        candidates: int = 1,
        symmetries: bool = False,
    ) -> None:
        self.split = open_split(folder, split)
        self.spec, self.domain = self.split.spec, self.split.domain
        check_stride(self.split, stride)
        self.stride, self.points, self.rim, self.candidates = stride, points, rim, candidates
        self.crop = self.domain.cells if crop is None else tuple(crop)
        if len(self.crop) != self.domain.space_dim or not all(
            1 <= size <= cells for size, cells in zip(self.crop, self.domain.cells, strict=False)
        ):
            raise ValueError(f"expected a crop of 1 to {self.domain.cells} cells per axis, got {self.crop}")
        if not 0 <= 2 * rim < min(self.crop):
            raise ValueError(f"expected a rim of at least 0 and below half of the crop {self.crop}, got {rim}")
        if candidates < 1:
            raise ValueError(f"expected at least one candidate window, got {candidates}")
        if points is not None and not 1 <= points <= np.prod(self.crop):
            raise ValueError(f"expected 1 to {np.prod(self.crop)} points per sample, got {points}")
        if symmetries and self.crop != self.domain.cells:
            raise ValueError(f"symmetries are those of the whole domain, they do not go with a crop of {self.crop}")
        self.symmetries = symmetries
        statistics = read_statistics(folder, stride)
        self.standardise_state = Standardiser.of_states(statistics, self.spec.fields)
        self.standardise_change = Standardiser.of_changes(statistics, self.spec.fields)
        # Whole-domain positions and flags, (P, cells...), computed once and shared by every item.
        points_ = self.domain.points()
        shape = (self.domain.space_dim, *self.domain.cells)
        self._positions = torch.from_numpy(self.spec.normalise_positions(points_)).T.reshape(shape)
        self._flags = torch.from_numpy(boundary_flags(points_)).T.reshape(shape)

    def __len__(self) -> int:
        return self.split.simulations * (self.split.states - self.stride)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"expected an index from 0 to {len(self) - 1}, got {index}")
        simulation, state = divmod(index, self.split.states - self.stride)
        times = slice(state, state + self.stride + 1, self.stride)
        windows = [self._draw_window() for _ in range(self.candidates)]
        read = [torch.from_numpy(self.split.read(simulation, times, window)) for window in windows]
        changes = [float((later - now).abs().sum()) for now, later in read] if self.candidates > 1 else [0.0]
        chosen = int(np.argmax(changes))
        window, (now, later) = windows[chosen], self._turned(read[chosen]) if self.symmetries else read[chosen]
        sample = Sample(
            features=torch.cat([self.standardise_state(_points(now)), _points(self._flags[:, *window])], dim=-1),
            positions=_points(self._positions[:, *window]),
            targets=self.standardise_change(_points(later - now)),
            weights=self._weights(window),
        )
        if self.points is None:
            return sample
        drawn = torch.randperm(len(sample.weights))[: self.points]
        return Sample(*(values[drawn] for values in sample))

    def _turned(self, states: Tensor) -> Tensor:
        """States (2, F, cells...) mirrored along random axes, with random axes of equal length exchanged.

        The domain and its boundary flags are their own mirror images, so only the fields are turned.
        """
        axes = range(self.domain.space_dim)
        states = states.flip([2 + axis for axis in axes if torch.rand(()) < 0.5])
        sides = list(zip(self.domain.cells, self.domain.extent, strict=True))
        order = list(axes)
        for axis in axes:
            same = [other for other in axes if other >= axis and sides[other] == sides[axis]]
            other = same[int(torch.randint(len(same), ()))]
            order[axis], order[other] = order[other], order[axis]
        return states.permute(0, 1, *(2 + axis for axis in order))

    def _draw_window(self) -> tuple[slice, ...]:
        starts = [
            int(torch.randint(cells - size + 1, ())) if size < cells else 0
            for size, cells in zip(self.crop, self.domain.cells, strict=True)
        ]
        return tuple(slice(start, start + size) for start, size in zip(starts, self.crop, strict=True))

    def _weights(self, window: tuple[slice, ...]) -> Tensor:
        weights = torch.ones(self.crop)
        for axis, (cut, cells) in enumerate(zip(window, self.domain.cells, strict=True)):
            if cut.start > 0:
                weights.narrow(axis, 0, self.rim).zero_()
            if cut.stop < cells:
                weights.narrow(axis, self.crop[axis] - self.rim, self.rim).zero_()
        return weights.flatten()


def _points(grid: Tensor) -> Tensor:
    """(channels, cells...) -> (N, channels)"""
    return grid.flatten(1).T.contiguous()
