"""What every trained network has: its data's contract, its standardisation, and checks of what it is given.

Shapes: B samples, N points, P space axes, F predicted channels, I input channels, K parameters.

A model is loaded from a run's folder: its ``config.yaml`` (encoding and size), ``dataset.json`` (fields, domain,
standardisation) and ``best.safetensors``. The shipped ones are runs without what continues their training.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError
from scipy.spatial import cKDTree
from torch import Tensor, nn

from farfield.attention import Group
from farfield.data.domain import boundary_flags, check_flags
from farfield.data.spec import SampleSpec, grouped
from farfield.models.config import EncodingConfig, ModelConfig
from farfield.models.for_data import build_network
from farfield.models.grid_part import whole_grid
from farfield.models.tokens import grid_of
from farfield.models.transformer_operator import TransformerOperator
from farfield.runs.run import Run
from farfield.runs.weights import Device, chosen_device

Fields = Mapping[str, ArrayLike]
USUAL = 10.0  # spreads around the training data's mean: beyond, a network has seen nothing like it


class Trained:
    """A network, the fields it predicts and how they are standardised (``description`` is a run's ``dataset.json``)."""

    def __init__(self, model: nn.Module, description: Mapping[str, Any], encoding: str):
        self.spec = spec = SampleSpec.model_validate(description["spec"])
        self.model = model.eval().requires_grad_(False)
        self.encoding = encoding
        self.problem, self.fields, self.field_units = spec.problem, spec.fields, spec.field_units
        self.axes, self.spacing, self.time_step = spec.axes, spec.spacing, spec.time_step
        self.position_scale = spec.position_scale
        self.device = next(model.parameters()).device
        self._state = self._moments(description, "states")
        self._change = self._moments(description, "changes")
        self._input = self._moments(description, "inputs")
        self._parameter = self._moments(description, "parameters")
        self._logged = torch.tensor([name in spec.log for name in spec.fields], device=self.device)

    @classmethod
    def load(cls, run: Run, device: Device = None) -> Self:
        """The best weights of a run; on CUDA where there is one, unless a device is given."""
        config, description = run.settings(), run.dataset()
        try:
            encoding = EncodingConfig.model_validate(config["encoding"])
            size = ModelConfig.model_validate(config["model"])
            model = build_network(SampleSpec.model_validate(description["spec"]), encoding, size)
            run.load_weights(model)
            return cls(model.to(chosen_device(device)), description, encoding.name)
        except (KeyError, TypeError, ValidationError) as error:
            raise ValueError(f"{run} does not describe a trained model: {type(error).__name__}: {error}") from None

    def _moments(self, description: Mapping[str, Any], kind: str) -> tuple[Tensor, Tensor]:
        """Mean and spread; none of what the data does not have."""
        found = description.get(kind, {"mean": [], "std": []})
        mean, std = (torch.tensor(found[m], dtype=torch.float64, device=self.device) for m in ("mean", "std"))
        return mean, std

    def _to_scale(self, values: Tensor) -> Tensor:
        """Fields (B, N, F) as they were learned: the logarithm of those on a logarithmic scale."""
        return torch.where(self._logged, values.log(), values) if bool(self._logged.any()) else values

    def _from_scale(self, values: Tensor) -> Tensor:
        return torch.where(self._logged, values.exp(), values) if bool(self._logged.any()) else values

    def _standing(
        self,
        points: NDArray[np.float64],
        boundary: ArrayLike | None,
        inputs: Fields | None,
        group: Group | None = None,
    ) -> Tensor:
        """What does not change in time, (N, I + flags): standardised inputs, then boundary flags."""
        given = self._columns(inputs or {}, self.spec.inputs, len(points), "input")[0]
        if self.spec.inputs:
            logged = torch.tensor([name in self.spec.log for name in self.spec.inputs])
            given = torch.where(logged, given.log(), given)
            self._warn_of_range(given.to(self.device), self.spec.inputs, self._input, "the given inputs", set())
        mean, std = self._input
        standardised = (given[0].to(self.device) - mean) / std if self.spec.inputs else given[0].to(self.device)
        bounded = list(self.spec.bounded)
        if boundary is None:
            flags: NDArray = boundary_flags(points, extremes(points, group))[:, bounded]
        else:
            flags = self._boundary(boundary, len(points))
        return torch.cat([standardised, torch.as_tensor(flags, device=self.device)], dim=-1).float()

    def _conditions(self, parameters: Mapping[str, float] | None, batch: int) -> Tensor | None:
        """Standardised parameters (B, K), or None where the problem has none."""
        names, given = self.spec.parameters, parameters or {}
        if set(given) != set(names):
            raise ValueError(f"expected the parameters {_listed(names)}, got {_listed(given)}")
        if not names:
            return None
        mean, std = self._parameter
        columns = [np.broadcast_to(np.asarray(given[name], dtype=np.float64), (batch,)) for name in names]
        values = torch.from_numpy(np.stack(columns, axis=-1)).to(self.device)
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"parameters must be finite, got {dict(given)}")
        self._warn_of_range(values, names, self._parameter, "the given parameters", set())
        return ((values - mean) / std).float()

    def _network(
        self, points: NDArray[np.float64], extent: Sequence[float] | None = None, group: Group | None = None
    ) -> Callable[[Tensor, Tensor | None], Tensor]:
        """The network on fixed points: features (B, N, in), conditions (B, K) -> standardised outputs (B, N, F)."""
        model = self.model
        if isinstance(model, TransformerOperator) and model.tokens is not None:
            where = torch.from_numpy(points)
            part = None if group is None else whole_grid(where, self.spacing, group)
            cells, rows = grid_of(where, self.spacing)
            model.patches.tokens(cells if part is None else part[1])  # refuses what is too small
            return lambda features, conditions: model.on_cells(features, cells, rows, conditions, part, group)
        self._warn_of_spacing(points)
        # in float64: distances keep their precision however far from the origin
        where = torch.as_tensor(points * np.asarray(self.position_scale), device=self.device)
        options: dict[str, Any] = {} if group is None else {"group": group}
        if len(self.spec.bounded) < self.spec.space_dim:
            if extent is None:  # of a grid, a cell more than from the first centre to the last
                low, high = extremes(points, group)
                extent = high - low + np.asarray(self.spacing)
            options["period"] = self.spec.period(tuple(float(length) for length in extent))
        return lambda features, conditions: model(
            features, where, **(options if conditions is None else {"conditions": conditions, **options})
        )

    def checked_positions(self, positions: ArrayLike, group: Group | None = None) -> NDArray[np.float64]:
        """Positions as (N, P), or an error that says what is wrong with them."""
        points = _numbers(positions, "positions")
        if points.ndim == 1 and len(self.axes) == 1:
            points = points[:, None]
        none = len(points) == 0 and group is None  # a member of a group may have none
        if points.ndim != 2 or points.shape[1] != len(self.axes) or none:
            raise ValueError(
                f"positions must have the shape (points, {len(self.axes)}), one column for each of "
                f"{', '.join(self.axes)}, got {np.shape(positions)}"
            )
        if not np.isfinite(points).all():
            raise ValueError("positions must be finite, they hold NaN or infinity")
        return points

    def _warn_of_range(
        self, values: Tensor, names: Sequence[str], moments: tuple[Tensor, Tensor], where: str, told: set[str]
    ) -> None:
        """Say with numbers what of ``values`` (..., C) is not finite, or far from what the network was trained on.

        Values and moments are as they were learned (logarithms of what is on such a scale). What is ``told`` already
        is not repeated.
        """
        values = values.reshape(-1, len(names))
        if len(values) == 0:
            return
        far = (values - moments[0]).abs() / moments[1]
        for column, name in enumerate(names):
            lost = len(values) - int(values[:, column].isfinite().sum())
            if lost and f"{name} is lost" not in told:
                told |= {f"{name} is lost", name}
                warnings.warn(f"{where}: {lost} of {len(values)} values of {name} are not finite", stacklevel=4)
            elif name not in told and float(far[:, column].max()) > USUAL:
                told.add(name)
                mean, std = (float(moment[column]) for moment in moments)
                reached = float(values[far[:, column].argmax(), column])
                shown = f"ln {name}" if name in self.spec.log else name
                warnings.warn(
                    f"{where}: {shown} reaches {reached:.4g}, in training it was {mean:.4g} ± {std:.2g}: so far from "
                    "that, or in another unit, a prediction means nothing",
                    stacklevel=4,
                )

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
                stacklevel=4,
            )

    def _boundary(self, boundary: ArrayLike, points: int) -> NDArray[np.float64]:
        flags = _numbers(boundary, "boundary")
        shape = (points, len(self.spec.bounded))
        if flags.ndim == 1 and shape[1] == 1:
            flags = flags[:, None]
        if flags.shape != shape:
            raise ValueError(
                f"boundary must have the shape {shape}, one column for each axis that ends, got {flags.shape}"
            )
        check_flags(flags)
        return flags

    def _columns(
        self, fields: Fields, channels: tuple[str, ...], points: int, kind: str = "field"
    ) -> tuple[Tensor, tuple[int, ...], np.dtype]:
        """Named arrays as a tensor (B, N, C), and the shape and precision to give back."""
        names = grouped(channels, self.spec)
        if set(fields) != set(names):
            raise ValueError(f"expected the {kind}s {_listed(names)}, got {_listed(fields)}")
        arrays = {name: np.asarray(fields[name]) for name in names}
        columns, shape = [], None
        for name, array in arrays.items():
            if array.dtype.kind not in "fiu":
                raise ValueError(f"{kind} {name} must hold real numbers, got {array.dtype}")
            parts, vector = names[name], name in self.spec.vectors
            scalar = array.shape[:-1] if vector else array.shape
            shape = scalar if shape is None else shape
            wrong = vector and (array.ndim < 2 or array.shape[-1] != len(parts))
            if wrong or len(scalar) not in (1, 2) or scalar[-1] != points or scalar != shape:
                raise ValueError(
                    f"{kind} {name} must have the shape ({points},) or (states, {points}), as there are {points} "
                    f"positions{f', with {len(parts)} components last' if vector else ''}, and all {kind}s the same; "
                    f"got {array.shape}"
                )
            bad = array.size - int(np.isfinite(array).sum())
            if bad:
                raise ValueError(f"{kind} {name} holds {bad} values that are NaN or infinite, of {array.size}")
            if any(part in self.spec.log for part in parts) and not (array > 0).all():
                raise ValueError(
                    f"{kind} {name} was learned on a logarithmic scale and must be positive, it holds {array.min():.3g}"
                )
            states = math.prod(scalar[:-1])  # a member of a group may have no points, which leaves -1 undefined
            columns.append(array.astype(np.float64).reshape(states, points, len(parts)))
        if not columns:
            return torch.zeros(1, points, 0, dtype=torch.float64), (points,), np.dtype(np.float32)
        assert shape is not None
        dtype = np.result_type(*arrays.values(), np.float32)
        return torch.from_numpy(np.concatenate(columns, axis=-1)), shape, dtype

    def _named(self, state: Tensor, shape: tuple[int, ...], dtype: np.dtype) -> dict[str, NDArray]:
        return self.named(state.cpu().numpy().reshape(*shape, len(self.fields)).astype(dtype), self.fields)

    def named(self, values: NDArray, channels: tuple[str, ...]) -> dict[str, NDArray]:
        """Channels (..., C) by the names that a user knows."""
        found = {}
        for name, parts in grouped(channels, self.spec).items():
            chosen = values[..., [channels.index(part) for part in parts]]
            found[name] = chosen if name in self.spec.vectors else chosen[..., 0]
        return found

    def given(self, inputs: NDArray, parameters: NDArray) -> dict[str, Any]:
        """Inputs (N, I) and parameters (K,) of a simulation, as they are taken here."""
        numbers = dict(zip(self.spec.parameters, parameters.tolist(), strict=True))
        return {"inputs": self.named(inputs, self.spec.inputs), "parameters": numbers}


def extremes(points: NDArray[np.float64], group: Group | None = None) -> tuple[NDArray, NDArray]:
    """The first and the last coordinate along each axis, of all points of a group."""
    ends = None if len(points) == 0 else (points.min(axis=0), points.max(axis=0))
    known = [found for found in ([ends] if group is None else group.gather(ends)) if found is not None]
    if not known:
        raise ValueError("a domain has at least one point, all members of the group have none")
    return np.min([low for low, _ in known], axis=0), np.max([high for _, high in known], axis=0)


def _numbers(values: ArrayLike, name: str) -> NDArray[np.float64]:
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
    return array.astype(np.float64, copy=False)


def _listed(names: Any) -> str:
    return ", ".join(names) or "none"
