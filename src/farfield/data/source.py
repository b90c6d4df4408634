"""What every kind of data offers to the engines: simulations, one by one, read when they are asked for.

Shapes: T states, N points, P space axes, F predicted channels, I input channels, K parameters.

A simulation of a *stepping* problem has T states of F channels at the same N points; one of a *steady* problem has a
single "state", its outputs. Vectors are split into channels (velocity -> velocity_x, velocity_y), whose names and order
the :class:`SampleSpec` holds. Simulations may differ in their number of points and in the extent of their domain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from farfield.data.spec import SampleSpec


@dataclass(frozen=True)
class Cloud:
    """Where the values of a simulation live: points (N, P), and what is known of the domain around them."""

    points: NDArray[np.float64]
    extent: tuple[float, ...]
    """Of the domain along each axis; of a periodic axis, its period."""
    cells: tuple[int, ...] | None = None
    """Of a grid, whose points are in the order of its cells, the last axis running fastest; None for other points."""
    flags: NDArray[np.float32] | None = None
    """Boundary flags (N, number of axes that are not periodic), where the source knows them; else from the extremes."""

    def __len__(self) -> int:
        return len(self.points)


class Source(Protocol):
    """Simulations that are read one at a time; whatever is large stays on disk until then."""

    @property
    def spec(self) -> SampleSpec:
        """What the data is."""

    def __len__(self) -> int:
        """The number of simulations."""

    def name(self, simulation: int) -> str:
        """How a user finds this simulation: a file, and a number in it."""

    def states(self, simulation: int) -> int:
        """The number of saved states; 1 where the problem is steady."""

    def cloud(self, simulation: int) -> Cloud:
        """The points of a simulation; the same object where simulations share them."""

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        """Predicted channels in physical units, (T, N, F)."""

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        """Input channels in physical units, (N, I)."""

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        """The numbers that condition the whole simulation, (K,)."""


class Selection:
    """Chosen simulations of one or several sources of the same kind, as a source; the first one's contract holds."""

    def __init__(self, *parts: tuple[Source, Sequence[int]]):
        self._where = [(source, number) for source, chosen in parts for number in chosen]
        self.spec: SampleSpec = parts[0][0].spec

    def __len__(self) -> int:
        return len(self._where)

    def name(self, simulation: int) -> str:
        source, number = self._where[simulation]
        return source.name(number)

    def states(self, simulation: int) -> int:
        source, number = self._where[simulation]
        return source.states(number)

    def cloud(self, simulation: int) -> Cloud:
        source, number = self._where[simulation]
        return source.cloud(number)

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        source, number = self._where[simulation]
        return source.read(number, states)

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        source, number = self._where[simulation]
        return source.inputs(number)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        source, number = self._where[simulation]
        return source.parameters(number)


def place_of(cloud: Cloud, simulation: int) -> Hashable:
    """The same for simulations that share their points: those on grids of the same cells and size."""
    return simulation if cloud.cells is None else (cloud.cells, cloud.extent)


def each_state(source: Source, simulations: Iterable[int] | None = None) -> Iterator[tuple[int, int, NDArray]]:
    """(simulation, state, values (N, F)), reading a few states at a time."""
    for simulation in range(len(source)) if simulations is None else simulations:
        for start in range(0, source.states(simulation), 8):
            for offset, values in enumerate(source.read(simulation, slice(start, start + 8))):
                yield simulation, start + offset, values
