"""Attention over the keys in reach only: gather each query tile's keys, call the kernel, in local coordinates.

For every query tile, key tiles from the plan's list are gathered and the fused kernel runs on them, with the bias
channels taken relative to the tile's own centre. So nothing grows with the distance from any origin: LASPE's channels
stay small (no cancellation), LAAPE's stay finite (no overflow), however large the domain. A first round reads the keys
that matter anyhow; the mass that it finds tells how many more are likely to be needed, and a second round reads these
and joins the results. Of what is left the certificate tells that it does not matter, or how much must still be read.
Small tiles go through the kernel together. Time and memory grow with the number of points times the number of keys in
reach; in training the gathered keys are formed again in the backward pass instead of being kept.

Where points are so sparse that one tile is tens of decay lengths wide, or queries so far from all keys that Phi drowns
the logits, the bias is formed pair by pair, in float64, from each query's best key on.

Tensors are kept point by point in tile order, (N, G, W), with W the padded width and G all heads, of all batch entries
where they share their points: the keys of a tile are then runs of memory that serve all of G.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from farfield.attention.certificate import (
    FAR,
    SAFETY,
    Certificate,
    Limits,
    lowest_of,
    summarise_keys,
    summarise_queries,
)
from farfield.attention.dense import penalty_matrix
from farfield.attention.encoding import Encoding
from farfield.attention.kernel import (
    attend,
    attend_backward,
    join,
    logit_gradient,
    mass_from_above,
    mass_units,
    padded_width,
)
from farfield.attention.plan import AttentionPlan, Reach
from farfield.attention.problem import Problem

# What the first round reads, in Phi beyond the best key: most of the mass.
_FIRST = 4.0
# What adding up a pair's mass costs beside reading it.
_SOUNDING = 0.6
# Pairs that small tiles read in one call of the kernel, and by how much their numbers of keys may differ there.
_TOGETHER = 1 << 20
_ALIKE = 1.25
# Sounding must spare so many pairs: it is done tile by tile.
_WORTH_SOUNDING = 300_000
# The logit of a key that only fills up a table.
_NEVER = -1e30
# Query rows and key tiles whose masses are added up at a time: the table stays in the processor's cache.
_ROWS = 256
_TILES = 16
# Nor may a tile with its keys be wider than the channels can serve; the keys need the rest of the range.
_TILE_SHARE = 0.5


@torch.compiler.disable
def tiled(problem: Problem, plan: AttentionPlan) -> Tensor:
    """(B, H, Nq, Dv), exact to the plan's tolerance. Leaves in the plan how many pairs it has computed."""
    plan.pairs_read = 0.0
    heads = problem.q.shape[1]
    one_by_one = not problem.needs_gradients() and problem.q.numel() > plan.at_once
    pieces: dict[int, Tensor] = {}
    for number, reach in enumerate(plan.reaches):
        members = list(range(heads)) if reach.heads is None else reach.heads
        for some in [[h] for h in members] if one_by_one else [members]:
            out, pairs = _attend(problem.of_heads(some), plan.widest(), number, some)
            plan.pairs_read += pairs * len(some) / heads
            if len(some) == heads:
                return out
            pieces |= zip(some, out.unbind(1), strict=True)
    return torch.stack([pieces[h] for h in range(heads)], dim=1)


