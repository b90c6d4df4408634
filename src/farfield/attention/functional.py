"""``local_attention``: one function, several backends, one result."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from farfield.attention.checks import Counts, Positions, check_tensors, make_cloud
from farfield.attention.choice import BACKENDS, choose, obstacle_to_channels
from farfield.attention.cloud import Cloud
from farfield.attention.dense import AllPairs, dense, image_reach, reference
from farfield.attention.encoding import Encoding
from farfield.attention.flex import flex
from farfield.attention.group import Group
from farfield.attention.nested import pack_nested
from farfield.attention.plan import AttentionPlan, plan_cloud
from farfield.attention.problem import Problem, needs_gradients
from farfield.attention.reachable import out_of_reach
from farfield.attention.sharded import ShardedPlan
from farfield.attention.tiled import tiled
from farfield.attention.wavelengths import warn_of_wavelengths

_log = logging.getLogger(__name__)
Plan = AttentionPlan | AllPairs | ShardedPlan


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Positions,
    key_positions: Positions | None = None,
    *,
    encoding: Encoding,
    backend: str = "auto",
    tolerance: float = 1e-4,
    plan: Plan | None = None,
    period: Any = None,
    key_mask: Tensor | None = None,
    lengths: Counts | None = None,
    key_lengths: Counts | None = None,
    empty: str = "nearest",
    certify: bool = True,
) -> Tensor:
    """Attention whose weights are softmax(q^T R(delta)^T k / sqrt(D) - Phi(delta)), delta = query - key position.

    Args:
        q: queries (B, H, Nq, D), not rotated: ``encoding`` rotates q and k here. Nested tensors hold clouds of
            different sizes; k, v and the positions are then nested too, and so is the result.
        k, v: keys (B, H, Nk, D) and values (B, H, Nk, Dv).
        query_positions: (Nq, P), or (B, Nq, P) where each batch entry has its own points.
        key_positions: likewise for the keys; None for self-attention.
        encoding: RoPE, LASPE, LAAPE, FlashBias, ALiBi or Window.
        backend: "reference" writes the formula out; "dense" calls one fused kernel over all pairs; "tiled" computes
            only the keys in reach, at a cost that grows linearly with the number of points; "flex" does the same in
            one FlexAttention kernel, for CUDA; "auto" picks (:func:`explain_backend` says what and why).
        tolerance: what the sparse backends may be off by: each query's output by ``tolerance`` times the mean size of
            the values that it attends to, sum_j p_ij |v_j| (or ``tolerance`` times the largest |v| of the head, if that
            is more). It is a bound, proved in :mod:`farfield.attention.certificate`. Also what counts as out of reach
            for ``empty``.
        plan: from :func:`plan_attention`; made here if not given, for this call alone. It keeps its own tolerance. With
            that of a group, q, k, v and positions are those at hand, and all members of the group call together.
        period: the length after which the domain repeats, one per axis, None for axes that do not: keys are seen with
            all of their images in reach, as if the domain were repeated for ever.
        key_mask: (B, Nk), True for the keys that may be read.
        lengths: sizes of clouds that lie one after the other along the points; each attends to itself alone.
        key_lengths: the same for the keys, in cross-attention.
        empty: a query that has no key in reach (every weight exp(-Phi) below ``tolerance`` times the kernel's peak)
            follows the formula and attends to its nearest key ("nearest"), or returns zeros ("zero"). With no key at
            all, because all are masked, "nearest" is refused.
        certify: False takes an estimate of what is left out instead of the bound: somewhat faster, and the tolerance
            is then kept on average, not for certain.

    Returns (B, H, Nq, Dv) in the dtype of q. Half-precision inputs are computed in float32, and in float64 where logits
    are so large, or the tolerance so small, that float32 could not keep it: the bias and the rotation are never rounded
    to less. Positions are taken in float64 relative to the middle of the domain, or of a tile, so a common shift of all
    positions changes nothing. Gradients reach q, k, v, the encoding's parameters and the positions. Forward mode is
    there with the backends "reference" and "dense", second derivatives with "reference"; elsewhere they are refused.
    """
    if q.is_nested:
        options: dict[str, Any] = {"period": period, "key_mask": key_mask, "lengths": lengths, "plan": plan}
        options |= {"key_lengths": key_lengths, "encoding": encoding, "backend": backend, "tolerance": tolerance}
        options |= {"empty": empty, "certify": certify}
        return pack_nested(local_attention, q, k, v, query_positions, key_positions, options)
    _check_options(backend, tolerance, empty)
    looking = not torch.compiler.is_compiling() and plan is None
    options = {"period": period, "key_mask": key_mask, "lengths": lengths, "key_lengths": key_lengths}
    cloud = make_cloud(query_positions, key_positions, encoding, look=looking, **options)
    if isinstance(plan, ShardedPlan):
        plan.check(cloud, encoding)

        def here(q: Tensor, k: Tensor, v: Tensor, part: AttentionPlan) -> Tensor:
            where = (part.cloud.query_positions, part.cloud.key_positions)
            return local_attention(q, k, v, *where, encoding=encoding, plan=part, empty=empty, certify=certify)

        return plan.attend(q, k, v, here)
    check_tensors(q, k, v, cloud, encoding)
    if q.shape[0] == 0 or q.shape[1] == 0 or q.shape[2] == 0:
        return q.new_zeros((*q.shape[:3], v.shape[-1]))
    if plan is None:  # who plans has looked at the points
        warn_of_wavelengths(encoding, cloud.key_positions, q.shape[-1])
    cloud, keyless = _without_keys(cloud, empty)
    if plan is not None:
        if not torch.compiler.is_compiling():
            plan.check(cloud, encoding)
        tolerance = plan.tolerance
    elif backend == "auto":
        differentiated = needs_gradients(q, k, v, cloud, encoding)
        plan = choose(cloud, encoding, tolerance, q.shape[0] * q.shape[1], q.dtype, q.device, differentiated)
        _log.debug("local_attention: %s, because %s", plan.backend, plan.reason)
    backend = plan.backend if backend == "auto" and plan is not None else backend
    with torch.autocast(q.device.type, enabled=False):  # autocast would round the bias channels to bfloat16
        problem = _problem(q, k, v, cloud, encoding, tolerance, certify, backend)
        out = _run(problem, backend, plan, q.dtype)
        if empty == "zero":
            lonely = out_of_reach(problem, plan if isinstance(plan, AttentionPlan) else None)
            out = out if lonely is None else out.masked_fill(lonely[..., None], 0.0)
            out = out if keyless is None else out.masked_fill(keyless, 0.0)
    return out.to(q.dtype)


def plan_attention(
    query_positions: Positions,
    key_positions: Positions | None = None,
    *,
    encoding: Encoding,
    tolerance: float = 1e-4,
    backend: str = "tiled",
    period: Any = None,
    key_mask: Tensor | None = None,
    lengths: Counts | None = None,
    key_lengths: Counts | None = None,
    heads: int = 1,
    query_tile: int | None = None,
    key_tile: int | None = None,
    group: Group | None = None,
) -> Plan:
    """What attention needs to know about its points, for all layers and steps that share them.

    Positions, ``tolerance``, ``period``, ``key_mask`` and ``lengths`` as in :func:`local_attention`. With
    ``backend="auto"`` it also decides between all pairs and tiles, for layers of ``heads`` heads (times the batch
    entries that share the points). ``query_tile`` and ``key_tile`` are points per tile; by default queries take the
    size that makes the whole cheapest. With a ``group`` the positions are those at hand, perhaps none; all of its
    members call this together, and then :func:`local_attention` with what they get (:mod:`farfield.attention.sharded`).
    """
    _check_options(backend, tolerance, "zero")
    options = {"period": period, "key_mask": key_mask, "lengths": lengths, "key_lengths": key_lengths}
    cloud = make_cloud(query_positions, key_positions, encoding, **options)
    if group is not None:
        return ShardedPlan(group, cloud, encoding, tolerance)
    for name, points in (("query_positions", cloud.query_positions), ("key_positions", cloud.key_positions)):
        if points.shape[-2] == 0:
            raise ValueError(f"a plan needs {name} (N, P), at least one, got the shape {tuple(points.shape)}")
    if backend == "auto":
        device = cloud.query_positions.device
        return choose(cloud, encoding, tolerance, heads, torch.float32, device, torch.is_grad_enabled())
    if backend in ("dense", "reference"):
        return AllPairs(cloud, tolerance, encoding.identity(), backend, "it was asked for")
    return plan_cloud(cloud, encoding, tolerance, query_tile, key_tile, backend=backend)


def explain_backend(
    q: Tensor,
    query_positions: Positions,
    key_positions: Positions | None = None,
    *,
    encoding: Encoding,
    tolerance: float = 1e-4,
    **limits: Any,
) -> str:
    """What ``backend="auto"`` would choose for these points, and why; ``limits`` are period, key_mask and lengths."""
    cloud = make_cloud(query_positions, key_positions, encoding, **limits)
    differentiated = needs_gradients(q, q, q, cloud, encoding)
    plan = choose(cloud, encoding, tolerance, q.shape[0] * q.shape[1], q.dtype, q.device, differentiated)
    return f"{plan.backend}: {plan.reason}"


def _run(problem: Problem, backend: str, plan: AttentionPlan | AllPairs | None, dtype: torch.dtype) -> Tensor:
    """The backend's answer, with the plan found or made."""
    if backend in ("dense", "reference"):
        if not isinstance(plan, AllPairs):
            plan = AllPairs(problem.cloud, problem.tolerance, (), backend, "it was asked for")
        if backend == "reference":
            return reference(problem, plan)
        if not torch.compiler.is_compiling():
            obstacle = obstacle_to_channels(
                problem.cloud, problem.encoding, problem.q.dtype, problem.weight, image_reach(problem)
            )
            if obstacle:
                raise ValueError(obstacle)
        return dense(problem, plan)
    if not isinstance(plan, AttentionPlan):
        plan = plan_cloud(problem.cloud, problem.encoding, problem.tolerance, backend=backend)
    return flex(problem, plan, dtype) if backend == "flex" else tiled(problem, plan)


def _problem(
    q: Tensor, k: Tensor, v: Tensor, cloud: Cloud, encoding: Encoding, tolerance: float, certify: bool, backend: str
) -> Problem:
    dtype = torch.promote_types(q.dtype, torch.float32)
    if backend == "tiled" and dtype == torch.float32 and _needs_float64(q, k, tolerance):
        dtype = torch.float64
    q, k, v = (t.to(dtype) for t in (q, k, v))
    return Problem(q, k, v, cloud, encoding, encoding.query_weight(q), tolerance, certify, encoding)


def _needs_float64(q: Tensor, k: Tensor, tolerance: float) -> bool:
    """Whether rounding the logits to float32 could change outputs by about half of the tolerance."""
    with torch.no_grad():
        longest = [
            float(torch.linalg.vector_norm(t, dim=-1, dtype=torch.float32).nan_to_num(0, 0).max()) for t in (q, k)
        ]
    largest = longest[0] * longest[1] / math.sqrt(q.shape[-1])
    return largest * torch.finfo(torch.float32).eps > tolerance / 2


def _without_keys(cloud: Cloud, empty: str) -> tuple[Cloud, Tensor | None]:
    """Where a mask leaves batch entries no key at all: a cloud that lets them read, and where to write zeros then."""
    if cloud.key_mask is None or torch.compiler.is_compiling():
        return cloud, None
    none = ~cloud.key_mask.any(-1)
    if not bool(none.any()):
        return cloud, None
    if empty == "nearest":
        raise ValueError(
            f"key_mask leaves the queries of {int(none.sum())} batch entries no key at all: allow at least one, or "
            "take empty='zero', which gives such queries zeros"
        )
    return replace(cloud, key_mask=cloud.key_mask | none[:, None]), none[:, None, None, None]


def _check_options(backend: str, tolerance: float, empty: str) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance}")
    if empty not in ("nearest", "zero"):
        raise ValueError(f"empty must be 'nearest' or 'zero', got {empty!r}")
