"""Axial rotary position embedding in P space axes (the paper's appendix "Rotary positional embedding").

Shapes used throughout ``attention``: B batch, H heads, N points, D head dimension, P space axes, F frequencies
per axis, C extra bias channels.

A pair of channels (x_2j, x_2j+1) at position c is turned by the angle ``theta_j . c``:

    r(a) = [[cos a, sin a], [-sin a, cos a]],      so that   (R(c) q) . (R(xi) k) = q^T R(c - xi)^T k

depends on the displacement c - xi only. Axial means that each frequency vector theta_j points along one axis:
axis 1 owns the first 2F channels, axis 2 the next 2F, and so on; channels left over stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Phases of this many points are formed at a time: float64 phases of millions of points would not fit in memory.
_CHUNK = 65_536


def axial_frequencies(
    head_dim: int, space_dim: int, max_wavelength: float = 10_000.0, min_wavelength: float | None = None
) -> Tensor:
    """Angular frequencies (F,) of one axis, F = D // (2P), in float64.

    Without ``min_wavelength``: the paper's ``max_wavelength ** (-2 j P / D)`` for j = 0 .. F - 1, whose fastest
    turns by one radian per unit of length whatever the data. With it: F wavelengths from ``min_wavelength`` to
    ``max_wavelength``, geometrically spaced; choose twice the point spacing and twice the kernel's support.
    """
    count = head_dim // (2 * space_dim)
    j = torch.arange(count, dtype=torch.float64)
    if min_wavelength is None:
        return float(max_wavelength) ** (-2.0 * space_dim / head_dim * j)
    ratio = float(max_wavelength) / float(min_wavelength)
    return 2 * math.pi / (min_wavelength * ratio ** (j / max(count - 1, 1)))


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Turn the channel pairs of ``x`` (B, H, N, D) by their positions (N, P) or (B, N, P).

    Phases are formed in float64 and reduced before they are rounded, so the rotation is as accurate a million
    wavelengths from the origin as at the origin.
    """
    turned = 2 * frequencies.numel() * positions.shape[-1]
    if turned == 0:
        return x
    out = torch.empty_like(x) if not (torch.is_grad_enabled() and x.requires_grad) else None
    pieces = []
    for start in range(0, x.shape[-2], _CHUNK):
        block = x[..., start : start + _CHUNK, :]
        where = positions[..., start : start + _CHUNK, :].to(torch.float64)
        phases = (where[..., None] * frequencies.to(where.device)).flatten(-2)  # (..., n, P F)
        phases = torch.remainder(phases, 2 * math.pi).to(x.dtype)
        # e^{-ia} (x_even + i x_odd) is exactly r(a) applied to the pair
        turns = torch.polar(torch.ones_like(phases), -phases)
        if turns.ndim == 3:
            turns = turns[:, None]  # one rotation for all heads of a batch entry
        pairs = torch.view_as_complex(block[..., :turned].unflatten(-1, (-1, 2)).contiguous())
        rotated = torch.view_as_real(pairs * turns).flatten(-2)
        if out is not None:
            out[..., start : start + _CHUNK, :turned] = rotated
            out[..., start : start + _CHUNK, turned:] = block[..., turned:]
        else:
            pieces.append(torch.cat([rotated, block[..., turned:]], dim=-1))
    return out if out is not None else torch.cat(pieces, dim=-2)


@dataclass(frozen=True)
class Rotary:
    """The rotation of queries and keys: its wavelengths, see :func:`axial_frequencies`. It holds no parameters."""

    max_wavelength: float = 10_000.0
    min_wavelength: float | None = None

    def __post_init__(self) -> None:
        least = 1 if self.min_wavelength is None else 0  # the paper's frequencies are powers of it
        if not (math.isfinite(self.max_wavelength) and self.max_wavelength > least):
            raise ValueError(f"max_wavelength must be a finite number above {least}, got {self.max_wavelength}")
        if self.min_wavelength is not None and not 0 < self.min_wavelength < self.max_wavelength:
            raise ValueError(
                f"min_wavelength must lie between 0 and max_wavelength = {self.max_wavelength}, "
                f"got {self.min_wavelength}"
            )

    def frequencies(self, head_dim: int, space_dim: int) -> Tensor:
        """Angular frequencies (F,) shared by all axes."""
        return axial_frequencies(head_dim, space_dim, self.max_wavelength, self.min_wavelength)

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Turn x (B, H, N, D) by its positions (N, P) or (B, N, P)."""
        return rotate(x, positions, self.frequencies(x.shape[-1], positions.shape[-1]))
