"""Which keys can matter to which queries: the plan of the sparse backends.

Points are put into compact tiles of equal size by splitting the cloud along its widest axis, measured in decay lengths,
again and again (a kd-tree whose leaves are the tiles). A key of tile J weighs at most exp(-Phi_IJ) on a query of
tile I, where Phi_IJ is the smallest potential between their bounding boxes; it is exact and cheap, because Phi is a sum
of convex functions of one axis each. For every query tile the plan lists key tiles in rising order of Phi_IJ, and
keeps a bound on what all others together weigh. How far down its list a tile reads is for each layer to say, when
queries and keys are known (:mod:`farfield.attention.certificate`).

The list is found by descending the key tree for all query tiles at once and dropping branches that are too far:
work and memory grow with the number of tile pairs in reach, never with all pairs of tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from farfield.attention.cloud import Cloud, OfOneCloud, SeenKeys, box_potential, rising_reach, seen_keys
from farfield.attention.encoding import Encoding
from farfield.attention.tiles import Tiles, Tree, build_tiles

# Points per tile: queries take the coarsest that pays (see _best_size), keys the finest. What a pair costs with each,
# relative to dense attention, was measured: fused kernels work on blocks of 256 queries if they get 768 or more, and
# the keys of a tile are gathered once for all of its queries.
_QUERY_COST = {1024: 1.1, 256: 1.3, 64: 1.9}
FINEST = 64
# Work that each tile costs whatever its size, in pairs.
_PER_TILE = 15_000
# So much further than the tolerance alone asks do layers read (in Phi) whose queries and keys have entries of size one:
# what the bound on their logits costs.
_TYPICAL_LOGITS = 5.0
# Lists reach this much further still, so that most layers need no longer ones.
_RESERVE = 16.0
# So many query tiles descend the key tree at a time, which bounds the memory of the search.
_TILES_AT_A_TIME = 2048
# FlexAttention works on blocks of this many queries and keys.
FLEX_BLOCK = 128


@dataclass
class Reach:
    """Key tiles of each query tile, in rising order of their smallest potential, for heads that share lengths."""

    heads: list[int] | None  # None: all heads
    start: Tensor  # (Tq + 1,) where each query tile's list begins
    key_tile: Tensor  # (pairs,) int32
    potential: Tensor  # (pairs,) float32, smallest Phi between the boxes, from the best key in reach
    best: Tensor  # (Tq,) float64: the largest potential that a query of the tile can have to its best key
    limit: Tensor  # (Tq,) float64: lists are complete up to this potential
    unlisted: Tensor  # (Tq,) float64: how many keys of the cloud are not listed
    unlisted_mass: Tensor  # (Tq,) float64: log of a bound on the sum of their exp(-Phi)

    def counts(self, potential: float) -> Tensor:
        """How many key tiles of each query tile have at most this potential."""
        inside = (self.potential <= potential).long()
        total = torch.cat([torch.zeros(1, dtype=torch.int64), inside.cumsum(0)])
        return total[self.start].diff()

    def lengths(self) -> Tensor:
        """Length of each query tile's list."""
        return self.start.diff()


