"""Attention over the keys in reach only: gather each query tile's keys, call the kernel, in local coordinates.

For every query tile, the plan's key tiles are gathered and the fused kernel runs on them, with the bias channels
taken relative to the tile's own centre. So nothing grows with the distance from any origin: LASPE's channels stay
small (no cancellation), LAAPE's stay finite (no overflow), however large the domain. Time and memory grow with the
number of points times the number of keys in reach; in training the gathered keys are formed again in the backward
pass instead of being kept.

Where points are so sparse that one tile is tens of decay lengths wide, its own centre is a far origin too: there the
bias is formed pair by pair, in float64.

Tensors are kept point by point in tile order, (N, G, W), with G = B H and W the padded width: the keys of a tile
are then runs of memory that serve all heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from farfield.attention.dense import kernel, penalty_matrix
from farfield.attention.encoding import Encoding
from farfield.attention.margin import fit
from farfield.attention.plan import AttentionPlan, Reach

# Beyond this penalty to the best key, a tile's bias is formed pair by pair and counted from each query's best key:
# channels could overflow there, and only the order of the keys matters.
_FAR = 1e15
# Nor may a tile with its keys be wider than the channels can serve; the keys need the rest of the range.
_TILE_SHARE = 0.7
# Without gradients, heads are served one at a time beyond so many numbers, to keep the sorted copies small.
_LARGE = 1 << 27


def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    weight: Tensor | None,
    plan: AttentionPlan,
) -> Tensor:
    """Rotated q (B, H, Nq, D), k, v at positions (N, P) -> (B, H, Nq, Dv), exact to the plan's tolerance."""
    plan, margins = fit(q, k, v, query_positions, key_positions, encoding, weight, plan)
    where_q = query_positions[plan.queries.order].double() - plan.origin.to(q.device)
    where_k = key_positions[plan.keys.order].double() - plan.origin.to(q.device)
    one_by_one = not torch.is_grad_enabled() and q.numel() > _LARGE
    pieces: dict[int, Tensor] = {}
    for reach, margin in zip(plan.reaches, margins, strict=True):
        members = list(range(q.shape[1])) if reach.heads is None else reach.heads
        for heads in [[h] for h in members] if one_by_one else [members]:
            shape = (q.shape[0], len(heads), *q.shape[2:])
            tiles = _Tiles(plan, reach, encoding.select(heads), where_q, where_k, shape, margin, q.dtype)
            if len(heads) == q.shape[1]:
                return _attend(q, k, v, weight, tiles)
            some = None if weight is None else weight[:, heads]
            pieces |= zip(heads, _attend(q[:, heads], k[:, heads], v[:, heads], some, tiles).unbind(1), strict=True)
    return torch.stack([pieces[h] for h in range(q.shape[1])], dim=1)


