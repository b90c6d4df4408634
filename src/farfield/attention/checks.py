"""What a call of attention must look like, and how its arguments are brought into one form."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.attention.cloud import Cloud
from farfield.attention.encoding import Encoding
from farfield.attention.locality import FlashBias

Positions = Tensor | NDArray[Any]
Counts = Sequence[int] | Tensor | NDArray[Any]
_said_half = False


def at_least_float32(positions: Positions, like: Tensor | None = None) -> Tensor:
    """Positions as a tensor in float32 or better; what half precision has rounded away can only be pointed out."""
    if not isinstance(positions, Tensor):
        positions = torch.as_tensor(np.asarray(positions))
        positions = positions if like is None else positions.to(like.device)
    if not positions.is_floating_point():
        return positions.to(torch.get_default_dtype())
    if positions.dtype.itemsize >= 4:
        return positions
    global _said_half
    if not _said_half:
        _said_half = True
        size = torch.finfo(positions.dtype).eps / 2 * 1000
        warnings.warn(
            f"positions came in {positions.dtype}, which rounds a coordinate of 1000 by up to {size:g}; attention "
            "computes with them in float32, but what they have lost is lost. Keep positions out of casts: give them "
            "in float32. (Said once.)",
            stacklevel=4,
        )
    return positions.float()


def shared_positions(positions: Positions) -> Tensor:
    """Positions (B, N, P) that are the same for all batch entries, as loaders stack them, become (N, P)."""
    positions = at_least_float32(positions)
    if positions.ndim == 3 and positions.shape[0] == 1:
        return positions[0]
    if positions.ndim == 3 and positions.shape[0] and not torch.compiler.is_compiling():
        shared = bool((positions == positions[:1]).all())
        return positions[0] if shared and not positions.requires_grad else positions
    return positions


def make_cloud(
    query_positions: Positions,
    key_positions: Positions | None,
    encoding: Encoding,
    *,
    period: Any = None,
    key_mask: Tensor | None = None,
    lengths: Counts | None = None,
    key_lengths: Counts | None = None,
    look: bool = True,
) -> Cloud:
    """The cloud of a call, checked; ``look=False`` leaves out what needs the values of positions."""
    if not isinstance(encoding, Encoding):
        raise ValueError(f"encoding must be one of farfield's encodings, e.g. LAAPE(250.0), got {encoding!r}")
    queries = shared_positions(query_positions)
    keys = queries if key_positions is None or key_positions is query_positions else shared_positions(key_positions)
    for name, positions in (("query_positions", queries), ("key_positions", keys)):
        if positions.ndim not in (2, 3) or positions.shape[-1] < 1:
            raise ValueError(
                f"{name} must have the shape (points, space axes), or that with a batch in front, "
                f"got {tuple(positions.shape)}"
            )
        if look and not bool(torch.isfinite(positions).all()):
            raise ValueError(f"{name} must be finite, it holds NaN or infinity")
    space_dim = queries.shape[-1]
    if keys.shape[-1] != space_dim:
        raise ValueError(f"query_positions have {space_dim} axes, key_positions have {keys.shape[-1]}")
    if encoding.space_dim() not in (None, space_dim):
        raise ValueError(f"the encoding is for {encoding.space_dim()} axes, the positions have {space_dim}")
    if key_positions is not None and key_lengths is None and lengths is not None and keys is not queries:
        raise ValueError("packed cross-attention needs key_lengths, the sizes of the clouds' keys, beside lengths")
    counts = None if lengths is None else _counts("lengths", lengths, queries)
    key_counts = counts if key_lengths is None else _counts("key_lengths", key_lengths, keys)
    if counts is None and key_counts is not None:
        raise ValueError("key_lengths needs lengths, the sizes of the clouds' queries")
    if counts is not None and key_counts is not None and len(counts) != len(key_counts):
        raise ValueError(f"lengths name {len(counts)} clouds, key_lengths {len(key_counts)}")
    if counts is not None and queries.ndim + keys.ndim > 4:
        raise ValueError("packed clouds (lengths) take positions (N, P), the same for all batch entries")
    mask = None if key_mask is None else _mask(key_mask, keys)
    return Cloud(queries, keys, _period(period, space_dim, encoding), mask, counts, key_counts)


def _counts(name: str, counts: Counts, positions: Tensor) -> Tensor:
    sizes = torch.as_tensor(counts).cpu()
    if sizes.ndim != 1 or sizes.is_floating_point() or len(sizes) == 0 or bool((sizes < 0).any()):
        raise ValueError(f"{name} must be one whole number per cloud, none negative, got {sizes.tolist()}")
    if int(sizes.sum()) != positions.shape[-2]:
        raise ValueError(f"{name} add up to {int(sizes.sum())}, there are {positions.shape[-2]} points")
    return sizes.long()


def _mask(mask: Tensor, keys: Tensor) -> Tensor:
    mask = torch.as_tensor(mask)
    mask = mask[None] if mask.ndim == 1 else mask
    if mask.dtype != torch.bool or mask.ndim != 2 or mask.shape[1] != keys.shape[-2]:
        raise ValueError(
            f"key_mask must be boolean of the shape (batch, {keys.shape[-2]}), True for keys that may be read, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    if keys.ndim == 3 and len(mask) == 1:
        return mask.expand(len(keys), -1)
    return mask[:1] if len(mask) > 1 and bool((mask == mask[:1]).all()) and keys.ndim == 2 else mask


def _period(period: Any, space_dim: int, encoding: Encoding) -> Tensor | None:
    if period is None:
        return None
    given = [period] if isinstance(period, int | float) else list(period)
    if len(given) != space_dim:
        raise ValueError(f"period must hold one length per axis, {space_dim}, got {given}: None for axes without one")
    values = torch.tensor([math.inf if length is None else float(length) for length in given], dtype=torch.float64)
    if not bool((values > 0).all()):
        raise ValueError(f"period must be positive along every periodic axis (None for the others), got {given}")
    if not encoding.local:
        raise ValueError(
            f"{type(encoding).__name__} is not local: on a periodic domain every query would see infinitely many "
            "images of every key. Take LASPE or LAAPE, or leave out period"
        )
    if isinstance(encoding, FlashBias):
        raise ValueError(
            "FlashBias' learned weight may fall to nothing, and on a periodic domain a query would then see infinitely "
            "many images of every key. Take LASPE or LAAPE, or leave out period"
        )
    return values if bool(torch.isfinite(values).any()) else None


def check_tensors(q: Tensor, k: Tensor, v: Tensor, cloud: Cloud, encoding: Encoding) -> None:
    """q, k and v must fit one another and the cloud."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name} must have the shape (batch, heads, points, channels), got {tuple(tensor.shape)}")
        if not tensor.is_floating_point():
            raise ValueError(f"{name} must hold floating-point numbers, got {tensor.dtype}")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "q (B, H, Nq, D), k (B, H, Nk, D) and v (B, H, Nk, Dv) must agree in batch, heads, keys and width, "
            f"got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if k.shape[-2] == 0:
        raise ValueError("attention needs at least one key, k has none")
    for name, positions, points in (
        ("query_positions", cloud.query_positions, q),
        ("key_positions", cloud.key_positions, k),
    ):
        if positions.shape[-2] != points.shape[-2]:
            raise ValueError(
                f"{name} must have the shape ({points.shape[-2]}, space axes), or that with a batch in front, "
                f"got {tuple(positions.shape)}"
            )
        if positions.ndim == 3 and positions.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has a batch of {positions.shape[0]}, q has {q.shape[0]}")
    if cloud.key_mask is not None and len(cloud.key_mask) not in (1, q.shape[0]):
        raise ValueError(f"key_mask has a batch of {len(cloud.key_mask)}, q has {q.shape[0]}")
    if encoding.heads() not in (None, q.shape[1]):
        raise ValueError(f"the encoding is for {encoding.heads()} heads, q has {q.shape[1]}")
