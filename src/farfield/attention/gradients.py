"""The backward pass of tiled attention: what was read is gathered again, instead of being kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.attention.kernel import attend_backward, logit_gradient
from farfield.attention.reading import Found, Given, Read, Reader


@dataclass
class Sums:
    """Gradients that are summed up read by read; those besides q, k and v only where they are asked for."""

    of_given: Given
    parameters: list[Tensor]
    where_q: Tensor | None
    where_k: Tensor | None
    weight: Tensor | None

    def __post_init__(self) -> None:
        self.of_parameters = [torch.zeros_like(p) for p in self.parameters]

    def of_bias(self) -> bool:
        """Whether anything that the bias depends on is asked for."""
        return bool(self.parameters) or any(t is not None for t in (self.where_q, self.where_k, self.weight))

    def add(self, result: Tensor, slope: Tensor, rows: slice, slots: Tensor, leaves: list[Tensor | None]) -> None:
        """Carry the gradient ``slope`` of a result back to the parameters and to positions and weights."""
        asked = [leaf for leaf in leaves if leaf is not None]
        if not result.requires_grad or not (asked or self.parameters):
            return
        found = list(torch.autograd.grad(result, [*self.parameters, *asked], slope, allow_unused=True))
        for total, part in zip(self.of_parameters, found, strict=False):
            total += 0 if part is None else part
        rest = iter(found[len(self.parameters) :])
        at_q, at_k, at_weight = (None if leaf is None else next(rest) for leaf in leaves)
        if self.where_q is not None and at_q is not None:
            self.where_q[rows] += at_q
        if self.where_k is not None and at_k is not None:
            self.where_k.index_add_(0, slots, at_k)
        if self.weight is not None and at_weight is not None:
            self.weight[rows] += at_weight


def add_gradients(one: Read, reader: Reader, grad: Tensor, given: Given, found: Found, sums: Sums) -> None:
    """Add what the keys of one read contribute to all gradients, from that of the output (N, G, W)."""
    q, rows, slots, bias = given.q, one.rows, reader.slots(one.keys), reader.bias
    where_q = reader.where_q[rows].detach().requires_grad_(sums.where_q is not None)
    where_k = reader.where_k.index_select(0, slots).requires_grad_(sums.where_k is not None)
    weight = None if bias.weight is None else bias.weight[rows].detach().requires_grad_(sums.weight is not None)
    leaves = [t if t is not None and t.requires_grad else None for t in (where_q, where_k, weight)]
    channels = penalty = None
    with torch.enable_grad() if sums.of_bias() else torch.no_grad():
        if bool(bias.pair_by_pair[one.tile]):
            penalty = bias.penalty(one.tile, where_q, where_k, weight)
        else:
            channels = bias.key_channels(bias.centres[one.tile], where_k, q.dtype)
    near = reader.by_head(grad[rows], q[rows], *reader.gather(given.k, given.v, slots, channels), found.out[rows])
    mass = found.lse[rows].unflatten(1, (-1, reader.heads)).permute(1, 2, 0).to(q.dtype).contiguous()
    if penalty is None:
        slopes = attend_backward(*near, mass, reader.scale)  # type: ignore[call-arg, arg-type]
    else:
        best = found.offset[rows].unflatten(1, (-1, reader.heads)).permute(1, 2, 0)
        logits = (best[..., None] - penalty.detach()).to(q.dtype)
        shares, slope = logit_gradient(*near, mass, reader.scale, logits)  # type: ignore[call-arg, arg-type]
        slopes = (reader.scale * (slope @ near[2]), reader.scale * (slope.mT @ near[1]), shares.mT @ near[0])
        sums.add(penalty, -slope.double().sum_to_size(penalty.shape), rows, slots, leaves)
    to_q, to_k, to_v = (t.permute(2, 0, 1, 3).flatten(1, 2) for t in slopes)
    if channels is not None:
        first = reader.head_dim
        to_channels = to_k[..., first : first + channels.shape[-1]].sum_to_size(channels.shape)
        sums.add(channels, to_channels, rows, slots, [None, leaves[1], None])
    sums.of_given.q[rows] += to_q
    sums.of_given.k.index_add_(0, slots, to_k)
    sums.of_given.v.index_add_(0, slots, to_v)
