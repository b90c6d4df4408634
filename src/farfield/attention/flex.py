"""The same plan as a FlexAttention block mask: the sparse backend for CUDA.

Queries and keys are sorted by tile; the plan's lists become the block mask's lists as they are, because building one
with ``create_block_mask`` would visit all pairs. The bias is computed from positions inside the kernel, in float32,
whatever the precision of q and k. Positions are held as a float32 and the float32 rest of it, and both are
subtracted before they are added: displacements are exact at any distance from the origin.

The kernel's log-sum-exp goes through the same certificate as the tiled backend's; where a tile must read more, the mask
grows and the kernel runs again. It has never run on a GPU here: compiled it is tested on CPU, forward, and uncompiled
with gradients. So "auto" tries it on a small sample first, see :func:`agrees_with_tiled`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention, noop_mask

from farfield.attention.certificate import Certificate, Kept, summarise_keys, summarise_queries
from farfield.attention.dense import penalty_matrix
from farfield.attention.plan import FLEX_BLOCK, AttentionPlan, Reach
from farfield.attention.problem import Problem
from farfield.attention.tiles import Tiles

_log = logging.getLogger(__name__)
# What the first run reads, in Phi beyond the best key: enough for most layers, since a second run repeats the first.
_FIRST = 14.0


def flex(problem: Problem, plan: AttentionPlan, dtype: torch.dtype, compiled: bool = True) -> Tensor:
    """(B, H, Nq, Dv), exact to the plan's tolerance; the kernel multiplies in ``dtype``, adds and biases in float32."""
    if plan.queries.size != FLEX_BLOCK or plan.keys.size != FLEX_BLOCK:
        raise ValueError(
            f"backend='flex' needs a plan with query_tile={FLEX_BLOCK} and key_tile={FLEX_BLOCK}, this one has "
            f"{plan.queries.size} and {plan.keys.size}"
        )
    device, origin, heads = problem.q.device, plan.origin.to(problem.q.device), problem.q.shape[1]
    order, source = plan.queries.order.to(device), plan.seen.index[plan.keys.order].to(device)
    where_q = problem.flat_positions(problem.query_positions)[order].double() - origin
    where_k = problem.flat_positions(problem.key_positions)[source].double() - origin
    if plan.seen.shift is not None:
        where_k = where_k + plan.seen.shift[plan.keys.order].to(device)
    q = problem.encoding.rotate(problem.by_point(problem.q)[order].transpose(0, 1), where_q)  # (G, N, D)
    k = problem.encoding.rotate(problem.by_point(problem.k)[source].transpose(0, 1), where_k)
    v = problem.by_point(problem.v)[source].transpose(0, 1)
    weight = None if problem.weight is None else problem.by_point(problem.weight[..., None])[order].transpose(0, 1)
    summaries = (
        summarise_queries(q.detach().transpose(0, 1), None if weight is None else weight.detach().transpose(0, 1),
                          plan.subtiles),
        summarise_keys(k.detach().transpose(0, 1), v.detach().norm(dim=-1).T, plan.keys, problem.certify),
    )  # fmt: skip
    q, k, v = (t.unflatten(0, (-1, heads)).to(dtype) for t in (q, k, v))
    counts = [reach.counts(_FIRST).clamp(min=1) for reach in plan.reaches]
    aux = AuxRequest(lse=True)
    if compiled and device.type == "cpu":  # torch's kernel for CPU keeps its log-sum-exp to itself
        aux, nearby = AuxRequest(), _nearby(problem, plan, q, k, v, where_q, where_k)
    (at_q, real_q), (at_k, real_k) = (_filled_up(tiles, device) for tiles in (plan.queries, plan.keys))
    q, k, v = q[:, :, at_q], k[:, :, at_k], v[:, :, at_k]
    factor = None if weight is None else weight[:, at_q, 0].unflatten(0, (-1, heads))
    score_mod = _bias(problem, where_q[at_q], where_k[at_k], factor)
    while True:
        if not aux.lse:
            counts, short = _needed(problem, plan, nearby, counts, summaries)
        mask = _block_mask(plan, heads, counts, device, _own_cloud(plan, real_k))
        run: Any = _compiled() if compiled else flex_attention
        out, found = run(q, k, v, score_mod=score_mod, block_mask=mask, scale=1 / sqrt(q.shape[-1]), return_aux=aux)
        needed = counts
        if aux.lse:
            # of V only this is known here: it is at least |o|
            known = tuple(t.detach()[:, :, real_q] for t in (found.lse, out.norm(dim=-1)))
            needed, short = _needed(problem, plan, known, counts, summaries)
        if short > 0:
            limit = max(float(reach.limit.max()) for reach in plan.reaches) + short + 1.0
            return flex(problem, plan.wider(limit, problem.encoding), dtype, compiled)
        if all(bool((a <= b).all()) for a, b in zip(needed, counts, strict=True)):
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=device)
            out = out.to(problem.q.dtype)[:, :, real_q].flatten(0, 1)
            return problem.by_batch(out[:, back].transpose(0, 1))
        counts = needed


