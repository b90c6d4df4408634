"""A trained model with its normalisation: states in physical units in, the states one saved step later out.

Shapes: B states, N points, P space axes, F fields.

A model is loaded from a run's folder: its ``config.yaml`` (encoding and size), ``dataset.json`` (fields, domain,
standardisation) and ``best.safetensors``. The shipped ones are runs without what continues their training.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from scipy.spatial import cKDTree
from torch import Tensor, nn

from farfield.data.domain import NORMALISED_WIDTH, boundary_flags, rollout
from farfield.models.config import EncodingConfig, ModelConfig
from farfield.runs.run import Run
from farfield.runs.weights import Device, chosen_device, load_weights

Fields = Mapping[str, ArrayLike]

# So many points go through the network at a time, or one state where it alone has more: memory stays bounded.
_POINTS = 1 << 16


class Predictor:
    """A network, the fields it predicts and how they are standardised (``description`` is a run's ``dataset.json``)."""

    def __init__(self, model: nn.Module, description: Mapping[str, Any], encoding: str):
        spec = description["spec"]
        self.model = model.eval().requires_grad_(False)
        self.encoding = encoding
        self.problem: str = spec["problem"]
        self.fields: tuple[str, ...] = tuple(spec["fields"])
        self.field_units: tuple[str, ...] = tuple(spec["field_units"])
        self.axes: tuple[str, ...] = tuple(spec["axes"])
        self.time_step: float = spec["time_step"]
        self.spacing: tuple[float, ...] = tuple(spec["spacing"])  # of the training data's points
        self.position_scale = tuple(NORMALISED_WIDTH / extent for extent in spec["training_extent"])
        self.device = next(model.parameters()).device
        self._state_mean, self._state_std, self._change_mean, self._change_std = (
            torch.tensor(description[kind][moment], dtype=torch.float64, device=self.device)
            for kind in ("states", "changes")
            for moment in ("mean", "std")
        )

    @classmethod
    def load(cls, run: Run, device: Device = None) -> Predictor:
        """The best weights of a run; on CUDA where there is one, unless a device is given."""
        config, description = run.settings(), run.dataset()
        try:
            encoding = EncodingConfig.model_validate(config["encoding"])
            size = ModelConfig.model_validate(config["model"])
            spec = description["spec"]
            fields, axes = len(spec["fields"]), len(spec["axes"])
            model = size.build(encoding, fields + axes, fields, axes)
            load_weights(run.best_path, model)
            return cls(model.to(chosen_device(device)), description, encoding.name)
        except (KeyError, TypeError, ValidationError) as error:
            raise ValueError(f"{run} does not describe a trained model: {type(error).__name__}: {error}") from None

    def __repr__(self) -> str:
        return (
            f"Predictor({self.problem}, {self.encoding}: fields {', '.join(self.fields)} on axes "
            f"{', '.join(self.axes)}, {self.time_step:g} per step)"
        )

    def step(self, fields: Fields, positions: ArrayLike, *, boundary: ArrayLike | None = None) -> dict[str, NDArray]:
        """The fields one saved step later.

        Args:
            fields: one array (N,) or (B, N) per name in ``self.fields``, in physical units.
            positions: (N,) or (N, P), in the problem's length unit (metres), on a domain of any size.
            boundary: (N,) or (N, P), 1 at the first and last point along each axis; from the extremes of the
                positions unless given.
        """
        return next(self.states(fields, positions, 1, boundary=boundary, initial=False))

    def rollout(
        self, fields: Fields, positions: ArrayLike, steps: int, *, boundary: ArrayLike | None = None
    ) -> dict[str, NDArray]:
        """Predictions fed back: arrays (steps + 1, N) or (steps + 1, B, N), the given state first."""
        states = list(self.states(fields, positions, steps, boundary=boundary))
        return {name: np.stack([state[name] for state in states]) for name in self.fields}

    def states(
        self,
        fields: Fields,
        positions: ArrayLike,
        steps: int,
        *,
        boundary: ArrayLike | None = None,
        initial: bool = True,
    ) -> Iterator[dict[str, NDArray]]:
        """The states of :meth:`rollout` one at a time, for domains where not all of them fit into memory."""
        points = self._positions(positions)
        state, shape, dtype = self._state(fields, len(points))
        predicted = rollout(self.on(points, boundary), state, steps)
        if not initial:
            next(predicted)
        return (self._named(state, shape, dtype) for state in predicted)

    def on(self, positions: ArrayLike, boundary: ArrayLike | None = None) -> Callable[[Tensor], Tensor]:
        """The step on fixed points, on tensors: physical states (B, N, F) -> the same one step later.

        States are float64, so that their small changes keep the network's precision. Nothing is checked: a diverging
        prediction goes on.
        """
        points = self._positions(positions)
        self._warn_of_spacing(points)
        flags = boundary_flags(points) if boundary is None else self._boundary(boundary, points.shape)
        flags_ = torch.as_tensor(flags, dtype=torch.float32, device=self.device)
        # in float64: distances keep their precision however far from the origin
        where = torch.as_tensor(points * np.asarray(self.position_scale), device=self.device)

        @torch.no_grad()
        def change(state: Tensor) -> Tensor:
            standardised = ((state - self._state_mean) / self._state_std).float()
            features = torch.cat([standardised, flags_.expand(len(state), -1, -1)], dim=-1)
            return self.model(features, where).double() * self._change_std + self._change_mean

        def step(state: Tensor) -> Tensor:
            parts = state.to(self.device, torch.float64).split(max(1, _POINTS // len(points)))
            return torch.cat([part + change(part) for part in parts])

        return step

    def _positions(self, positions: ArrayLike) -> NDArray[np.float64]:
        points = np.asarray(positions, dtype=np.float64)
        if points.ndim == 1 and len(self.axes) == 1:
            points = points[:, None]
        if points.ndim != 2 or points.shape[1] != len(self.axes) or len(points) == 0:
            raise ValueError(
                f"positions must have the shape (points, {len(self.axes)}), one column for each of "
                f"{', '.join(self.axes)}, got {np.shape(positions)}"
            )
        if not np.isfinite(points).all():
            raise ValueError("positions must be finite, they hold NaN or infinity")
        return points

    def _warn_of_spacing(self, points: NDArray[np.float64]) -> None:
        """Points much closer or further apart than in training: other units, or a mesh that the model has not seen."""
        if len(points) < 2:
            return
        some = points[:: -(-len(points) // 1000)]  # so many tell enough, at any size
        distances = cKDTree(points).query(some, k=2)[0][:, 1]
        usual, trained = float(np.median(distances)), min(self.spacing)
        if not 0.5 * trained <= usual <= 2 * trained:
            warnings.warn(
                f"the points lie {usual:.3g} apart, those that the model was trained on {trained:.3g}: are the "
                "positions in its unit of length? It has not learned other spacings",
                stacklevel=3,
            )

    def _boundary(self, boundary: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.float64]:
        flags = np.asarray(boundary, dtype=np.float64)
        if flags.ndim == 1 and shape[1] == 1:
            flags = flags[:, None]
        if flags.shape != shape:
            raise ValueError(f"boundary must have the positions' shape {shape}, got {flags.shape}")
        return flags

    def _state(self, fields: Fields, points: int) -> tuple[Tensor, tuple[int, ...], np.dtype]:
        """Named arrays as a tensor (B, N, F), and the shape and precision to give back."""
        if set(fields) != set(self.fields):
            raise ValueError(f"expected the fields {', '.join(self.fields)}, got {', '.join(fields) or 'none'}")
        arrays = [np.asarray(fields[name]) for name in self.fields]
        shape = arrays[0].shape
        for name, array in zip(self.fields, arrays, strict=True):
            if array.dtype.kind not in "fiu":
                raise ValueError(f"field {name} must hold real numbers, got {array.dtype}")
            if array.ndim not in (1, 2) or array.shape[-1] != points or array.shape != shape:
                raise ValueError(
                    f"field {name} must have the shape ({points},) or (states, {points}), as there are {points} "
                    f"positions, and all fields the same; got {array.shape}"
                )
            bad = array.size - int(np.isfinite(array).sum())
            if bad:
                raise ValueError(f"field {name} holds {bad} values that are NaN or infinite, of {array.size}")
        state = np.stack([array.reshape(-1, points).astype(np.float64) for array in arrays], axis=-1)
        return torch.from_numpy(state), shape, np.result_type(*arrays, np.float32)

    def _named(self, state: Tensor, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, NDArray]:
        columns = state.cpu().numpy()
        return {name: columns[..., i].reshape(shape).astype(dtype) for i, name in enumerate(self.fields)}
