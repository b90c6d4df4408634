"""The errors of the tables, per sample and field.

    L1 = sum |prediction - truth| / sum |truth|,      L2 = sqrt( sum (prediction - truth)² / sum truth² )

with sums over the points, in physical units. What is compared are changes, never states: a state is mostly what it was
before (the water is one metre high), so that any prediction of it looks good.
"""

from __future__ import annotations

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
