"""Who gets which points: a domain cut in two, again and again, until there is a part for every member of a group."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.attention.cloud import Cloud, rising_reach
from farfield.attention.encoding import Encoding
from farfield.attention.plan import plan_cloud, typical_reach

# What the point-wise layers cost beside attention, in keys read by a query: 12 W^2 multiplications against 2 W per key.
_POINTWISE = 1000.0
# So many points at most tell how dense the domain is where.
_SAMPLE = 1 << 16


def split_points(positions: Tensor | NDArray, parts: int, encoding: Encoding | None = None) -> list[NDArray[np.int64]]:
    """Indices of each part's points (N, P), compact in space and, with an ``encoding``, of equal predicted cost.

    Cuts go across the axis that is widest (in decay lengths, if they are known). With fewer points than parts some
    parts get none. The same points give the same parts, in every process.
    """
    where = np.asarray(positions, dtype=np.float64)
    if where.ndim != 2:
        raise ValueError(f"positions must have the shape (points, space axes), got {where.shape}")
    if parts < 1:
        raise ValueError(f"a domain has at least one part, got {parts}")
    cost = np.ones(len(where)) if encoding is None or len(where) == 0 else predicted_cost(where, encoding)
    if encoding is not None:
        widest = encoding.select(None, widest=True)
        coordinates = widest.coordinates(torch.from_numpy(where))
        where = (coordinates / rising_reach(widest, where.shape[1], 1.0)).numpy()
    out: list[NDArray[np.int64]] = []
    open_parts = [(np.arange(len(where)), parts)]
    while open_parts:
        index, count = open_parts.pop()
        if count == 1:
            out.append(index)
            continue
        left = count // 2
        if len(index):
            axis = int(np.ptp(where[index], axis=0).argmax())
            index = index[np.lexsort((index, where[index, axis]))]
        total = np.cumsum(cost[index])
        middle = int(np.searchsorted(total, total[-1] * left / count, side="right")) if len(index) else 0
        open_parts += [(index[middle:], count - left), (index[:middle], left)]
    return [np.sort(index) for index in out]


@torch.no_grad()
def predicted_cost(positions: NDArray[np.float64], encoding: Encoding, tolerance: float = 1e-4) -> NDArray[np.float64]:
    """What each point is expected to cost, in keys read: those in its tile's reach by the plan, and the other layers.

    Judged by the plan of a sample, whose points stand for as many others as were left out.
    """
    some = np.linspace(0, len(positions) - 1, min(len(positions), _SAMPLE)).astype(np.int64)
    sample = torch.from_numpy(positions[some])
    plan = plan_cloud(Cloud(sample, sample), encoding, tolerance, reserve=0.0)
    keys, reach = plan.keys.count().double(), typical_reach(tolerance)
    read = torch.zeros(len(plan.queries), dtype=torch.float64)
    for lists in plan.reaches:
        owner = torch.repeat_interleave(torch.arange(len(plan.queries)), lists.lengths())
        inside = keys[lists.key_tile.long()] * (lists.potential <= reach)
        read.index_add_(0, owner, inside / len(plan.reaches))
    at_sample = torch.empty(len(sample), dtype=torch.float64)
    at_sample[plan.queries.order] = torch.repeat_interleave(read, plan.queries.count())
    cost = _POINTWISE + at_sample.numpy() * len(positions) / len(sample)
    if len(some) == len(positions):
        return cost
    from scipy.spatial import cKDTree

    return cost[cKDTree(positions[some]).query(positions)[1]]


def split_grid(cells: tuple[int, ...], parts: int, unit: int = 1) -> list[tuple[slice, ...]]:
    """Blocks of a regular grid, one per part, as slices along each axis; cuts fall on multiples of ``unit`` cells.

    The longest axis is cut first. With more parts than a grid has units, some parts are empty.
    """
    blocks: list[tuple[slice, ...]] = []
    open_blocks = [(tuple(slice(0, n) for n in cells), parts)]
    while open_blocks:
        block, count = open_blocks.pop()
        if count == 1:
            blocks.append(block)
            continue
        axis = max(range(len(cells)), key=lambda i: block[i].stop - block[i].start)
        first, last = block[axis].start, block[axis].stop
        middle = min(last, first + round((last - first) * (count // 2) / count / unit) * unit)
        halves = [(*block[:axis], slice(*ends), *block[axis + 1 :]) for ends in ((first, middle), (middle, last))]
        open_blocks += [(halves[1], count - count // 2), (halves[0], count // 2)]
    return blocks