@dataclass
class AttentionPlan(OfOneCloud):
    """What a sparse backend needs to know about the points; built once per cloud, used by all layers and steps."""

    cloud: Cloud
    queries: Tiles  # over the flat queries, see Cloud.flat
    subtiles: Tiles  # finer ones in the same order, of which the queries' tiles are runs
    seen: SeenKeys
    keys: Tiles  # over the keys as they are seen
    reaches: list[Reach]
    origin: Tensor  # (P,) float64
    tolerance: float
    identity: tuple  # of the encoding
    backend: str = "tiled"
    reason: str = "a plan was given"
    pairs_read: float = 0.0  # query-key pairs that the last tiled call has computed, averaged over its heads
    pairs_sounded: float = 0.0  # and those whose logits it has only added up
    elsewhere: Tensor | None = None  # (2, B, H), largest |k| and |v| of all, where other processes hold further keys
    at_once: int = 1 << 27  # without gradients, heads are served one by one beyond so many numbers of q: less memory
    _wider: AttentionPlan | None = field(default=None, repr=False)

    def pairs(self) -> int:
        """Query-key pairs that layers with ordinary logits compute, averaged over the head groups."""
        total, heads = 0.0, 0
        keys = self.keys.count().double()
        for reach in self.reaches:
            weight = 1 if reach.heads is None else len(reach.heads)
            total += weight * float((self.queries.count() * self._keys_read(reach, keys)).sum())
            heads += weight
        return round(total / heads)

    def _keys_read(self, reach: Reach, keys: Tensor) -> Tensor:
        inside = keys[reach.key_tile.long()] * (reach.potential <= typical_reach(self.tolerance))
        total = torch.cat([torch.zeros(1, dtype=torch.float64), inside.cumsum(0)])
        return total[reach.start].diff()

    def cost(self, groups: int) -> float:
        """What attention of so many heads is expected to cost, in pairs of one head."""
        per_pair = _QUERY_COST.get(self.queries.size, 1.3)
        return groups * per_pair * self.pairs() + _PER_TILE * len(self.queries) * len(self.reaches)

    def keys_per_query(self) -> float:
        """Mean number of keys that a query reads."""
        return self.pairs() / max(1, len(self.queries.order))

    def density(self) -> float:
        """Computed pairs over all pairs: the predicted cost relative to dense attention."""
        return self.keys_per_query() / max(1, len(self.keys.order))

    def __str__(self) -> str:
        return (
            f"{len(self.queries.order)} queries in {len(self.queries)} tiles of {self.queries.size}, "
            f"{len(self.keys.order)} keys in {len(self.keys)} tiles of {self.keys.size}, tolerance {self.tolerance:g}: "
            f"{self.keys_per_query():.0f} keys per query, {100 * self.density():.2g} % of all pairs"
        )

    def widest(self) -> AttentionPlan:
        """The plan with the longest lists that any layer has asked for: the next one will ask for them too."""
        return self if self._wider is None else self._wider.widest()

    def wider(self, limit: float, encoding: Encoding) -> AttentionPlan:
        """The same plan with lists, and images of periodic keys, complete up to ``limit``; kept for the next layer."""
        if self._wider is None or float(min(r.limit.min() for r in self._wider.reaches)) < limit:
            self._wider = _planned(self.cloud, encoding, self.tolerance, (self.queries.size,), self.keys.size, limit)
        return self._wider

    def only(self, tiles: Tensor) -> tuple[Tensor, Self]:
        """Some query tiles of a plan for one cloud: which queries they hold, and the plan for just these."""
        chosen = self.queries.order[self.queries.slots(tiles)]
        inside = torch.isin(torch.searchsorted(self.queries.start, self.subtiles.start[:-1], right=True) - 1, tiles)
        reaches = []
        for reach in self.reaches:
            listed = torch.cat([torch.arange(int(reach.start[t]), int(reach.start[t + 1])) for t in tiles.tolist()])
            start = torch.cat([torch.zeros(1, dtype=torch.int64), reach.lengths()[tiles].cumsum(0)])
            per_tile = (reach.best, reach.limit, reach.unlisted, reach.unlisted_mass)
            lists = (start, reach.key_tile[listed], reach.potential[listed], *(t[tiles] for t in per_tile))
            reaches.append(Reach(reach.heads, *lists))
        cloud = replace(self.cloud, query_positions=self.cloud.query_positions[chosen])
        queries, subtiles = _some(self.queries, tiles), _some(self.subtiles, inside.nonzero()[:, 0])
        return chosen, replace(self, cloud=cloud, queries=queries, subtiles=subtiles, reaches=reaches, _wider=None)

    def with_listed_keys(self) -> Self:
        """The same without the keys that no tile lists: what is not read need not be prepared."""
        listed = torch.cat([reach.key_tile for reach in self.reaches]).long().unique()
        number = torch.full((len(self.keys),), -1, dtype=torch.int32)
        number[listed] = torch.arange(len(listed), dtype=torch.int32)
        keys = replace(_some(self.keys, listed), order=self.keys.order[self.keys.slots(listed)])
        reaches = [replace(reach, key_tile=number[reach.key_tile.long()]) for reach in self.reaches]
        return replace(self, keys=keys, reaches=reaches, _wider=None)


def _some(tiles: Tiles, which: Tensor) -> Tiles:
    start = torch.cat([torch.zeros(1, dtype=torch.int64), tiles.count()[which].cumsum(0)])
    return Tiles(
        torch.arange(int(start[-1])), tiles.size, start, tiles.low[which], tiles.high[which], tiles.cloud[which]
    )


def typical_reach(tolerance: float) -> float:
    """How far down its list (in Phi) a tile reads in layers with ordinary logits."""
    return -math.log(tolerance / 2) + _TYPICAL_LOGITS


