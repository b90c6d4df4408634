"""Attention over points that are spread over the members of a group, equal to attention over all of them in one.

Each member holds some queries and some keys. Once per cloud everybody tells the others the boxes of its queries; by the
plan's own search each finds which of its keys are in reach of whose queries, and sends their positions there. Per layer
one exchange brings those keys and values (gradients take the same way back), and the tiled backend serves the queries
at hand with the keys at hand and those received: *nothing else is new*. Tiles whose lists hold none of the received
keys are served while these are under way.

*The tolerance holds across the cuts.* What a member does not send is, to the receiver, a branch that its plan dropped:
the sender's search bounds its mass sum n exp(-Phi) for each box of queries, and the certificate
(:mod:`farfield.attention.certificate`) takes it with the largest |k| and |v| of the whole group, which the members
agree on in every layer. If that is not enough for some tile anywhere, all of them exchange more keys and try again.

Points of a periodic domain are sent as the images that the receiver sees. A member without points takes part and gets
nothing; one whose keys are far from all queries sends none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from farfield.attention.cloud import Cloud, OfOneCloud, rising_reach, seen_keys
from farfield.attention.encoding import Encoding
from farfield.attention.group import Group
from farfield.attention.plan import AttentionPlan, _search, plan_cloud, typical_reach
from farfield.attention.tiles import Tiles, Tree, build_tiles

# Lists reach this much further (in Phi) than layers with ordinary logits read, as those of a single process.
_RESERVE = 16.0
# Queries per box that the others are told: smaller ones are reached by fewer keys.
_BOX = 256
_KEYS_PER_TILE = 64

# Fewer received keys than this share of those at hand arrive sooner than tiles are told apart for them.
_WORTH_OVERLAP = 0.02

Attend = Callable[[Tensor, Tensor, Tensor, AttentionPlan], Tensor]


class _MoreKeys(Exception):
    """The keys received so far do not suffice for the tolerance; ``limit`` (in Phi) should."""

    def __init__(self, limit: float):
        self.limit = limit


@dataclass
class _Part(AttentionPlan):
    """The plan of the queries at hand. Longer lists need keys of the others, who must hear of it."""

    def wider(self, limit: float, encoding: Encoding) -> AttentionPlan:
        raise _MoreKeys(limit)


@dataclass(frozen=True)
class _Queries:
    """What a member tells the others of its queries: boxes in the encoding's basis, and the corners of all of them."""

    boxes: Tiles | None  # None: it has no queries
    corners: Tensor  # (2^P, P), in the coordinates of positions


