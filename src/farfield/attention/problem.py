"""One call of attention, as the backends receive it: checked, in the precision of the computation, not yet rotated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farfield.attention.cloud import Cloud
from farfield.attention.encoding import Encoding


@dataclass(frozen=True)
class Problem:
    """q (B, H, Nq, D), k (B, H, Nk, D), v (B, H, Nk, Dv) at points of a cloud, and what is asked of the answer."""

    q: Tensor
    k: Tensor
    v: Tensor
    cloud: Cloud
    encoding: Encoding  # of the heads of q
    weight: Tensor | None  # (B, H, Nq), a factor on Phi that depends on the query
    tolerance: float
    certify: bool
    encoding_of_all: Encoding  # of the heads of the whole call

    @property
    def query_positions(self) -> Tensor:
        return self.cloud.query_positions

    @property
    def key_positions(self) -> Tensor:
        return self.cloud.key_positions

    def of_heads(self, heads: list[int]) -> Problem:
        """The same problem for some of the heads."""
        if len(heads) == self.q.shape[1]:
            return self
        weight = None if self.weight is None else self.weight[:, heads]
        some = (t[:, heads[0] : heads[0] + 1] if len(heads) == 1 else t[:, heads] for t in (self.q, self.k, self.v))
        q, k, v = some
        return replace(self, q=q, k=k, v=v, weight=weight, encoding=self.encoding_of_all.select(heads))

    def needs_gradients(self) -> bool:
        """Whether anything of this call will be differentiated."""
        return needs_gradients(self.q, self.k, self.v, self.cloud, self.encoding)

    def has_tangents(self) -> bool:
        """Whether forward-mode derivatives are asked for."""
        if torch.compiler.is_compiling():
            return False
        given = [self.q, self.k, self.v, self.query_positions, self.key_positions, *self.encoding.parameters()]
        given += [] if self.weight is None else [self.weight]
        return any(torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in given)

    def flat_positions(self, positions: Tensor) -> Tensor:
        """Positions (M, P) in the order of ``by_point``."""
        return self.cloud.flat(positions)

    def by_point(self, t: Tensor) -> Tensor:
        """(B, H, N, C) -> (N, B H, C) where batch entries share their points, else (B N, H, C)."""
        if self.cloud.one_for_all:
            return t.permute(2, 0, 1, 3).flatten(1, 2)
        return t.permute(0, 2, 1, 3).flatten(0, 1)

    def by_batch(self, t: Tensor) -> Tensor:
        """The way back from ``by_point``."""
        batch, heads = self.q.shape[:2]
        if self.cloud.one_for_all:
            return t.unflatten(1, (batch, heads)).permute(1, 2, 0, 3)
        return t.unflatten(0, (batch, -1)).permute(0, 2, 1, 3)


def needs_gradients(q: Tensor, k: Tensor, v: Tensor, cloud: Cloud, encoding: Encoding) -> bool:
    """Whether anything of a call will be differentiated."""
    given = (q, k, v, cloud.query_positions, cloud.key_positions, *encoding.parameters())
    return torch.is_grad_enabled() and any(t.requires_grad for t in given)
