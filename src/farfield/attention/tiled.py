"""Attention over the keys in reach only, at a cost that grows with the number of points times the keys in reach.

Points are sorted by tile; each query tile reads key tiles from the plan's list, as many as the certificate asks for,
and the results are sorted back. On CPUs, where nothing is differentiated, a compiled kernel does that in one pass
(sweep); elsewhere the fused kernel does, in rounds:

    plan         which key tiles can matter to a query tile, nearest first
    sweep        one pass over the list by the compiled kernel, which weighs each key tile before it reads the values
    rounds       how much of its list a tile reads, from the mass that it has found
    certificate  the bound on what is left out, and its proof
    sounding     the same added up key by key, where the bound would make a tile read much more
    reading      gathers keys, calls the kernel, joins with what was read before
    tile_bias    the bias in coordinates that count from the tile's centre
    gradients    the backward pass, read by read
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from farfield.attention.certificate import Certificate, KeySummary, summarise_keys, summarise_queries
from farfield.attention.gradients import Sums, add_gradients
from farfield.attention.kernel import padded_width
from farfield.attention.plan import AttentionPlan
from farfield.attention.problem import Problem
from farfield.attention.reading import Found, Given, Reader
from farfield.attention.rounds import Rounds
from farfield.attention.sweep import KeyTiles, serves, swept
from farfield.attention.tile_bias import TileBias

# Points that are sorted and turned at a time.
_ROWS = 1 << 12


def tiled(problem: Problem, plan: AttentionPlan) -> Tensor:
    """(B, H, Nq, Dv), exact to the plan's tolerance. Leaves in the plan how many pairs it has read and sounded."""
    if torch.compiler.is_compiling():  # which must not look inside; a decorator would load the compiler for everyone
        return torch.compiler.disable(_by_heads)(problem, plan)
    return _by_heads(problem, plan)


def _by_heads(problem: Problem, plan: AttentionPlan) -> Tensor:
    """All heads that share a list of tiles at once; one after the other where that would take too much memory."""
    plan.pairs_read = plan.pairs_sounded = 0.0
    heads = problem.q.shape[1]
    one_by_one = not problem.needs_gradients() and problem.q.numel() > plan.at_once
    pieces: dict[int, Tensor] = {}
    whole = problem.q.new_empty((*problem.q.shape[:3], problem.v.shape[-1])) if one_by_one else None
    for number, reach in enumerate(plan.reaches):
        members = list(range(heads)) if reach.heads is None else reach.heads
        for some in [[h] for h in members] if one_by_one else [members]:
            out, (read, sounded) = _attend(problem.of_heads(some), plan.widest(), number, some)
            plan.pairs_read += read * len(some) / heads
            plan.pairs_sounded += sounded * len(some) / heads
            if len(some) == heads:
                return out
            if whole is None:
                pieces |= zip(some, out.unbind(1), strict=True)
            else:
                whole[:, some] = out
    return torch.stack([pieces[h] for h in range(heads)], dim=1) if whole is None else whole


