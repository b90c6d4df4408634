"""The bias between a tile's queries and its keys, in coordinates that count from the tile's own centre.

So nothing grows with the distance from any origin: LASPE's channels stay small (no cancellation), LAAPE's stay finite
(no overflow), however large the domain. Where points are so sparse that one tile is tens of decay lengths wide, or
queries so far from all keys that Phi drowns the logits, channels cannot carry the bias: it is then formed pair by pair,
in float64, from each query's best key on. So it is for encodings that do not decompose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.attention.certificate import lowest_of
from farfield.attention.dense import penalty_matrix
from farfield.attention.encoding import Encoding
from farfield.attention.plan import AttentionPlan, Reach
from farfield.attention.problem import Problem
from farfield.attention.tiles import Tiles

# What a tile may take of the width that channels can serve; its keys need the rest.
_TILE_SHARE = 0.5


def too_wide(
    tiles: Tiles, tolerance: float, encoding: Encoding, dtype: torch.dtype, heaviest: Tensor | None = None
) -> Tensor:
    """Tiles (T,) that are too wide for the channels of their bias; ``heaviest`` (T,) is their largest w."""
    width = tiles.high - tiles.low
    return channels_end(
        encoding, tolerance, dtype, width if heaviest is None else width * heaviest.clamp(min=1.0).sqrt()[:, None]
    )


def channels_end(encoding: Encoding, tolerance: float, dtype: torch.dtype, width: Tensor) -> Tensor:
    """Whether channels cannot carry the bias over tiles of some width (..., P): (...)."""
    limit = encoding.channel_range(dtype, tolerance / 4)
    return (
        torch.zeros(width.shape[:-1], dtype=torch.bool)
        if limit is None
        else (width > _TILE_SHARE * limit.to(width)).any(-1)
    )


@dataclass
class TileBias:
    """Channels (N, G or 1, C) of queries and keys, or the penalty of each pair."""

    problem: Problem
    plan: AttentionPlan
    reach: Reach
    weight: Tensor | None  # (Nq, G, 1), a factor on Phi, by query in tile order

    def __post_init__(self) -> None:
        self.encoding, queries = self.problem.encoding, self.plan.queries
        self.heads, self.head_dim = self.problem.q.shape[1], self.problem.q.shape[-1]
        device, dtype, error = self.problem.q.device, self.problem.q.dtype, self.plan.tolerance / 4
        self.centres = self.in_space((queries.low + queries.high) / 2).to(device)
        heaviest: Tensor | None = None
        if self.weight is not None:
            heaviest = -lowest_of(-self.weight.detach()[..., 0], queries).amin(-1).cpu().double()
        self.pair_by_pair = torch.full((len(queries),), not self.encoding.decomposes)  # (Tq,)
        self.pair_by_pair |= too_wide(queries, self.plan.tolerance, self.encoding, dtype, heaviest)
        # far from all keys only differences of huge potentials count, which channels would round away
        most = error / torch.finfo(dtype).eps
        self.pair_by_pair |= self._best() * (1.0 if heaviest is None else heaviest) > most

    def _best(self) -> Tensor:
        """(Tq,): what the potential of a query's best key is at most. The plan's knows the widest lengths alone."""
        if not self.encoding.learns_lengths():
            return self.reach.best
        queries, keys, nearest = self.plan.queries, self.plan.keys, self.reach.key_tile[self.reach.start[:-1]].long()
        corners = (queries.low - keys.high[nearest], queries.high - keys.low[nearest])
        ends = [self.encoding.axis_penalty(corner.to(self.centres)).detach() for corner in corners]
        best = self.encoding.combine(torch.maximum(*ends).sum(-1)).reshape(-1, len(queries)).amax(0)
        if self.plan.cloud.own:
            best = best.clamp(max=float(self.encoding.penalty(torch.zeros_like(corners[0][:1])).max()))
        return best.cpu()

    def in_space(self, places: Tensor) -> Tensor:
        """Places (T, P) in the coordinates of positions; boxes are in those of the basis."""
        return places if self.encoding.basis is None else places @ self.encoding.basis.to(places)

    def channel_shift(self, offset: Tensor, dtype: torch.dtype) -> Tensor:
        """(I, T, G or 1, C, C): key channels that count from a place ``offset`` (I, T, P) further on, from such that do
        not."""
        shift = self.encoding.channel_shift(offset.to(dtype))
        return shift[:, :, None] if shift.ndim == 4 else self._all_heads(shift.permute(1, 2, 0, 3, 4), 2)

    def query_channels(self, where_q: Tensor, dtype: torch.dtype) -> Tensor:
        """Channels of all queries, each relative to the centre of its own tile; the factor on Phi is in them."""
        count = self.plan.queries.count().to(where_q.device)
        local = where_q - self.centres.repeat_interleave(count, 0)
        if bool(self.pair_by_pair.any()):  # channels without a use there, but they must be finite
            unused = self.pair_by_pair.to(where_q.device).repeat_interleave(count)
            local = torch.where(unused[:, None], torch.zeros_like(local), local)
        if not self.encoding.decomposes:
            return local[:, None, :0].to(dtype)
        channels = self._by_point(self.encoding.query_channels(local.to(dtype), self.head_dim))
        return channels if self.weight is None else channels * self.weight

    def key_channels(self, centre: Tensor, where_k: Tensor, dtype: torch.dtype) -> Tensor:
        """Channels of keys at where_k (n, P) as queries see them whose tile has its ``centre`` at (P,) or (n, P)."""
        return self._by_point(self.encoding.key_channels((where_k - centre).to(dtype)))

    def penalty(self, tile: int, where_q: Tensor, where_k: Tensor, weight: Tensor | None) -> Tensor:
        """w Phi of each pair (B or 1, H or 1, nq, nk) of a tile, in float64."""
        centre = self.centres[tile]
        penalty = penalty_matrix((where_q - centre)[None, None], (where_k - centre)[None, None], self.encoding, None)
        if weight is None:
            return penalty
        return penalty * weight.double().unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3)

    def _by_point(self, channels: Tensor) -> Tensor:
        """(N, C) -> (N, 1, C); per head (H, N, C) -> (N, G, C)."""
        return channels[:, None] if channels.ndim == 2 else self._all_heads(channels.transpose(0, 1), 1)

    def _all_heads(self, of_heads: Tensor, axis: int) -> Tensor:
        """H -> G along an axis: batch entries that share their points lie side by side in G."""
        entries = self.problem.q.shape[0] if self.problem.cloud.one_for_all else 1
        return torch.cat([of_heads] * entries, axis)
