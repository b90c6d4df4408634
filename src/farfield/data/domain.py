"""Where and when: a box of equal cells, which solvers solve on and splits state about themselves; the time loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

State = TypeVar("State")
NORMALISED_WIDTH = 1000.0  # of the training domain, along every axis: the unit of a model's positions


@dataclass(frozen=True)
class Domain:
    """A box ``[0, extent_i]`` along each axis i, cut into ``cells[i]`` cells; values live at cell centres."""

    cells: tuple[int, ...]
    extent: tuple[float, ...]

    def __post_init__(self) -> None:
        cells, extent = tuple(self.cells), tuple(float(length) for length in self.extent)
        if len(cells) != len(extent) or not cells:
            raise ValueError(f"expected one cell count and one extent per axis, got cells={cells} and extent={extent}")
        if any(count != int(count) or count < 1 for count in cells):
            raise ValueError(f"expected at least one cell along each axis, as whole numbers, got cells={cells}")
        if not all(np.isfinite(length) and length > 0 for length in extent):
            raise ValueError(f"expected a positive, finite extent along each axis, got extent={extent}")
        object.__setattr__(self, "cells", tuple(int(count) for count in cells))
        object.__setattr__(self, "extent", extent)

    @property
    def space_dim(self) -> int:
        return len(self.cells)

    @property
    def spacing(self) -> tuple[float, ...]:
        return tuple(length / count for length, count in zip(self.extent, self.cells, strict=True))

    def centres(self) -> tuple[NDArray[np.floating], ...]:
        """The coordinates of the cell centres, one array per axis."""
        return tuple((np.arange(n) + 0.5) * dx for n, dx in zip(self.cells, self.spacing, strict=True))

    def points(self) -> NDArray[np.float64]:
        """All cell centres as (N, P), the last axis running fastest."""
        grid = np.meshgrid(*self.centres(), indexing="ij")
        return np.stack([axis.ravel() for axis in grid], axis=-1)

    def scaled(self, scale: Sequence[float]) -> Domain:
        """The same cells, ``scale[i]`` times as many along axis i."""
        if len(scale) != self.space_dim:
            raise ValueError(f"expected {self.space_dim} scale(s), one per axis, got {tuple(scale)}")
        cells = tuple(factor * count for factor, count in zip(scale, self.cells, strict=True))
        if any(count < 1 or not float(count).is_integer() for count in cells):
            raise ValueError(f"scale {tuple(scale)} of {self.cells} cells gives {cells}, not whole positive numbers")
        extent = tuple(factor * length for factor, length in zip(scale, self.extent, strict=True))
        return Domain(tuple(int(count) for count in cells), extent)


def boundary_flags(
    positions: NDArray[np.floating], extremes: tuple[NDArray, NDArray] | None = None
) -> NDArray[np.float32]:
    """(N, P) positions -> (N, P) flags: 1 where a point is the first or the last along that axis, else 0.

    ``extremes`` are the first and last of the whole domain, where these points are a part of it.
    """
    low, high = (positions.min(axis=0), positions.max(axis=0)) if extremes is None else extremes
    return ((positions == low) | (positions == high)).astype(np.float32)


def check_flags(flags: NDArray[np.floating]) -> None:
    """Refuse what cannot be told of a boundary."""
    if not np.isfinite(flags).all():
        raise ValueError("boundary must be finite, it holds NaN or infinity")
    if flags.size and (flags.min() < 0 or flags.max() > 1):
        raise ValueError(
            f"boundary must be 1 where the domain ends and 0 elsewhere, got {flags.min():g} to {flags.max():g}"
        )


def rollout(step: Callable[[State], State], state: State, steps: int) -> Iterator[State]:
    """The one time loop: a step is what a solver does between two saved states, or what a network predicts.

    Yields ``state``, ``step(state)``, ``step(step(state))``, ...: ``steps + 1`` states, one at a time.

    It is lazy, so a long rollout on a large domain need not fit into memory: keep what you need. ``State``
    may be anything ``step`` accepts (an array, a tensor, a dictionary of fields); ``step`` must not change it
    in place.
    """
    if steps < 0:
        raise ValueError(f"expected a number of steps of at least 0, got {steps}")
    yield state
    for _ in range(steps):
        state = step(state)
        yield state