def _attend(q: Tensor, k: Tensor, v: Tensor, weight: Tensor | None, tiles: _Tiles) -> Tensor:
    """Attention of heads that share one list of tiles: sort by tile, run, sort back."""
    batch, heads, _, head_dim = q.shape
    order_q, order_k = (t.order.to(q.device) for t in (tiles.plan.queries, tiles.plan.keys))
    extra = tiles.query_channels(q.dtype)
    if weight is not None:
        tiles.weight = _by_point(weight[..., None], order_q)
        extra = extra * tiles.weight
    width = -(-max(head_dim + extra.shape[-1], v.shape[-1]) // 8) * 8
    q_sorted = _widened([_by_point(q, order_q), extra], width)
    k_sorted = _widened([_by_point(k, order_k)], width)
    v_sorted = _widened([_by_point(v, order_k)], width)
    out = _TiledAttention.apply(q_sorted, k_sorted, v_sorted, tiles, *tiles.encoding.parameters())
    back = torch.empty_like(order_q)
    back[order_q] = torch.arange(len(order_q), device=q.device)
    return out[back, :, : v.shape[-1]].unflatten(1, (batch, heads)).permute(1, 2, 0, 3)


def _by_point(t: Tensor, order: Tensor) -> Tensor:
    """(B, H, N, D) -> (N, B H, D), in tile order."""
    return t.permute(2, 0, 1, 3)[order].flatten(1, 2)


def _widened(parts: list[Tensor], width: int) -> Tensor:
    """Join (N, G or 1, *) along channels and pad with zeros to ``width``."""
    points, groups = parts[0].shape[:2]
    used = sum(p.shape[-1] for p in parts)
    padding = parts[0].new_zeros(()).expand(points, groups, width - used)
    return torch.cat([*(p.expand(points, groups, -1) for p in parts), padding], dim=-1)


@dataclass
class _Tiles:
    """The loop over query tiles and what it needs besides the tensors that carry gradients."""

    plan: AttentionPlan
    reach: Reach
    encoding: Encoding
    where_q: Tensor  # (Nq, P), in tile order, float64, relative to the plan's origin
    where_k: Tensor
    shape: tuple[int, int, int, int]  # of q: B, H, Nq, D
    margin: float
    dtype: torch.dtype  # of q
    weight: Tensor | None = None  # (Nq, G, 1)

    def __post_init__(self) -> None:
        self.batch, self.heads, _, self.head_dim = self.shape
        self._room: Tensor | None = None
        queries = self.plan.queries
        limit = self.encoding.dense_range(self.dtype)
        if limit is None:
            self._wide = torch.zeros(len(queries), dtype=torch.bool)
        else:
            self._wide = (queries.high - queries.low > _TILE_SHARE * limit.cpu()).any(-1)
        self.centres = ((queries.low + queries.high) / 2).to(self.where_q.device)
        if self.encoding.basis is not None:  # boxes are in the basis' coordinates, positions are not
            self.centres = self.centres @ self.encoding.basis.to(self.centres)

    def __iter__(self) -> Iterator[tuple[int, slice, Tensor]]:
        """The number of each query tile, its slots, and the slots of its keys."""
        size = self.plan.queries.size
        least = None
        if self.weight is not None:
            least = torch.stack([w.min() for w in self.weight.detach().split(size)]).cpu()
        counts = self.reach.counts(self.margin, least).tolist()
        for tile, count in enumerate(counts):
            slots = self.plan.key_slots(self.reach, tile, count)
            yield tile, slice(tile * size, min((tile + 1) * size, len(self.where_q))), slots.to(self.where_k.device)

    def query_channels(self, dtype: torch.dtype) -> Tensor:
        """Bias channels (Nq, G or 1, C), each relative to the centre of its own tile."""
        size, points = self.plan.queries.size, len(self.where_q)
        local = self.where_q - self.centres.repeat_interleave(size, 0)[:points]
        if bool(self._wide.any()):  # channels without a use there, but they must be finite
            local[self._wide.repeat_interleave(size)[:points].to(local.device)] = 0
        if not self.encoding.decomposes:
            return local[:, None, :0].to(dtype)
        return self._per_point(self.encoding.query_channels(local.to(dtype), self.head_dim))

    def key_channels(self, tile: int, slots: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Bias channels (n, G or 1, C) of a tile's keys, relative to that tile; None where the bias is explicit."""
        if not self.encoding.decomposes or self._pair_by_pair(tile):
            return None
        local = self.where_k.index_select(0, slots) - self.centres[tile]
        return self._per_point(self.encoding.key_channels(local.to(dtype)))

    def bias(self, tile: int, rows: slice, slots: Tensor, dtype: torch.dtype) -> Tensor | None:
        """The bias of each pair (B or 1, H or 1, nq, nk) where channels cannot carry it, from the query's best key."""
        if self.encoding.decomposes and not self._pair_by_pair(tile):
            return None
        centre = self.centres[tile]
        local_q, local_k = self.where_q[rows] - centre, self.where_k.index_select(0, slots) - centre
        penalty = penalty_matrix(local_q[None, None], local_k[None, None], self.encoding, None)
        penalty = penalty - penalty.detach().amin(-1, keepdim=True)
        if self.weight is not None:
            penalty = penalty * self.weight[rows].detach().unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3)
        return -penalty.to(dtype)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """The kernel on one tile: q (nq, G, W), k and v (nk, G, W) -> (nq, G, W)."""
        q, k, v = (t.unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3) for t in (q, k, v))
        return kernel(q, k, v, 1 / sqrt(self.head_dim), bias).permute(2, 0, 1, 3).flatten(1, 2)

    def gather(self, k: Tensor, v: Tensor, slots: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys, with their bias channels written in, and the values at some slots; valid until the next call."""
        if self._room is None or self._room.shape[1] < len(slots):
            self._room = k.new_empty((2, len(slots) * 5 // 4, *k.shape[1:]))  # fresh memory for each tile is slow
        k = torch.index_select(k, 0, slots, out=self._room[0, : len(slots)])
        v = torch.index_select(v, 0, slots, out=self._room[1, : len(slots)])
        if extra is not None:
            k[..., self.head_dim : self.head_dim + extra.shape[-1]] = extra.detach()
        return k, v

    def _pair_by_pair(self, tile: int) -> bool:
        return bool(self._wide[tile]) or float(self.reach.best[tile]) > _FAR

    def _per_point(self, channels: Tensor) -> Tensor:
        """(N, C) -> (N, 1, C); per head (H, N, C) -> (N, B H, C)."""
        return channels[:, None] if channels.ndim == 2 else channels.transpose(0, 1).repeat(1, self.batch, 1)


class _TiledAttention(torch.autograd.Function):
    """The loop over tiles; the backward pass gathers and computes each tile again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiles: _Tiles, *parameters: Tensor) -> Tensor:
        out = torch.empty_like(q)
        for tile, rows, slots in tiles:
            k_near, v_near = tiles.gather(k, v, slots, tiles.key_channels(tile, slots, q.dtype))
            out[rows] = tiles.attend(q[rows], k_near, v_near, tiles.bias(tile, rows, slots, q.dtype))
        ctx.save_for_backward(q, k, v)
        ctx.tiles, ctx.parameters = tiles, parameters
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        tiles, parameters = ctx.tiles, [p for p in ctx.parameters if p.requires_grad]
        grad_q, grad_k, grad_v = (torch.zeros_like(t) for t in (q, k, v))
        grad_parameters = [torch.zeros_like(p) for p in parameters]
        for tile, rows, slots in tiles:
            with torch.enable_grad():
                extra = tiles.key_channels(tile, slots, q.dtype)
            near = (q[rows], *tiles.gather(k, v, slots, extra))
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in near]
                bias = tiles.bias(tile, rows, slots, q.dtype)
                y = tiles.attend(*leaves, bias)
            reached = parameters if bias is not None and bias.requires_grad else []
            grad_q[rows], some_k, some_v, *to_parameters = torch.autograd.grad(
                y, [*leaves, *reached], grad[rows], allow_unused=True
            )
            if parameters and extra is not None and extra.requires_grad:
                to_extra = some_k[..., tiles.head_dim : tiles.head_dim + extra.shape[-1]].sum_to_size(extra.shape)
                to_parameters = list(torch.autograd.grad(extra, parameters, to_extra, allow_unused=True))
            for total, part in zip(grad_parameters, to_parameters, strict=False):  # none where nothing is learned
                total += 0 if part is None else part
            grad_k.index_add_(0, slots, some_k)
            grad_v.index_add_(0, slots, some_v)
        learned = iter(grad_parameters)
        return grad_q, grad_k, grad_v, None, *(next(learned) if p.requires_grad else None for p in ctx.parameters)
