"""One member's block of a regular grid, with the rim around it that other members hold: a convolution's halo.

Shapes: B batch, C channels, n_i cells along axis i of the block, m_i of the block with its rim.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield.attention import Encoding, Group
from farfield.attention.bisection import split_grid, split_points
from farfield.attention.sharded import exchange
from farfield.models.tokens import grid_of

Ranges = tuple[tuple[int, int], ...]


def agree_on_model(group: Group, model: nn.Module) -> None:
    """Refuse a group whose members have other layers or weights than one another."""
    digest = hashlib.sha256(repr(model).encode())
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    group.agree("model (layers and weights)", digest.hexdigest()[:16])


class GridPart:
    """Who holds what of the rim of ``rim`` cells around each block; the grid ends at walls, or is periodic.

    Beyond a wall there is no rim. All members make it together.
    """

    def __init__(self, group: Group, block: Ranges, cells: Sequence[int], rim: int, periodic: Sequence[bool]):
        self.group, self.block = group, block
        self.low = tuple(rim if wraps else min(rim, first) for (first, _), wraps in zip(block, periodic, strict=True))
        blocks: list[Ranges] = group.gather(block)
        around = [
            [
                torch.arange(first - rim, last + rim) % size
                if wraps
                else torch.arange(max(0, first - rim), min(size, last + rim))
                for (first, last), size, wraps in zip(one, cells, periodic, strict=True)
            ]
            for one in blocks
        ]
        self.shape = tuple(last - first for first, last in block)
        self.extended = tuple(len(axis) for axis in around[group.rank])
        to_others = [_shared(axes, block, here=True) for axes in around]
        from_others = [_shared(around[group.rank], one, here=False) for one in blocks]
        self._send, self._receive = [len(rows) for rows in to_others], [len(rows) for rows in from_others]
        self._rows, self._places = torch.cat(to_others), torch.cat(from_others)

    def extend(self, x: Tensor) -> Tensor:
        """(B, C, n...) -> (B, C, m...), with what the others hold; gradients find their way back."""
        batch, channels = x.shape[:2]
        rows = x.flatten(2).permute(2, 0, 1).flatten(1)[self._rows.to(x.device)]
        received = exchange(rows, self.group, self._send, self._receive)
        out = received.new_zeros((math.prod(self.extended), received.shape[1]))
        out = out.index_copy(0, self._places.to(x.device), received)
        return out.unflatten(1, (batch, channels)).permute(1, 2, 0).unflatten(2, self.extended)

    def crop(self, x: Tensor, margin: int = 0) -> Tensor:
        """(B, C, m...) -> (B, C, n...), or with so many cells of the rim, where there are any, on each side."""
        for axis, (rim, size) in enumerate(zip(self.low, self.shape, strict=True)):
            first, last = max(0, rim - margin), min(rim + size + margin, x.shape[axis + 2])
            x = x.narrow(axis + 2, first, last - first)
        return x


def _shared(axes: Sequence[Tensor], block: Ranges, here: bool) -> Tensor:
    """The cells of ``axes`` (whole-grid indices, repeated where they wrap) that a block holds.

    As rows of the block (``here``), or as places among the axes' cells; both in the same order.
    """
    rows = torch.zeros(1, dtype=torch.int64)
    for cells, (first, last) in zip(axes, block, strict=True):
        inside = ((cells >= first) & (cells < last)).nonzero()[:, 0]
        index, count = (cells[inside] - first, last - first) if here else (inside, len(cells))
        rows = (rows[:, None] * count + index).flatten()
    return rows


def whole_grid(positions: Tensor, spacing: Sequence[float], group: Group) -> tuple[Ranges, tuple[int, ...]]:
    """Which block of which grid the points (N, P) of each member are, by the extremes of all."""
    step = torch.tensor(tuple(spacing), dtype=torch.float64)
    if len(positions) == 0:
        raise ValueError(
            f"member {group.rank + 1} of {group.size} has no cells: a network of patches needs some in each"
        )
    where = positions.detach().cpu().double()
    ends = group.gather((where.amin(0), where.amax(0)))
    low = torch.stack([first for first, _ in ends]).amin(0)
    high = torch.stack([last for _, last in ends]).amax(0)
    first, last = (((t - low) / step).round().long().tolist() for t in ends[group.rank])
    cells = (((high - low) / step).round().long() + 1).tolist()
    return tuple((a, b + 1) for a, b in zip(first, last, strict=True)), tuple(cells)


def domain_parts(model: nn.Module, positions: Tensor, parts: int) -> list[NDArray[np.int64]]:
    """Which points (N, P), in the model's units, go to which part: blocks between patches, or parts of equal cost."""
    tokens = getattr(model, "tokens", None)
    if tokens is None:
        encoding = getattr(model, "encoding", None)
        local = encoding if isinstance(encoding, Encoding) and encoding.local else None  # RoPE is refused by the plan
        return split_points(positions.detach().cpu(), parts, local)
    cells, rows = grid_of(positions, model.cell_spacing)  # type: ignore[arg-type]
    where = np.unravel_index(rows.numpy(), cells)
    return [
        np.flatnonzero(
            np.logical_and.reduce([(at >= cut.start) & (at < cut.stop) for at, cut in zip(where, block, strict=True)])
        )
        for block in split_grid(cells, parts, tokens.patch)
    ]