def _filled_up(tiles: Tiles, device: torch.device) -> tuple[Tensor, Tensor]:
    """The slot of each place in blocks that are all full, and which places are real; others repeat a tile's last."""
    place, count = torch.arange(FLEX_BLOCK), tiles.count()[:, None]
    slots = tiles.start[:-1, None] + place.minimum(count - 1)
    return slots.flatten().to(device), (place < count).flatten().to(device)


@torch.no_grad()
def _nearby(
    problem: Problem, plan: AttentionPlan, q: Tensor, k: Tensor, v: Tensor, where_q: Tensor, where_k: Tensor
) -> tuple[Tensor, Tensor]:
    """log Z and V (B, H, N) over each tile's nearest keys alone: Z and Z V are less than in the end, which will do."""
    lse, sizes = (q.new_empty(q.shape[:3], dtype=torch.float64) for _ in range(2))
    for reach in plan.reaches:
        heads = list(range(q.shape[1])) if reach.heads is None else reach.heads
        encoding = problem.encoding if reach.heads is None else problem.encoding.select(heads)
        counts = reach.counts(2.0).clamp(min=1).tolist()
        for tile, count in enumerate(counts):
            rows = slice(int(plan.queries.start[tile]), int(plan.queries.start[tile + 1]))
            begin = int(reach.start[tile])
            slots = plan.keys.slots(reach.key_tile[begin : begin + count].long())
            penalty = penalty_matrix(where_q[rows][None, None], where_k[slots][None, None], encoding, None)
            if problem.weight is not None:
                weight = problem.by_point(problem.weight[..., None])[plan.queries.order[rows]][..., 0]
                penalty = penalty * weight.unflatten(1, (-1, q.shape[1])).permute(1, 2, 0)[:, heads, :, None]
            near, keys = q[:, heads, rows].double(), k[:, heads][:, :, slots].double()
            logits = near @ keys.mT / sqrt(q.shape[-1]) - penalty
            lse[:, heads, rows] = logits.logsumexp(-1)
            size = v[:, heads][:, :, slots].double().norm(dim=-1, keepdim=True)
            sizes[:, heads, rows] = (logits.softmax(-1) @ size)[..., 0]
    return lse, sizes


def _needed(
    problem: Problem, plan: AttentionPlan, known: tuple[Tensor, ...], counts: list[Tensor], summaries: tuple
) -> tuple[list[Tensor], float]:
    """The certificate of each group of heads, from log Z and V (B, H, N), or less, for outputs of any size."""
    lse = known[0]
    mass, sizes = (t.double().permute(2, 0, 1) for t in known)  # (N, B, H)
    needed, short = [], 0.0
    for reach, count in zip(plan.reaches, counts, strict=True):
        heads = list(range(lse.shape[1])) if reach.heads is None else reach.heads
        columns = torch.tensor([b * lse.shape[1] + h for b in range(lse.shape[0]) for h in heads], device=lse.device)
        of_heads = [type(s)(*(None if t is None else t[:, columns] for t in vars(s).values())) for s in summaries]
        encoding = problem.encoding if reach.heads is None else problem.encoding.select(heads[:1])
        if reach.heads is not None and problem.encoding.learns_lengths():
            encoding = problem.encoding.select(heads)
        queries, keys = of_heads
        certificate = Certificate(plan, reach, encoding, queries, keys, problem.q.shape[-1], problem.certify)
        size = sizes[..., heads].flatten(1).maximum(certificate.least)
        limits = certificate.limits(Kept.of(mass[..., heads].flatten(1), size, size, plan.subtiles), count)
        needed.append(limits.needed if problem.certify else limits.likely)
        short = max(short, limits.short)
    return needed, short


@functools.cache
def _compiled() -> Callable[..., tuple]:
    return torch.compile(flex_attention, dynamic=False)


def _own_cloud(plan: AttentionPlan, real: Tensor) -> Callable[..., Tensor] | None:
    """The function that lets queries read real keys of their own cloud only, None where there are no others."""
    clouds = [tiles.cloud.repeat_interleave(FLEX_BLOCK).to(real.device) for tiles in (plan.queries, plan.keys)]
    if bool(real.all()) and int(clouds[0].max()) == 0:
        return None
    of_query, of_key = clouds[0], torch.where(real, clouds[1], -1)
    return lambda b, h, i, j: of_query[i] == of_key[j]


