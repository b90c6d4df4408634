"""Who may read whom: the points of a call, with their clouds, masks and periods, before any of it is computed.

A call may hold one cloud of points, one per batch entry, or several packed one behind the other (``lengths``); keys may
be masked, and axes may be periodic. All of it comes down to one thing, which every backend takes: for each cloud, a run
of queries and a list of keys, each with the place where it is seen. A masked key is on no list. A key of a periodic
domain is on the list once for each of its images in reach:

    sum over keys j and whole numbers n of  exp( q^T R(c - xi_j - n L)^T k_j / sqrt(D) - Phi(c - xi_j - n L) ) v_j

over the same without v_j: attention on the domain repeated for ever, however short the period.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from farfield.attention.encoding import Encoding

# More images than this are refused: the period is then so short that memory ends before they do.
_MOST_IMAGES = 50_000_000


@dataclass
class Cloud:
    """Positions (N, P), or (B, N, P) where each batch entry has its own, and what limits who reads whom."""

    query_positions: Tensor
    key_positions: Tensor
    period: Tensor | None = None  # (P,) float64, infinite along axes that are not periodic
    key_mask: Tensor | None = None  # (B or 1, Nk), True for keys that may be read
    lengths: Tensor | None = None  # queries of each packed cloud
    key_lengths: Tensor | None = None
    own: bool = field(init=False)  # whether every query is a key too, at its own place

    def __post_init__(self) -> None:
        q, k = self.query_positions, self.key_positions
        self.own = (
            self.key_mask is None
            and (q is k or (q.shape == k.shape and q.dtype == k.dtype and torch.equal(q.detach(), k.detach())))
            and (self.lengths is self.key_lengths or _same(self.lengths, self.key_lengths))
        )

    @property
    def space_dim(self) -> int:
        return self.query_positions.shape[-1]

    @property
    def one_for_all(self) -> bool:
        """Whether all batch entries share points and mask."""
        masks = 1 if self.key_mask is None else len(self.key_mask)
        return self.query_positions.ndim == self.key_positions.ndim == 2 and masks == 1

    def batch(self) -> int:
        """Batch entries with points or a mask of their own; 1 where they share them."""
        own = [len(p) for p in (self.query_positions, self.key_positions) if p.ndim == 3]
        masks = 1 if self.key_mask is None else len(self.key_mask)
        return max([*own, masks])

    def same_as(self, other: Cloud) -> str | None:
        """What differs between two clouds, None if nothing."""
        for name in ("period", "key_mask", "lengths", "key_lengths"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if not _same(mine, theirs):
                return f"{name}={_shown(mine)}, this call has {_shown(theirs)}"
        for name in ("query_positions", "key_positions"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not theirs and not _same(mine, theirs):
                return f"other {name} of the shape {tuple(mine.shape)}, these have {tuple(theirs.shape)}"
        return None

    def flat(self, positions: Tensor) -> Tensor:
        """Positions as (M, P): those of all batch entries one after the other, unless they share them."""
        if self.one_for_all:
            return positions
        if positions.ndim == 2:
            positions = positions.expand(self.batch(), -1, -1)
        return positions.flatten(0, 1)

    def query_counts(self) -> list[int]:
        """Queries of each cloud, in the order of ``flat``."""
        if self.lengths is not None:
            return self.lengths.tolist() * (1 if self.one_for_all else self.batch())
        return [self.query_positions.shape[-2]] * (1 if self.one_for_all else self.batch())

    def key_runs(self) -> list[np.ndarray]:
        """The keys of each cloud that may be read, as indices into ``flat``."""
        keys, entries = self.key_positions.shape[-2], 1 if self.one_for_all else self.batch()
        sizes = [keys] if self.key_lengths is None else self.key_lengths.tolist()
        ends = np.cumsum(sizes * entries)
        runs = [np.arange(end - size, end) for end, size in zip(ends, sizes * entries, strict=True)]
        if self.key_mask is None:
            return runs
        allowed = self.key_mask.cpu().numpy()
        flags = np.broadcast_to(allowed, (entries, keys)).reshape(-1)
        return [run[flags[run]] for run in runs]


class OfOneCloud:
    """What plans have in common: the cloud and the encoding that they were made for."""

    cloud: Cloud
    identity: tuple  # of the encoding

    def check(self, cloud: Cloud, encoding: Encoding) -> None:
        """Refuse to serve other points, masks or periods, or another encoding, than the plan was built for."""
        if encoding.identity() != self.identity:
            raise ValueError(
                f"the plan was built for the encoding {self.identity}, not for {encoding.identity()}: build another"
            )
        difference = self.cloud.same_as(cloud)
        if difference is not None:
            raise ValueError(f"the plan was built for {difference}: build another")


@dataclass
class SeenKeys:
    """The keys of all clouds as they are seen: flat indices, where images repeat, and by how much each is shifted."""

    index: Tensor  # (M,) int64
    shift: Tensor | None  # (M, P) float64
    counts: list[int]  # keys of each cloud
    missing: list[float]  # per cloud, a bound on the mass sum exp(-Phi) of all images that are not among them

    def positions(self, flat: Tensor) -> Tensor:
        """Where the keys are seen, in float64, from the flat positions."""
        at = flat.index_select(0, self.index.to(flat.device)).double()
        return at if self.shift is None else at + self.shift.to(at.device)


def seen_keys(cloud: Cloud, encoding: Encoding, excess: float) -> SeenKeys:
    """The keys of every cloud; of a periodic one all images with Phi up to ``excess`` above its smallest value."""
    runs = cloud.key_runs()
    if cloud.period is None:
        return SeenKeys(torch.from_numpy(np.concatenate(runs)), None, [len(r) for r in runs], [0.0] * len(runs))
    flat_q, flat_k = (cloud.flat(p).detach().cpu().double() for p in (cloud.query_positions, cloud.key_positions))
    ends = np.cumsum([0, *cloud.query_counts()])
    index: list[np.ndarray] = []
    shift: list[np.ndarray] = []
    counts: list[int] = []
    missing: list[float] = []
    for first, last, run in zip(ends, ends[1:], runs, strict=False):
        found, moved, lost = _images(flat_q[first:last], flat_k[run], cloud.period, encoding, excess)
        index.append(run[found])
        shift.append(moved)
        counts.append(len(found))
        missing.append(lost)
    return SeenKeys(torch.from_numpy(np.concatenate(index)), torch.from_numpy(np.concatenate(shift)), counts, missing)


def _images(
    queries: Tensor, keys: Tensor, period: Tensor, encoding: Encoding, excess: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Keys (n,) and shifts (n, P) within ``excess`` of the queries' box, and a bound on what all others weigh."""
    space_dim = queries.shape[1]
    if len(queries) == 0 or len(keys) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros((0, space_dim)), 0.0
    kernels = [encoding.select(group[:1], widest=True) for group in encoding.head_groups() or []]
    kernels = kernels or [encoding.select(None, widest=True)]
    near, far = (_extent(kernels, space_dim, excess, side) for side in (-1.0, 1.0))  # along the basis
    turn = torch.eye(space_dim, dtype=torch.float64) if encoding.basis is None else encoding.basis.cpu().double()
    corners = torch.stack([turn.T * near, turn.T * far])  # of the box in reach, seen along the coordinate axes
    least, most = corners.amin(0).sum(-1), corners.amax(0).sum(-1)
    # delta = c - xi - n L between least and most
    low = (queries.amin(0) - keys.amax(0) - most) / period
    high = (queries.amax(0) - keys.amin(0) - least) / period
    ranges = [range(math.ceil(a), math.floor(b) + 1) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    if math.prod(len(steps) for steps in ranges) * len(keys) > _MOST_IMAGES:
        raise ValueError(
            f"period={period.tolist()} is so short for this encoding that more than {_MOST_IMAGES} images of keys are "
            "in reach: take a domain of several periods instead, or shorter decay lengths"
        )
    boxes = encoding.coordinates(queries)
    q_low, q_high = boxes.amin(0), boxes.amax(0)
    # none where the keys of one member of a group are out of reach of another's queries
    found, moved, lost = [np.zeros(0, dtype=np.int64)], [np.zeros((0, space_dim))], 0.0
    for steps in itertools.product(*ranges):
        moves = [n * length if n else 0.0 for n, length in zip(steps, period.tolist(), strict=True)]
        offset = torch.tensor(moves, dtype=torch.float64)
        where = encoding.coordinates(keys + offset)
        above = torch.full((len(keys),), torch.inf, dtype=torch.float64)
        weight = torch.zeros(len(keys), dtype=torch.float64)
        for kernel in kernels:
            smallest = box_potential(kernel, q_low - where, q_high - where)
            above = torch.minimum(above, smallest - float(kernel.floor(space_dim).reshape(-1)[0]))
            weight = torch.maximum(weight, torch.exp(-smallest))
        kept = (above <= excess).nonzero()[:, 0]
        lost += max(0.0, float(weight.sum() - weight[kept].sum()))  # rounding could make nothing less than that
        found.append(kept.numpy())
        moved.append(offset.expand(len(kept), -1).numpy())
    return np.concatenate(found), np.concatenate(moved), lost + _beyond(len(keys), period, near, far, excess)


def _beyond(keys: int, period: Tensor, near: Tensor, far: Tensor, excess: float) -> float:
    """A bound on the mass of the images outside the box in reach.

    There Phi is at least ``excess`` along some axis and, being convex, rises by excess L / extent with every further
    period; along the other axes at most 2 + 2 extent / L images count fully and the rest form a geometric series.
    """
    periodic = torch.isfinite(period)
    extent = (far - near).amax() + 0 * period
    ratio = torch.exp(-(excess * period / extent)[periodic])
    per_axis = 2 + 2 * (extent / period)[periodic] + 2 / (1 - ratio).clamp(min=1e-12)
    return float(keys * math.exp(-excess) * periodic.sum() * per_axis.prod())


def _extent(kernels: Sequence[Encoding], space_dim: int, excess: float, side: float) -> Tensor:
    """The furthest displacement to one side, per axis of the basis, at which Phi is ``excess`` above its smallest."""
    furthest = torch.zeros(space_dim, dtype=torch.float64)
    for kernel in kernels:
        centre = kernel.centre(space_dim).reshape(-1, space_dim)[0].cpu().double()
        ends = centre + side * rising_reach(kernel, space_dim, excess, side)
        furthest = torch.maximum(furthest, ends) if side > 0 else torch.minimum(furthest, ends)
    return furthest


def rising_reach(encoding: Encoding, space_dim: int, rise: float, side: float = 1.0) -> Tensor:
    """How far from the minimum of Phi, along each axis (P,), it has risen by ``rise``; up to 20 % too far."""
    steps = 1.2 ** torch.arange(-150, 250, dtype=torch.float64)
    centre = encoding.centre(space_dim).reshape(-1, space_dim)[0].cpu().double()
    lowest = encoding.axis_penalty(centre).reshape(-1, space_dim)[0]
    along = encoding.axis_penalty(centre + side * steps[:, None]).reshape(-1, len(steps), space_dim)[0]
    risen = encoding.combine(along + (lowest.sum() - lowest)) - encoding.combine(lowest.sum())
    passed = (risen >= rise).double()
    passed[-1] = 1.0
    return steps[passed.argmax(0)]


def box_potential(encoding: Encoding, low: Tensor, high: Tensor) -> Tensor:
    """The smallest Phi of displacements (..., P) between low and high, in the basis' coordinates.

    Phi is a sum of convex functions of one axis each, so the place nearest to its minimum is the best of a box.
    """
    centre = encoding.centre(low.shape[-1]).to(low)
    phi = encoding.combine(encoding.axis_penalty(torch.minimum(torch.maximum(centre, low), high)).sum(-1))
    one_for_all_heads = phi.numel() == low[..., 0].numel()
    return phi.reshape(low.shape[:-1]) if one_for_all_heads else phi  # else (H, ...)


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.device == b.device and torch.equal(a.detach().to(b.dtype), b.detach())


def _shown(value: Tensor | None) -> str:
    if value is None:
        return "none"
    return str(value.tolist()) if value.numel() <= 8 else f"one of the shape {tuple(value.shape)}"
