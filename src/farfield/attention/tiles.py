"""Points in compact tiles of equal size: a kd-tree whose leaves are the tiles.

Several clouds may lie in one array, one behind the other: no tile holds points of two of them, and each has a root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor


@dataclass
class Tiles:
    """Point clouds in tiles: slot s of the sorted points holds point ``order[s]``; tile t owns a run of slots."""

    order: Tensor  # (N,) int64
    size: int  # points per tile, but for the last of each cloud
    start: Tensor  # (T + 1,) int64, the first slot of each tile
    low: Tensor  # (T, P) float64 bounding boxes
    high: Tensor
    cloud: Tensor  # (T,) int64, to which cloud each tile belongs

    def __len__(self) -> int:
        return len(self.low)

    def count(self) -> Tensor:
        """Points per tile."""
        return self.start.diff()

    def slots(self, tiles: Tensor) -> Tensor:
        """The slots of some tiles, one after the other."""
        first, count = self.start[tiles], self.count()[tiles]
        ends = count.cumsum(0)
        shift = torch.repeat_interleave(first - (ends - count), count)
        return torch.arange(len(shift)) + shift


@dataclass
class Tree:
    """The splits above the tiles: children of each node, -1 at a leaf, which is one tile, and bounding boxes."""

    roots: np.ndarray  # of each cloud
    left: np.ndarray
    right: np.ndarray
    tile: np.ndarray  # the first tile that a node covers
    points: np.ndarray  # how many points a node holds
    low: np.ndarray  # (nodes, P)
    high: np.ndarray


def build_tiles(
    points: Tensor, sizes: tuple[int, ...], metric: Tensor, clouds: Sequence[int] | None = None
) -> tuple[list[Tiles], Tree]:
    """Split points (N, P) along the axis that is widest in units of ``metric`` (P,) until tiles hold ``sizes[-1]``.

    Splits fall on multiples of the largest of the sizes that is still too small for the part, so every coarser tile
    is a run of finer ones. ``clouds`` are the sizes of the clouds that lie one after the other, none of them empty; one
    cloud if not given. Returns the tiles of each size (in one common order) and the tree above the finest.
    """
    array = points.numpy()
    clouds = [len(points)] if clouds is None else list(clouds)
    starts = [0, *accumulate(clouds)]
    work = array / metric.numpy()  # kept in the current order, so that a split touches its own part only
    order = np.arange(len(points))
    left: list[int] = []
    right: list[int] = []
    spans = [(start, start + count) for start, count in zip(starts, clouds, strict=False)]
    while len(left) < len(spans):  # breadth first, so that children come after their parents
        start, stop = spans[len(left)]
        unit = next((size for size in sizes if size < stop - start), None)
        if unit is None:
            left.append(-1)
            right.append(-1)
            continue
        middle = (-(-(stop - start) // unit) + 1) // 2 * unit  # full tiles to the left
        part = work[start:stop]
        axis = int((part.max(0) - part.min(0)).argmax())
        split = part[:, axis].argpartition(middle)
        work[start:stop], order[start:stop] = part[split], order[start:stop][split]
        left.append(len(spans))
        right.append(len(spans) + 1)
        spans += [(start, start + middle), (start + middle, stop)]
    in_order = array[order]
    tiles = []
    for size in sizes:
        runs = [np.arange(a, b, size) for a, b in pairwise(starts)]
        firsts, owner = np.concatenate(runs), np.repeat(np.arange(len(runs)), [len(run) for run in runs])
        low, high = (torch.from_numpy(f.reduceat(in_order, firsts, axis=0)) for f in (np.minimum, np.maximum))
        bounds = torch.from_numpy(np.append(firsts, len(array)))
        tiles.append(Tiles(torch.from_numpy(order), size, bounds, low, high, torch.from_numpy(owner)))
    finest, first = tiles[-1], np.array([start for start, _ in spans])
    tile = np.searchsorted(finest.start.numpy(), first)
    nodes_left, nodes_right = np.array(left), np.array(right)
    lowest, highest = finest.low.numpy()[tile], finest.high.numpy()[tile]  # right at the leaves
    for n in reversed(np.flatnonzero(nodes_left >= 0).tolist()):
        lowest[n] = np.minimum(lowest[left[n]], lowest[right[n]])
        highest[n] = np.maximum(highest[left[n]], highest[right[n]])
    count = np.array([stop - start for start, stop in spans])
    return tiles, Tree(np.arange(len(clouds)), nodes_left, nodes_right, tile, count, lowest, highest)