def _attend(problem: Problem, plan: AttentionPlan, number: int, heads: list[int]) -> tuple[Tensor, float]:
    """Attention of heads that share one list of tiles: sort by tile, run, sort back."""
    origin = plan.origin.to(problem.q.device)
    order = plan.queries.order.to(problem.q.device)
    source = plan.seen.index[plan.keys.order].to(problem.q.device)
    where_q = problem.flat_positions(problem.query_positions)[order].double() - origin
    where_k = problem.flat_positions(problem.key_positions)[source].double() - origin
    if plan.seen.shift is not None:
        where_k = where_k + plan.seen.shift[plan.keys.order].to(where_k.device)
    q = problem.encoding.rotate(problem.by_point(problem.q)[order].transpose(0, 1), where_q).transpose(0, 1)
    k = problem.encoding.rotate(problem.by_point(problem.k)[source].transpose(0, 1), where_k).transpose(0, 1)
    v = problem.by_point(problem.v)[source]
    weight = None if problem.weight is None else problem.by_point(problem.weight[..., None])[order]
    with torch.no_grad():
        summaries = (
            summarise_queries(q.detach(), None if weight is None else weight.detach(), plan.subtiles),
            summarise_keys(k.detach(), v.detach(), plan.keys, problem.certify),
        )
    loop = _Loop(problem, plan, plan.reaches[number], heads, where_q.detach(), where_k.detach(), weight)
    extra = loop.query_channels(where_q, q.dtype)
    if weight is not None:
        extra = extra * weight
    width = padded_width(q.shape[-1] + extra.shape[-1] + 1, v.shape[-1])  # one for the sounding, see _Loop._sound
    wide = (_widened([q, extra], width), _widened([k], width), _widened([v], width))
    elsewhere = None if plan.elsewhere is None else plan.elsewhere[:, :, heads].flatten(1)
    loop.certificate = Certificate(
        plan, loop.reach, loop.one_of_each(), *summaries, problem.q.shape[-1], problem.certify, elsewhere
    )
    out = _TiledAttention.apply(*wide, where_q, where_k, weight, loop, *problem.encoding.parameters())
    if loop.short > 0:  # the lists end too early for these logits
        limit = float(loop.reach.limit.max())
        more = loop.short + 1.0 if weight is None else max(loop.short + 1.0, limit)  # weights below 1 look further
        longer = plan.wider(limit + more, problem.encoding_of_all)
        return _attend(problem, longer, number, heads)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)
    return problem.by_batch(out[back, :, : v.shape[-1]]), loop.pairs()


def _widened(parts: list[Tensor], width: int) -> Tensor:
    """Join (N, G or 1, *) along channels and pad with zeros to ``width``."""
    points, groups = parts[0].shape[:2]
    used = sum(p.shape[-1] for p in parts)
    padding = parts[0].new_zeros(()).expand(points, groups, width - used)
    return torch.cat([*(p.expand(points, groups, -1) for p in parts), padding], dim=-1)


