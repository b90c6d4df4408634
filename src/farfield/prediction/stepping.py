"""A trained model with its normalisation: states in physical units in, the states one saved step later out.

Shapes: B states, N points, P space axes, F fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from farfield.attention import Group
from farfield.data.domain import Domain, rollout
from farfield.prediction.trained import Fields, Trained

# So many points go through the network at a time, or one state where it alone has more: memory stays bounded.
_POINTS = 1 << 16


class Predictor(Trained):
    """A network that predicts the change of a state over one saved step."""

    def __repr__(self) -> str:
        return (
            f"Predictor({self.problem}, {self.encoding}: fields {', '.join(self.fields)} on axes "
            f"{', '.join(self.axes)}, {self.time_step:g} per step)"
        )

    def step(
        self,
        fields: Fields,
        positions: ArrayLike | None = None,
        *,
        boundary: ArrayLike | None = None,
        inputs: Fields | None = None,
        parameters: Mapping[str, float] | None = None,
        extent: Sequence[float] | None = None,
        group: Group | None = None,
    ) -> dict[str, NDArray]:
        """The fields one saved step later.

        Args:
            fields: one array (N,) or (B, N) per name, in physical units, vectors with their components last; without
                positions, arrays of a regular grid, (n_1, ..., n_P) or (B, n_1, ..., n_P), with the spacing of the
                training data.
            positions: (N,) or (N, P), in the problem's length unit (metres), on a domain of any size. A model of
                patches needs those of a regular grid with the training data's spacing, in any order.
            boundary: (N,) or (N, axes that end), 1 at the first and last point along each axis; from the extremes of
                the positions unless given.
            inputs: what is given beside the state and does not change, where the data has such fields.
            parameters: the numbers that condition the network, where the data has them.
            extent: of a periodic domain, its length along each axis; that of the grid unless given.
            group: the members that share the domain (:func:`farfield.processes.joined`): fields and positions are
                then this one's part of it (:func:`farfield.attention.bisection.split_points`), perhaps none, and all
                members call together.
        """
        options = {
            "boundary": boundary, "inputs": inputs, "parameters": parameters, "extent": extent, "group": group
        }  # fmt: skip
        return next(self.states(fields, positions, 1, initial=False, **options))  # type: ignore[arg-type]

    def rollout(
        self,
        fields: Fields,
        positions: ArrayLike | None = None,
        steps: int = 1,
        *,
        boundary: ArrayLike | None = None,
        inputs: Fields | None = None,
        parameters: Mapping[str, float] | None = None,
        extent: Sequence[float] | None = None,
        group: Group | None = None,
    ) -> dict[str, NDArray]:
        """Predictions fed back: arrays (steps + 1, N) or (steps + 1, B, N), the given state first."""
        options = {
            "boundary": boundary, "inputs": inputs, "parameters": parameters, "extent": extent, "group": group
        }  # fmt: skip
        states = list(self.states(fields, positions, steps, **options))  # type: ignore[arg-type]
        return {name: np.stack([state[name] for state in states]) for name in states[0]}

    def states(
        self,
        fields: Fields,
        positions: ArrayLike | None,
        steps: int,
        *,
        boundary: ArrayLike | None = None,
        inputs: Fields | None = None,
        parameters: Mapping[str, float] | None = None,
        extent: Sequence[float] | None = None,
        group: Group | None = None,
        initial: bool = True,
    ) -> Iterator[dict[str, NDArray]]:
        """The states of :meth:`rollout` one at a time, for domains where not all of them fit into memory."""
        shape: tuple[int, ...] | None = None
        if positions is None:
            positions, fields, shape = self._from_grid(fields)
            inputs = {
                name: np.asarray(a).reshape(len(positions), *self._tail(name)) for name, a in (inputs or {}).items()
            }
        points = self.checked_positions(positions, group)
        state, given, dtype = self._columns(fields, self.fields, len(points))
        shape = given if shape is None else shape
        step = self.on(points, boundary, inputs=inputs, parameters=parameters, extent=extent, group=group)
        predicted = self._watched(rollout(step, state, steps))
        if not initial:
            next(predicted)
        return (self._named(state, shape, dtype) for state in predicted)

    def _watched(self, states: Iterator[Tensor]) -> Iterator[Tensor]:
        """States as they come; the first time that one is beyond what was learned, it is said."""
        told: set[str] = set()
        for number, state in enumerate(states):
            where = f"step {number}" if number else "the given state"
            self._warn_of_range(self._to_scale(state.to(self.device)), self.fields, self._state, where, told)
            yield state

    def on(
        self,
        positions: ArrayLike,
        boundary: ArrayLike | None = None,
        *,
        inputs: Fields | None = None,
        parameters: Mapping[str, float] | None = None,
        extent: Sequence[float] | None = None,
        group: Group | None = None,
    ) -> Callable[[Tensor], Tensor]:
        """The step on fixed points, on tensors: physical states (B, N, F) -> the same one step later.

        States are float64, so that their small changes keep the network's precision. Nothing is checked: a diverging
        prediction goes on.
        """
        points = self.checked_positions(positions, group)
        network = self._network(points, extent, group)
        standing = self._standing(points, boundary, inputs, group)
        conditions = self._conditions(parameters, 1)
        (state_mean, state_std), (change_mean, change_std) = self._state, self._change

        @torch.no_grad()
        def stepped(state: Tensor) -> Tensor:
            scaled = self._to_scale(state)
            features = torch.cat([((scaled - state_mean) / state_std).float(), standing.expand(len(state), -1, -1)], -1)
            known = None if conditions is None else conditions.expand(len(state), -1)
            change = network(features, known).double() * change_std + change_mean
            return self._from_scale(scaled + change)

        def step(state: Tensor) -> Tensor:
            at_once = max(1, _POINTS // len(points)) if group is None else 1  # members have to agree
            parts = state.to(self.device, torch.float64).split(at_once)
            return torch.cat([stepped(part) for part in parts])

        return step

    def _tail(self, name: str) -> tuple[int, ...]:
        return (len(self.spec.vectors[name]),) if name in self.spec.vectors else ()

    def _from_grid(self, fields: Fields) -> tuple[NDArray[np.float64], Fields, tuple[int, ...]]:
        """Fields of a grid's shape as fields of points: positions, fields, and the shape to give back."""
        arrays = {name: np.asarray(values) for name, values in fields.items()}
        dim = len(self.axes)
        shapes = {}
        for name, array in arrays.items():
            tail = len(self._tail(name))
            shapes[name] = array.shape[: array.ndim - tail]
            if len(shapes[name]) not in (dim, dim + 1) or 0 in array.shape:
                raise ValueError(
                    f"without positions, field {name} must have the shape of a grid ({', '.join(self.axes)}), or that "
                    f"with states in front, got {array.shape}"
                )
        if len(set(shapes.values())) > 1:
            raise ValueError(f"all fields must have the same shape, got {shapes}")
        shape = next(iter(shapes.values()), (1,) * dim)
        cells = shape[len(shape) - dim :]
        domain = Domain(cells, tuple(n * dx for n, dx in zip(cells, self.spacing, strict=True)))
        flat = {
            name: array.reshape(*shape[: len(shape) - dim], -1, *self._tail(name)) for name, array in arrays.items()
        }
        return domain.points(), flat, shape
