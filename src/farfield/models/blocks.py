"""What transformers are built of: attention between points, and pre-norm blocks of it.

Shapes: B batch, N points, W width, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from farfield.attention import Encoding, local_attention
from farfield.models.tokens import exactly

# Without gradients, point-wise layers take so many points at a time: their inner width (4 W) never meets all N.
_CHUNK = 16_384


def pointwise(layer: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a layer that acts on each point alone to x (B, N, W), in pieces where no gradient is needed."""
    if torch.is_grad_enabled() or x.shape[1] <= _CHUNK:
        return layer(x)
    first = layer(x[:, :_CHUNK])
    out = first.new_empty((*x.shape[:2], first.shape[-1]))
    out[:, :_CHUNK] = first
    for start in range(_CHUNK, x.shape[1], _CHUNK):
        out[:, start : start + _CHUNK] = layer(x[:, start : start + _CHUNK])
    return out


class Attention(nn.Module):
    """Multi-head attention from points to points, in three steps so that keys and values can be reused."""

    def __init__(self, width: int, heads: int, encoding: Encoding):
        super().__init__()
        self.heads = heads
        self.encoding = encoding
        self.to_query = nn.Linear(width, width)
        self.to_key = nn.Linear(width, width)
        self.to_value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def queries(self, x: Tensor) -> Tensor:
        """(B, N, W) -> (B, H, N, W / H)."""
        return self._by_head(pointwise(self.to_query, x))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, W) -> twice (B, H, N, W / H)."""
        return self._by_head(pointwise(self.to_key, x)), self._by_head(pointwise(self.to_value, x))

    def read(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        key_positions: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Attend and project back to (B, Nq, W); ``options`` go to :func:`local_attention`."""
        y = local_attention(q, k, v, positions, key_positions, encoding=self.encoding, **options)
        return pointwise(lambda part: self.out(part.flatten(-2)), y.transpose(1, 2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block; with ``conditioned``, numbers of the whole sample scale and shift what it norms.

        x <- x + attention((1 + a) norm(x) + b);   x <- x + mlp((1 + c) norm(x) + d);   (a, b, c, d) = linear(condition)

    The linear map begins at zero: a block learns from there how much the condition matters to it.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        encoding: Encoding,
        expansion: int = 4,
        conditioned: bool = False,
    ):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, encoding)
        self.norm_mlp = nn.LayerNorm(width)
        inner = expansion * width
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))
        if conditioned:
            self.modulate = nn.Linear(width, 4 * width)
            nn.init.zeros_(self.modulate.weight)
            nn.init.zeros_(self.modulate.bias)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        condition: Tensor | None = None,
        key_positions: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Points (B, N, W) that attend to one another, under a condition (B, 1, W).

        With ``key_positions``, those of the first points, only these offer keys and values: the others read.
        """
        normed, then = pointwise(self.norm_attention, x), None
        if condition is not None:
            scale, shift, *then = exactly(self.modulate, condition).chunk(4, dim=-1)
            normed = normed * (1 + scale) + shift
        offered = normed if key_positions is None else normed[:, : key_positions.shape[-2]]
        q, (k, v) = self.attention.queries(normed), self.attention.keys_values(offered)
        del normed, offered  # a gigabyte and a half for two million points
        attended = self.attention.read(q, k, v, positions, key_positions, **options)
        del q, k, v
        return self._add(x, attended, then)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What points (B, N, W) offer to readers: twice (B, H, N, W / H)."""
        return self.attention.keys_values(pointwise(self.norm_attention, x))

    def read(self, x: Tensor, k: Tensor, v: Tensor, positions: Tensor, key_positions: Tensor, **options: Any) -> Tensor:
        """Points (B, Nq, W) that attend to the keys and values of any points, their own included."""
        q = self.attention.queries(pointwise(self.norm_attention, x))
        return self._add(x, self.attention.read(q, k, v, positions, key_positions, **options))

    def _add(self, x: Tensor, attended: Tensor, modulation: list[Tensor] | None = None) -> Tensor:
        return pointwise(lambda part: part + self.mlp(self._normed(part, modulation)), x + attended)

    def _normed(self, x: Tensor, modulation: list[Tensor] | None) -> Tensor:
        normed = self.norm_mlp(x)
        return normed if modulation is None else normed * (1 + modulation[0]) + modulation[1]
