"""``local_attention``: one function, several backends, one result."""

from __future__ import annotations

import logging
import math
import warnings

import torch
from torch import Tensor

from farfield.attention.dense import dense, penalty_matrix, reference
from farfield.attention.flex import BLOCK, flex
from farfield.attention.locality import LAAPE, Encoding, RoPE
from farfield.attention.plan import AttentionPlan, cached_plan
from farfield.attention.tiled import tiled

_log = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "dense", "tiled", "flex")
# Up to so many pairs all of them are computed: a plan would cost more than it saves.
_FEW_PAIRS = 1 << 22
# Gathering makes a computed pair dearer than a dense one; beyond this fraction of all pairs dense wins.
_DENSE_FROM = 0.7


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor | None = None,
    *,
    encoding: Encoding,
    backend: str = "auto",
    tolerance: float = 1e-4,
    plan: AttentionPlan | None = None,
    empty: str = "nearest",
) -> Tensor:
    """Attention whose weights are softmax(q^T R(delta)^T k / sqrt(D) - Phi(delta)), delta = query - key position.

    Args:
        q: queries (B, H, Nq, D), not rotated: ``encoding`` rotates q and k here.
        k, v: keys (B, H, Nk, D) and values (B, H, Nk, Dv).
        query_positions: (Nq, P), or (B, Nq, P) where each batch entry has its own points.
        key_positions: likewise for the keys; None for self-attention.
        encoding: RoPE, LASPE, LAAPE, FlashBias, ALiBi or Window.
        backend: "reference" writes the formula out; "dense" calls one fused kernel over all pairs; "tiled" computes
            only the keys in reach, at a cost that grows linearly with the number of points; "flex" does the same in
            one FlexAttention kernel, for CUDA; "auto" picks (:func:`explain_backend` says what and why).
        tolerance: relative error that a sparse backend may make; also what counts as out of reach for ``empty``.
        plan: from :func:`plan_attention`, for the sparse backends; made (and remembered) here if not given.
        empty: a query that has no key in reach (every weight exp(-Phi) below ``tolerance`` times the kernel's peak)
            follows the formula and attends to its nearest key ("nearest"), or returns zeros ("zero").

    Returns (B, H, Nq, Dv) in the dtype of q. Half-precision inputs are computed in float32: the bias and the
    rotation are never rounded to less. Positions are taken relative to the middle of the domain, in their own
    precision (float32 at least), so a common shift of all positions changes nothing.
    """
    key_positions = query_positions if key_positions is None else key_positions
    query_positions, key_positions = _at_least_float32(query_positions), _at_least_float32(key_positions)
    _check_arguments(q, k, v, query_positions, key_positions, encoding, backend, tolerance, empty)
    query_positions, key_positions = _unbatched(query_positions), _unbatched(key_positions)
    if backend == "auto":
        backend, reason = _choose(query_positions, key_positions, encoding, q, tolerance, plan)
        _log.debug("local_attention: %s, because %s", backend, reason)
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):  # autocast would round the bias channels to bfloat16
        where_q, where_k = _centred(query_positions, key_positions)
        weight = encoding.query_weight(q.to(dtype))
        q_turned = encoding.rotate(q.to(dtype), where_q)
        k_turned = encoding.rotate(k.to(dtype), where_k)
        if backend in ("tiled", "flex"):
            rotated = (q_turned, k_turned, v.to(dtype))
            if backend == "flex":  # its kernels multiply in the inputs' precision, add and form the bias in float32
                rotated = (q_turned.to(q.dtype), k_turned.to(q.dtype), v)
            out = _sparse(backend, *rotated, query_positions, key_positions, encoding, weight, tolerance, plan)
        else:
            where_q, where_k = where_q.to(dtype), where_k.to(dtype)
            obstacle = _obstacle_to_dense(where_q, where_k, encoding, dtype) if backend == "dense" else None
            if obstacle:
                raise ValueError(obstacle)
            run = {"reference": reference, "dense": dense}[backend]
            out = run(q_turned, k_turned, v.to(dtype), where_q, where_k, encoding, weight)
        if empty == "zero":
            lonely = _out_of_reach(where_q, where_k, encoding, weight, tolerance)
            out = out.masked_fill(lonely[..., None], 0.0)
    return out.to(q.dtype)