def _bias(problem: Problem, where_q: Tensor, where_k: Tensor, weight: Tensor | None) -> Callable[..., Tensor]:
    """The function that subtracts weight * Phi from a score, with everything it needs in tables."""
    encoding, heads, space_dim = problem.encoding, problem.q.shape[1], where_q.shape[-1]

    def halves(where: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        exact = encoding.coordinates(where)
        high = exact.float()
        low = (exact - high.detach().double()).float()  # its gradient is that of the whole
        return [c.contiguous() for c in high.detach().unbind(-1)], [c.contiguous() for c in low.unbind(-1)]

    (q_high, q_low), (k_high, k_low) = halves(where_q), halves(where_k)
    # one table per axis and decay length, entry h for head h
    tables = [
        [
            (lengths(q_high[0]).reshape(-1, _axes(lengths)).expand(heads, space_dim))[:, axis].contiguous()
            for lengths in encoding.lengths()
        ]
        for axis in range(space_dim)
    ]

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        total = torch.zeros_like(score)
        for axis in range(space_dim):
            delta = (q_high[axis][i] - k_high[axis][j]) + (q_low[axis][i] - k_low[axis][j])
            total = total + encoding.axis_formula(delta, *(table[h] for table in tables[axis]))
        penalty = encoding.combine(total)
        return score - (penalty if weight is None else weight[b, h, i] * penalty)

    return score_mod


def _axes(lengths: torch.nn.Module) -> int:
    """1 where one number serves all axes, P otherwise."""
    maximum = lengths.maximum
    assert isinstance(maximum, Tensor)
    return 1 if maximum.ndim == 0 else maximum.shape[-1]


def _block_mask(
    plan: AttentionPlan,
    heads: int,
    counts: list[Tensor],
    device: torch.device,
    mask_mod: Callable[..., Tensor] | None = None,
) -> BlockMask:
    """The plan's lists, for every head, as key blocks of each query block and (for gradients) the reverse."""
    blocks_q, blocks_k = len(plan.queries), len(plan.keys)
    rows = [_lists(reach, count) for reach, count in zip(plan.reaches, counts, strict=True)]
    columns = [(key, query) for query, key in rows]
    forward = _table(plan, rows, heads, blocks_q, blocks_k, device)
    backward = _table(plan, columns, heads, blocks_k, blocks_q, device)
    return BlockMask(
        seq_lengths=(FLEX_BLOCK * blocks_q, FLEX_BLOCK * blocks_k),
        kv_num_blocks=forward[0],
        kv_indices=forward[1],
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=backward[0],
        q_indices=backward[1],
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(FLEX_BLOCK, FLEX_BLOCK),
        mask_mod=mask_mod or noop_mask,
    )


def _lists(reach: Reach, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Query tile and key tile of every pair to be computed."""
    owner = torch.repeat_interleave(torch.arange(len(counts)), reach.lengths())
    kept = torch.arange(len(owner)) - reach.start[owner] < counts[owner]
    return owner[kept], reach.key_tile[kept].long()


def _table(
    plan: AttentionPlan, pairs: list[tuple[Tensor, Tensor]], heads: int, rows: int, columns: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Lists (row, entry) as counts (1, H, rows) and entries (1, H, rows, columns), entries rising within a row.

    The table is as wide as there are columns: shorter ones are read beyond their end by the CPU kernel.
    """
    counts = [torch.bincount(row, minlength=rows) for row, _ in pairs]
    number = torch.zeros(1, heads, rows, dtype=torch.int32)
    entries = torch.zeros(1, heads, rows, columns, dtype=torch.int32)
    for reach, (row, entry), count in zip(plan.reaches, pairs, counts, strict=True):
        rank = torch.argsort(row * columns + entry)
        row, entry = row[rank], entry[rank]
        place = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
        for head in range(heads) if reach.heads is None else reach.heads:
            number[0, head] = count.int()
            entries[0, head, row, place] = entry.int()
    return number.to(device), entries.to(device)


@functools.cache
def agrees_with_tiled(device: torch.device) -> bool:
    """Whether flex compiles on this device and equals tiled attention on a small sample; says once if it does not."""
    from farfield.attention.functional import local_attention
    from farfield.attention.locality import LAAPE

    generator = torch.Generator().manual_seed(0)
    where = 100 * torch.rand(1000, 2, generator=generator)
    q, k, v = (torch.randn(1, 2, 1000, 32, generator=generator).to(device) for _ in range(3))
    where = where.to(device)
    try:
        with torch.no_grad():
            ours, its = (
                local_attention(q, k, v, where, encoding=LAAPE(8.0).to(device), backend=backend)
                for backend in ("tiled", "flex")
            )
        error = float((its - ours).norm(dim=-1).max() / v.norm(dim=-1).max())
        reason = None if error <= 2e-4 else f"differs from the tiled backend by {error:.1e} of the values"
    except Exception as problem:  # whatever the compiler raises, attention goes on without it
        reason = f"does not run ({type(problem).__name__}: {problem})"
    if reason is not None:
        _log.warning("FlexAttention on %s %s: attention takes backend='tiled' there instead", device, reason)
    return reason is None
