"""Which keys matter to which queries: the plan of the sparse backends.

Points are put into compact tiles of equal size by splitting the cloud along its widest axis, measured in decay
lengths, again and again (a kd-tree whose leaves are the tiles). A key tile j can weigh at most exp(-Phi_ij) on a
query tile i, where Phi_ij is the smallest potential between their bounding boxes; it is exact and cheap, because
Phi is a sum of convex functions of one axis each. For every query tile the plan lists key tiles in rising order of
Phi_ij and cuts the list where what is left out, sum_j n_j exp(-Phi_ij), is below ``tolerance`` times the whole sum.
Phi is counted from the best key in reach, so a query far from all keys keeps the ones that the formula would choose.

The list is found by descending the key tree for all query tiles at once and dropping branches that are too far:
work and memory grow with the number of tile pairs in reach, never with all pairs of tiles.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farfield.attention.encoding import Encoding
from farfield.attention.tiles import Tiles, Tree, build_tiles

# Lists reach this much further (in Phi) than the cut, so that layers with large logits need no new plan.
_RESERVE = 6.0
# Points per tile: queries take the coarsest that pays (see _best_size), keys the finest. What a pair costs with each,
# relative to dense attention, was measured: fused kernels work on blocks of 256 queries if they get 768 or more.
_QUERY_COST = {1024: 1.05, 256: 1.4, 64: 2.2}
_KEY_TILE = 64
# Work that each tile costs whatever its size, in pairs.
_PER_TILE = 100_000
# Bounding boxes overestimate what is left out: with LASPE and LAAPE, measured errors were mostly half of the estimate.
# At 1.6 million points one sample with LASPE came to 0.61 of it, 1.1e-4 at a tolerance of 1e-4: the promise is not a
# bound. ALiBi's tail is too thick for any of this.
_OVERESTIMATE = 1.8
# How far into a query tile, as a fraction of its width, the potential to a key tile is looked at: with short decay
# lengths it rises steeply, and only the queries next to the edge see the key tile at all.
_DEPTHS = (1 / 32, 1 / 8, 1 / 2)
# So many query tiles descend the key tree at a time, which bounds the memory of the search.
_TILES_AT_A_TIME = 2048


@dataclass
class Reach:
    """Key tiles of each query tile, in rising order of their smallest potential, for heads that share lengths."""

    heads: list[int] | None  # None: all heads
    start: Tensor  # (Tq + 1,) where each query tile's list begins
    key_tile: Tensor  # (pairs,) int32
    potential: Tensor  # (pairs,) float32, smallest Phi between the boxes, from the best key in reach
    cut: Tensor  # (Tq,) float32: keys with a potential up to here make the result exact to the tolerance
    best: Tensor  # (Tq,) float64: the largest potential that a query of the tile can have to its best key
    limit: float  # lists are complete up to this potential

    def counts(self, margin: float = 0.0, weight: Tensor | None = None) -> Tensor:
        """Length of each query tile's list if the cut rises by ``margin`` and potentials shrink by ``weight`` (Tq,)."""
        wanted = self.cut + margin if weight is None else (self.cut + margin) / weight.clamp(min=1e-6)
        owner = torch.repeat_interleave(torch.arange(len(self.cut)), self.start.diff())
        inside = (self.potential <= wanted[owner]).int()
        return torch.zeros(len(self.cut), dtype=torch.int64).index_add_(0, owner, inside.long())


