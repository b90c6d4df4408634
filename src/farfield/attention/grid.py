"""Local attention on a regular grid of tokens: blocks of queries, each with the window of keys around it.

Shapes: B batch, H heads, N tokens in row-major order, D head dimension, P space axes; n blocks of a
queries with m keys each.

On a grid every block of queries has the same neighbourhood, so one batched product computes all of them, and
everything that depends on positions is formed once, relative to the block's own centre: nothing grows with the size
of the domain, neither the rounding of the bias nor the cost per token. A window reaches ``reach`` tokens beyond its
block on every side. At a wall it is moved inwards (a few keys more, none less); along a periodic axis it wraps
around, so that attention is that of the endlessly repeated domain.

A key is left out where its kernel exp(-(Phi - min Phi)) is below ``tolerance`` for every query of the block. Windows
that would cover most of a grid with walls make no sense: :func:`grid_plan` then returns None, and all pairs are
computed.
"""

from __future__ import annotations

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from farfield.attention.dense import kernel
from farfield.attention.encoding import Encoding
from farfield.attention.locality import RoPE

# Queries per block and axis, by the number of axes: about 64 in all, few enough that windows stay small, many enough
# that the products are large.
_BLOCK = {1: 32, 2: 8, 3: 4}
# A plan computes fewer pairs than this share of all of them, or is not made.
_WORTHWHILE = 0.7
# Without gradients so many blocks are computed at a time: what is gathered for them never takes much memory.
_CHUNK = 128
# Tables of so many plans are kept, of grids of at most so many blocks.
_KEPT, _KEPT_BLOCKS = 8, 64


@dataclass(frozen=True, eq=False)
class GridPlan:
    """Who sees whom, for one shape of grid: made by :func:`grid_plan`, good for any batch, head and layer."""

    tokens: tuple[int, ...]
    """Per axis."""
    queries: Tensor
    """(n a) rows of the queries, block by block; a block that sticks out repeats the last token."""
    keys: Tensor
    """(n m) rows of the keys of each block."""
    places: Tensor
    """(N,) where a token's own result is found among ``queries``."""
    query_positions: Tensor
    """(a, P) relative to the block's centre, in units of position, float64."""
    key_positions: Tensor
    """(n, m, P), or (1, m, P) where all blocks have the same."""
    spacing: Tensor
    """(P,) of the tokens, float64."""
    wraps: bool
    """Whether any axis is periodic."""

    first: int = 0
    """Of the whole plan's blocks, for a part of it."""

    @property
    def blocks(self) -> int:
        return len(self.queries) // len(self.query_positions)

    def parts(self, blocks: int) -> Iterator[GridPlan]:
        """The plan in parts of so many blocks."""
        a, m, same = len(self.query_positions), self.key_positions.shape[1], len(self.key_positions) == 1
        for first in range(0, self.blocks, blocks):
            last = min(first + blocks, self.blocks)
            yield replace(
                self,
                queries=self.queries[first * a : last * a],
                keys=self.keys[first * m : last * m],
                key_positions=self.key_positions if same else self.key_positions[first:last],
                first=first,
            )


def reach_of(encoding: Encoding, spacing: Sequence[float], tolerance: float) -> tuple[int, ...] | None:
    """How many tokens per axis away a key may be and still count; None where every key does.

    Phi is a sum over axes of convex functions, each at least its minimum: beyond the reach along any one axis the
    kernel is below the tolerance whatever the others. Lengths that are learned count with their maximum.
    """
    if isinstance(encoding, RoPE) or encoding.basis is not None:
        return None
    widest = encoding.select(None, widest=True)
    dim = len(spacing)
    needed = -math.log(tolerance)
    found = []
    steps = torch.arange(1, 4097, dtype=torch.float64)
    centre = widest.centre(dim).double().reshape(-1, 1, 1, dim)  # (H or 1, 1, 1, P)
    floor = widest.floor(dim).double().reshape(-1, 1, 1)
    for axis in range(dim):
        excess = torch.full((len(steps),), math.inf, dtype=torch.float64)
        for sign in (-1.0, 1.0):
            displaced = centre.expand(-1, 1, len(steps), dim).clone()
            displaced[..., axis] = sign * steps * spacing[axis]
            excess = torch.minimum(excess, (widest.penalty(displaced) - floor).flatten(0, 1).amin(0))
        inside = int((excess < needed).sum())
        if inside == len(steps):
            return None
        found.append(inside)
    return tuple(found)