def _attend(problem: Problem, plan: AttentionPlan, number: int, heads: list[int]) -> tuple[Tensor, list[float]]:
    """Attention of heads that share one list of tiles: sort by tile, run, sort back; and the pairs read and sounded."""
    origin, reach = plan.origin.to(problem.q.device), plan.reaches[number]
    order = plan.queries.order.to(problem.q.device)
    source = plan.seen.index[plan.keys.order].to(problem.q.device)
    points = problem.flat_positions(problem.query_positions)
    where_q = points[order].double() - origin
    where_k = problem.flat_positions(problem.key_positions)[source].double() - origin
    if plan.seen.shift is not None:
        where_k = where_k + plan.seen.shift[plan.keys.order].to(where_k.device)
    weight = None if problem.weight is None else problem.by_point(problem.weight[..., None])[order]
    bias = TileBias(problem, plan, reach, weight)
    channels = bias.query_channels(where_q, problem.q.dtype)
    head_dim, value_dim = problem.q.shape[-1], problem.v.shape[-1]
    sweeping = serves(problem, plan, bias)
    width = padded_width(head_dim + channels.shape[-1] + 2, value_dim + 1)  # two for the sounding, |v| beside v
    turn = problem.encoding.rotate
    q = _sorted(
        problem.by_point(problem.q), order, head_dim if sweeping else width, lambda x, rows: turn(x, where_q[rows]),
        None if sweeping else channels,
    )  # fmt: skip
    with torch.no_grad():
        of_weight = None if weight is None else weight.detach()
        queries = summarise_queries(q[..., :head_dim].detach(), of_weight, plan.subtiles)
    elsewhere = None if plan.elsewhere is None else plan.elsewhere[:, :, heads].flatten(1)
    encoding = problem.encoding  # of one head where all have the same lengths, else of each
    if reach.heads is not None and not encoding.learns_lengths():
        encoding = problem.encoding_of_all.select(heads[:1])

    def certificate(keys: KeySummary) -> Certificate:
        return Certificate(plan, reach, encoding, queries, keys, head_dim, problem.certify, elsewhere)

    if sweeping:
        tiles = KeyTiles.of(problem, plan, bias, source, where_k)
        out, *pairs, short = swept(certificate(tiles.summary), bias, tiles, q, channels)
        del q, tiles
    else:
        k = _sorted(problem.by_point(problem.k), source, width, lambda x, rows: turn(x, where_k[rows]))
        values = problem.by_point(problem.v)
        sizes = torch.linalg.vector_norm(values.detach(), dim=-1, keepdim=True)[source]
        v = _sorted(values, source, width, channels=sizes)
        with torch.no_grad():
            summary = summarise_keys(k[..., :head_dim].detach(), v[..., value_dim].detach(), plan.keys, problem.certify)
        reader = Reader(plan, bias, where_q.detach(), where_k.detach())
        rounds = Rounds(reader, certificate(summary), problem.certify)
        out = _TiledAttention.apply(q, k, v, where_q, where_k, weight, rounds, *problem.encoding.parameters())
        pairs, short = [reader.pairs(), rounds.sounded], rounds.short
        del q, k, v  # where nothing is differentiated: memory is scarcest here
    if short > 0:  # the lists end too early for these logits
        limit = float(reach.limit.max())
        more = short + 1.0 if weight is None else max(short + 1.0, limit)  # weights below 1 look further
        longer = plan.wider(limit + more, problem.encoding_of_all)
        return _attend(problem, longer, number, heads)
    return problem.by_batch(_sorted_back(out[..., :value_dim], order, len(points))), pairs


def _sorted(
    x: Tensor, order: Tensor, width: int, turn: Callable[[Tensor, slice], Tensor] | None = None,
    channels: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Rows of x (N, G, D) in some order, turned, with the channels (n, G or 1, C) behind and zeros up to ``width``."""
    differentiable = torch.is_grad_enabled() and x.requires_grad
    at_a_time = len(order) if differentiable else _ROWS  # what stays in the processor's cache is not written twice
    dim = x.shape[-1]
    out = (x.new_zeros if width > dim else x.new_empty)((len(order), x.shape[1], width))
    for first in range(0, len(order), max(1, at_a_time)):
        rows = slice(first, first + at_a_time)
        part = x[order[rows]]
        out[rows, :, :dim] = part if turn is None else turn(part.transpose(0, 1), rows).transpose(0, 1)
    if channels is not None:
        out[..., dim : dim + channels.shape[-1]] = channels
    return out


def _sorted_back(x: Tensor, order: Tensor, count: int) -> Tensor:
    """Rows of x (n, G, D) at their places among ``count``; zeros for queries that the plan leaves to another one."""
    return x.new_zeros(count, *x.shape[1:]).index_copy_(0, order, x)


class _TiledAttention(torch.autograd.Function):
    """The rounds, and their way back."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, where_q: Tensor, where_k: Tensor, weight: Tensor | None,
        rounds: Rounds, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        found = rounds.run(Given(q, k, v))
        ctx.save_for_backward(q, k, v, where_q, where_k, weight, found.out, found.lse, found.offset)
        ctx.reader, ctx.parameters = rounds.reader, parameters
        return found.out

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        raise NotImplementedError(
            "the tiled backend has no forward-mode derivative: take backend='reference', which has, or reverse mode"
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # a graph of this pass was asked for
            raise NotImplementedError(
                "the tiled backend has no second derivatives: take backend='reference', which has them"
            )
        q, k, v, where_q, where_k, weight, *found = ctx.saved_tensors
        needs = ctx.needs_input_grad
        sums = Sums(
            Given(*(torch.zeros_like(t) for t in (q, k, v))),
            [p for p, needed in zip(ctx.parameters, needs[7:], strict=True) if needed],
            torch.zeros_like(where_q) if needs[3] else None,
            torch.zeros_like(where_k) if needs[4] else None,
            torch.zeros_like(weight) if needs[5] and weight is not None else None,
        )
        with torch.no_grad():
            for one in ctx.reader.together():
                add_gradients(one, ctx.reader, grad, Given(q, k, v), Found(*found), sums)
        learned = iter(sums.of_parameters)
        to_parameters = [next(learned) if needed else None for needed in needs[7:]]
        of = sums.of_given
        return of.q, of.k, of.v, sums.where_q, sums.where_k, sums.weight, None, *to_parameters
