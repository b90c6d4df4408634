"""How many keys a tile must read so that what it leaves out is certain not to matter.

For a query i let K be the keys it has read, Z = sum_K exp(s_ij) their mass, s_ij = q_i . k_j / sqrt(D) - w_i Phi_ij the
logits (q and k rotated; w = 1 but for FlashBias), o its output over K, and D the keys left out. *The promise*, for each
query of each head:

    | o - o_exact |  <=  tolerance V,      V = sum_j p_ij |v_j|,      p_ij the exact weights,

with ``tolerance`` times the largest |v_j| of the head in the place of V, if that is more. V is the mean size of the
values that the query attends to, never more than the largest in its reach; | | is the Euclidean norm over channels.

*Proof.* Put e_j = exp(s_ij), A = sum_K e_j |v_j| and V_K = A / Z. Then o_exact - o = sum_D e_j (v_j - o) / (Z + sum_D
e_j), while V >= A / (Z + sum_D e_j). So the promise is kept if

    sum_D e_j |v_j| / A  +  (|o| / V_K) sum_D e_j / Z  <=  tolerance.                                          (1)

For the keys of a tile J, with centroid c, y_j = q_i . (k_j - c) / sqrt(D), Q >= |q_i| and r = max |k_j - c|:
|y_j| <= M = Q r / sqrt(D), and e^y <= 1 + y + y^2 (e^M - 1 - M) / M^2 for y <= M, since (e^y - 1 - y) / y^2 rises. The
y_j sum to 0, their squares to at most Q^2 lambda / D, lambda the largest eigenvalue of sum (k_j - c)(k_j - c)^T, which
(tr S^8)^(1/8) bounds. Hence, with Phi_iJ the smallest potential between the query and the tile's box,

    sum_J e_j  <=  exp( q_i . c / sqrt(D) - w_i Phi_iJ ) ( n_J + Q^2 lambda / D (e^M - 1 - M) / M^2 ),         (2)

and also <= n_J exp(Q max|k_j| / sqrt(D) - w_i Phi_iJ): the smaller is taken, times the tile's largest |v_j| for the
first sum. Queries are taken 64 at a time, a *subtile*, with the smallest Phi_iJ, log Z and log A, the largest Q,
q_i . c and |o| / V_K among them. Keys that no list names weigh at most what (2) says for the worst tile times the sum
of n exp(-w Phi) over the branches that the plan dropped. More keys only raise Z and A, so both may be those of the keys
read so far; |o| / V_K is at most 1. So a tile could read down its list until (1) holds, by (2), for each of its
subtiles and heads: ``Limits.needed``.

(2) must allow for queries that point straight at a key. Most do not, so a tile that would have to read much more for
it *sounds* those keys instead: all but what (2) allows 0.3 of the tolerance for, the lightest, are weighed one by one,
(1) is added up from above, query by query, and what does not fit into the other 0.7 is read
(:mod:`farfield.attention.sounding`). A pair costs half as much to sound as to read, and nothing in the backward pass.
|o| / V_K is then taken a little larger than it was found so far; should it be larger still in the end, the tile reads
up to ``Limits.needed`` after all. Either way (1) holds in the end; nothing is sampled. The kernel finds V_K, with
|v_j| as one more channel of the values, or in a sum of its own; ``tolerance`` times the largest |v_j| takes its place
if that is more.   []

*Gradients* follow. Let d = sum_D e_j / Z, which (1) holds at about ``tolerance`` where the values left out are like
those read, and below 20 tolerance in any case, since |o| / V_K is taken as 0.05 at least. With an output gradient g_i
the gradient of q_i is off by at most (3 tolerance + 2 d) |g_i| V max|k| / sqrt(D) to first order, those of all v_j
together by at most sum_i 2 d |g_i|. Those of positions and lengths carry a factor dPhi besides, which the dropped keys
make up for by their exp(-Phi): they are tested, not bounded.

Rounding is no part of the bound: where float32 could spoil it (large logits, small tolerances) attention computes in
float64, see :mod:`farfield.attention.functional`.

The estimate is what a tile weighs if its logits are normally distributed, n_J exp(q . c / sqrt(D) + |q|^2 tr S /
(2 n D^2) - w Phi_iJ): about right on average, no bound. With ``certify=False`` it has the last word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.attention.cloud import box_potential
from farfield.attention.encoding import Encoding
from farfield.attention.plan import AttentionPlan, Reach
from farfield.attention.tiles import Tiles

# Numbers in one table of subtiles x key tiles x heads.
_AT_A_TIME = 1 << 18
# Rounding of the sums themselves.
SAFETY = 1.01
# What is left to the bound where all other keys are weighed one by one, as a share of the tolerance.
FAR = 0.3
# How much |o| / V may still grow by, once most of the mass has been read.
GROWTH = 0.05
# Keys are summed up so many at a time.
_ROWS = 1 << 12


@dataclass
class KeySummary:
    """What (2) needs to know of the keys of each tile, by head (T, G)."""

    centroid: Tensor  # (T, G, D)
    radius: Tensor
    spread: Tensor  # lambda
    square: Tensor  # the mean of |k - c|^2, for the estimate
    longest: Tensor
    value: Tensor  # largest |v|

    @classmethod
    def joined(cls, parts: list[KeySummary]) -> KeySummary:
        """Of all tiles, from summaries of some at a time."""
        return cls(*(torch.cat(columns) for columns in zip(*(vars(part).values() for part in parts), strict=True)))


@dataclass
class Kept:
    """What the queries of each subtile have read so far, by head (S, G)."""

    mass: Tensor  # the smallest log Z
    sized: Tensor  # the smallest log(Z V)
    output: Tensor  # the largest |o| / V

    @classmethod
    def of(cls, mass: Tensor, sizes: Tensor, outputs: Tensor, subtiles: Tiles) -> Kept:
        """From log Z, V and |o| of every query (N, G)."""
        ratio = -lowest_of(-outputs / sizes, subtiles)
        return cls(lowest_of(mass, subtiles), lowest_of(mass + sizes.log(), subtiles), ratio.clamp(0.0, 1.0))


@dataclass
class QuerySummary:
    """What (2) needs to know of the queries of each subtile, by head (S, G)."""

    middle: Tensor  # (S, G, D)
    radius: Tensor  # largest |q - middle|
    longest: Tensor
    weight: Tensor | None  # smallest w


def summarise_keys(k: Tensor, sizes: Tensor, keys: Tiles, certify: bool = True) -> KeySummary:
    """From sorted k (N, G, D) and the sizes |v| (N, G)."""
    parts = []
    tiles_at_a_time = max(1, _ROWS // keys.size)
    for first in range(0, len(keys), tiles_at_a_time):
        start = keys.start[first : first + tiles_at_a_time + 1]
        rows = slice(int(start[0]), int(start[-1]))
        parts.append(
            summarise_tiles(padded(k[rows], start), padded(sizes[rows], start), start.diff().to(k.device), certify)
        )
    return KeySummary.joined(parts)


def summarise_tiles(k: Tensor, sizes: Tensor, count: Tensor, certify: bool) -> KeySummary:
    """Of tiles (T, n, G, D) and (T, n, G) whose rows beyond ``count`` are zero."""
    number = count[:, None].to(k)
    centroid = k.sum(1) / number[..., None]
    apart = k - centroid[:, None]
    if bool((count < k.shape[1]).any()):
        apart = apart * (torch.arange(k.shape[1], device=k.device) < count[:, None])[..., None, None]
    distance = torch.linalg.vector_norm(apart, dim=-1)
    trace = distance.square().sum(1)
    spread = trace
    if certify:
        x = apart.transpose(1, 2).contiguous()
        gram = x @ x.mT if x.shape[2] <= x.shape[3] else x.mT @ x
        gram = gram / trace.clamp(min=torch.finfo(k.dtype).tiny)[..., None, None]  # its powers do not overflow
        square = gram @ gram
        spread = trace * torch.linalg.vector_norm(square @ square, dim=(-1, -2)).pow(0.25)
    longest = torch.linalg.vector_norm(k, dim=-1).amax(1)
    found = (centroid, distance.amax(1), spread, trace / number, longest, sizes.amax(1))
    return KeySummary(*(torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in found))  # of a diverged prediction; it goes on


def summarise_queries(q: Tensor, weight: Tensor | None, subtiles: Tiles) -> QuerySummary:
    """From sorted q (N, G, D) and the factor on Phi (N, G, 1)."""
    parts = []
    tiles_at_a_time = max(1, _ROWS // subtiles.size)
    for first in range(0, len(subtiles), tiles_at_a_time):
        start = subtiles.start[first : first + tiles_at_a_time + 1]
        rows = slice(int(start[0]), int(start[-1]))
        part = torch.nan_to_num(padded(q[rows], start), 0.0, 0.0, 0.0)
        count = start.diff().to(q.device)
        there = (torch.arange(part.shape[1], device=q.device) < count[:, None])[..., None]
        middle = part.sum(1) / count[:, None, None].to(part)
        apart = torch.linalg.vector_norm(part - middle[:, None], dim=-1).masked_fill(~there, 0.0)
        parts.append((middle, apart.amax(1), torch.linalg.vector_norm(part, dim=-1).amax(1)))
    smallest = None if weight is None else lowest_of(weight[..., 0], subtiles)
    middle, radius, longest = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return QuerySummary(middle, radius, longest, smallest)


def lowest_of(values: Tensor, tiles: Tiles) -> Tensor:
    """The smallest of values (N, G) in each tile (T, G); NaN, of a diverged query, counts for nothing."""
    owner = torch.repeat_interleave(torch.arange(len(tiles)), tiles.count()).to(values.device)
    values = torch.nan_to_num(values, torch.inf, torch.inf)
    out = torch.full((len(tiles), values.shape[1]), torch.inf, dtype=values.dtype, device=values.device)
    return out.scatter_reduce_(0, owner[:, None].expand_as(values), values, "amin")


def padded(rows: Tensor, start: Tensor, size: int | None = None) -> Tensor:
    """Rows (n, ...) of some tiles, whose slots begin at ``start``, as (T, size, ...), filled up with zeros."""
    count = start.diff()
    size, tiles = size or int(count.max()), len(count)
    if bool((count == size).all()):
        return rows.unflatten(0, (tiles, size))
    place = torch.arange(len(rows)) - torch.repeat_interleave(start[:-1] - start[0], count)
    place = place + size * torch.repeat_interleave(torch.arange(tiles), count)
    out = rows.new_zeros((tiles * size, *rows.shape[1:]))
    return out.index_copy_(0, place.to(rows.device), rows).unflatten(0, (tiles, size))


def _log_curve(most: Tensor) -> Tensor:
    """log of (e^M - 1 - M) / M^2, which rises with M."""
    most = most.clamp(min=0.05)  # less is not worth the cancellation
    return most + torch.log1p(-(1 + most) * torch.exp(-most)) - 2 * most.log()


@dataclass
class Limits:
    """How many key tiles each tile (Tq,) should and must read."""

    likely: Tensor  # as many as the estimate says
    needed: Tensor  # as many as the bound says: certain
    far: Tensor  # what lies beyond holds at most ``FAR`` of the tolerance, while |o| / V is at most ``output``
    output: Tensor  # (S, G)
    short: float  # by how much (in Phi) the lists end too early, 0 if they suffice


@dataclass
class Weights:
    """What the key tiles T that I query tiles list weigh on their subtiles S, by head G, as logarithms."""

    subtiles: slice
    owner: Tensor  # (S,) the tile of each subtile, of I
    keys: Tensor  # (I, T)
    listed: Tensor  # (I, T): False where a list is shorter than others
    potential: Tensor  # (S, T, G or 1): w Phi from below
    bound: Tensor  # (S, T, G): sum_J e_j by (2); as estimated, without a certificate
    estimate: Tensor
    outside: Tensor  # (S, G): the same of all that no list names
    likely_outside: Tensor


@dataclass
class _Table:
    """Subtiles S of some tiles against the key tiles T that these list, by head G."""

    subtiles: slice
    owner: Tensor  # (S,) the tile of each subtile
    listed: Tensor  # (S, T, 1)
    scale: Tensor  # (S, G): V, as the smallest Z V over the smallest Z
    share: Tensor  # (S, T, G): the largest |v_j| / V
    of_output: Tensor  # (S, G): the largest |o| / V, with room to grow
    bound: Tensor  # (S, T, G): sum_J e_j / Z, by (2)
    estimate: Tensor  # the same as estimated
    outside: Tensor  # (S, G): the same of all that no list names
    likely_outside: Tensor


@dataclass
class Certificate:
    """Tells from the mass that tiles have read how far down their lists they must go; see the module's text."""

    plan: AttentionPlan
    reach: Reach
    encoding: Encoding  # of the heads of the reach, or of one of them where they are alike
    queries: QuerySummary
    keys: KeySummary
    head_dim: int
    certify: bool
    elsewhere: Tensor | None = None  # (2, G): the largest |k| and |v| of all, keys that others hold included

    def __post_init__(self) -> None:
        subtiles, tiles = self.plan.subtiles, self.plan.queries
        self.first = torch.searchsorted(subtiles.start, tiles.start)  # the first subtile of each tile, and the end
        self.longest = self.keys.longest.amax(0)  # (G,)
        self.largest = self.keys.value.amax(0)
        if self.elsewhere is not None:
            self.longest, self.largest = torch.maximum(torch.stack([self.longest, self.largest]), self.elsewhere)
        device = self.keys.longest.device
        self.low, self.high = (t.to(device) for t in (self.plan.keys.low, self.plan.keys.high))
        self.points = self.plan.keys.count().to(self.keys.longest)
        self.widest, self.aside = self.keys.radius.amax(0), self.keys.centroid.norm(dim=-1).amax(0)
        self.density = (self.keys.spread / self.points[:, None]).amax(0)  # largest lambda / n
        self.least = self.plan.tolerance * self.largest  # (G,): what V is taken as at least
        self.least = torch.where(self.least > 0, self.least, 1.0)

    @torch.no_grad()
    def limits(self, kept: Kept, counts: Tensor) -> Limits:
        """Likely and certain ends of what tiles read, given what their subtiles know from the first ``counts``."""
        short = 0.0
        ends, outputs = counts.repeat(3, 1), torch.empty_like(kept.output)
        for tile, stop in self.tables():
            some, missing = self._limits(tile, stop, kept, outputs)
            ends[:, tile:stop], short = torch.maximum(counts[tile:stop], some), max(short, missing)
        likely, needed, far = ends
        return Limits(likely, needed, far, outputs, short)

    def tables(self) -> Iterator[tuple[int, int]]:
        """Runs of query tiles, from one to before another, that fit into one table."""
        lengths, groups = self.reach.lengths().tolist(), self.longest.shape[0]
        tile = 0
        while tile < len(lengths):
            stop, width = tile, 0
            while stop < len(lengths):
                width = max(width, lengths[stop])
                subtiles = int(self.first[stop + 1] - self.first[tile])
                if stop > tile and subtiles * width * groups > _AT_A_TIME:
                    break
                stop += 1
            yield tile, stop
            tile = stop

    def _limits(self, tile: int, stop: int, kept: Kept, outputs: Tensor) -> tuple[Tensor, float]:
        t = self._table(tile, stop, kept)
        outputs[t.subtiles] = t.of_output
        lengths, device = self.reach.lengths()[tile:stop], kept.mass.device
        rank = torch.arange(t.listed.shape[1], device=device)
        ends, allowed = [], self.plan.tolerance / SAFETY

        def end(mass: Tensor, outside: Tensor, allowed: float) -> None:
            mass = torch.where(t.listed, mass, 0.0)
            tail = mass.flip(1).cumsum(1).flip(1)  # what is left out if the list ends before this entry
            enough = (tail + outside[:, None] <= allowed) | ~t.listed
            needed = torch.where(enough.all(-1), 0, rank + 1).amax(1)  # (S,)
            out = torch.zeros(stop - tile, dtype=torch.int64, device=device)
            ends.append(out.scatter_reduce_(0, t.owner, needed, "amax").cpu().minimum(lengths))

        of_output = t.of_output[:, None]
        end(t.estimate * (t.share + of_output), t.likely_outside, allowed)
        outside = t.outside * (1 + self.largest / t.scale)
        if self.certify:
            end(t.bound * (t.share + 1), outside, allowed)
            end(t.bound * (t.share + of_output), outside, FAR * allowed)
        else:
            ends += 2 * ends
        missing = torch.log(outside / (FAR / 2 * allowed)).amax() if outside.numel() else torch.zeros(())
        return torch.stack(ends), max(0.0, float(torch.nan_to_num(missing, 0.0)))

    @torch.no_grad()
    def shares(self, tile: int, kept: Kept) -> tuple[Tensor, Tensor]:
        """What a tile's listed key tiles weigh at most, (S, T), and all others (S,), of what may be left out.

        The largest of all heads.
        """
        t, allowed = self._table(tile, tile + 1, kept), self.plan.tolerance / SAFETY
        outside = t.outside * (1 + self.largest / t.scale)
        return (t.bound * (t.share + t.of_output[:, None])).amax(-1) / allowed, outside.amax(-1) / allowed

    def weights(self, tile: int, stop: int) -> Weights:
        """What the key tiles that some query tiles list weigh on their subtiles, whatever these have read."""
        reach, device = self.reach, self.keys.longest.device
        start, lengths = reach.start[tile:stop], reach.lengths()[tile:stop]
        rank = torch.arange(int(lengths.max()))
        listed = rank < lengths[:, None]
        entry = (start[:, None] + rank).clamp(max=len(reach.key_tile) - 1)
        keys = torch.where(listed, reach.key_tile[entry].long(), 0).to(device)
        s = slice(int(self.first[tile]), int(self.first[stop]))
        owner = torch.repeat_interleave(torch.arange(stop - tile), self.first[tile : stop + 1].diff()).to(device)
        weight = None if self.queries.weight is None else self.queries.weight[s]
        bound, estimate = self._logits(s, keys, owner)
        potential = self._potentials(s, keys, owner, weight)
        likely, certain = self._worst(s)
        unlisted = self._unlisted(tile, stop, owner, weight)
        return Weights(
            s, owner, keys, listed.to(device), potential, bound - potential, estimate - potential,
            (certain if self.certify else likely) + unlisted, likely + unlisted,
        )  # fmt: skip

    def _table(self, tile: int, stop: int, kept: Kept) -> _Table:
        """The summands of (1), for the subtiles of some tiles and the key tiles of their lists."""
        w = self.weights(tile, stop)
        s, mass = w.subtiles, kept.mass[w.subtiles].double()
        scale = (
            (kept.sized[s] - kept.mass[s]).exp().nan_to_num(1.0).to(self.keys.value)
        )  # NaN: of diverged queries alone
        of_output = (kept.output[s] + GROWTH).clamp(max=1.0).to(scale)
        outside, likely_outside = ((t - mass).exp() for t in (w.outside, w.likely_outside))
        bound, estimate = ((t - mass[:, None]).exp() for t in (w.bound, w.estimate))
        return _Table(
            s, w.owner, w.listed[w.owner][..., None], scale, self.keys.value[w.keys][w.owner] / scale[:, None],
            of_output, bound, estimate, outside, likely_outside,
        )  # fmt: skip

    def _logits(self, s: slice, keys: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum over each tile's keys of exp(q . k / sqrt(D)), (S, T, G): the bound (2), and an estimate."""
        root = math.sqrt(self.head_dim)
        middles = self.queries.middle[s].split(torch.bincount(owner, minlength=len(keys)).tolist())
        along = torch.cat([  # tile by tile, since the centroids of all in one table would not fit any cache
            torch.einsum("sgd,tgd->stg", middle, self.keys.centroid[listed])
            for middle, listed in zip(middles, keys, strict=True)
        ]) / root  # fmt: skip
        number = self.points[keys][owner][..., None].log()
        longest = self.queries.longest[s][:, None]  # (S, 1, G)
        variance = longest.square() * self.keys.square[keys][owner] / self.head_dim**2
        estimate = (along + number + variance / 2).double()
        if not self.certify:
            return estimate, estimate
        aside = self.queries.radius[s][:, None] * self.keys.centroid.norm(dim=-1)[keys][owner] / root
        curve = _log_curve(longest * self.keys.radius[keys][owner] / root)
        second = curve + 2 * longest.log() + self.keys.spread[keys][owner].log() - math.log(self.head_dim)
        by_moments = along + aside + torch.logaddexp(number.expand_as(second), second)
        by_length = number + longest * self.keys.longest[keys][owner] / root
        return torch.minimum(by_moments, by_length).double(), estimate

    def _worst(self, s: slice) -> tuple[Tensor, Tensor]:
        """log of what exp(q . k / sqrt(D)) is at most on average over any tile, (S, G): an estimate, and a bound."""
        root, longest = math.sqrt(self.head_dim), self.queries.longest[s]
        mean = (self.keys.square * self.points[:, None]).sum(0) / self.points.sum()
        likely = 0.5 * longest.square().double() * mean / self.head_dim**2
        if self.elsewhere is not None:  # of keys that others hold only the length is known
            return likely, (longest * self.longest / root).double()
        spread = _log_curve(longest * self.widest / root) + 2 * longest.log() + self.density.log()
        by_moments = longest * self.aside / root + torch.logaddexp(
            torch.zeros_like(spread), spread - math.log(self.head_dim)
        )
        return likely, torch.minimum(by_moments, longest * self.longest / root).double()

    def _potentials(self, s: slice, keys: Tensor, owner: Tensor, weight: Tensor | None) -> Tensor:
        """w Phi from below, between subtiles and the boxes of their tiles' keys: (S, T, G) or (S, T, 1), float64."""
        subtiles = self.plan.subtiles
        low, high = (b[s].to(keys.device)[:, None] for b in (subtiles.low, subtiles.high))
        phi = box_potential(self.encoding, low - self.high[keys][owner], high - self.low[keys][owner])
        if phi.ndim == 3:  # heads that learned lengths of their own come first
            batch = self.longest.shape[0] // phi.shape[0]
            phi = phi.permute(1, 2, 0).repeat(1, 1, batch)
        else:
            phi = phi[..., None]
        phi = phi * (1 - 1e-14)  # huge ones are rounded, and may be smaller than they seem
        return phi if weight is None else phi * weight[:, None].double()

    def _unlisted(self, tile: int, stop: int, owner: Tensor, weight: Tensor | None) -> Tensor:
        """log of the sum of n exp(-w Phi) over what no list names: (S, 1) or (S, G).

        For w >= 1 each summand shrinks by exp(-(w - 1) Phi_min); for w < 1 the sum of the powers is at most
        n^(1 - w) times the power of the sum.
        """
        mass = self.reach.unlisted_mass[tile:stop].to(owner.device)[owner][:, None]
        if weight is None:
            return mass
        edge = (self.reach.best + self.reach.limit)[tile:stop].to(owner.device)[owner][:, None]
        number = self.reach.unlisted[tile:stop].to(owner.device)[owner][:, None].clamp(min=1.0).log()
        w = weight.double()
        weighed = torch.where(w >= 1, mass - (w - 1) * edge, (1 - w) * number + w * mass)
        return torch.where(torch.isneginf(mass), mass, weighed)  # nothing is unlisted, whatever it would weigh