@functools.lru_cache(maxsize=32)
def grid_plan(
    tokens: tuple[int, ...], spacing: tuple[float, ...], periodic: tuple[bool, ...], reach: tuple[int, ...]
) -> GridPlan | None:
    """The blocks and windows of a grid; None where windows would save little."""
    dim = len(tokens)
    block = tuple(min(_BLOCK[dim], n) for n in tokens)
    starts, windows, pairs = [], [], 1.0
    for n, a, r, wraps in zip(tokens, block, reach, periodic, strict=True):
        m = a + 2 * r if wraps else min(a + 2 * r, n)
        first = torch.arange(0, n, a)
        begin = first - r if wraps else (first - r).clamp(0, n - m)
        starts.append(first)
        windows.append(begin[:, None] + torch.arange(m))
        pairs *= len(first) * a * m / n**2
    if pairs > _WORTHWHILE and not any(periodic):
        return None
    own = [
        (first[:, None] + torch.arange(a)).clamp(max=n - 1) for first, a, n in zip(starts, block, tokens, strict=True)
    ]
    queries = _rows(own, tokens).flatten()
    places = torch.empty(math.prod(tokens), dtype=torch.long)
    places[queries.flip(0)] = torch.arange(len(queries)).flip(0)
    inside = [torch.arange(a, dtype=torch.float64) - (a - 1) / 2 for a in block]
    relative = [
        window - (first[:, None] + (a - 1) / 2) for window, first, a in zip(windows, starts, block, strict=True)
    ]
    if all(bool((axis == axis[:1]).all()) for axis in relative):
        relative = [axis[:1] for axis in relative]
    step = torch.tensor(spacing, dtype=torch.float64)
    return GridPlan(
        tokens=tokens,
        queries=queries,
        keys=_rows([window % n for window, n in zip(windows, tokens, strict=True)], tokens).flatten(),
        places=places,
        query_positions=torch.cartesian_prod(*inside).reshape(-1, dim) * step,
        key_positions=_points(relative) * step,
        spacing=step,
        wraps=any(periodic),
    )