@dataclass
class AttentionPlan:
    """What a sparse backend needs to know about the points; built once per cloud, used by all layers and steps."""

    queries: Tiles
    keys: Tiles
    reaches: list[Reach]
    origin: Tensor  # (P,) float64
    tolerance: float
    signature: tuple
    fingerprint: tuple[int, int]
    _wider: AttentionPlan | None = None

    def pairs(self) -> int:
        """Query-key pairs that will be computed, averaged over the head groups."""
        total, heads = 0.0, 0
        key_counts = self.keys.count()
        for reach in self.reaches:
            weight = 1 if reach.heads is None else len(reach.heads)
            counts = reach.counts()
            owner = torch.repeat_interleave(torch.arange(len(counts)), reach.start.diff())
            rank = torch.arange(len(owner)) - reach.start[owner]
            keys = (key_counts[reach.key_tile.long()] * (rank < counts[owner])).double()
            total += weight * float((keys * self.queries.count()[owner]).sum())
            heads += weight
        return round(total / heads)

    def key_slots(self, reach: Reach, tile: int, count: int) -> Tensor:
        """The slots of the keys in the first ``count`` key tiles of a query tile's list."""
        start = int(reach.start[tile])
        first = reach.key_tile[start : start + count].long() * self.keys.size
        slots = (first[:, None] + torch.arange(self.keys.size)).flatten()
        return slots[slots < len(self.keys.order)]  # the last tile may be short

    def keys_per_query(self) -> float:
        """Mean number of keys that a query reads."""
        return self.pairs() / len(self.queries.order)

    def density(self) -> float:
        """Computed pairs over all pairs: the predicted cost relative to dense attention."""
        return self.keys_per_query() / len(self.keys.order)

    def __str__(self) -> str:
        return (
            f"{len(self.queries.order)} queries in {len(self.queries)} tiles of {self.queries.size}, "
            f"{len(self.keys.order)} keys in {len(self.keys)} tiles of {self.keys.size}, tolerance {self.tolerance:g}: "
            f"{self.keys_per_query():.0f} keys per query, {100 * self.density():.2g} % of all pairs"
        )

    def reaching(
        self, margins: list[float], weight: float, query_positions: Tensor, key_positions: Tensor, encoding: Encoding
    ) -> AttentionPlan:
        """This plan, or one with longer lists if cuts raised by ``margins`` and divided by ``weight`` pass them."""
        missing = max(
            float(reach.cut.max() + margin) / max(weight, 1e-6) - reach.limit
            for reach, margin in zip(self.reaches, margins, strict=True)
        )
        if missing <= 0:
            return self
        if self._wider is None or min(r.limit for r in self._wider.reaches) < missing + min(
            r.limit for r in self.reaches
        ):
            self._wider = plan_attention(
                query_positions,
                key_positions,
                encoding=encoding,
                tolerance=self.tolerance,
                query_tile=self.queries.size,
                key_tile=self.keys.size,
                reserve=_RESERVE + 1.5 * missing,
            )
        return self._wider

    def check(self, query_positions: Tensor, key_positions: Tensor, encoding: Encoding) -> None:
        """Refuse to serve other points or another encoding than the plan was built for."""
        if encoding.signature() != self.signature:
            raise ValueError(
                f"the plan was built for the encoding {self.signature}, not for {encoding.signature()}: build another"
            )
        if (fingerprint(query_positions), fingerprint(key_positions)) != self.fingerprint:
            raise ValueError(
                f"the plan was built for other points than these ({len(self.queries.order)} queries, "
                f"{len(self.keys.order)} keys; now {len(query_positions)} and {len(key_positions)}): build another"
            )