@dataclass
class _Loop:
    """The loop over query tiles and what it needs besides the tensors that carry gradients."""

    problem: Problem
    plan: AttentionPlan
    reach: Reach
    members: list[int]  # the heads, in the encoding of all heads
    where_q: Tensor  # (Nq, P), in tile order, float64, relative to the plan's origin
    where_k: Tensor
    weight: Tensor | None  # (Nq, G, 1)
    certificate: Certificate = field(init=False)
    counts: Tensor = field(init=False)  # (Tq,) key tiles that each tile has read
    short: float = 0.0

    def __post_init__(self) -> None:
        q, queries = self.problem.q, self.plan.queries
        self.heads, self.head_dim, self.encoding = q.shape[1], q.shape[-1], self.problem.encoding
        self.scale = 1 / sqrt(self.head_dim)
        self.decomposes = self.encoding.decomposes
        self._room: Tensor | None = None
        dtype, error = q.dtype, self.plan.tolerance / 4
        spread = queries.high - queries.low
        heaviest = None
        if self.weight is not None:
            heaviest = -lowest_of(-self.weight.detach()[..., 0], queries).amin(-1).cpu().double()
        limit = self.encoding.channel_range(dtype, error)
        self.explicit = torch.zeros(len(queries), dtype=torch.bool)
        if limit is not None:
            share = _TILE_SHARE if heaviest is None else _TILE_SHARE / heaviest.clamp(min=1.0).sqrt()[:, None]
            self.explicit = (spread > share * limit.cpu()).any(-1)
        # far from all keys only differences of huge potentials count, which channels would round away
        most = error / torch.finfo(dtype).eps
        self.explicit |= self.reach.best * (1.0 if heaviest is None else heaviest) > most
        self.explicit |= torch.full_like(self.explicit, not self.decomposes)
        self.centres = ((queries.low + queries.high) / 2).to(self.where_q.device)
        if self.encoding.basis is not None:  # boxes are in the basis' coordinates, positions are not
            self.centres = self.centres @ self.encoding.basis.to(self.centres)

    def one_of_each(self) -> Encoding:
        """The encoding with the lengths of one head where all have the same, else of each."""
        if self.reach.heads is None or self.encoding.learns_lengths():
            return self.encoding
        return self.problem.encoding_of_all.select(self.members[:1])

    def pairs(self) -> float:
        """How many query-key pairs the tiles have computed."""
        keys = self.plan.keys.count().double()[self.reach.key_tile.long()]
        total = torch.cat([torch.zeros(1, dtype=torch.float64), keys.cumsum(0)])
        read = total[self.reach.start[:-1] + self.counts] - total[self.reach.start[:-1]]
        return float((read * self.plan.queries.count()).sum())

    def rows(self, tile: int) -> slice:
        """The slots of a query tile."""
        return slice(int(self.plan.queries.start[tile]), int(self.plan.queries.start[tile + 1]))

    def slots(self, tile: int, first: int, stop: int) -> Tensor:
        """The slots of the keys from the ``first`` to before the ``stop`` of a tile's list."""
        begin = int(self.reach.start[tile])
        tiles = self.reach.key_tile[begin + first : begin + stop].long().sort().values  # in the order of memory
        return self.plan.keys.slots(tiles).to(self.where_k.device)

    def query_channels(self, where_q: Tensor, dtype: torch.dtype) -> Tensor:
        """Bias channels (Nq, G or 1, C), each relative to the centre of its own tile."""
        count = self.plan.queries.count().to(where_q.device)
        local = where_q - self.centres.repeat_interleave(count, 0)
        if bool(self.explicit.any()):  # channels without a use there, but they must be finite
            unused = self.explicit.to(where_q.device).repeat_interleave(count)
            local = torch.where(unused[:, None], torch.zeros_like(local), local)
        if not self.decomposes:
            return local[:, None, :0].to(dtype)
        return self._per_point(self.encoding.query_channels(local.to(dtype), self.head_dim))

    def key_channels(self, tile: int, where_k: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Bias channels (n, G or 1, C) of a tile's keys, relative to that tile; None where the bias is explicit."""
        if bool(self.explicit[tile]):
            return None
        return self._per_point(self.encoding.key_channels((where_k - self.centres[tile]).to(dtype)))

    def penalty(self, tile: int, where_q: Tensor, where_k: Tensor, weight: Tensor | None) -> Tensor | None:
        """w Phi of each pair (B or 1, H or 1, nq, nk) in float64 where channels cannot carry it, else None."""
        if not bool(self.explicit[tile]):
            return None
        centre = self.centres[tile]
        penalty = penalty_matrix((where_q - centre)[None, None], (where_k - centre)[None, None], self.encoding, None)
        if weight is None:
            return penalty
        return penalty * weight.double().unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3)

    def by_head(self, *tensors: Tensor) -> list[Tensor]:
        """(n, G, W) -> (B, H, n, W)."""
        return [t.unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3) for t in tensors]

    def gather(self, k: Tensor, v: Tensor, slots: Tensor, extra: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys, with their bias channels written in, and the values at some slots; valid until the next call."""
        if self._room is None or self._room.shape[1] < len(slots):
            self._room = k.new_empty((2, len(slots) * 5 // 4, *k.shape[1:]))  # fresh memory for each tile is slow
        v = torch.index_select(v, 0, slots, out=self._room[1, : len(slots)])
        return self.gather_keys(k, slots, extra), v

    def gather_keys(self, k: Tensor, slots: Tensor, extra: Tensor | None) -> Tensor:
        """The keys alone."""
        if self._room is None or self._room.shape[1] < len(slots):
            self._room = k.new_empty((2, len(slots) * 5 // 4, *k.shape[1:]))  # fresh memory for each tile is slow
        k = torch.index_select(k, 0, slots, out=self._room[0, : len(slots)])
        if extra is not None:
            k[..., self.head_dim : self.head_dim + extra.shape[-1]] = extra.detach()
        return k

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All tiles, round after round: out (N, G, W), and the log-sum-exp (N, G) as log Z = lse - offset, float64.

        ``offset`` is the potential of the best key where the bias is formed pair by pair, 0 elsewhere: in one number
        the one would drown the other.
        """
        out = torch.empty_like(q)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=q.device)
        given, found = (q, k, v), (out, lse, torch.zeros_like(lse))
        self.counts = torch.zeros(len(self.plan.queries), dtype=torch.int64)
        self._advance(self.reach.counts(_FIRST).clamp(min=1).minimum(self.reach.lengths()), given, found)
        subtiles = self.plan.subtiles
        size = -lowest_of(-out.norm(dim=-1), subtiles)
        limits = self.certificate.limits(lowest_of(lse - found[2], subtiles), self.counts, size)
        self.short = limits.short
        if limits.short > 0:
            return found
        likely = limits.likely
        if self.problem.certify:
            likely = torch.minimum(likely, limits.needed)
            spared = limits.needed - likely - _SOUNDING * (limits.far - likely)
            spared = spared * self.plan.keys.size * self.plan.queries.count() * q.shape[1]
            likely = torch.where((spared > _WORTH_SOUNDING) & ~self.explicit, likely, limits.needed)
        self._advance(likely, given, found)
        if self.problem.certify:
            self._advance(self._grown(limits, out), given, found)
            wanted = self.counts.clone()
            for tile in (limits.needed > wanted).nonzero()[:, 0].tolist():
                wanted[tile] = self._sound(tile, int(limits.far[tile]), given, found)
            self._advance(wanted, given, found)
            self._advance(self._grown(limits, out), given, found)
        return found

    def _grown(self, limits: Limits, out: Tensor) -> Tensor:
        """What tiles must read (Tq,) whose outputs are larger than the certificate assumed: its bound for any."""
        subtiles = self.plan.subtiles
        grown = (-lowest_of(-out.norm(dim=-1), subtiles) > limits.size).any(-1).cpu()
        tiles = torch.searchsorted(self.plan.queries.start, subtiles.start[:-1], right=True)[grown] - 1
        wanted = self.counts.clone()
        wanted[tiles] = torch.maximum(wanted, limits.needed)[tiles]
        return wanted

    def _advance(self, wanted: Tensor, given: tuple[Tensor, ...], found: tuple[Tensor, Tensor, Tensor]) -> None:
        """Let every tile read its list up to ``wanted`` (Tq,)."""
        reading = wanted > self.counts
        for tile in (reading & self.explicit).nonzero()[:, 0].tolist():
            self._read_pair_by_pair(tile, int(self.counts[tile]), int(wanted[tile]), given, found)
        for tiles in self._alike((reading & ~self.explicit).nonzero()[:, 0], wanted):
            self._read(tiles, self.counts[tiles], wanted[tiles], given, found)
        self.counts = torch.maximum(self.counts, wanted)

    def _alike(self, tiles: Tensor, wanted: Tensor) -> list[Tensor]:
        """Tiles that are small and read about as many keys as one another, and so go through the kernel together."""
        keys = (wanted - self.counts)[tiles] * self.plan.keys.size
        rank = keys.argsort(stable=True)
        tiles, number = tiles[rank], keys[rank].tolist()
        rows, first, groups = self.plan.queries.size, 0, []
        for n in range(1, len(number) + 1):
            apart = n == len(number) or number[n] > max(_ALIKE * number[first], number[first] + self.plan.keys.size)
            if apart or (n + 1 - first) * number[n] * rows > _TOGETHER:
                groups.append(tiles[first:n])
                first = n
        return groups

    def _sound(self, tile: int, far: int, given: tuple[Tensor, ...], found: tuple[Tensor, Tensor, Tensor]) -> int:
        """How much of its list a tile must read, from the masses of all keys between what it has read and ``far``.

        They are added up from the far end on; where they exceed what the tolerance allows, the rest must be read.
        """
        (q, k, _), (out, lse, _) = given, found
        rows, first, begin = self.rows(tile), int(self.counts[tile]), int(self.reach.start[tile])
        listed = self.reach.key_tile[begin : begin + far].long()
        values = self.certificate.keys.value[listed.to(q.device)]  # (T, G)
        largest = self.certificate.values(listed.to(q.device), torch.arange(far, device=q.device) < first)  # V, (G,)
        allowed = (1 - FAR) * self.plan.tolerance / SAFETY * largest
        size = out[rows].norm(dim=-1).T  # |o|, (G, n)
        unit, start = mass_units(q.dtype)
        queries = unit * self.scale * q[rows].transpose(0, 1)  # (G, n, W); its last channel meets a one of the keys
        queries[..., -1] = (start - unit * lse[rows]).T
        left_out = torch.zeros_like(size)
        in_case = torch.zeros_like(size)  # the same if |o| grows to V, should the tile read on
        enough = far
        for last in range(far, first, -_TILES):
            begun = max(first, last - _TILES)
            slots = self.slots(tile, begun, last)
            where_k = self.where_k.index_select(0, slots)
            keys = self.gather_keys(k, slots, self.key_channels(tile, where_k, q.dtype))
            keys[..., -1] = 1.0
            mass = torch.stack([
                torch.cat([mass_from_above(some @ keys[:, g].T) for some in queries[g].split(_ROWS)])
                for g in range(len(queries))
            ])  # fmt: skip
            value = values[begun:last].amax(0)[:, None]
            left_out += mass * (value + size)
            in_case += mass * (value + torch.maximum(largest, values[first:].amax(0))[:, None])
            if bool((left_out > allowed[:, None]).any()):
                return enough
            if bool((in_case <= allowed[:, None]).all()):
                enough = begun
        return first

    def _read(
        self, tiles: Tensor, first: Tensor, stop: Tensor, given: tuple[Tensor, ...], found: tuple[Tensor, ...]
    ) -> None:
        """Let tiles read parts of their lists in one call of the kernel; short ones are filled up with keys at -inf."""
        (q, k, v), (out, lse, _) = given, found
        device, single = q.device, len(tiles) == 1
        if single:
            rows: Any = self.rows(int(tiles))
            slots, padding = self.slots(int(tiles), int(first), int(stop))[None], None
            q_here = q[rows][None]
        else:
            begin, count = self.plan.queries.start[tiles], self.plan.queries.count()[tiles]
            inside = torch.arange(int(count.max()))
            rows = begin[:, None] + inside.minimum(count[:, None] - 1)
            there, rows = (inside < count[:, None]).to(device), rows.to(device)
            slots, padding = self._slots_of_many(tiles, first, stop)
            q_here = q[rows]
        where_k = self.where_k.index_select(0, slots.flatten()) - self.centres[tiles].repeat_interleave(
            slots.shape[1], 0
        )
        extra = self._per_point(self.encoding.key_channels(where_k.to(q.dtype)))
        k_near, v_near = self.gather(k, v, slots.flatten(), extra)
        k_near, v_near = (t.unflatten(0, slots.shape) for t in (k_near, v_near))
        if padding is not None:
            q_here[..., -1] = 1.0
            k_near[..., -1] = torch.where(padding, _NEVER, 0.0)[..., None]
        q_here, k_near, v_near = (t.transpose(1, 2) for t in (q_here, k_near, v_near))
        y, mass = attend(q_here, k_near, v_near, self.scale)
        y, mass = y.transpose(1, 2), mass.double().transpose(1, 2)
        if single:
            y, mass = y[0], mass[0]
        else:
            rows, y, mass = rows[there], y[there], mass[there]
        if int(first[0]) > 0:
            both, mass = join(out[rows].double(), lse[rows], y.double(), mass)
            y = both.to(out.dtype)
        out[rows], lse[rows] = y, mass

    def _slots_of_many(self, tiles: Tensor, first: Tensor, stop: Tensor) -> tuple[Tensor, Tensor]:
        """The slots (B, n) of the keys that tiles read, and where they are filled up with one that is read anyhow."""
        length = stop - first
        owner = torch.repeat_interleave(torch.arange(len(tiles)), length)
        rank = torch.arange(len(owner)) - (length.cumsum(0) - length)[owner]
        keys = self.reach.key_tile[(self.reach.start[tiles] + first)[owner] + rank].long()
        keys = keys[(owner * len(self.plan.keys) + keys).argsort()]  # in the order of memory
        slots = self.plan.keys.slots(keys)
        points = torch.zeros_like(length).index_add_(0, owner, self.plan.keys.count()[keys])
        owner = torch.repeat_interleave(torch.arange(len(tiles)), points)
        ends = points.cumsum(0)
        table = slots[ends - points][:, None].repeat(1, int(points.max()))
        table[owner, torch.arange(len(owner)) - (ends - points)[owner]] = slots
        padding = torch.arange(table.shape[1]) >= points[:, None]
        return table.to(self.where_k.device), padding.to(self.where_k.device)

    def _read_pair_by_pair(
        self, tile: int, first: int, stop: int, given: tuple[Tensor, ...], found: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        """Let a tile read a part of its list, with the bias of each pair formed from its best key on."""
        (q, k, v), (out, lse, offset) = given, found
        rows, slots = self.rows(tile), self.slots(tile, first, stop)
        weight = None if self.weight is None else self.weight.detach()[rows]
        penalty = self.penalty(tile, self.where_q[rows], self.where_k.index_select(0, slots), weight)
        assert penalty is not None
        lowest = penalty.amin(-1)
        bias, best = (lowest[..., None] - penalty).to(q.dtype), torch.zeros_like(lse[rows])
        best = best + lowest.expand(best.shape[1] // self.heads, self.heads, -1).permute(2, 0, 1).flatten(1)
        q_here, k_here, v_here = self.by_head(q[rows], *self.gather(k, v, slots, None))
        y, mass = attend(q_here, k_here, v_here, self.scale, bias)
        y, mass = y.permute(2, 0, 1, 3).flatten(1, 2), mass.double().permute(2, 0, 1).flatten(1)
        if first == 0:
            out[rows], lse[rows], offset[rows] = y, mass, best
            return
        better = torch.minimum(best, offset[rows])  # count both from the better of the two
        mass, lse[rows], offset[rows] = mass + (better - best), lse[rows] + (better - offset[rows]), better
        both, lse[rows] = join(out[rows].double(), lse[rows], y.double(), mass)
        out[rows] = both.to(out.dtype)

    def _per_point(self, channels: Tensor) -> Tensor:
        """(N, C) -> (N, 1, C); per head (H, N, C) -> (N, G, C)."""
        if channels.ndim == 2:
            return channels[:, None]
        return channels.transpose(0, 1).repeat(1, self.where_groups(), 1)

    def where_groups(self) -> int:
        """Batch entries that share their points, and so sit side by side in G."""
        return self.problem.q.shape[0] if self.problem.cloud.one_for_all else 1


class _TiledAttention(torch.autograd.Function):
    """The loop over tiles; the backward pass gathers the keys of each tile again."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, where_q: Tensor, where_k: Tensor, weight: Tensor | None,
        loop: _Loop, *parameters: Tensor,
    ) -> Tensor:  # fmt: skip
        out, lse, offset = loop.run(q, k, v)
        ctx.save_for_backward(q, k, v, where_q, where_k, weight, out, lse, offset)
        ctx.loop, ctx.parameters = loop, parameters
        return out

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
        saved = ctx.saved_tensors
        q, k, v, where_q, where_k, weight = saved[:6]
        loop: _Loop = ctx.loop
        needs = ctx.needs_input_grad
        grads: list[Tensor | None] = [torch.zeros_like(t) for t in (q, k, v)]
        sums = _Sums(
            [p for p, needed in zip(ctx.parameters, needs[7:], strict=True) if needed],
            torch.zeros_like(where_q) if needs[3] else None,
            torch.zeros_like(where_k) if needs[4] else None,
            torch.zeros_like(weight) if needs[5] and weight is not None else None,
        )
        with torch.no_grad():
            for tile, count in enumerate(loop.counts.tolist()):
                _tile_backward(loop, tile, count, grad, saved, grads, sums)
        learned = iter(sums.of_parameters)
        to_parameters = [next(learned) if needed else None for needed in needs[7:]]
        return *grads, sums.where_q, sums.where_k, sums.weight, None, *to_parameters


@dataclass
class _Sums:
    """Gradients that are summed up tile by tile, where they are asked for."""

    parameters: list[Tensor]
    where_q: Tensor | None
    where_k: Tensor | None
    weight: Tensor | None

    def __post_init__(self) -> None:
        self.of_parameters = [torch.zeros_like(p) for p in self.parameters]

    def wanted(self) -> bool:
        return bool(self.parameters) or any(t is not None for t in (self.where_q, self.where_k, self.weight))

    def add(self, result: Tensor, slope: Tensor, rows: slice, slots: Tensor, leaves: list[Tensor | None]) -> None:
        """Carry the gradient ``slope`` of a result back to the parameters and to a tile's positions and weights."""
        asked = [leaf for leaf in leaves if leaf is not None]
        if not result.requires_grad or not (asked or self.parameters):
            return
        found = list(torch.autograd.grad(result, [*self.parameters, *asked], slope, allow_unused=True))
        for total, part in zip(self.of_parameters, found, strict=False):
            total += 0 if part is None else part
        rest = iter(found[len(self.parameters) :])
        at_q, at_k, at_weight = (None if leaf is None else next(rest) for leaf in leaves)
        if self.where_q is not None and at_q is not None:
            self.where_q[rows] += at_q
        if self.where_k is not None and at_k is not None:
            self.where_k.index_add_(0, slots, at_k)
        if self.weight is not None and at_weight is not None:
            self.weight[rows] += at_weight


def _tile_backward(loop: _Loop, tile: int, count: int, grad: Tensor, saved: tuple, grads: list, sums: _Sums) -> None:
    """Add what one tile contributes to all gradients."""
    q, k, v, where_q, where_k, weight, out, lse, offset = saved
    rows, slots = loop.rows(tile), loop.slots(tile, 0, count)
    near_k = where_k.index_select(0, slots)
    leaf_q = where_q[rows].detach().requires_grad_() if sums.where_q is not None else None
    leaf_k = near_k.detach().requires_grad_() if sums.where_k is not None else None
    leaf_w = weight[rows].detach().requires_grad_() if sums.weight is not None else None
    with torch.enable_grad() if sums.wanted() else torch.no_grad():
        extra = loop.key_channels(tile, near_k if leaf_k is None else leaf_k, q.dtype)
        penalty = loop.penalty(
            tile,
            where_q[rows] if leaf_q is None else leaf_q,
            near_k if leaf_k is None else leaf_k,
            None if weight is None else weight[rows] if leaf_w is None else leaf_w,
        )
    k_near, v_near = loop.gather(k, v, slots, extra)
    near = loop.by_head(grad[rows], q[rows], k_near, v_near, out[rows])
    mass = lse[rows].unflatten(1, (-1, loop.heads)).permute(1, 2, 0)
    if penalty is None:
        slopes = attend_backward(*near, mass.to(q.dtype).contiguous(), loop.scale)  # type: ignore[call-arg, arg-type]
    else:
        best = offset[rows].unflatten(1, (-1, loop.heads)).permute(1, 2, 0)
        bias = (best[..., None] - penalty.detach()).to(q.dtype)
        shares, slope = logit_gradient(*near, mass.to(q.dtype), loop.scale, bias)  # type: ignore[call-arg, arg-type]
        slopes = (loop.scale * (slope @ near[2]), loop.scale * (slope.mT @ near[1]), shares.mT @ near[0])
        sums.add(penalty, -slope.double().sum_to_size(penalty.shape), rows, slots, [leaf_q, leaf_k, leaf_w])
    to_q, to_k, to_v = (t.permute(2, 0, 1, 3).flatten(1, 2) for t in slopes)
    if extra is not None:
        to_extra = to_k[..., loop.head_dim : loop.head_dim + extra.shape[-1]].sum_to_size(extra.shape)
        sums.add(extra, to_extra, rows, slots, [None, leaf_k, None])
    grads[0][rows] = to_q
    grads[1].index_add_(0, slots, to_k)
    grads[2].index_add_(0, slots, to_v)
