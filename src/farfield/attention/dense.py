"""All-pairs attention: the formula written out (``reference``) and one call of the fast kernel (``dense``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from farfield.attention.cloud import Cloud, OfOneCloud, rising_reach, seen_keys
from farfield.attention.encoding import Encoding
from farfield.attention.kernel import fused as kernel
from farfield.attention.problem import Problem

# Pairs for which the formula is written out at a time, where only some queries need it.
_ROWS = 1 << 22
# What images of periodic keys may be left out, as a share of the tolerance.
_IMAGES = 0.1


@dataclass
class AllPairs(OfOneCloud):
    """The plan to compute all pairs: that it was decided, why, and which queries are too far from every key for it."""

    cloud: Cloud
    tolerance: float
    identity: tuple
    backend: str
    reason: str
    _nearest: Tensor | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.backend}: {self.reason}"

    def nearest(self, encoding: Encoding) -> Tensor:
        """A bound on the penalty of each query to its best key, (Nq,) or (B, Nq), from its nearest key."""
        if self._nearest is None:
            self._nearest = _nearest_penalty(self.cloud, encoding)
        return self._nearest


def reference(problem: Problem, plan: AllPairs) -> Tensor:
    """softmax(q^T R k / sqrt(D) - w Phi) v with the matrix of logits in full: slow, and what all else must equal."""
    return _cloud_by_cloud(problem, lambda part: _formula(*part))


def dense(problem: Problem, plan: AllPairs) -> Tensor:
    """The same through extra channels of q and k: no matrix of logits is ever stored."""
    if problem.has_tangents():  # the fused kernel has no forward mode
        return reference(problem, plan)
    out = _cloud_by_cloud(problem, _through_channels)
    if out.requires_grad and not torch.compiler.is_compiling():
        out.register_hook(_refuse_second_derivatives)
    far = _far_queries(problem, plan)
    if far is None:
        return out
    rows = max(1, _ROWS // max(1, problem.k.shape[-2]))
    for some in far.split(rows):  # there channels round the logits away: the formula itself, for these alone
        out = out.index_copy(2, some, _cloud_by_cloud(problem, lambda part: _formula(*part), some))
    return out


def _refuse_second_derivatives(_: Tensor) -> None:
    if torch.is_grad_enabled():  # a graph of the backward pass was asked for
        raise NotImplementedError(
            "the dense backend has no second derivatives: take backend='reference', which has them"
        )


def penalty_matrix(query_positions: Tensor, key_positions: Tensor, encoding: Encoding, weight: Tensor | None) -> Tensor:
    """weight * Phi of every pair, (B or 1, H or 1, Nq, Nk), from positions (B or 1, 1, N, P)."""
    penalty = encoding.penalty(query_positions[..., :, None, :] - key_positions[..., None, :, :])
    return penalty if weight is None else weight[..., None].to(penalty.dtype) * penalty


def channel_error(dtype: torch.dtype) -> float:
    """What the dense backend's channels may be off by, in the logits: 3.5e-5 in float32, 1.5e-9 in float64."""
    return 0.1 * torch.finfo(dtype).eps ** 0.5


# q, k, v, positions of queries and keys (B or 1, 1, N, P) in float64, encoding, weight
_Part = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Encoding, Tensor | None]


def _formula(
    q: Tensor, k: Tensor, v: Tensor, where_q: Tensor, where_k: Tensor, encoding: Encoding, weight: Tensor | None
) -> Tensor:
    logits = _turned(q, where_q, encoding) @ _turned(k, where_k, encoding).mT / math.sqrt(q.shape[-1])
    penalty = penalty_matrix(where_q, where_k, encoding, weight)
    # counted from each query's best key: far from all of them Phi is huge, and would round the logits away
    penalty = penalty - penalty.detach().amin(-1, keepdim=True)
    return torch.softmax(logits - penalty.to(logits.dtype), dim=-1) @ v


def _through_channels(part: _Part) -> Tensor:
    q, k, v, where_q, where_k, encoding, weight = part
    head_dim = q.shape[-1]
    extra_q = encoding.query_channels(where_q.to(q.dtype), head_dim)
    extra_k = encoding.key_channels(where_k.to(k.dtype))
    if weight is not None:
        extra_q = extra_q * weight[..., None].to(extra_q.dtype)
    q, k = _turned(q, where_q, encoding), _turned(k, where_k, encoding)
    q = torch.cat([q, extra_q.expand(*q.shape[:-1], -1)], dim=-1)
    k = torch.cat([k, extra_k.expand(*k.shape[:-1], -1)], dim=-1)
    return kernel(q, k, v, scale=1 / math.sqrt(head_dim))


def _turned(x: Tensor, where: Tensor, encoding: Encoding) -> Tensor:
    return encoding.rotate(x, where[:, 0] if where.shape[0] > 1 else where[0, 0])