def grid_attention(q: Tensor, k: Tensor, v: Tensor, plan: GridPlan, encoding: Encoding) -> Tensor:
    """What :func:`farfield.local_attention` is on the grid's points: q, k, v (B, H, N, D) -> (B, H, N, D).

    In float32 the bias travels as channels of q and k through the fused kernel. In half precision the products are
    written out, which is twice as fast where the processor multiplies in bfloat16; Phi then has a relative error of
    2^-9, which matters only where the weight is negligible, as positions are relative to the block.
    """
    with torch.autocast(q.device.type, enabled=False):
        batch, heads, _, width = q.shape
        turns = _remembered(_turns, plan, encoding, width, q)
        q, k, v = (t.transpose(1, 2).flatten(2) for t in (q, k, v))  # (B, N, H D): rows that are gathered whole
        if not plan.wraps:
            q, k = (_rotated(t, *turns) if turns else t for t in (q, k))
        whole = torch.is_grad_enabled() or batch * plan.blocks <= _CHUNK
        parts = [plan] if whole else plan.parts(max(1, _CHUNK // batch))
        out = torch.cat([_blocks(q, k, v, part, encoding, heads, turns) for part in parts], dim=1)
        return out.index_select(1, plan.places.to(out.device)).unflatten(-1, (heads, width)).transpose(1, 2)


def _blocks(
    q: Tensor, k: Tensor, v: Tensor, plan: GridPlan, encoding: Encoding, heads: int, turns: tuple[Tensor, ...]
) -> Tensor:
    """The blocks of a plan, from q, k, v (B, N, H D): (B, n a, H D)."""
    batch, _, width = q.shape
    q = q.index_select(1, plan.queries.to(q.device))
    k, v = (t.index_select(1, plan.keys.to(t.device)) for t in (k, v))
    if plan.wraps and turns:  # a key seen around the end lies elsewhere than in its own row
        q = _rotated(q, turns[0], turns[1], plan.first * len(plan.query_positions))
        k = _rotated(k, turns[2], turns[3], plan.first * plan.key_positions.shape[1])
    # (B n, H, a or m, D)
    q, k, v = (t.view(batch * plan.blocks, -1, heads, width // heads).transpose(1, 2) for t in (q, k, v))
    attend = _by_channels if q.dtype in (torch.float32, torch.float64) else _written_out
    return attend(q, k, v, plan, encoding).transpose(1, 2).reshape(batch, -1, width)


def _by_channels(q: Tensor, k: Tensor, v: Tensor, plan: GridPlan, encoding: Encoding) -> Tensor:
    width, batch = q.shape[-1], len(q) // plan.blocks
    extra_q = encoding.query_channels(plan.query_positions.to(q), width)  # (a, C) or (H, a, C)
    extra_k = encoding.key_channels(plan.key_positions.to(k))  # (n, m, C) or (n, H, m, C)
    if extra_k.ndim == 3:
        extra_k = extra_k[:, None]
    extra_k = extra_k.expand(plan.blocks, *extra_k.shape[1:]).repeat(batch, 1, 1, 1)
    q = torch.cat([q, extra_q.expand(*q.shape[:-1], -1)], dim=-1)
    k = torch.cat([k, extra_k.expand(*k.shape[:-1], -1)], dim=-1)
    return kernel(q, k, v, 1 / math.sqrt(width))


def _written_out(q: Tensor, k: Tensor, v: Tensor, plan: GridPlan, encoding: Encoding) -> Tensor:
    batch, heads = len(q) // plan.blocks, q.shape[1]
    bias = _remembered(_bias, plan, encoding, heads, q)  # (n, H, a, m)
    bias = bias.expand(batch, -1, -1, -1, -1).flatten(0, 2)
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    logits = torch.baddbmm(bias, q, k.transpose(1, 2), alpha=1 / math.sqrt(q.shape[-1]))
    return torch.bmm(torch.softmax(logits, dim=-1), v).unflatten(0, (-1, heads))


def _bias(plan: GridPlan, encoding: Encoding, heads: int, like: Tensor) -> Tensor:
    """-Phi of every pair, from each query's best key: (n, H, a, m)."""
    delta = plan.query_positions[None, :, None] - plan.key_positions[:, None]  # (n or 1, a, m, P)
    phi = encoding.penalty(delta[:, None].float().to(like.device))  # (n or 1, H or 1, a, m)
    phi = phi - phi.detach().amin(-1, keepdim=True)
    return (-phi).to(like.dtype).expand(plan.blocks, heads, -1, -1)


def _turns(plan: GridPlan, encoding: Encoding, width: int, like: Tensor) -> tuple[Tensor, ...]:
    """cos and sin of the rotation's phases (N, H D), or for a grid that wraps, of queries (n a, H D) and keys."""
    rotary = encoding.rotary
    if rotary is None:
        return ()
    if plan.wraps:
        queries = plan.query_positions.expand(plan.blocks, -1, -1).flatten(0, 1)
        places = [queries, plan.key_positions.expand(plan.blocks, -1, -1).flatten(0, 1)]
    else:
        places = [_points([torch.arange(n)[None] for n in plan.tokens])[0] * plan.spacing]
    frequencies = rotary.frequencies(width, len(plan.tokens))
    found = []
    for positions in places:
        phases = (positions[..., None] * frequencies).flatten(-2)
        phases = F.pad(phases.repeat_interleave(2, -1), (0, width - 2 * phases.shape[-1]))  # the rest stays as it is
        found += [f(phases).to(like).repeat(1, like.shape[1]) for f in (torch.cos, torch.sin)]
    return tuple(found)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, first: int = 0) -> Tensor:
    """Turn pairs of channels of x (B, N, H D): r(a) = [[cos, sin], [-sin, cos]], from row ``first`` of the tables."""
    cos, sin = (t[first : first + x.shape[1]] for t in (cos, sin))
    swapped = torch.stack([x[..., 1::2], -x[..., 0::2]], dim=-1).flatten(-2)
    return torch.addcmul(x * cos, swapped, sin)


_memory: OrderedDict[tuple, Any] = OrderedDict()


def _remembered(make: Callable[..., Any], plan: GridPlan, encoding: Encoding, size: int, like: Tensor) -> Any:
    """make(plan, encoding, size, like), kept for the layers and steps to come; formed anew where lengths are learned.

    Only what is small is kept: on a large domain the tables would outlive their use.
    """
    if encoding.learns_lengths() and make is _bias:
        return make(plan, encoding, size, like)
    key = (make, id(plan), encoding.identity(), str(encoding.rotary), size, like.shape[1], like.dtype, like.device)
    if key in _memory:
        _memory.move_to_end(key)
        return _memory[key][1]
    with torch.no_grad():
        made = make(plan, encoding, size, like)
    if plan.blocks <= _KEPT_BLOCKS:
        _memory[key] = (plan, made)  # the plan too, so that its id stays taken
        if len(_memory) > _KEPT:
            _memory.popitem(last=False)
    return made


def _rows(per_axis: list[Tensor], tokens: tuple[int, ...]) -> Tensor:
    """Indices along each axis, (blocks, size) -> row-major rows (all blocks, all sizes)."""
    rows = per_axis[0]
    for axis, size in zip(per_axis[1:], tokens[1:], strict=True):
        rows = rows[:, None, :, None] * size + axis[None, :, None, :]
        rows = rows.flatten(2).flatten(0, 1)
    return rows


def _points(per_axis: list[Tensor]) -> Tensor:
    """Coordinates along each axis, (blocks, size) -> (all blocks, all sizes, P)."""
    points = per_axis[0][..., None]
    for axis in per_axis[1:]:
        left = points[:, None, :, None].expand(-1, len(axis), -1, axis.shape[1], -1)
        right = axis[None, :, None, :, None].expand(len(points), -1, points.shape[1], -1, -1)
        points = torch.cat([left, right], dim=-1).flatten(2, 3).flatten(0, 1)
    return points.double()