class _Exchange(torch.autograd.Function):
    """Rows to other members; their gradients come back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, group: Group, send: list[int], receive: list[int], finish: list[Callable[[], None]]
    ) -> Tensor:
        ctx.group, ctx.send, ctx.receive = group, send, receive
        out, wait = group.begin_exchange(rows, send, receive)
        finish.append(wait)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        rows = grad.clone(memory_format=torch.contiguous_format)  # what a sum hands back has no strides to send
        return ctx.group.exchange(rows, ctx.receive, ctx.send), None, None, None, None


def exchange(rows: Tensor, group: Group, send: Sequence[int], receive: Sequence[int]) -> Tensor:
    """:meth:`Group.exchange`, with gradients."""
    out, finish = begin_exchange(rows, group, send, receive)
    finish()
    return out


def begin_exchange(
    rows: Tensor, group: Group, send: Sequence[int], receive: Sequence[int]
) -> tuple[Tensor, Callable[[], None]]:
    """:meth:`Group.begin_exchange`, with gradients (whose own exchange is not overlapped with anything)."""
    finish: list[Callable[[], None]] = []
    return _Exchange.apply(rows, group, list(send), list(receive), finish), lambda: finish[0]()


class ShardedPlan(OfOneCloud):
    """What attention needs to know about points that are spread over a group; used by all layers and steps.

    All members make it together: it is a conversation. ``cloud`` holds the points at hand.
    """

    backend = "tiled"
    reason = "the points are spread over a group"

    def __init__(self, group: Group, cloud: Cloud, encoding: Encoding, tolerance: float):
        if not encoding.local:
            raise ValueError(
                f"{type(encoding).__name__} alone is not local: every point needs the keys of all others, so that a "
                "domain cannot be cut. Take a model with LASPE or LAAPE (they rotate, too), or a single process"
            )
        if not cloud.one_for_all or cloud.lengths is not None or cloud.key_mask is not None:
            raise ValueError(
                "points spread over a group are one cloud (N, P) for the whole batch, without masks and lengths: give "
                "each batch entry its own call"
            )
        if cloud.query_positions.requires_grad or cloud.key_positions.requires_grad:
            raise ValueError("positions spread over a group have no gradients: detach them, or use a single process")
        self.group, self.cloud, self.encoding, self.tolerance = group, cloud, encoding, tolerance
        self.identity = encoding.identity()
        period = None if cloud.period is None else cloud.period.tolist()
        group.agree("encoding, tolerance, period and device", (self.identity, tolerance, period, self._device()))
        counts = group.gather((cloud.own, cloud.query_positions.shape[0], cloud.key_positions.shape[0]))
        self._own = all(own for own, _, _ in counts)  # whether every query is a key too, at its own place
        if any(queries for _, queries, _ in counts) and not any(keys for _, _, keys in counts):
            raise ValueError("attention needs at least one key, the group has none")
        self._signature: tuple | None = None
        with torch.no_grad():
            self._build(typical_reach(tolerance) + _RESERVE)

    def _device(self) -> str:
        return self.cloud.query_positions.device.type

    @property
    def received(self) -> int:
        """Keys of other members that come here in every layer."""
        return sum(self._receive)

    @property
    def sent(self) -> int:
        return sum(self._send)

    # --- who needs what ------------------------------------------------------------------------------------------
    def _build(self, limit: float) -> None:
        """Find and exchange the positions of all keys with Phi up to ``limit`` above the best; plan the local tiles."""
        self.limit = limit
        group, encoding = self.group, self.encoding
        widest = encoding.select(None, widest=True)
        heads: Sequence[list[int] | None] = encoding.head_groups() or [None]
        kernels = [widest if some is None else widest.select(some[:1], widest=True) for some in heads]
        metric = rising_reach(widest, self.cloud.space_dim, 1.0)
        everyone: list[_Queries] = group.gather(self._my_queries(widest, metric))
        offers = [self._offer(theirs, widest, metric, limit) for theirs in everyone]
        best = self._best(everyone, offers, kernels)
        slack = self.cloud.space_dim / 2 if encoding.learns_lengths() else 0.0
        index, shift, unsent = [], [], []
        for rank, (theirs, offer) in enumerate(zip(everyone, offers, strict=True)):
            boxes = 0 if theirs.boxes is None else len(theirs.boxes)
            lost = torch.full((boxes, 2 * len(kernels)), -torch.inf, dtype=torch.float64)  # log number, log mass
            chosen = torch.zeros(0, dtype=torch.int64)
            if offer is not None and rank == group.rank:  # one's own are all at hand
                chosen = torch.arange(len(offer.index))
                lost[:, 1::2] = float(np.log(offer.missing)) if offer.missing else -torch.inf
            elif offer is not None and theirs.boxes is not None:
                searched = (theirs.boxes, offer.tree)
                reaches = [
                    _search(*searched, kernel, None, self._own, limit, slack, [offer.missing], best[rank][i])
                    for i, kernel in enumerate(kernels)
                ]
                tiles = torch.cat([reach.key_tile for reach in reaches]).long().unique()
                chosen = offer.keys.order[offer.keys.slots(tiles)].sort().values
                lost = torch.stack([t for r in reaches for t in (r.unlisted.log(), r.unlisted_mass)], dim=1)
            index.append(chosen if offer is None else offer.index[chosen])
            shift.append(None if offer is None or offer.shift is None else offer.shift[chosen])
            unsent.append(lost)
        self._exchange_keys(index, shift)
        mine = everyone[group.rank].boxes
        self._plan_local(limit, mine, self._unsent(unsent, mine), best[group.rank])

    def _my_queries(self, widest: Encoding, metric: Tensor) -> _Queries:
        where = self.cloud.query_positions.detach().cpu().double()
        if len(where) == 0:
            return _Queries(None, where)
        (boxes,), _ = build_tiles(widest.coordinates(where), (_BOX,), metric)
        sides = torch.stack([where.amin(0), where.amax(0)], dim=1)
        return _Queries(boxes, torch.cartesian_prod(*sides).reshape(-1, self.cloud.space_dim))

    def _offer(self, theirs: _Queries, widest: Encoding, metric: Tensor, limit: float) -> _Offer | None:
        """The keys at hand as somebody's queries see them, in a tree to be searched."""
        keys = self.cloud.key_positions.detach().cpu().double()
        if theirs.boxes is None or len(keys) == 0:
            return None
        if self.cloud.period is None and self._plain_offer is not None:
            return self._plain_offer
        seen = seen_keys(Cloud(theirs.corners, keys, self.cloud.period), self.encoding, limit)
        if len(seen.index) == 0:
            return None
        (tiles,), tree = build_tiles(widest.coordinates(seen.positions(keys)), (_KEYS_PER_TILE,), metric)
        offer = _Offer(seen.index, seen.shift, tiles, tree, seen.missing[0])
        if self.cloud.period is None:
            self._plain_offer = offer
        return offer

    _plain_offer: _Offer | None = None

    def _best(
        self, everyone: list[_Queries], offers: list[_Offer | None], kernels: list[Encoding]
    ) -> list[list[np.ndarray]]:
        """By member and kernel, the largest potential that a query of each box can have to its best key anywhere."""
        here = torch.zeros(self.cloud.space_dim, dtype=torch.float64)
        mine = []
        for theirs, offer in zip(everyone, offers, strict=True):
            boxes = 0 if theirs.boxes is None else len(theirs.boxes)
            if self._own:  # a query is at hand for itself
                bounds = [np.full(boxes, float(kernel.penalty(here).reshape(-1)[0])) for kernel in kernels]
            elif offer is None or theirs.boxes is None:
                bounds = [np.full(boxes, np.inf)] * len(kernels)
            else:
                args = (theirs.boxes, offer.tree)
                bounds = [_search(*args, kernel, None, False, 0.0, 0.0, None).best.numpy() for kernel in kernels]
            mine.append(bounds)
        if self._own:
            return mine
        of_all = self.group.gather(mine)
        return [
            [np.min([bounds[rank][i] for bounds in of_all], axis=0) for i in range(len(kernels))]
            for rank in range(self.group.size)
        ]

    def _exchange_keys(self, index: list[Tensor], shift: list[Tensor | None]) -> None:
        """Settle which rows go where, and send their positions, as they are seen there."""
        group, device = self.group, self.cloud.key_positions.device
        keys = self.cloud.key_positions.detach().cpu().double()
        places = [keys[i] if s is None else keys[i] + s for i, s in zip(index, shift, strict=True)]
        own, own_place = index[group.rank], places[group.rank]
        index[group.rank], places[group.rank] = own[:0], own_place[:0]
        whole = len(own) == len(keys) and bool((own == torch.arange(len(keys))).all())
        self._own_rows = None if whole else own.to(device)
        self._send_rows, self._send = torch.cat(index).to(device), [len(i) for i in index]
        self._receive = [counts[group.rank] for counts in group.gather(self._send)]
        received = group.exchange(torch.cat(places), self._send, self._receive)
        self._key_places = torch.cat([own_place, received]).to(device)

    def _unsent(self, unsent: list[Tensor], mine: Tiles | None) -> Tensor:
        """What nobody sends to the boxes at hand, (boxes, 2 kernels): the log of numbers and of masses."""
        boxes = 0 if mine is None else len(mine)
        told = self.group.exchange(torch.cat(unsent), [len(t) for t in unsent], [boxes] * self.group.size)
        return told.unflatten(0, (self.group.size, boxes)).logsumexp(0)

    def _plan_local(self, limit: float, mine: Tiles | None, unsent: Tensor, best: list[np.ndarray]) -> None:
        self._stages: list[_Stage] = []
        if mine is None:
            return
        queries = self.cloud.query_positions.detach()
        cloud = Cloud(queries, self._key_places)
        cloud.own = self._own
        plan = plan_cloud(cloud, self.encoding, self.tolerance, reserve=limit - typical_reach(self.tolerance))
        part = _Part(**{f.name: getattr(plan, f.name) for f in fields(AttentionPlan) if f.init})
        if self.group.in_turn:
            part.at_once = 0
        self._others = bool((unsent[:, 0::2] > -torch.inf).any())  # whether anybody keeps keys to himself
        box = torch.empty(len(queries), dtype=torch.int64)
        box[mine.order] = torch.repeat_interleave(torch.arange(len(mine)), mine.count())
        tiles = part.queries
        owner = torch.repeat_interleave(torch.arange(len(tiles)), tiles.count())
        box = box[tiles.order]
        for i, reach in enumerate(part.reaches):
            number, mass = (_largest(unsent[:, 2 * i + j][box], owner, len(tiles)) for j in (0, 1))
            reach.unlisted = reach.unlisted + number.exp()
            reach.unlisted_mass = torch.logaddexp(reach.unlisted_mass, mass)
            # what was not sent lies beyond `limit` from the best key that anybody knew
            edge = -_largest(-torch.from_numpy(best[i])[box], owner, len(tiles)) + limit
            reach.limit = torch.minimum(reach.limit, edge - reach.best)
        at_hand = len(self._key_places) - self.received
        self._stages = [_whole(part)]
        if self.group.overlaps and self.received > _WORTH_OVERLAP * at_hand:
            self._stages = _stages(part, at_hand)

    # --- attention itself ----------------------------------------------------------------------------------------
    def attend(self, q: Tensor, k: Tensor, v: Tensor, here: Attend) -> Tensor:
        """(B, H, Nq, Dv) of the queries at hand; ``here(q, k, v, plan)`` is the tiled backend on the keys in reach."""
        self.group.set_aside(q, k, v)
        signature = (q.dtype, q.device.type, *q.shape[:2], q.shape[-1], v.shape[-1])
        if signature != self._signature:
            self.group.agree("dtype, device, batch, heads and widths of q, k, v", tuple(map(str, signature)))
            self._signature = signature
        largest = self.group.maximum(torch.stack([_longest(k), _longest(v)]))
        while True:
            out, wanted = self._served(q, k, v, here, largest)
            if out is not None:
                self.group.set_aside(out)
            wanted = float(self.group.maximum(torch.tensor([wanted], dtype=torch.float64, device=q.device)))
            if wanted == 0 and out is not None:
                return out
            del out
            with torch.no_grad():
                self._build(wanted)

    def _served(self, q: Tensor, k: Tensor, v: Tensor, here: Attend, largest: Tensor) -> tuple[Tensor | None, float]:
        """What :meth:`attend` returns, and 0; or None, and up to where (in Phi) keys must be exchanged for it."""
        rows = torch.cat([k[:, :, self._send_rows], v[:, :, self._send_rows]], dim=-1).permute(2, 0, 1, 3).flatten(1)
        received, arrive = begin_exchange(rows, self.group, self._send, self._receive)
        if not self._stages:  # no queries; but the gradients of the keys sent must find their way back
            arrive()
            return q.new_zeros((*q.shape[:3], v.shape[-1])) + 0 * sum(t.sum() for t in (q, k, v, received)), 0.0
        out, wanted = None, 0.0
        for stage in self._stages:
            if stage.received is not None:
                arrive()
            # of keys that others hold, or that a stage does without, a plan knows this only
            stage.plan.elsewhere = largest if self._others or len(self._stages) > 1 else None
            try:
                found = here(q, *self._keys_of(stage, k, v, received), stage.plan)
                out = found if out is None else out + found  # each has zeros where the other has queries
            except _MoreKeys as more:
                wanted = max(wanted, more.limit, self.limit + 1.0)
        return (None, wanted) if wanted > 0 else (out, 0.0)

    def _keys_of(self, stage: _Stage, k: Tensor, v: Tensor, received: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, M, *) of a stage: those at hand, then those received, in rows."""
        rows = self._own_rows
        if stage.near is not None:
            rows = stage.near if rows is None else rows[stage.near]
        near = (k, v) if rows is None else (k[:, :, rows], v[:, :, rows])
        if stage.received is None or self.group.size == 1:
            return near
        far = received[stage.received].unflatten(1, (*k.shape[:2], -1)).permute(1, 2, 0, 3)
        far_k, far_v = far.split([k.shape[-1], v.shape[-1]], dim=-1)
        return torch.cat([near[0], far_k], dim=2), torch.cat([near[1], far_v], dim=2)


@dataclass(frozen=True)
class _Stage:
    """Queries that are served together, and the keys that they may need: copies of all would cost much memory."""

    plan: _Part
    near: Tensor | None  # which of the keys at hand; None for all
    received: Tensor | slice | None  # which of those received; None for those that need not wait for them


def _stages(part: _Part, at_hand: int) -> list[_Stage]:
    """First the tiles that list keys at hand only (those before ``at_hand``), then the others."""
    keys = part.keys
    tile = torch.repeat_interleave(torch.arange(len(keys)), keys.count())
    foreign = torch.zeros(len(keys), dtype=torch.int64).index_add_(0, tile, (keys.order >= at_hand).long()) > 0
    needs = torch.zeros(len(part.queries), dtype=torch.bool)
    for reach in part.reaches:
        owner = torch.repeat_interleave(torch.arange(len(part.queries)), reach.lengths())
        needs[owner[foreign[reach.key_tile.long()]]] = True
    if needs.all() or not needs.any():
        return [_whole(part)]
    places, device = part.cloud.key_positions, part.cloud.key_positions.device
    plans = []
    for tiles in (~needs, needs):
        queries, plan = part.only(tiles.nonzero()[:, 0])
        # the queries stay where they are among all
        plan = replace(plan, cloud=part.cloud, queries=replace(plan.queries, order=queries))
        plans.append(plan.with_listed_keys())
    first, last = plans
    first.cloud = replace(first.cloud, key_positions=places[:at_hand])
    listed, order = last.keys.order.unique(return_inverse=True)
    last.keys = replace(last.keys, order=order)
    last.seen = replace(last.seen, index=torch.arange(len(listed)), counts=[len(listed)])
    last.cloud = replace(last.cloud, key_positions=places[listed.to(device)])
    near, far = listed[listed < at_hand].to(device), (listed[listed >= at_hand] - at_hand).to(device)
    return [_Stage(first, None, None), _Stage(last, near, far)]


def _whole(part: _Part) -> _Stage:
    """All queries at once, with all keys."""
    return _Stage(part, None, slice(None))


@dataclass(frozen=True)
class _Offer:
    """Keys as they are seen from somewhere: rows at hand, shifts of images, tiles and their tree."""

    index: Tensor
    shift: Tensor | None
    keys: Tiles
    tree: Tree
    missing: float  # a bound on the mass of images that are not among them


def _largest(values: Tensor, owner: Tensor, count: int) -> Tensor:
    return torch.full((count,), -torch.inf, dtype=values.dtype).scatter_reduce_(0, owner, values, "amax")


@torch.no_grad()
def _longest(x: Tensor) -> Tensor:
    """The largest |x| of each batch entry and head (B, H), rounded up."""
    if x.shape[2] == 0:
        return x.new_zeros(x.shape[:2], dtype=torch.float32)
    return torch.linalg.vector_norm(x.float(), dim=-1).nan_to_num(0, 0).amax(-1) * (1 + 1e-6)