def _cloud_by_cloud(problem: Problem, run: Callable[[_Part], Tensor], rows: Tensor | None = None) -> Tensor:
    """``run`` on each cloud with the keys as it sees them; on the whole batch at once where that is the same.

    With ``rows`` (one cloud, or one per batch entry) for these queries only.
    """
    cloud, encoding = problem.cloud, problem.encoding
    queries = slice(None) if rows is None else rows
    weight = None if problem.weight is None else problem.weight[:, :, queries]
    if cloud.period is None and cloud.key_mask is None and cloud.lengths is None:
        where_q, where_k = centred(cloud.query_positions, cloud.key_positions)
        where_q = where_q[..., queries, :]
        return run((problem.q[:, :, queries], problem.k, problem.v, where_q, where_k, encoding, weight))
    seen = seen_keys(cloud, encoding, image_reach(problem))
    flat_q, flat_k = cloud.flat(cloud.query_positions), cloud.flat(cloud.key_positions)
    counts = cloud.query_counts()
    ends_q, ends_k = np.cumsum([0, *counts]), np.cumsum([0, *seen.counts])
    per_query, per_key = cloud.query_positions.shape[-2], cloud.key_positions.shape[-2]
    out = problem.q.new_zeros((*problem.q.shape[:2], 0 if rows is None else len(rows), problem.v.shape[-1]))
    pieces: list[list[Tensor]] = [[] for _ in range(1 if cloud.one_for_all else cloud.batch())]
    for c, count in enumerate(counts):
        if count == 0:
            continue
        entry = 0 if cloud.one_for_all else int(ends_q[c]) // per_query
        batch = slice(None) if cloud.one_for_all else slice(entry, entry + 1)
        first = int(ends_q[c]) - entry * per_query
        own = torch.arange(first, first + count, device=problem.q.device) if rows is None else rows
        keys = seen.index[ends_k[c] : ends_k[c + 1]].to(problem.q.device)
        shift = None if seen.shift is None else seen.shift[ends_k[c] : ends_k[c + 1]].to(problem.q.device)
        where_q, where_k = flat_q[own + entry * per_query].double(), flat_k[keys].double()
        where_k = where_k if shift is None else where_k + shift
        where_q, where_k = centred(where_q, where_k)
        local = keys - entry * per_key
        k, v = (t[batch][:, :, local] for t in (problem.k, problem.v))
        some = None if problem.weight is None else problem.weight[batch][:, :, own]
        pieces[entry].append(run((problem.q[batch][:, :, own], k, v, where_q, where_k, encoding, some)))
    rejoined = [torch.cat(p, dim=2) for p in pieces if p]
    return torch.cat(rejoined) if rejoined else out


def image_reach(problem: Problem) -> float:
    """How far (in Phi) images of periodic keys must be seen: what is beyond weighs less than the tolerance.

    The mass read is at least exp(-X) of one key, that of all others at most exp(X) each, X = max|q| max|k| / sqrt(D).
    """
    if problem.cloud.period is None:
        return 0.0
    q, k = problem.q.detach(), problem.k.detach()
    logits = float(q.norm(dim=-1).max() * k.norm(dim=-1).max()) / math.sqrt(q.shape[-1])
    logits = logits if math.isfinite(logits) else 0.0
    most = math.log(max(2, k.shape[-2])) - math.log(_IMAGES * problem.tolerance) + problem.cloud.space_dim
    return most + 2 * logits


def _far_queries(problem: Problem, plan: AllPairs) -> Tensor | None:
    """Queries so far from every key that the channels would round their logits away; None if there are none."""
    cloud, encoding = problem.cloud, problem.encoding
    if torch.compiler.is_compiling() or not encoding.local or cloud.own or cloud.period is not None:
        return None
    most = channel_error(problem.q.dtype) / torch.finfo(problem.q.dtype).eps
    heaviest = 1.0 if problem.weight is None else max(1.0, float(problem.weight.detach().max()))
    if cloud.key_mask is None and cloud.lengths is None:
        both = [encoding.coordinates(p.detach()).flatten(0, -2) for p in (cloud.query_positions, cloud.key_positions)]
        low, high = (both[0].amin(0) - both[1].amax(0)).double(), (both[0].amax(0) - both[1].amin(0)).double()
        furthest = torch.maximum(encoding.axis_penalty(low), encoding.axis_penalty(high)).sum(-1)
        if float(encoding.combine(furthest).max()) * heaviest <= most:
            return None
    far = plan.nearest(encoding) * heaviest > most
    far = far.any(0) if far.ndim == 2 else far
    return far.nonzero()[:, 0].to(problem.q.device) if bool(far.any()) else None


@torch.no_grad()
def _nearest_penalty(cloud: Cloud, encoding: Encoding) -> Tensor:
    """The penalty of each query, (B or 1, Nq), to the key that lies nearest in decay lengths; infinite without keys."""
    metric = rising_reach(encoding, cloud.space_dim, 1.0)
    flat_q, flat_k = (cloud.flat(p).cpu().double() for p in (cloud.query_positions, cloud.key_positions))
    ends, parts = np.cumsum([0, *cloud.query_counts()]), []
    for first, last, run in zip(ends, ends[1:], cloud.key_runs(), strict=False):
        if len(run) == 0 or first == last:
            parts.append(torch.full((int(last - first),), torch.inf, dtype=torch.float64))
            continue
        queries, keys = encoding.coordinates(flat_q[first:last]), encoding.coordinates(flat_k[run])
        _, found = cKDTree((keys / metric).numpy()).query((queries / metric).numpy())
        delta = queries - keys[torch.from_numpy(np.atleast_1d(found))]
        penalty = encoding.combine(encoding.axis_penalty(delta[:, None, :]).sum(-1))
        parts.append(penalty.reshape(-1, len(queries)).amax(0))
    return torch.cat(parts).reshape(-1, cloud.query_positions.shape[-2])


def centred(query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (B or 1, 1, N, P) in float64 relative to the middle of all of them."""
    query_positions, key_positions = (
        (p[None, None] if p.ndim == 2 else p[:, None]).double() for p in (query_positions, key_positions)
    )
    if query_positions.shape[-2] == 0 or key_positions.shape[-2] == 0:
        return query_positions, key_positions
    with torch.no_grad():  # a common shift changes nothing, not even the gradients
        low = torch.minimum(query_positions.amin(-2, keepdim=True), key_positions.amin(-2, keepdim=True))
        high = torch.maximum(query_positions.amax(-2, keepdim=True), key_positions.amax(-2, keepdim=True))
        origin = low + (high - low) / 2
    return query_positions - origin, key_positions - origin