def plan_attention(
    query_positions: Tensor,
    key_positions: Tensor | None = None,
    *,
    encoding: Encoding,
    tolerance: float = 1e-4,
    query_tile: int | None = None,
    key_tile: int = _KEY_TILE,
    reserve: float = _RESERVE,
) -> AttentionPlan:
    """Build a plan for points (Nq, P) reading from points (Nk, P), or from themselves.

    ``tolerance`` is the relative error that the attention output may have. ``query_tile`` and ``key_tile`` are points
    per tile; by default queries take the size that makes the whole cheapest. ``reserve`` extends the stored lists for
    layers with large logits; they are extended by a new search if that is not enough.
    """
    key_positions = query_positions if key_positions is None else key_positions
    marks = (fingerprint(query_positions), fingerprint(key_positions))
    own = marks[0] == marks[1]  # every query is a key too
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance}")
    for name, points in (("query_positions", query_positions), ("key_positions", key_positions)):
        if points.ndim != 2 or len(points) == 0 or not bool(torch.isfinite(points).all()):
            raise ValueError(f"a plan needs finite {name} (N, P), at least one, got the shape {tuple(points.shape)}")
    with torch.no_grad():
        widest = encoding.select(None, widest=True)
        # shorter lengths than the widest lower Phi nowhere by more than this (the far exponential of LAAPE vanishes)
        slack = query_positions.shape[-1] / 2 if encoding.learns_lengths() else 0.0
        where_q, where_k = (p.detach().cpu().double() for p in (query_positions, key_positions))
        origin = where_k.amin(0) + (where_k.amax(0) - where_k.amin(0)) / 2
        where_q, where_k = (widest.coordinates(p - origin) for p in (where_q, where_k))
        metric = _metric(widest, where_q.shape[1])
        sizes = (*_QUERY_COST,) if query_tile is None else (query_tile,)
        if own and sizes[-1] % key_tile == 0:
            tilings, tree = build_tiles(where_q, tuple(dict.fromkeys((*sizes, key_tile))), metric)
            keys = tilings[-1]
        else:
            tilings, _ = build_tiles(where_q, sizes, metric)
            (keys,), tree = build_tiles(where_k, (key_tile,), metric)
        groups: Sequence[list[int] | None] = encoding.head_groups() or [None]
        kernels = [_of_group(widest, group) for group in groups]
        tolerance_wide = tolerance * math.exp(-slack)
        queries = _best_size(tilings[: len(sizes)], keys, tree, kernels, own, tolerance_wide)
        reaches = [
            _search(queries, keys, tree, kernel, group, own, tolerance_wide, reserve)
            for kernel, group in zip(kernels, groups, strict=True)
        ]
    return AttentionPlan(
        queries, keys, reaches, origin, tolerance, encoding.signature(),
        marks,
    )  # fmt: skip


_plans: OrderedDict[tuple, AttentionPlan] = OrderedDict()


def cached_plan(
    query_positions: Tensor, key_positions: Tensor, encoding: Encoding, tolerance: float, tile: int | None = None
) -> AttentionPlan:
    """The plan for these points, built on the first call; a rollout or a training run calls with the same points.

    ``tile`` sets the points per tile on both sides, for kernels that need it.
    """
    key = (fingerprint(query_positions), fingerprint(key_positions), encoding.signature(), tolerance, tile)
    if key not in _plans:
        _plans[key] = plan_attention(
            query_positions, key_positions, encoding=encoding, tolerance=tolerance, query_tile=tile,
            key_tile=tile or _KEY_TILE,
        )  # fmt: skip
        while len(_plans) > 8:
            _plans.popitem(last=False)
    _plans.move_to_end(key)
    return _plans[key]


def fingerprint(positions: Tensor) -> int:
    """A checksum of the points, to tell clouds apart."""
    data = positions.detach().cpu().contiguous()
    raw = data.view(torch.uint8) if data.numel() else data  # NumPy has no bfloat16, but every dtype has bytes
    return zlib.crc32(raw.numpy().data, zlib.crc32(repr((tuple(data.shape), data.dtype)).encode()))


def _best_size(
    tilings: list[Tiles], keys: Tiles, tree: Tree, kernels: list[Encoding], own: bool, tolerance: float
) -> Tiles:
    """The tiling of the queries with the smallest predicted cost, judged by some tiles of each."""
    if len(tilings) == 1:
        return tilings[0]

    def cost(tiles: Tiles) -> float:
        some = torch.linspace(0, len(tiles) - 1, min(len(tiles), 48)).long()
        sample = Tiles(tiles.order, tiles.size, tiles.low[some], tiles.high[some])
        reaches = [_search(sample, keys, tree, kernel, None, own, tolerance, 0.0) for kernel in kernels]
        mean_keys = sum(float(reach.counts().double().mean()) for reach in reaches)
        return _QUERY_COST[tiles.size] * mean_keys * keys.size + _PER_TILE / tiles.size

    return min(tilings, key=cost)


