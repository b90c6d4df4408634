"""Points in compact tiles of equal size: a kd-tree whose leaves are the tiles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass
class Tiles:
    """A point cloud in tiles: slot s of the sorted cloud holds point ``order[s]``; tile t owns ``size`` slots."""

    order: Tensor  # (N,) int64
    size: int
    low: Tensor  # (T, P) float64 bounding boxes in the encoding's basis, relative to the plan's origin
    high: Tensor

    def __len__(self) -> int:
        return len(self.low)

    def count(self) -> Tensor:
        """Points per tile: ``size`` for all but the last."""
        counts = torch.full((len(self),), self.size)
        counts[-1] = len(self.order) - self.size * (len(self) - 1)
        return counts


@dataclass
class Tree:
    """The splits above the tiles: children of each node, -1 at a leaf, which is one tile, and bounding boxes."""

    left: np.ndarray
    right: np.ndarray
    tile: np.ndarray  # the first tile that a node covers
    low: np.ndarray  # (nodes, P)
    high: np.ndarray


def build_tiles(points: Tensor, sizes: tuple[int, ...], metric: Tensor) -> tuple[list[Tiles], Tree]:
    """Split points (N, P) along the axis that is widest in units of ``metric`` (P,) until tiles hold ``sizes[-1]``.

    Splits fall on multiples of the largest of the sizes that is still too small for the part, so every coarser tile
    is a run of finer ones. Returns the tiles of each size (in one common order) and the tree above the finest.
    """
    work = points.numpy() / metric.numpy()  # kept in the current order, so that a split touches its own part only
    order = np.arange(len(points))
    left: list[int] = []
    right: list[int] = []
    spans = [(0, len(points))]
    while len(left) < len(spans):  # breadth first, so that children come after their parents
        start, stop = spans[len(left)]
        unit = next((size for size in sizes if size < stop - start), None)
        if unit is None:
            left.append(-1)
            right.append(-1)
            continue
        middle = (-(-(stop - start) // unit) + 1) // 2 * unit  # full tiles to the left
        part = work[start:stop]
        axis = int(np.argmax([np.ptp(column) for column in part.T]))
        split = np.argpartition(part[:, axis], middle)
        work[start:stop], order[start:stop] = part[split], order[start:stop][split]
        left.append(len(spans))
        right.append(len(spans) + 1)
        spans += [(start, start + middle), (start + middle, stop)]
    in_order = points.numpy()[order]
    tiles = []
    for size in sizes:
        bounds = np.arange(0, len(points), size)
        low, high = (torch.from_numpy(f.reduceat(in_order, bounds, axis=0)) for f in (np.minimum, np.maximum))
        tiles.append(Tiles(torch.from_numpy(order), size, low, high))
    boxes = np.empty((2, len(spans), points.shape[1]))
    finest = tiles[-1]
    for n in reversed(range(len(spans))):
        if left[n] < 0:
            tile = spans[n][0] // finest.size
            boxes[:, n] = finest.low[tile], finest.high[tile]
        else:
            boxes[0, n] = np.minimum(boxes[0, left[n]], boxes[0, right[n]])
            boxes[1, n] = np.maximum(boxes[1, left[n]], boxes[1, right[n]])
    first_tile = np.array([start for start, _ in spans]) // finest.size
    return tiles, Tree(np.array(left), np.array(right), first_tile, boxes[0], boxes[1])
