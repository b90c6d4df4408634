"""A trained Gray-Scott model with its attention computed in low precision: maps over a long domain, and a shift."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield.attention import Encoding
from farfield.data.domain import NORMALISED_WIDTH, Domain
from farfield.models.blocks import Attention, pointwise
from farfield.models.transformer_operator import TransformerOperator
from farfield.prediction.stepping import Predictor
from farfield.problems.gray_scott import FIELDS
from farfield.problems.gray_scott.generation import draw_sources, settings, solve
from farfield.studies.precision.arithmetic import ATTENTION, TOLERANCE, Way, finite, relative_error
from farfield.studies.precision.rows import StabilityRow


class _Arithmetic(nn.Module):
    """A trained attention layer, computed in one of the two ways, with all positions moved by ``shift``."""

    def __init__(self, attention: Attention, way: Way, precision: str, tolerance: float, shift: float):
        super().__init__()
        self.attention, self.precision, self.shift = attention, precision, shift
        attend = ATTENTION[way]
        self.attend = attend if way == "published" else functools.partial(attend, tolerance=tolerance)
        self.encoding = attention.encoding
        self.queries, self.keys_values = attention.queries, attention.keys_values

    def read(self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, *_: Any, **options: Any) -> Tensor:
        where = positions + self.shift
        y = self.attend(q, k, v, where, where, self.attention.encoding, self.precision)
        return pointwise(self.attention.out, y.to(q.dtype).transpose(1, 2).flatten(-2))


def with_arithmetic(model: TransformerOperator, way: Way, precision: str, shift: float = 0.0) -> TransformerOperator:
    """A copy of a model whose attention is computed in this way; the model itself is left as it is.

    Positions are moved where attention reads them: those of patches are counted from the domain's corner.
    """
    changed = copy.deepcopy(model)
    for block in changed.blocks:
        block.attention = _Arithmetic(block.attention, way, precision, model.tolerance, shift)  # type: ignore[arg-type]
    return changed


class _InFloat64(nn.Module):
    """A model in float64 throughout: what both ways are compared with."""

    def __init__(self, model: TransformerOperator):
        super().__init__()
        self.model = copy.deepcopy(model).double()
        self.model.backend, self.model.tolerance = "tiled", TOLERANCE

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        return self.model(features.double(), positions)


@dataclass(frozen=True)
class Sizes:
    """The domains that a model is tried on: ``scale`` training domains long, and as high as ``points`` allows.

    All pairs are computed as published, which takes hours on two cores for the paper's square domains; a strip of the
    same length has the same coordinates.
    """

    map_scale: int = 7
    map_points: int | None = None
    shift_scale: int = 2
    shift_points: int | None = None
    shift: float = 25.0  # of the model's shortest decay lengths


SIZES = {
    "quick": Sizes(map_points=1 << 14, shift_points=1 << 13),
    "cpu": Sizes(map_points=1 << 15, shift_points=1 << 14),
    "paper": Sizes(),
}


class Trial:
    """A trained Gray-Scott model, a state on a strip, and its prediction of the next one in float64."""

    def __init__(self, predictor: Predictor, scale: int, points: int | None, seed: int = 0):
        if getattr(predictor, "fields", ()) != FIELDS or predictor.encoding not in ("laspe", "laape"):
            raise ValueError(
                f"the stability experiment takes Gray-Scott models with laspe or laape, got {predictor.problem} with "
                f"{predictor.encoding}"
            )
        encodings = [module for module in predictor.model.modules() if isinstance(module, Encoding)]
        lengths = torch.cat([m.maximum.flatten() for encoding in encodings for m in encoding.lengths()])
        self.predictor, self.name = predictor, predictor.encoding.upper()
        self.shortest, self.longest = float(lengths.min()), float(lengths.max())
        # Where the shortest decay length is, the published bias breaks first: distances are told in it.
        self.unit = self.shortest / predictor.position_scale[0]
        config = settings("paper")
        dx, dy = predictor.spacing
        length = round(scale * NORMALISED_WIDTH / predictor.position_scale[0] / dx)
        height = length if points is None else min(length, max(8, points // length))
        self.domain = Domain((length, height), (length * dx, height * dy))
        sources = max(1, round(config.sources * length * height / math.prod(config.cells)))
        initial = draw_sources(np.random.default_rng(seed), self.domain, sources)
        save_every = round(predictor.time_step / config.time_step)
        states = solve(
            initial, self.domain, save_every, 6, time_step=config.time_step, **config.constants
        )  # fmt: skip
        now, self.later = (torch.from_numpy(state.reshape(2, -1).T.copy())[None] for state in states[-2:])
        self.now = now
        self.exact = self._change(_InFloat64(self.model))

    @property
    def model(self) -> TransformerOperator:
        return self.predictor.model  # type: ignore[return-value]

    def change(self, way: Way, precision: str, shift: float = 0.0) -> Tensor:
        """The predicted change (N, F) with all positions moved by ``shift`` of the shortest decay lengths."""
        return self._change(with_arithmetic(self.model, way, precision, shift * self.shortest))

    def _change(self, model: nn.Module) -> Tensor:
        predictor = copy.copy(self.predictor)
        predictor.model = model.eval()
        step = predictor.on(self.domain.points())
        return (step(self.now).cpu() - self.now)[0]

    def error(self, change: Tensor) -> float:
        """sum |change - exact change| / sum |exact change|, over points and fields."""
        return relative_error(change, self.exact)

    def grid(self, values: Tensor) -> NDArray[np.float32]:
        """(N, F) -> (F, nx, ny)"""
        return values.T.reshape(-1, *self.domain.cells).numpy().astype(np.float32)


def map_rows(trial: Trial, bands: int = 14) -> tuple[list[StabilityRow], dict[str, NDArray]]:
    """The error of a bfloat16 prediction over a long domain: as a number, along the domain, and as a map."""
    along = torch.from_numpy(trial.domain.points()[:, 0]) / trial.unit
    edges = torch.linspace(0, trial.domain.extent[0] / trial.unit, bands + 1, dtype=torch.float64)
    size = trial.exact.abs().mean()
    rows = [
        StabilityRow("map", trial.name, "", "", 0, quantity, value)
        for quantity, value in (
            ("shortest decay length", trial.shortest),
            ("longest decay length", trial.longest),
            ("cells along x", trial.domain.cells[0]),
            ("cells along y", trial.domain.cells[1]),
            ("width in shortest decay lengths", float(edges[-1])),
            ("error of the exact prediction against the solver", _model_error(trial)),
        )
    ]
    pictures: dict[str, NDArray] = {
        "exact": trial.grid(trial.exact),
        "extent": np.array(trial.domain.extent) / trial.unit,
    }
    for way in ATTENTION:
        change = trial.change(way, "bfloat16")
        pictures[way] = trial.grid(change)
        about = ("map", trial.name, way, "bfloat16")
        rows.append(StabilityRow(*about, float(edges[-1]), "prediction error", trial.error(change)))
        lost = 1 - float(change.isfinite().all(-1).double().mean())
        rows.append(StabilityRow(*about, float(edges[-1]), "share of points not finite", lost))
        for low, high in itertools.pairwise(edges):
            band = (along >= low) & (along < high)
            local = finite((change - trial.exact)[band].abs().mean() / size)
            rows.append(StabilityRow(*about, float(low + high) / 2, "prediction error at this distance", local))
    return rows, {f"map {trial.name} {name}": values for name, values in pictures.items()}


def _model_error(trial: Trial) -> float:
    return relative_error(trial.exact, (trial.later - trial.now)[0])


def shift_rows(trial: Trial, shift: float) -> tuple[list[StabilityRow], dict[str, NDArray]]:
    """The same prediction at the origin and ``shift`` decay lengths away, in bfloat16 and float32, both ways."""
    rows = []
    pictures: dict[str, NDArray] = {
        "exact": trial.grid(trial.exact),
        "extent": np.array(trial.domain.extent) / trial.unit,
    }
    for distance in (0.0, shift):
        for precision in ("float32", "bfloat16"):
            for way in ATTENTION:
                change = trial.change(way, precision, distance)
                about = ("shift", trial.name, way, precision, distance)
                rows.append(StabilityRow(*about, "prediction error", trial.error(change)))
                pictures[f"{way} {precision} {distance:g}"] = trial.grid(change)
    return rows, {f"shift {trial.name} {name}": values for name, values in pictures.items()}
