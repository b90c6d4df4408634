"""Patches of a regular grid as tokens: what turns fields on cells into tokens for the blocks, and back.

Shapes: B batch, C channels, n_i cells and g_i tokens along axis i (N tokens in all, row-major), W width, P space axes.

    tokens = conv(fields),   kernel p + 2 o, stride p       one token per patch of p^P cells, o cells of overlap
    fields = conv^T(tokens), kernel p + 2 o, stride p       its transpose: neighbouring patches add where they overlap

Both are convolutions, so the map commutes with shifts by whole patches, and a cell's tokens know nothing of the
domain's size. Beyond a wall the outermost cell is repeated (and the outermost token on the way back); a periodic axis
wraps around. Where p does not divide the domain, the last patch is filled up the same way and the surplus cut off. A
periodic axis cannot be filled up: there p must divide.

With ``levels`` outer levels as a U-Net has them lie between cells and tokens. Each halves the resolution, the last one
on to the tokens, so the first convolution folds the p / 2^levels cells that are left over: with patches of 8 cells and
two levels, 2 x 2 cells become the features of the finest level, which is where most of the cost is saved.

    x = conv(fields);   for each level:  x = kept = residual(x),  x = halve(x);    tokens = residual(x)
    x = residual(tokens);   for each level back:  x = residual(double(x) + kept);   fields = conv^T(x)

Levels commute with shifts by fewer cells than a patch, so that what happens within one is learned once and not for
every place in it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# A point may lie so far from its place on the grid, as a share of the spacing: what rounding to float32 leaves on
# domains of ten thousand cells.
_OFF = 0.02


def grid_of(positions: Tensor, spacing: Sequence[float]) -> tuple[tuple[int, ...], Tensor]:
    """The regular grid that points (N, P) fill in whatever order: cells per axis, and each point's row-major cell.

    Refuses points that lie off the grid, leave cells empty or share one; ``spacing`` is the model's.
    """
    where = positions.detach().to("cpu", torch.float64)
    step = torch.tensor(tuple(spacing), dtype=torch.float64)
    if where.ndim != 2 or where.shape[1] != len(step) or len(where) == 0:
        raise ValueError(f"positions must have the shape (points, {len(step)}), got {tuple(positions.shape)}")
    if not bool(torch.isfinite(where).all()):
        raise ValueError("positions must be finite, they hold NaN or infinity")
    cells_off = (where - where.amin(0)) / step
    index = cells_off.round()
    off = (cells_off - index).abs().amax(1)
    if float(off.max()) > _OFF:
        worst = int(off.argmax())
        raise ValueError(
            f"positions must form a regular grid with the spacing {step.tolist()} that the model was trained on: point "
            f"{worst} at {positions[worst].tolist()} lies {float(off[worst]):.2g} spacings off it. "
            "Resample the fields to that grid"
        )
    cells = tuple(int(n) + 1 for n in index.amax(0))
    if math.prod(cells) != len(where):
        raise ValueError(
            f"positions must fill a regular grid: they span {' x '.join(map(str, cells))} cells of the spacing "
            f"{step.tolist()}, which are {math.prod(cells)}, and there are {len(where)} points"
        )
    rows = torch.zeros(len(where), dtype=torch.long)
    for axis, size in enumerate(cells):
        rows = rows * size + index[:, axis].long()
    if len(rows.unique()) != len(rows):
        raise ValueError("positions must be distinct: several points share a cell of the grid")
    return cells, rows


def apply_on_cells(
    network: Callable[[Tensor], Tensor], features: Tensor, cells: tuple[int, ...], rows: Tensor
) -> Tensor:
    """A network of grids, (B, C, n...) -> (B, C', n...), on points: (B, N, C) -> (B, N, C'); see :func:`grid_of`."""
    rows = rows.to(features.device)
    grid = torch.empty_like(features).index_copy_(1, rows, features)
    fields = network(grid.transpose(1, 2).unflatten(2, cells))
    return fields.flatten(2).transpose(1, 2).index_select(1, rows)


@dataclass(frozen=True)
class PatchTokens:
    """How a network sees a regular grid: the arguments of :class:`Patches` that the grid decides, and the spacing."""

    patch: int
    spacing: float | tuple[float, ...]
    """Of the cells, in units of position: one number, or one per axis."""
    overlap: int | None = None
    periodic: bool | tuple[bool, ...] = False
    levels: tuple[int, ...] = ()

    def periodic_axes(self, space_dim: int) -> tuple[bool, ...]:
        """One answer per axis."""
        axes = (self.periodic,) * space_dim if isinstance(self.periodic, bool) else tuple(self.periodic)
        if len(axes) != space_dim:
            raise ValueError(f"periodic must be one answer or one per axis ({space_dim}), got {self.periodic}")
        return axes

    def cell_spacing(self, space_dim: int) -> tuple[float, ...]:
        """One number per axis."""
        given = (self.spacing,) * space_dim if isinstance(self.spacing, (int, float)) else tuple(self.spacing)
        if len(given) != space_dim or not all(math.isfinite(s) and s > 0 for s in given):
            raise ValueError(f"spacing must be one positive number or one per axis ({space_dim}), got {self.spacing}")
        return tuple(float(s) for s in given)


# Without gradients, convolutions on cells take so many cells at a time.
_STRIP = 1 << 15
_CONVOLUTION = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def padded(x: Tensor, low: Sequence[int], high: Sequence[int], periodic: Sequence[bool]) -> Tensor:
    """x (B, C, n_1, ..., n_P) continued beyond its ends: around them where periodic, else by its outermost cells."""
    if not any(periodic):  # the common case has a kernel of its own
        sides = [side for pair in zip(reversed(low), reversed(high), strict=True) for side in pair]
        with torch.autocast(x.device.type, enabled=False):  # it would widen half precision for nothing
            return F.pad(x, sides, mode="replicate") if any(sides) else x
    for axis, (before, after, wraps) in enumerate(zip(low, high, periodic, strict=True)):
        if before or after:
            size = x.shape[axis + 2]
            index = torch.arange(-before, size + after, device=x.device)
            x = x.index_select(axis + 2, index % size if wraps else index.clamp(0, size - 1))
    return x


def exactly(layer: nn.Module, x: Tensor, *arguments: Any) -> Tensor:
    """Apply a layer outside of autocast, in the precision of its weights.

    The first and the last layer of a network are cheap and touch physical values, which bfloat16 would round by 0.4 %:
    more than a trained model's error.
    """
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(next(layer.parameters()).dtype), *arguments)


class _Resample(nn.Module):
    """The weights of a convolution with kernel p + 2 o and stride p, or of its transpose."""

    def __init__(self, inner: int, outer: int, space_dim: int, patch: int, overlap: int, periodic: tuple[bool, ...]):
        super().__init__()
        self.space_dim, self.patch, self.overlap, self.periodic = space_dim, patch, overlap, periodic
        kernel = patch + 2 * overlap
        self.weight = nn.Parameter(torch.empty(inner, outer, *(kernel,) * space_dim))
        self.bias = nn.Parameter(torch.zeros(inner))


class Gather(_Resample):
    """(B, C, n...) -> (B, W, ceil(n / p)...)"""

    def __init__(self, in_features: int, width: int, *where: Any):
        super().__init__(width, in_features, *where)
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        o, p = (self.overlap,) * self.space_dim, self.patch
        fill = [o_ + -size % p for o_, size in zip(o, x.shape[2:], strict=True)]
        x = padded(x, o, fill, self.periodic)
        return _CONVOLUTION[self.space_dim](x, self.weight, self.bias, stride=p)


class Scatter(_Resample):
    """(B, W, g...) -> (B, C, cells...), the transpose of :class:`Gather`."""

    def __init__(self, width: int, out_features: int, *where: Any, zero: bool = False):
        super().__init__(width, out_features, *where)
        # each cell is the sum over the tokens that reach it, about (kernel / p)^P of them
        fan_in = width * ((self.patch + 2 * self.overlap) / self.patch) ** self.space_dim
        nn.init.uniform_(self.weight, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))
        self.bias = nn.Parameter(torch.zeros(out_features))
        if zero:
            nn.init.zeros_(self.weight)

    def forward(self, x: Tensor, cells: Sequence[int]) -> Tensor:
        rim = min(self.overlap, 1)  # in tokens: as far as a patch reaches beyond its own cells
        x = padded(x, (rim,) * self.space_dim, (rim,) * self.space_dim, self.periodic)
        y = _TRANSPOSED[self.space_dim](x, self.weight, self.bias, stride=self.patch)
        start = rim * self.patch + self.overlap
        for axis, size in enumerate(cells):
            y = y.narrow(axis + 2, start, size)
        return y


class Residual(nn.Module):
    """x + conv(gelu(conv(norm(x)))), both convolutions three cells wide; the second begins at zero.

    The norm is over the channels of each cell: one over the domain, as in a U-Net, would not be local. Beside the
    branch the fields keep their size.
    """

    def __init__(self, features: int, space_dim: int, periodic: tuple[bool, ...]):
        super().__init__()
        self.space_dim, self.periodic = space_dim, periodic
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(features, features, *(3,) * space_dim)) for _ in range(2)
        )
        nn.init.kaiming_normal_(self.weights[0], nonlinearity="relu")
        nn.init.zeros_(self.weights[1])
        self.scale, self.shift = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(features)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, n...) -> the same shape. Without gradients strip by strip along the first axis, so that a large
        domain is never copied as a whole, and a strip stays in the processor's cache."""
        if torch.is_grad_enabled():
            return x + self._change(x)
        size = x.shape[2]
        rows = max(8, _STRIP * size // math.prod(x.shape[2:]))
        around = 2 if self.periodic[0] else 0
        beyond = (around,) + (0,) * (self.space_dim - 1)
        source, out = padded(x, beyond, beyond, self.periodic), torch.empty_like(x)
        for first in range(0, size, rows):
            count = min(rows, size - first)
            start = max(0, first + around - 2)  # two rows more on either side, as far as there are any
            stop = min(source.shape[2], first + around + count + 2)
            change = self._change(source.narrow(2, start, stop - start)).narrow(2, first + around - start, count)
            torch.add(x.narrow(2, first, count), change, out=out.narrow(2, first, count))
        return out

    def _change(self, x: Tensor) -> Tensor:
        one, convolution = (1,) * self.space_dim, _CONVOLUTION[self.space_dim]
        with torch.autocast(x.device.type, enabled=False):  # it would widen half precision for nothing
            scale, shift = self.scale.to(x.dtype), self.shift.to(x.dtype)
            x = F.layer_norm(x.movedim(1, -1), scale.shape, scale, shift).movedim(-1, 1)
        x = F.gelu(convolution(padded(x, one, one, self.periodic), self.weights[0], self.biases[0]))
        return convolution(padded(x, one, one, self.periodic), self.weights[1], self.biases[1])


class Patches(nn.Module):
    """Fields on cells to tokens and back; one per network, as the two share what lies between.

    Args:
        in_features, out_features: channels per cell in and out.
        width: channels per token.
        patch: cells per token along each axis.
        space_dim: number of space axes P, 1 to 3.
        overlap: cells by which the first convolution reaches into its neighbours on every side; half of its stride
            unless given.
        periodic: whether the axes wrap around: one answer, or one per axis.
        levels: features of the levels between cells and tokens, the finest first; none unless given.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        width: int,
        patch: int,
        space_dim: int,
        *,
        overlap: int | None = None,
        periodic: bool | Sequence[bool] = False,
        levels: Sequence[int] = (),
    ):
        super().__init__()
        if space_dim not in _CONVOLUTION:
            raise ValueError(f"patches are of 1, 2 or 3 axes, got space_dim {space_dim}")
        if patch < 1:
            raise ValueError(f"patch must be at least 1 cell, got {patch}")
        self.patch, self.space_dim = patch, space_dim
        self.periodic = (periodic,) * space_dim if isinstance(periodic, bool) else tuple(periodic)
        if len(self.periodic) != space_dim:
            raise ValueError(f"periodic must be one answer or one per axis ({space_dim}), got {tuple(self.periodic)}")
        if patch % 2 ** len(levels):
            raise ValueError(
                f"patch must be a multiple of {2 ** len(levels)} for {len(levels)} levels, each of which halves the "
                f"resolution, got {patch}"
            )
        self.stride = patch // 2 ** len(levels)  # of the first convolution
        self.overlap = self.stride // 2 if overlap is None else overlap
        if not 0 <= self.overlap <= self.stride:
            raise ValueError(f"overlap must be 0 to {self.stride} cells for a stride of {self.stride}, got {overlap}")
        where = (space_dim, self.stride, self.overlap, self.periodic)
        half = (space_dim, 2, 0, self.periodic)
        features = [*levels, width]
        self.gather = Gather(in_features, features[0], *where)
        self.scatter = Scatter(features[0], out_features, *where, zero=True)
        refined = features if levels else []  # every level, and the tokens themselves
        self.inward = nn.ModuleList(Residual(f, space_dim, self.periodic) for f in refined)
        self.outward = nn.ModuleList(Residual(f, space_dim, self.periodic) for f in refined)
        self.down = nn.ModuleList(Gather(a, b, *half) for a, b in itertools.pairwise(features))
        self.up = nn.ModuleList(Scatter(b, a, *half) for a, b in itertools.pairwise(features))

    @property
    def rim(self) -> int:
        """Tokens beyond a part of a grid that its cells can depend on through convolutions alone, there and back."""
        within = sum(2 * self.stride * 2**level for level in range(len(self.inward)))  # two cells of each level
        return -(-(2 * within + 2 * self.overlap) // self.patch) + 1

    def tokens(self, cells: Sequence[int]) -> tuple[int, ...]:
        """Tokens per axis of a domain of so many cells; refuses domains that cannot be cut into patches."""
        if len(cells) != self.space_dim:
            raise ValueError(f"expected a grid of {self.space_dim} axes, got {tuple(cells)} cells")
        kernel = self.patch + 2 * self.overlap
        for axis, (size, wraps) in enumerate(zip(cells, self.periodic, strict=True)):
            if size < kernel:
                raise ValueError(
                    f"the domain has {size} cells along axis {axis + 1}, fewer than the {kernel} that one patch of "
                    f"{self.patch} sees: use a larger domain, or a model of smaller patches"
                )
            if wraps and size % self.patch:
                raise ValueError(
                    f"the periodic axis {axis + 1} has {size} cells, no multiple of the patch of {self.patch}: "
                    f"resample it, or choose a model whose patch divides it"
                )
        return tuple(-(-size // self.patch) for size in cells)

    def embed(self, fields: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(B, C, n...) -> tokens (B, N, W), and what each level keeps for the way back."""
        self.tokens(fields.shape[2:])
        none = (0,) * self.space_dim
        x = padded(fields, none, [-size % self.patch for size in fields.shape[2:]], self.periodic)
        if self.space_dim == 2:  # the layout that convolutions like best
            x = x.contiguous(memory_format=torch.channels_last)
        x = exactly(self.gather, x)
        kept: list[Tensor] = []
        device = x.device.type
        if self.inward and torch.is_autocast_enabled(device):  # the levels hold what their products can tell
            x = x.to(torch.get_autocast_dtype(device))
        for block, down in zip(self.inward, self.down, strict=False):
            kept.append(block(x))
            x = down(kept[-1])
        if self.inward:
            x = self.inward[-1](x)
        return x.flatten(2).transpose(1, 2), kept

    def project(self, tokens: Tensor, kept: list[Tensor], cells: Sequence[int]) -> Tensor:
        """Tokens (B, N, W), with what :meth:`embed` kept -> fields (B, C, n...)."""
        x = tokens.transpose(1, 2).unflatten(2, self.tokens(cells))
        if self.outward:
            x = self.outward[-1](x)
        for block, up in zip(reversed(self.outward[:-1]), reversed(self.up), strict=True):
            skip = kept.pop()
            x = block(up(x, skip.shape[2:]) + skip)
        return exactly(self.scatter, x, cells)
