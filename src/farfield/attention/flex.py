"""The same plan as a FlexAttention block mask: the sparse backend for CUDA.

Queries and keys are sorted by tile; the plan's lists become the block mask's lists as they are, because building one
with ``create_block_mask`` would visit all pairs. The bias is computed from positions inside the kernel, in float32,
whatever the precision of q and k. Positions are held as a float32 and the float32 rest of it, and both are
subtracted before they are added: displacements are exact at any distance from the origin.

On CPU FlexAttention runs forward only; that is how it is tested here. Backward needs CUDA and is untested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from farfield.attention.encoding import Encoding
from farfield.attention.margin import fit
from farfield.attention.plan import AttentionPlan, Reach

BLOCK = 128


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    weight: Tensor | None,
    plan: AttentionPlan,
) -> Tensor:
    """Rotated q (B, H, Nq, D), k, v at positions (N, P) -> (B, H, Nq, Dv); the plan's tiles hold ``BLOCK`` points."""
    if plan.queries.size != BLOCK or plan.keys.size != BLOCK:
        raise ValueError(
            f"backend='flex' needs a plan with query_tile={BLOCK} and key_tile={BLOCK}, this one has "
            f"{plan.queries.size} and {plan.keys.size}"
        )
    plan, margins = fit(q, k, v, query_positions, key_positions, encoding, weight, plan)
    least = 1.0 if weight is None else min(1.0, float(weight.detach().min()))
    device = q.device
    order_q, order_k = plan.queries.order.to(device), plan.keys.order.to(device)
    mask = _block_mask(plan, q.shape[1], margins, least, device)
    score_mod = _bias(encoding, weight, q.shape[1], plan, query_positions[order_q], key_positions[order_k], order_q)
    in_order = (q[:, :, order_q], k[:, :, order_k], v[:, :, order_k])
    out = _compiled()(*in_order, score_mod=score_mod, block_mask=mask, scale=1 / sqrt(q.shape[-1]))
    back = torch.empty_like(order_q)
    back[order_q] = torch.arange(len(order_q), device=device)
    return out[:, :, back]


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def _bias(
    encoding: Encoding,
    weight: Tensor | None,
    heads: int,
    plan: AttentionPlan,
    query_positions: Tensor,
    key_positions: Tensor,
    order_q: Tensor,
) -> Callable[..., Tensor]:
    """The function that subtracts weight * Phi from a score, with everything it needs in tables."""
    space_dim = query_positions.shape[-1]

    def halves(positions: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        exact = encoding.coordinates(positions.double() - plan.origin.to(positions.device))
        high = exact.float()
        low = (exact - high.double()).float()
        return [c.contiguous() for c in high.unbind(-1)], [c.contiguous() for c in low.unbind(-1)]

    (q_high, q_low), (k_high, k_low) = halves(query_positions), halves(key_positions)
    # one table per axis and decay length, entry h for head h
    tables = [
        [
            (lengths(q_high[0]).reshape(-1, _axes(lengths)).expand(heads, space_dim))[:, axis].contiguous()
            for lengths in encoding.lengths()
        ]
        for axis in range(space_dim)
    ]
    weight_sorted = None if weight is None else weight[:, :, order_q].float()

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        total = torch.zeros_like(score)
        for axis in range(space_dim):
            delta = (q_high[axis][i] - k_high[axis][j]) + (q_low[axis][i] - k_low[axis][j])
            total = total + encoding.axis_formula(delta, *(table[h] for table in tables[axis]))
        penalty = encoding.combine(total)
        return score - (penalty if weight_sorted is None else weight_sorted[b, h, i] * penalty)

    return score_mod


def _axes(lengths: torch.nn.Module) -> int:
    """1 where one number serves all axes, P otherwise."""
    maximum = lengths.maximum
    assert isinstance(maximum, Tensor)
    return 1 if maximum.ndim == 0 else maximum.shape[-1]


def _block_mask(
    plan: AttentionPlan, heads: int, margins: list[float], weight: float, device: torch.device
) -> BlockMask:
    """The plan's lists, for every head, as key blocks of each query block and (for gradients) the reverse."""
    blocks_q, blocks_k = len(plan.queries), len(plan.keys)
    rows = [_lists(reach, margin, weight) for reach, margin in zip(plan.reaches, margins, strict=True)]
    columns = [(key, query) for query, key in rows]
    forward, backward = _table(plan, rows, heads, blocks_q, device), _table(plan, columns, heads, blocks_k, device)
    return BlockMask(
        seq_lengths=(len(plan.queries.order), len(plan.keys.order)),
        kv_num_blocks=forward[0],
        kv_indices=forward[1],
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=backward[0],
        q_indices=backward[1],
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(BLOCK, BLOCK),
    )


def _lists(reach: Reach, margin: float, weight: float) -> tuple[Tensor, Tensor]:
    """Query tile and key tile of every pair to be computed."""
    counts = reach.counts(margin, torch.full_like(reach.cut, weight))
    owner = torch.repeat_interleave(torch.arange(len(counts)), reach.start.diff())
    kept = torch.arange(len(owner)) - reach.start[owner] < counts[owner]
    return owner[kept], reach.key_tile[kept].long()


def _table(
    plan: AttentionPlan, pairs: list[tuple[Tensor, Tensor]], heads: int, rows: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Lists (row, entry) as counts (1, H, rows) and entries (1, H, rows, longest), entries rising within a row."""
    counts = [torch.bincount(row, minlength=rows) for row, _ in pairs]
    longest = max(int(c.max()) for c in counts)
    number = torch.zeros(1, heads, rows, dtype=torch.int32)
    entries = torch.zeros(1, heads, rows, longest, dtype=torch.int32)
    for reach, (row, entry), count in zip(plan.reaches, pairs, counts, strict=True):
        rank = torch.argsort(row * (int(entry.max()) + 1) + entry)
        row, entry = row[rank], entry[rank]
        place = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        for head in range(heads) if reach.heads is None else reach.heads:
            number[0, head] = count.int()
            entries[0, head, row, place] = entry.int()
    return number.to(device), entries.to(device)
