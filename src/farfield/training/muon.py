"""Muon: momentum whose update of a matrix is made orthogonal (Jordan et al. 2024), in float32 or as told.

    M <- momentum M + (1 - momentum) G,      U = orthogonal(G + momentum (M - G)),
    W <- W - rate (0.2 sqrt(max(rows, columns)) U + decay W)

``orthogonal`` replaces the singular values by about 1, with five Newton-Schulz iterations; the factor gives the update
the size of AdamW's, so that one rate serves both. A convolution's weights are a matrix too: outputs by all the rest.
torch's own Muon takes no convolutions and iterates in bfloat16, which most CPUs only emulate: there it costs more
than the rest of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Of the quintic x -> a x + b x^3 + c x^5, whose iterates move singular values from 0..1 to about 0.7..1.2.
_QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, iterations: int = 5) -> Tensor:
    """The nearest orthogonal matrix, roughly: the same singular vectors, singular values of about 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = _QUINTIC
    for _ in range(iterations):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(Optimizer):
    """For matrices only; see the module."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.dtype = dtype  # of the iterations
        for group in self.param_groups:
            if any(p.ndim < 2 for p in group["params"]):
                raise ValueError("Muon is for matrices: give it parameters of two axes or more")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update from the gradients; ``closure`` is of the interface and not called."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                moving = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(moving, group["momentum"]).flatten(1).to(self.dtype))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update.view_as(p).to(p.dtype), alpha=-0.2 * group["lr"] * math.sqrt(max(update.shape)))
