"""Attention in low precision, two ways: as published, from global coordinates, and as this library does it.

"published"  q, k, v and channels rounded to a format, products accumulated in float32 as a GPU's kernel does, angles of
             the rotation and channels formed in float32 from global coordinates. Emulated here, for comparison only.
"local"      q, k, v rounded to the same format, then :func:`farfield.local_attention` with the tiled backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from farfield.attention import Encoding, Rotary, local_attention
from farfield.attention.dense import kernel

Way = Literal["published", "local"]
FORMATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
# What the sparse backend may leave out is far below the rounding that is measured.
TOLERANCE = 1e-6


def round_to(x: Tensor, precision: str) -> Tensor:
    """x with its values rounded to a format, in the type that sums are kept in: float32, or float64 for float64."""
    return x.to(FORMATS[precision]).to(_sums(precision))


def _sums(precision: str) -> torch.dtype:
    return torch.promote_types(FORMATS[precision], torch.float32)


def published_channels(
    q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor, encoding: Encoding, precision: str
) -> tuple[Tensor, Tensor]:
    """q and k (B, H, N, D), rotated and with the bias channels behind them: (B, H, N, D + C) each, as published.

    Positions (N, P) stay in global coordinates. Their inner product over sqrt(D) is the logit.
    """
    where_q, where_k = query_positions.to(_sums(precision)), key_positions.to(_sums(precision))
    extra = (encoding.query_channels(where_q, q.shape[-1]), encoding.key_channels(where_k))
    return tuple(  # type: ignore[return-value]
        torch.cat(
            [
                round_to(_turn(round_to(x, precision), where, encoding.rotary), precision),
                round_to(channels, precision).expand(*x.shape[:-1], -1),
            ],
            dim=-1,
        )
        for x, where, channels in zip((q, k), (where_q, where_k), extra, strict=True)
    )


def _turn(x: Tensor, positions: Tensor, rotary: Rotary | None) -> Tensor:
    """The rotary embedding with angles formed in the positions' own precision, from global coordinates."""
    if rotary is None:
        return x
    frequencies = rotary.frequencies(x.shape[-1], positions.shape[-1]).to(positions)
    angles = (positions[..., None] * frequencies).flatten(-2)  # (N, P F)
    turned = 2 * angles.shape[-1]
    even, odd = x[..., 0:turned:2], x[..., 1:turned:2]
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack([cos * even + sin * odd, cos * odd - sin * even], dim=-1).flatten(-2)
    return torch.cat([pairs, x[..., turned:]], dim=-1)


def published_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    precision: str,
) -> Tensor:
    """Attention (B, H, Nq, Dv) over all pairs, as published; NaN where no logit of a query is finite.

    The formula gives 0 / 0 there. Fused kernels return zeros, as for a query that is masked out: no better, and
    harder to notice.
    """
    wide_q, wide_k = published_channels(q, k, query_positions, key_positions, encoding, precision)
    out = kernel(wide_q, wide_k, round_to(v, precision), 1 / math.sqrt(q.shape[-1]))
    return out.masked_fill(~wide_q.isfinite().all(-1, keepdim=True), torch.nan)


def our_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    precision: str,
    tolerance: float = TOLERANCE,
) -> Tensor:
    """The library's attention on inputs rounded to ``precision``."""
    q, k, v = (round_to(x, precision) for x in (q, k, v))
    return local_attention(
        q, k, v, query_positions, key_positions, encoding=encoding, backend="tiled", tolerance=tolerance
    )


ATTENTION: dict[Way, Callable[..., Tensor]] = {"published": published_attention, "local": our_attention}


def relative_error(result: Tensor, reference: Tensor) -> float:
    """sum |result - reference| / sum |reference|; inf where the result is not finite."""
    return finite((result - reference).abs().sum() / reference.abs().sum())


def finite(error: Tensor) -> float:
    """inf where an error is not finite."""
    return float(error) if bool(error.isfinite()) else math.inf
