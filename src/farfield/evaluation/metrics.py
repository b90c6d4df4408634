"""The errors of the tables, per sample and field.

    L1 = sum |prediction - truth| / sum |truth|,      L2 = sqrt( sum (prediction - truth)² / sum truth² )

with sums over the points, in physical units. What is compared are changes, never states: a state is mostly what it was
before (the water is one metre high), so that any prediction of it looks good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor


def relative_errors(prediction: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """(B, N, F), (B, N, F) -> the errors "l1" and "l2", each (B, F).

    NaN where the truth does not change at all: no relative error is defined there, and :func:`mean_error` leaves the
    sample out. Infinite where a prediction is not finite.
    """
    error = prediction - truth
    ratios = {
        "l1": error.abs().sum(1) / truth.abs().sum(1),
        "l2": (error.square().sum(1) / truth.square().sum(1)).sqrt(),
    }
    still = (truth == 0).all(1)
    return {
        name: torch.where(still, torch.nan, torch.where(ratio.isfinite(), ratio, torch.inf))
        for name, ratio in ratios.items()
    }


def variance_scaled_error(prediction: Tensor, truth: Tensor) -> Tensor:
    """The Well's VRMSE of states (B, N, F), sqrt(mean (prediction - truth)^2 / variance of truth): (B, F).

    1 is what the truth's own mean would score. NaN where the truth is constant, infinite where a prediction is not
    finite.
    """
    variance = truth.var(1, correction=0)
    ratio = ((prediction - truth).square().mean(1) / variance).sqrt()
    return torch.where(variance == 0, torch.nan, torch.where(ratio.isfinite(), ratio, torch.inf))


def mean_error(errors: Tensor) -> tuple[float, int]:
    """The mean over samples (S,) that have an error, and their number."""
    defined = errors[~errors.isnan()]
    return (float(defined.mean()) if len(defined) else float("nan")), len(defined)


class ErrorsByName:
    """Errors (B, F) of samples, gathered batch by batch under their names, and their means as rows' numbers."""

    def __init__(self, fields: Sequence[str]):
        self._fields = fields
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, found: Mapping[str, Tensor]) -> None:
        """The errors of some more samples."""
        for name, values in found.items():
            self._parts.setdefault(name, []).append(values)

    def means(
        self, metric: str, horizon: int, chosen: Tensor | None = None, names: Sequence[str] | None = None
    ) -> Iterator[tuple[str, str, int, float, int]]:
        """(field, metric, horizon, mean, samples), with the error's name in place of {} in ``metric``."""
        for name in self._parts if names is None else names:
            errors = torch.cat(self._parts[name])
            for index, field in enumerate(self._fields):
                value, samples = mean_error(errors[:, index] if chosen is None else errors[chosen, index])
                yield field, metric.format(name), horizon, float(f"{value:.6g}"), samples
