"""One member's block of a city's columns, where the members of a group share the column network's work.

Blocks end between tokens. Convolutions get the columns that they see of the neighbours, tokens read one another through
the group; a point's eight cells are columns of its block or one beside it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farfield.attention import Group
from farfield.attention.bisection import split_grid
from farfield.models.grid_part import GridPart


class ColumnPart:
    """The columns of a lattice (across, along) that a member of a group computes; tokens are ``patch`` wide."""

    def __init__(self, group: Group, lattice: tuple[int, int], patch: int):
        self.group, self.patch = group, patch
        self.columns = _whole_tokens(lattice, patch)
        block = split_grid(self.columns, group.size, patch)[group.rank]
        self.block = tuple((cut.start, cut.stop) for cut in block)
        if not all(group.gather(all(last > first for first, last in self.block))):
            tokens = " x ".join(str(n // patch) for n in self.columns)
            raise ValueError(f"{group.size} members are too many for the {tokens} tokens of this city: use fewer")
        ends = list(zip(self.block, lattice, strict=True))
        self.own = tuple(slice(first, min(last, n)) for (first, last), n in ends)
        """The columns of the lattice that are this member's."""
        self.seen = tuple(slice(max(0, first - 1), min(last + 1, n)) for (first, last), n in ends)
        """The same with one more on each side."""

    def through(self, layers: Callable[[Tensor], Tensor], x: Tensor, reach: int, margin: int = 0) -> Tensor:
        """What convolutions that see ``reach`` columns far make of x (B, Y, X, C), with a margin of so many columns."""
        grid = GridPart(self.group, self.block, self.columns, reach + margin, (False, False))
        around = grid.extend(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()
        return grid.crop(layers(around).permute(0, 3, 1, 2), margin).permute(0, 2, 3, 1)

    def cells(self, index: Tensor, along: int, levels: int) -> Tensor:
        """Cells of a lattice with so many columns along the wind, (Y, X, Z) -> the same among :attr:`seen`."""
        column, level = index // levels, index % levels
        across, onward = column // along - self.seen[0].start, column % along - self.seen[1].start
        return (across * (self.seen[1].stop - self.seen[1].start) + onward) * levels + level


def owners(columns: NDArray[np.int64], lattice: tuple[int, int], patch: int, members: int) -> list[NDArray[np.int64]]:
    """Which points, each in one of the columns (N, 2: across, along), belong to which member."""
    across, along = columns.T
    return [
        np.flatnonzero((across >= y.start) & (across < y.stop) & (along >= x.start) & (along < x.stop))
        for y, x in split_grid(_whole_tokens(lattice, patch), members, patch)
    ]


def _whole_tokens(lattice: tuple[int, int], patch: int) -> tuple[int, int]:
    across, along = (-(-n // patch) * patch for n in lattice)
    return across, along