def explain_backend(
    q: Tensor,
    query_positions: Tensor,
    key_positions: Tensor | None = None,
    *,
    encoding: Encoding,
    tolerance: float = 1e-4,
) -> str:
    """What ``backend="auto"`` would choose for these points, and why."""
    key_positions = query_positions if key_positions is None else key_positions
    query_positions, key_positions = _at_least_float32(query_positions), _at_least_float32(key_positions)
    query_positions, key_positions = _unbatched(query_positions), _unbatched(key_positions)
    backend, reason = _choose(query_positions, key_positions, encoding, q, tolerance, None)
    return f"{backend}: {reason}"


def _choose(
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    q: Tensor,
    tolerance: float,
    plan: AttentionPlan | None,
) -> tuple[str, str]:
    """The backend that "auto" stands for, and the reason."""
    if plan is not None:
        fits_flex = plan.queries.size == plan.keys.size == BLOCK
        return ("flex" if q.device.type == "cuda" and fits_flex else "tiled"), "a plan was given"
    dtype = torch.promote_types(q.dtype, torch.float32)
    where_q, where_k = _centred(query_positions, key_positions)
    obstacle = _obstacle_to_dense(where_q.to(dtype), where_k.to(dtype), encoding, dtype)
    pairs = query_positions.shape[-2] * key_positions.shape[-2]
    if isinstance(encoding, RoPE):
        return "dense", "RoPE alone is not local, every key counts"
    if pairs <= _FEW_PAIRS and not obstacle:
        return "dense", f"{pairs} pairs are so few that a plan would cost more than it saves"
    if pairs <= _FEW_PAIRS and not encoding.decomposes:
        return "reference", f"{type(encoding).__name__} does not decompose, and {pairs} pairs are few"
    first_q, first_k = (p if p.ndim == 2 else p[0] for p in (query_positions, key_positions))
    density = cached_plan(first_q, first_k, encoding, tolerance).density()
    if density > _DENSE_FROM and not obstacle:
        return "dense", f"{100 * density:.0f} % of all pairs are in reach, so skipping the rest would not pay"
    reason = f"{100 * density:.2g} % of all pairs are in reach"
    if q.device.type == "cuda":
        return "flex", reason + ", and the device is CUDA"
    return "tiled", reason


def _sparse(
    backend: str, q: Tensor, k: Tensor, v: Tensor, query_positions: Tensor, key_positions: Tensor, encoding: Encoding,
    weight: Tensor | None, tolerance: float, plan: AttentionPlan | None,
) -> Tensor:  # fmt: skip
    """A sparse backend, with the plan found or made; batch entries with points of their own go one by one."""
    if query_positions.ndim == 2 and key_positions.ndim == 2:
        if plan is not None:
            plan.check(query_positions, key_positions, encoding)
        elif backend == "flex":
            plan = cached_plan(query_positions, key_positions, encoding, tolerance, tile=BLOCK)
        else:
            plan = cached_plan(query_positions, key_positions, encoding, tolerance)
        run = flex if backend == "flex" else tiled
        return run(q, k, v, query_positions, key_positions, encoding, weight, plan)
    if plan is not None:
        raise ValueError("a plan serves one point cloud: give positions (N, P) with it, not (B, N, P)")
    entries = []
    for b in range(len(q)):
        where_q, where_k = (p if p.ndim == 2 else p[b] for p in (query_positions, key_positions))
        one = slice(b, b + 1)
        some = None if weight is None else weight[one]
        entries.append(_sparse(backend, q[one], k[one], v[one], where_q, where_k, encoding, some, tolerance, None))
    return torch.cat(entries)


def _at_least_float32(positions: Tensor) -> Tensor:
    """Positions in float32 or better; what half precision has already rounded away can only be pointed out."""
    if not positions.is_floating_point() or positions.dtype.itemsize >= 4:
        return positions
    global _said_half
    if not _said_half:
        _said_half = True
        size = torch.finfo(positions.dtype).eps / 2 * 1000
        warnings.warn(
            f"positions came in {positions.dtype}, which rounds a coordinate of 1000 by up to {size:g}; attention "
            "computes with them in float32, but what they have lost is lost. Keep positions out of casts: give them "
            "in float32. (Said once.)",
            stacklevel=3,
        )
    return positions.float()


_said_half = False


def _unbatched(positions: Tensor) -> Tensor:
    """Positions (B, N, P) that are the same for all batch entries, as loaders stack them, become (N, P)."""
    if positions.ndim == 3 and bool((positions == positions[:1]).all()):
        return positions[0]
    return positions


