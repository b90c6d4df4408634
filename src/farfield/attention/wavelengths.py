"""Rotary wavelengths that cannot tell the points of some data apart: found before they cost a training.

A rotation turns by 2 pi delta / wavelength. Where all points lie within a radian of the fastest rotation, it hardly
distinguishes any of them; where the next point is further away than the shortest wavelength, it is noise.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from farfield.attention.encoding import Encoding

_DISTANCES = 1 << 22  # so many are looked at to find the usual distance of a point from the next
_judged: set[tuple] = set()


def warn_of_wavelengths(encoding: Encoding, positions: Tensor, head_dim: int, stacklevel: int = 3) -> None:
    """Warn, once for points of this number, if the rotation's wavelengths do not fit positions (N, P) or (B, N, P)."""
    if encoding.rotary is None or positions.shape[-2] < 2 or torch.compiler.is_compiling():
        return
    rotary, space_dim = encoding.rotary, positions.shape[-1]
    case = (rotary, head_dim, tuple(positions.shape[-2:]))
    frequencies = rotary.frequencies(head_dim, space_dim)
    if case in _judged or frequencies.numel() == 0:
        return
    _judged.add(case)
    points = (positions[0] if positions.ndim == 3 else positions).detach().double()
    extent = float((points.amax(0) - points.amin(0)).max())
    shortest = 2 * math.pi / float(frequencies.max())
    spacing = _usual_distance(points)
    fix = (
        f"give RoPE(min_wavelength={2 * spacing:.3g}, max_wavelength={max(extent, 8 * spacing):.3g}), alone or as "
        "rotary=, or scale the positions"
    )
    if 2 * math.pi * extent <= shortest:
        warnings.warn(
            f"all positions lie within {extent:.3g}, but the shortest rotary wavelength is {shortest:.3g}: attention "
            f"can hardly tell them apart; {fix}",
            stacklevel=stacklevel,
        )
    elif spacing > shortest:
        warnings.warn(
            f"the points lie {spacing:.3g} apart, more than the shortest rotary wavelength, {shortest:.3g}: its "
            f"rotation is noise to them; {fix}",
            stacklevel=stacklevel,
        )


def _usual_distance(points: Tensor) -> float:
    """The median distance of some points from the next one, (N, P)."""
    some = torch.linspace(0, len(points) - 1, max(4, min(64, _DISTANCES // len(points)))).long().unique()
    distances = torch.cdist(points[some], points)
    return float(distances.topk(2, largest=False).values[:, 1].median())