def plan_cloud(
    cloud: Cloud,
    encoding: Encoding,
    tolerance: float,
    query_tile: int | None = None,
    key_tile: int | None = None,
    reserve: float = _RESERVE,
    backend: str = "tiled",
) -> AttentionPlan:
    """Build the plan of a cloud whose positions and limits have been checked; flex wants tiles of its own size."""
    if backend == "flex":
        query_tile, key_tile = query_tile or FLEX_BLOCK, key_tile or FLEX_BLOCK
    sizes = tuple(_QUERY_COST) if query_tile is None else (query_tile,)
    plan = _planned(cloud, encoding, tolerance, sizes, key_tile or FINEST, typical_reach(tolerance) + reserve)
    plan.backend = backend
    return plan


@torch.no_grad()
def _planned(
    cloud: Cloud, encoding: Encoding, tolerance: float, sizes: tuple[int, ...], key_tile: int, limit: float
) -> AttentionPlan:
    widest = encoding.select(None, widest=True)
    seen = seen_keys(cloud, encoding, limit)
    if not all(queries == 0 or keys > 0 for queries, keys in zip(cloud.query_counts(), seen.counts, strict=True)):
        raise ValueError(
            "key_mask (or key_lengths) leaves some queries no key at all: allow at least one key per cloud, or take "
            "empty='zero', which gives such queries zeros"
        )
    flat_q, flat_k = (cloud.flat(p).detach().cpu() for p in (cloud.query_positions, cloud.key_positions))
    where_k = seen.positions(flat_k)
    origin = where_k.amin(0) + (where_k.amax(0) - where_k.amin(0)) / 2
    where_q, where_k = (widest.coordinates(p.double() - origin) for p in (flat_q, where_k))
    metric = rising_reach(widest, where_q.shape[1], 1.0)
    clouds = [n for n in cloud.query_counts() if n]
    key_counts = [k for n, k in zip(cloud.query_counts(), seen.counts, strict=True) if n]
    if len(key_counts) < len(seen.counts):  # nobody reads the keys of a cloud without queries
        used = torch.repeat_interleave(torch.tensor(cloud.query_counts()) > 0, torch.tensor(seen.counts))
        seen = SeenKeys(seen.index[used], None if seen.shift is None else seen.shift[used], key_counts, seen.missing)
        where_k = where_k[used]
    finest = FINEST if sizes[-1] % FINEST == 0 else sizes[-1]
    tilings, tree = build_tiles(where_q, tuple(dict.fromkeys((*sizes, finest))), metric, clouds)
    keys = tilings[-1]
    if not (cloud.own and cloud.period is None and key_tile == finest and len(flat_k) == len(flat_q)):
        (keys,), tree = build_tiles(where_k, (key_tile,), metric, key_counts)
    groups: Sequence[list[int] | None] = encoding.head_groups() or [None]
    kernels = [widest if group is None else widest.select(group[:1], widest=True) for group in groups]
    queries = _best_size(tilings[: len(sizes)], keys, tree, kernels, cloud.own, tolerance)
    # shorter lengths than the widest lower Phi nowhere by more than this (the far exponential of LAAPE vanishes)
    slack = cloud.space_dim / 2 if encoding.learns_lengths() else 0.0
    missing = [lost for n, lost in zip(cloud.query_counts(), seen.missing, strict=False) if n]
    reaches = [
        _search(queries, tree, kernel, group, cloud.own, limit, slack, missing)
        for kernel, group in zip(kernels, groups, strict=True)
    ]
    return AttentionPlan(cloud, queries, tilings[-1], seen, keys, reaches, origin, tolerance, encoding.identity())


def _best_size(
    tilings: list[Tiles], keys: Tiles, tree: Tree, kernels: list[Encoding], own: bool, tolerance: float
) -> Tiles:
    """The tiling of the queries with the smallest predicted cost, judged by some tiles of each."""
    if len(tilings) == 1:
        return tilings[0]
    reach = typical_reach(tolerance)

    def cost(tiles: Tiles) -> float:
        some = torch.linspace(0, len(tiles) - 1, min(len(tiles), 32)).long()
        sample = Tiles(tiles.order, tiles.size, tiles.start, tiles.low[some], tiles.high[some], tiles.cloud[some])
        mean_keys = 0.0
        for kernel in kernels:
            lists = _search(sample, tree, kernel, None, own, reach, 0.0, None)
            mean_keys += float((lists.counts(reach) * tiles.count()[some]).sum() / tiles.count()[some].sum())
        mean_size = float(tiles.count().double().mean())
        return _QUERY_COST[tiles.size] * mean_keys * keys.size + _PER_TILE / mean_size

    return min(tilings, key=cost)


