"""The transformer neural operator of the paper: linear in, pre-norm blocks, linear out, no absolute positions.

Shapes: B batch, N points, P space axes, W width, H heads.

    x = in(features)
    for each block:  x = x + attention(norm(x), positions);  x = x + mlp(norm(x))
    out(norm(x))

Positions enter through the relative encoding only, so the operator commutes with translations, and with a local
encoding its output at a point does not depend on how large the domain around it is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farfield.attention import AllPairs, AttentionPlan, Encoding, local_attention, plan_attention, shared_positions

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


def exactly(layer: nn.Module, x: Tensor) -> Tensor:
    """Apply a layer outside of autocast, in the precision of its weights.

    The first and the last layer of a network are cheap and touch physical values, which bfloat16 would round by 0.4 %:
    more than a trained model's error.
    """
    with torch.autocast(x.device.type, enabled=False):
        return layer(x.to(next(layer.parameters()).dtype))


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
        return pointwise(self.out, y.transpose(1, 2).flatten(-2))

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, encoding: Encoding, expansion: int = 4):
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, encoding)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, x: Tensor, positions: Tensor, **options: Any) -> Tensor:
        """Points (B, N, W) that attend to one another."""
        normed = pointwise(self.norm_attention, x)
        q, (k, v) = self.attention.queries(normed), self.attention.keys_values(normed)
        del normed  # a gigabyte and a half for two million points
        return self._add(x, self.attention.read(q, k, v, positions, **options))

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What points (B, N, W) offer to readers: twice (B, H, N, W / H)."""
        return self.attention.keys_values(pointwise(self.norm_attention, x))

    def read(self, x: Tensor, k: Tensor, v: Tensor, positions: Tensor, key_positions: Tensor, **options: Any) -> Tensor:
        """Points (B, Nq, W) that attend to the keys and values of any points, their own included."""
        q = self.attention.queries(pointwise(self.norm_attention, x))
        return self._add(x, self.attention.read(q, k, v, positions, key_positions, **options))

    def _add(self, x: Tensor, attended: Tensor) -> Tensor:
        return pointwise(lambda part: part + self.mlp(self.norm_mlp(part)), x + attended)


class TransformerOperator(nn.Module):
    """Maps features at points to fields at the same points, on a domain of any size.

    Args:
        in_features, out_features: channels per point in and out.
        space_dim: number of space axes P.
        width, depth, heads: size of the network; the defaults are the paper's.
        encoding: how positions act on attention, e.g. ``LAAPE(250.0)``; each block gets its own copy.
        expansion: inner width of the point-wise networks over ``width``.
        checkpointing: keep only the blocks' inputs in training and recompute the rest (less memory, a third more time).
        backend, tolerance: as in :func:`farfield.local_attention`; plain attributes, may be changed at any time.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        space_dim: int,
        *,
        encoding: Encoding,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        expansion: int = 4,
        checkpointing: bool = False,
        backend: str = "auto",
        tolerance: float = 1e-4,
    ):
        super().__init__()
        sizes = {
            "in_features": in_features,
            "out_features": out_features,
            "space_dim": space_dim,
            "width": width,
            "depth": depth,
            "heads": heads,
            "expansion": expansion,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width {width} and {heads} heads")
        if encoding.space_dim() not in (None, space_dim):
            raise ValueError(f"the encoding is for {encoding.space_dim()} axes, space_dim is {space_dim}")
        self.in_features, self.space_dim, self.heads = in_features, space_dim, heads
        self.checkpointing, self.backend, self.tolerance = checkpointing, backend, tolerance
        self.embed = nn.Linear(in_features, width)
        self.blocks = nn.ModuleList(Block(width, heads, copy.deepcopy(encoding), expansion) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, out_features)
        self._last_plan: tuple | None = None

    def plan(
        self, positions: Tensor, *, batch: int = 1, period: Sequence[float | None] | None = None
    ) -> AttentionPlan | AllPairs:
        """What all blocks need to know about the points: which keys each query can see, or that all pairs are computed.

        ``forward`` makes it by itself, and keeps it as long as it is given the same points.
        """
        encoding = next(module for module in self.blocks.modules() if isinstance(module, Encoding))  # all are alike
        heads = batch * self.heads
        return plan_attention(
            positions, encoding=encoding, tolerance=self.tolerance, backend=self.backend, period=period, heads=heads
        )

    def forward(
        self,
        features: Tensor,
        positions: Tensor,
        *,
        period: Sequence[float | None] | None = None,
        plan: AttentionPlan | AllPairs | None = None,
    ) -> Tensor:
        """(B, N, in), (N, P) or (B, N, P) -> (B, N, out).

        ``period`` is the length per axis after which the domain repeats, None for axes that do not; ``plan`` that of
        these points, made here if not given.
        """
        if features.ndim != 3 or features.shape[-1] != self.in_features:
            raise ValueError(
                f"features must have the shape (batch, points, {self.in_features}), got {tuple(features.shape)}"
            )
        if positions.shape[-1] != self.space_dim:
            raise ValueError(f"positions must have {self.space_dim} axes, got the shape {tuple(positions.shape)}")
        positions = shared_positions(positions)
        if plan is None and features.shape[0] and features.shape[1] and not torch.compiler.is_compiling():
            plan = self._plan_of(positions, len(features), period)
            if not positions.requires_grad and positions.ndim == plan.cloud.query_positions.ndim:
                positions = plan.cloud.query_positions  # blocks see at once that these are the plan's own
        options: dict[str, Any] = {"tolerance": self.tolerance, "period": period, "plan": plan}
        options["backend"] = self.backend if plan is None else plan.backend
        x = pointwise(lambda part: exactly(self.embed, part), features)
        for block in self.blocks:
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, positions, use_reentrant=False, **options)
            else:
                x = block(x, positions, **options)
        return pointwise(lambda part: exactly(self.project, self.norm(part)), x)

    def _plan_of(
        self, positions: Tensor, batch: int, period: Sequence[float | None] | None
    ) -> AttentionPlan | AllPairs:
        """The plan of these points: the last one, if a rollout or a training set comes back to the same points."""
        wanted = (self.backend, self.tolerance, batch, None if period is None else tuple(period))
        if self._last_plan is not None:
            known, plan = self._last_plan
            where = plan.cloud.query_positions
            alike = (
                where.shape == positions.shape and where.dtype == positions.dtype and where.device == positions.device
            )
            if known == wanted and alike and torch.equal(where, positions.detach()):
                return plan
        plan = self.plan(positions.detach().clone(), batch=batch, period=period)  # whatever becomes of the caller's
        self._last_plan = (wanted, plan)
        return plan
