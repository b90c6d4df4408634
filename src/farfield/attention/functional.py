"""``local_attention``: one function, several backends, one result."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.attention.dense import dense, penalty_matrix, reference
from farfield.attention.locality import Encoding

BACKENDS = ("auto", "reference", "dense")


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
    empty: str = "nearest",
) -> Tensor:
    """Attention whose weights are softmax(q^T R(delta)^T k / sqrt(D) - Phi(delta)), delta = query - key position.

    Args:
        q: queries (B, H, Nq, D), not rotated: ``encoding`` rotates q and k here.
        k, v: keys (B, H, Nk, D) and values (B, H, Nk, Dv).
        query_positions: (Nq, P), or (B, Nq, P) where each batch entry has its own points.
        key_positions: likewise for the keys; None for self-attention.
        encoding: RoPE, LASPE, LAAPE, FlashBias, ALiBi or Window.
        backend: "reference" writes the formula out, "dense" calls one fused kernel over all pairs; "auto" picks.
        tolerance: relative error that a sparse backend may make; also what counts as out of reach for ``empty``.
        empty: a query that has no key in reach (every weight exp(-Phi) below ``tolerance`` times the kernel's peak)
            follows the formula and attends to its nearest key ("nearest"), or returns zeros ("zero").

    Returns (B, H, Nq, Dv) in the dtype of q. Half-precision inputs are computed in float32: the bias and the
    rotation are never rounded to less. Positions are taken relative to the middle of the domain, in their own
    precision, so a common shift of all positions changes nothing.
    """
    key_positions = query_positions if key_positions is None else key_positions
    _check_arguments(q, k, v, query_positions, key_positions, encoding, backend, tolerance, empty)
    dtype = torch.promote_types(q.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):  # autocast would round the bias channels to bfloat16
        where_q, where_k = _centred(query_positions, key_positions)
        weight = encoding.query_weight(q.to(dtype))
        q_turned = encoding.rotate(q.to(dtype), where_q)
        k_turned = encoding.rotate(k.to(dtype), where_k)
        where_q, where_k = where_q.to(dtype), where_k.to(dtype)
        obstacle = _obstacle_to_dense(where_q, where_k, encoding, dtype)
        if backend == "auto":
            backend = "reference" if obstacle else "dense"
        if backend == "dense" and obstacle:
            raise ValueError(obstacle)
        run = {"reference": reference, "dense": dense}[backend]
        out = run(q_turned, k_turned, v.to(dtype), where_q, where_k, encoding, weight)
        if empty == "zero":
            lonely = _out_of_reach(where_q, where_k, encoding, weight, tolerance)
            out = out.masked_fill(lonely[..., None], 0.0)
    return out.to(q.dtype)


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
        return f"backend='dense' needs a bias that decomposes into channels, {name} does not: use backend='reference'"
    limit = encoding.dense_range(dtype)
    if limit is None:
        return None
    both = encoding.coordinates(torch.cat([where_q.flatten(0, -2), where_k.flatten(0, -2)]))
    width = both.amax(0) - both.amin(0)
    if not bool((width > limit.to(width)).any()):
        return None
    return (
        f"backend='dense' with LAAPE overflows in {dtype} beyond a domain of {limit.tolist()} per axis, this one is "
        f"{width.tolist()} wide: use backend='reference'"
    )


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