def _centred(query_positions: Tensor, key_positions: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (B or 1, 1, N, P) relative to the middle of all of them, subtracted in their own precision."""
    query_positions, key_positions = (
        p[None, None] if p.ndim == 2 else p[:, None] for p in (query_positions, key_positions)
    )
    low = torch.minimum(query_positions.amin(-2, keepdim=True), key_positions.amin(-2, keepdim=True))
    high = torch.maximum(query_positions.amax(-2, keepdim=True), key_positions.amax(-2, keepdim=True))
    origin = low + (high - low) / 2
    return query_positions - origin, key_positions - origin


def _out_of_reach(
    where_q: Tensor, where_k: Tensor, encoding: Encoding, weight: Tensor | None, tolerance: float
) -> Tensor:
    """Queries (B, H, Nq) whose every key weighs less than ``tolerance`` times the kernel's peak."""
    floor = encoding.floor(where_q.shape[-1]).to(where_q)
    rows = max(1, 2**22 // where_k.shape[-2])  # so many queries at a time: the matrix is never formed whole
    lowest = torch.cat(
        [penalty_matrix(some, where_k, encoding, None).amin(-1) for some in where_q.split(rows, dim=-2)],
        dim=-1,
    )
    excess = lowest - floor.squeeze(-1) if floor.ndim else lowest - floor
    return (excess if weight is None else weight * excess) > -math.log(tolerance)


def _obstacle_to_dense(where_q: Tensor, where_k: Tensor, encoding: Encoding, dtype: torch.dtype) -> str | None:
    """Why the dense backend cannot serve these points, and what can; None if it can."""
    if not encoding.decomposes:
        name = type(encoding).__name__
        return (
            f"backend='dense' needs a bias that decomposes into channels, {name} does not: "
            "use backend='tiled' or 'reference'"
        )
    limit = encoding.dense_range(dtype)
    if limit is None:
        return None
    both = encoding.coordinates(torch.cat([where_q.flatten(0, -2), where_k.flatten(0, -2)]))
    width = both.amax(0) - both.amin(0)
    if not bool((width > limit.to(width)).any()):
        return None
    return (
        f"backend='dense' with {type(encoding).__name__} {_failure(encoding)} in {dtype} beyond a domain of "
        f"{limit.tolist()} per axis, this one is {width.tolist()} wide: use backend='tiled'"
    )


def _failure(encoding: Encoding) -> str:
    return "overflows" if isinstance(encoding, LAAPE) else "loses its bias to rounding"


def _check_arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    backend: str,
    tolerance: float,
    empty: str,
) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must have the shape (batch, heads, points, channels), got {_shape(tensor)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q (B, H, Nq, D), k (B, H, Nk, D) and v (B, H, Nk, Dv) must agree in batch, heads, keys and width, "
            f"got {_shape(q)}, {_shape(k)}, {_shape(v)}"
        )
    if k.shape[-2] == 0:
        raise ValueError("attention needs at least one key, k has none")
    for name, positions, points in (
        ("query_positions", query_positions, q),
        ("key_positions", key_positions, k),
    ):
        if positions.ndim not in (2, 3) or positions.shape[-2] != points.shape[-2] or positions.shape[-1] < 1:
            raise ValueError(
                f"{name} must have the shape ({points.shape[-2]}, space axes), or that with a batch in front, "
                f"got {_shape(positions)}"
            )
        if positions.ndim == 3 and positions.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has a batch of {positions.shape[0]}, q has {q.shape[0]}")
        if not bool(torch.isfinite(positions).all()):
            raise ValueError(f"{name} must be finite, it holds NaN or infinity")
    space_dim = query_positions.shape[-1]
    if key_positions.shape[-1] != space_dim:
        raise ValueError(f"query_positions have {space_dim} axes, key_positions have {key_positions.shape[-1]}")
    if not isinstance(encoding, Encoding):
        raise ValueError(f"encoding must be one of farfield's encodings, e.g. LAAPE(250.0), got {encoding!r}")
    if encoding.space_dim() not in (None, space_dim):
        raise ValueError(f"the encoding is for {encoding.space_dim()} axes, the positions have {space_dim}")
    if encoding.heads() not in (None, q.shape[1]):
        raise ValueError(f"the encoding is for {encoding.heads()} heads, q has {q.shape[1]}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if not 0 < tolerance < 1:
        raise ValueError(f"tolerance must lie between 0 and 1, got {tolerance}")
    if empty not in ("nearest", "zero"):
        raise ValueError(f"empty must be 'nearest' or 'zero', got {empty!r}")


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
