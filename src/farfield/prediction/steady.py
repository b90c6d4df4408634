"""A trained model of a steady problem: inputs in physical units in, outputs at the same points out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from farfield.attention import Group
from farfield.prediction.trained import Fields, Trained


class SteadyPredictor(Trained):
    """A network that predicts fields from what is given at the points around them."""

    def __repr__(self) -> str:
        given = ", ".join(self.spec.inputs)
        return f"SteadyPredictor({self.problem}, {self.encoding}: {given} -> {', '.join(self.fields)})"

    @torch.no_grad()
    def predict(
        self,
        positions: ArrayLike,
        *,
        inputs: Fields | None = None,
        parameters: Mapping[str, float] | None = None,
        boundary: ArrayLike | None = None,
        extent: Sequence[float] | None = None,
        group: Group | None = None,
    ) -> dict[str, NDArray]:
        """The fields at the points, in physical units: one array (N,) each, (N, components) for vectors.

        Args:
            positions: (N,) or (N, P), in the problem's length unit, on a domain of any size.
            inputs: one array (N,) per name, or (N, components).
            parameters: the numbers that condition the network, where the data has them.
            boundary: (N, axes that end), 1 at the first and last point along each axis; from the extremes of the
                positions unless given.
            extent: of a periodic domain, its length along each axis.
            group: the members that share the domain; positions and inputs are then this one's part of it.
        """
        points = self.checked_positions(positions, group)
        features = self._standing(points, boundary, inputs, group)[None]
        mean, std = self._state
        out = self._network(points, extent, group)(features, self._conditions(parameters, 1)).double() * std + mean
        self._warn_of_range(out, self.fields, self._state, "the prediction", set())
        return self._named(self._from_scale(out)[0], (len(points),), np.dtype(np.float32))