def _search(
    queries: Tiles,
    tree: Tree,
    encoding: Encoding,
    heads: list[int] | None,
    own: bool,
    limit: float,
    slack: float,
    missing: list[float] | None,
    best_known: np.ndarray | None = None,
) -> Reach:
    """List, for every query tile, the key tiles that can matter to any of its queries.

    Phi counts from ``best``, which no query's best key exceeds: in self-attention a query is at hand for itself,
    otherwise it is the smallest of the largest potentials between the boxes. What is not listed is summed up, branch by
    branch, and multiplied by exp(``slack``), for lengths that may get shorter; ``missing`` is the mass of images that
    are no keys at all. ``best_known`` (Tq,) is what ``best`` is at most, from keys that are not in this tree.
    """
    sizes, tiles, potentials, bests, unlisted, masses = ([] for _ in range(6))
    here = torch.zeros(queries.low.shape[1], dtype=torch.float64)
    at_hand = float(encoding.penalty(here).reshape(-1)[0]) if own else np.inf
    for first in range(0, len(queries), _TILES_AT_A_TIME):
        part = slice(first, first + _TILES_AT_A_TIME)
        q_low, q_high = queries.low[part].numpy(), queries.high[part].numpy()
        count = len(q_low)
        best = np.full(count, at_hand) if best_known is None else best_known[part].copy()
        owner, node = np.arange(count), tree.roots[queries.cloud[part].numpy()]
        found: list[tuple[np.ndarray, ...]] = []
        dropped: list[tuple[np.ndarray, ...]] = []
        while len(owner):
            low, high = (torch.from_numpy(b) for b in (q_low[owner] - tree.high[node], q_high[owner] - tree.low[node]))
            smallest = box_potential(encoding, low, high).numpy()
            if not own:
                ends = torch.maximum(encoding.axis_penalty(low), encoding.axis_penalty(high)).sum(-1)
                np.minimum.at(best, owner, encoding.combine(ends).reshape(-1).numpy())
            near = smallest <= best[owner] + limit
            dropped.append((owner[~near], tree.points[node[~near]], smallest[~near]))
            owner, node, smallest = owner[near], node[near], smallest[near]
            leaf = tree.left[node] < 0
            found.append((owner[leaf], node[leaf], smallest[leaf]))
            owner, node = owner[~leaf], node[~leaf]
            owner, node = np.concatenate([owner, owner]), np.concatenate([tree.left[node], tree.right[node]])
        owner, node, smallest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        near = smallest <= best[owner] + limit  # the best key was not known to the first ones found
        dropped.append((owner[~near], tree.points[node[~near]], smallest[~near]))
        owner, node, smallest = owner[near], node[near], smallest[near]
        rank = np.lexsort((smallest, owner))
        owner, node, smallest = owner[rank], node[rank], smallest[rank]
        sizes.append(np.bincount(owner, minlength=count))
        tiles.append(tree.tile[node].astype(np.int32))
        potentials.append(np.maximum(smallest - best[owner], 0.0).astype(np.float32))
        bests.append(best)
        owner, points, smallest = (np.concatenate(parts) for parts in zip(*dropped, strict=True))
        nearest = np.full(count, np.inf)  # what is dropped is summed up relative to its nearest: nothing underflows
        np.minimum.at(nearest, owner, smallest)
        mass = np.bincount(owner, points * np.exp(nearest[owner] - smallest), minlength=count)
        nearest[mass == 0] = 0.0
        with np.errstate(divide="ignore"):
            images = -np.inf if missing is None else np.log(missing)[queries.cloud[part].numpy()]
            masses.append(np.logaddexp(np.log(mass) - nearest, images) + slack)
        unlisted.append(np.bincount(owner, points, minlength=count))
    start = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    arrays = (start, *(np.concatenate(a) for a in (tiles, potentials, bests)))
    limits = torch.full((len(queries),), limit, dtype=torch.float64)
    lists = (torch.from_numpy(a) for a in arrays)
    outside = (torch.from_numpy(np.concatenate(a)) for a in (unlisted, masses))
    return Reach(heads, *lists, limits, *outside)  # type: ignore[call-arg]
