"""How wide may the kernel be? As wide as the displacements that training has seen, and no wider.

The paper's rule: a weight exp(-Phi) is negligible beyond about 2 l, so l should be at most a quarter of the training
domain's width. Per axis and direction, this comes from the set of oriented distances between queries and keys,

    S^b = { c - xi  |  c in the queries' region, xi in the keys' region },

whose extent on the positive side (the query downstream of the key) bounds l-, and on the negative side l+.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class DecayLengths(NamedTuple):
    """Proposed decay lengths per axis, for ``LAAPE(decay_length_plus=..., decay_length_minus=...)``."""

    plus: Tensor
    minus: Tensor

    @property
    def symmetric(self) -> Tensor:
        """One length per axis for a symmetric kernel (LASPE): the mean of both directions."""
        return (self.plus + self.minus) / 2


def propose_decay_lengths(
    query_positions: Tensor,
    key_positions: Tensor | None = None,
    *,
    basis: Tensor | None = None,
    period: Sequence[float | None] | None = None,
) -> DecayLengths:
    """Decay lengths from points (N, P) of the training domain: a quarter of the reach on either side.

    Queries and keys from one region of width w reach w both ways, which gives the paper's quarter rule. Where the
    keys fill a part of the domain only (buildings upwind in a larger volume), the displacements reach further on one
    side than on the other, and so may the kernel. Along a periodic axis a key is seen at its nearest image: nothing
    lies further away than half the period.

    Args:
        query_positions: points (Nq, P) where the operator is evaluated.
        key_positions: points (Nk, P) that it reads from; None if they are the same.
        basis: rows e_i along which the kernel is aligned; None for the coordinate axes.
        period: the length per axis after which the domain repeats, None for axes that end.
    """
    key_positions = query_positions if key_positions is None else key_positions
    for name, points in (("query_positions", query_positions), ("key_positions", key_positions)):
        if points.ndim != 2 or points.shape[0] == 0 or not bool(torch.isfinite(points).all()):
            raise ValueError(f"{name} must be finite points (N, P), got the shape {tuple(points.shape)}")
    if basis is not None:
        query_positions = query_positions @ basis.T.to(query_positions)
        key_positions = key_positions @ basis.T.to(key_positions)
    downstream = query_positions.amax(0) - key_positions.amin(0)  # largest delta
    upstream = key_positions.amax(0) - query_positions.amin(0)  # largest -delta
    if period is not None:
        half = downstream.new_tensor([math.inf if length is None else length / 2 for length in period])
        downstream, upstream = downstream.clamp(max=half), upstream.clamp(max=half)
    if not bool(((downstream > 0) & (upstream > 0)).all()):
        raise ValueError(
            "queries and keys must overlap along every axis for a kernel around 0; the displacements reach "
            f"{downstream.tolist()} downstream and {upstream.tolist()} upstream"
        )
    return DecayLengths(plus=upstream / 4, minus=downstream / 4)
