"""A convolution per channel whose gradient is fast on a CPU: PyTorch's takes ten times its forward pass.

    out[y, x, c] = sum over (i, j) of  weight[c, i, j] in[y + i - r, x + j - r, c],    in = 0 outside

The gradient of the input is the same convolution with the weights turned by half a turn; that of the weights,
sum over (y, x) of out'[y, x, c] in[y + i - r, x + j - r, c], runs over rows that stay in the processor's cache.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional


class Spread(nn.Conv2d):
    """A k x k convolution of each channel by itself (k odd), on (B, Y, X, channels)."""

    def __init__(self, channels: int, size: int):
        super().__init__(channels, channels, size, padding=size // 2, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not torch.is_grad_enabled():
            return _convolve(x, self.weight, self.bias)
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = _Spread.apply(x.float(), self.weight) + self.bias
            return out


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    inner = functional.conv2d(
        x.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0]
    )
    return inner.permute(0, 2, 3, 1)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        of_input = _convolve(gradient, weight.flip(2, 3))
        margin = weight.shape[-1] // 2
        around = functional.pad(x, (0, 0, margin, margin, margin, margin))
        of_weight = np.zeros((weight.shape[2], weight.shape[3], weight.shape[0]), dtype=np.float32)
        for inputs, outputs in zip(around.numpy(), gradient.numpy(), strict=True):
            _add_correlation(inputs, outputs, of_weight)
        return of_input, torch.from_numpy(of_weight).permute(2, 0, 1)[:, None]


@numba.njit(cache=True, fastmath=True)
def _add_correlation(
    inputs: NDArray[np.float32], outputs: NDArray[np.float32], total: NDArray[np.float32]
) -> None:  # pragma: no cover - compiled
    """total[i, j, c] += sum over (y, x) of inputs[y + i, x + j, c] outputs[y, x, c]."""
    rows, columns, channels = outputs.shape
    for y in range(rows):
        for i in range(total.shape[0]):
            for j in range(total.shape[1]):
                for x in range(columns):
                    for c in range(channels):
                        total[i, j, c] += inputs[y + i, x + j, c] * outputs[y, x, c]