def _of_group(widest: Encoding, group: list[int] | None) -> Encoding:
    """The encoding of one head that stands for its group."""
    return widest if group is None else widest.select(group[:1], widest=True)


def _metric(encoding: Encoding, space_dim: int) -> Tensor:
    """A length per axis that makes tiles compact: where the penalty along the axis has risen by 1."""
    lengths = []
    centre = encoding.centre(space_dim).reshape(-1, space_dim)[0]
    for axis in range(space_dim):
        step = torch.zeros(space_dim, dtype=torch.float64)
        step[axis] = 1.0
        reach = 1.0
        base = encoding.axis_penalty(centre).reshape(-1, space_dim)[0, axis]
        for _ in range(100):
            risen = encoding.axis_penalty(centre + reach * step).reshape(-1, space_dim)[0, axis] - base
            if risen >= 1 or reach > 1e12:
                break
            reach *= 1.3
        lengths.append(reach)
    return torch.tensor(lengths, dtype=torch.float64)


def _bounds(encoding: Encoding, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest penalty of displacements between low and high (n, P)."""
    lowest, highest = torch.from_numpy(low), torch.from_numpy(high)
    centre = encoding.centre(low.shape[1]).reshape(-1, low.shape[1])[0]
    nearest = torch.minimum(torch.maximum(centre.expand_as(lowest), lowest), highest)

    def penalty(axis_penalty: Tensor) -> np.ndarray:
        return encoding.combine(axis_penalty.sum(-1)).reshape(-1).numpy()

    ends = torch.maximum(encoding.axis_penalty(lowest), encoding.axis_penalty(highest))
    return penalty(encoding.axis_penalty(nearest)), penalty(ends)


def _search(
    queries: Tiles,
    keys: Tiles,
    tree: Tree,
    encoding: Encoding,
    heads: list[int] | None,
    own: bool,
    tolerance: float,
    reserve: float,
) -> Reach:
    """List, for every query tile, the key tiles that can matter to any of its queries.

    Phi counts from ``best``, which no query's best key exceeds: in self-attention a query is at hand for itself,
    otherwise it is the smallest of the largest potentials between the boxes.
    """
    # Were all keys just beyond the limit and one at the best place, they would weigh less than the tolerance.
    limit = -math.log(tolerance) + math.log(max(len(keys.order), 2)) / 2 + reserve
    spare = _OVERESTIMATE if encoding.decomposes else 1.0
    key_counts = keys.count().numpy().astype(float)
    sizes: list[np.ndarray] = []
    tiles: list[np.ndarray] = []
    potentials: list[np.ndarray] = []
    cuts: list[np.ndarray] = []
    bests: list[np.ndarray] = []
    for first in range(0, len(queries), _TILES_AT_A_TIME):
        q_low, q_high = (b[first : first + _TILES_AT_A_TIME].numpy() for b in (queries.low, queries.high))
        count = len(q_low)
        here = torch.zeros(q_low.shape[1], dtype=torch.float64)
        best = np.full(count, float(encoding.penalty(here)) if own else np.inf)
        owner, node = np.arange(count), np.zeros(count, dtype=np.int64)
        found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        while len(owner):
            smallest, largest = _bounds(encoding, q_low[owner] - tree.high[node], q_high[owner] - tree.low[node])
            np.minimum.at(best, owner, largest)
            near = smallest <= best[owner] + limit
            owner, node, smallest = owner[near], node[near], smallest[near]
            leaf = tree.left[node] < 0
            found.append((owner[leaf], tree.tile[node[leaf]], smallest[leaf]))
            owner, node = owner[~leaf], node[~leaf]
            owner, node = np.concatenate([owner, owner]), np.concatenate([tree.left[node], tree.right[node]])
        owner, tile, smallest = (np.concatenate(parts) for parts in zip(*found, strict=True))
        near = smallest <= best[owner] + limit  # the best key was not known to the first ones found
        owner, tile, smallest = owner[near], tile[near], smallest[near]
        rank = np.lexsort((smallest, owner))
        owner, tile, smallest = owner[rank], tile[rank], smallest[rank]
        start = np.searchsorted(owner, np.arange(count + 1))
        excess = np.maximum(smallest - best[owner], 0.0)
        inside = [
            _bounds(encoding, (q_low + t * (q_high - q_low))[owner] - keys.high.numpy()[tile],
                    (q_high - t * (q_high - q_low))[owner] - keys.low.numpy()[tile])[0] - smallest
            for t in _DEPTHS
        ]  # fmt: skip
        cuts.append(_cuts(excess, inside, key_counts[tile], queries.size, owner, start, spare * tolerance))
        for collected, value in zip(
            (sizes, tiles, potentials, bests), (np.diff(start), tile, excess, best), strict=True
        ):
            collected.append(value)
    start = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    return Reach(
        heads,
        torch.from_numpy(start),
        torch.from_numpy(np.concatenate(tiles).astype(np.int32)),
        torch.from_numpy(np.concatenate(potentials).astype(np.float32)),
        torch.from_numpy(np.concatenate(cuts).astype(np.float32)),
        torch.from_numpy(np.concatenate(bests)),
        limit,
    )


def _cuts(
    excess: np.ndarray,
    inside: list[np.ndarray],
    counts: np.ndarray,
    queries: int,
    owner: np.ndarray,
    start: np.ndarray,
    tolerance: float,
) -> np.ndarray:
    """Per query tile, the potential beyond which all keys together change the output by less than ``tolerance``.

    Leaving keys out changes the output by at most the sum of their weights over the sum of all (values that vary
    smoothly), or the same with squares (values that vary at random); both are kept small, on average over the
    ``queries`` of a tile. ``inside`` is by how much Phi is higher at ``_DEPTHS`` than at the tile's nearest edge.
    """
    needed = np.zeros(len(owner), dtype=bool)
    for power in (1, 2):
        # the nearest query of a tile lies on the edge of its box
        share = np.maximum(_mean_weight([power * rise for rise in inside]), 1 / queries)
        mass = counts * np.exp(-power * excess) * share
        beyond = np.cumsum(mass[::-1])[::-1]  # this entry and all later ones, over all owners
        beyond = beyond - np.append(beyond, 0.0)[start[1:]][owner]  # now of the same owner
        needed |= beyond > tolerance**power * beyond[start[:-1]][owner]
    last = np.maximum.reduceat(np.where(needed, np.arange(len(owner)), -1), start[:-1])
    return excess[np.maximum(last, start[:-1])]


def _mean_weight(inside: list[np.ndarray]) -> np.ndarray:
    """The mean of exp(-rise) across a tile, from the rise at ``_DEPTHS``.

    Between two depths the rise is taken as linear; beyond the last it is at least as steep as before, Phi being convex.
    """
    slope = (inside[-1] - inside[-2]) / (_DEPTHS[-1] - _DEPTHS[-2])
    depths = (0.0, *_DEPTHS, 1.0)
    rises = [np.zeros_like(slope), *inside, inside[-1] + slope * (1 - _DEPTHS[-1])]
    total = np.zeros_like(slope)
    for (near, far), (low, high) in zip(itertools.pairwise(depths), itertools.pairwise(rises), strict=True):
        across = np.maximum(high - low, 1e-9)
        total += (far - near) * np.exp(-low) * -np.expm1(-across) / across
    return total
