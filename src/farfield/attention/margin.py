"""How far beyond the plan's cut a layer must look, given what its queries and keys hold.

The plan knows positions only: its cut is right for logits of size one. Trained layers have larger ones, and use them to
look at keys that the potential alone would call far. So each call measures, on a sample of its own queries, what the
keys beyond the cut are worth, and raises the cut until they are worth less than the tolerance. It is a sample: where a
field is very uneven, a tile unlike all that were asked may lose more. The largest error found in a trained layer is
1.6e-3 at a tolerance of 1e-4, where a few spots lie in an empty domain (Gray-Scott's first states).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from farfield.attention.dense import penalty_matrix
from farfield.attention.encoding import Encoding
from farfield.attention.plan import AttentionPlan, Reach

# The sample: so many tiles, evenly spread, and so many queries of each; fewer tiles where they read so many keys that
# the sample would cost more than some per cent of the layer.
_TILES = 24
_FEWEST = 6
_KEYS = 1 << 18
_QUERIES = 32
# The cut rises in steps of this size.
_STEP = 0.5
# Keys beyond the plan's lists are not seen at all: lists must go on for so long after the cut.
_UNSEEN = 2.0


def fit(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    weight: Tensor | None,
    plan: AttentionPlan,
) -> tuple[AttentionPlan, list[float]]:
    """The plan, with longer lists if need be, and by how much to raise the cut of each of its reaches.

    Rotated q (B, H, Nq, D), k, v at positions (N, P); ``weight`` (B, H, Nq) multiplies Phi where the encoding has one.
    """
    floors = rare_logits(q, k)
    least = 1.0 if weight is None else min(1.0, float(weight.detach().min()))
    while True:
        margins = []
        for reach in plan.reaches:
            sample = _Sample(q, k, v, query_positions, key_positions, encoding, weight, plan, reach)
            heads = range(q.shape[1]) if reach.heads is None else reach.heads
            margins.append(max(sample.margin(head, float(floors[head])) for head in heads))
        wider = plan.reaching([m + _UNSEEN for m in margins], least, query_positions, key_positions, encoding)
        if wider is plan:
            return plan, margins
        plan = wider


@torch.no_grad()
def rare_logits(q: Tensor, k: Tensor) -> Tensor:
    """How much the cut of each head must rise for rare queries, too rare for a sample, with a large logit far away.

    The logit of a query with a random key is about normal with the standard deviation s = |q| rms|k| / D (rotation
    spreads directions evenly). As long as s is small, all keys in reach contribute, and far ones weigh what the
    kernel says. Beyond s of about one, single large logits decide, and the margin that keeps the error at the
    tolerance was found to grow by 1.3 per unit of s, for every potential (``tests/attention/test_tiled.py`` checks).
    """
    rms = k.norm(dim=-1).square().mean(-1).sqrt()  # (B, H)
    spread = q.norm(dim=-1).amax(-1) * rms / q.shape[-1]
    margin = 1.3 * (spread.amax(0) - 1.3).clamp(min=0)
    return margin.nan_to_num(0.0, posinf=0.0)  # a diverged prediction goes on: no list is long enough for it


@dataclass
class _Sample:
    """Some queries of some tiles with all keys of their lists: what is lost if the lists end earlier."""

    q: Tensor
    k: Tensor
    v: Tensor
    query_positions: Tensor
    key_positions: Tensor
    encoding: Encoding
    weight: Tensor | None
    plan: AttentionPlan
    reach: Reach

    @torch.no_grad()
    def margin(self, head: int, floor: float) -> float:
        """``floor`` plus as many steps as keep the error of a head to the tolerance."""
        order_k = self.plan.keys.order.to(self.k.device)
        k, v = self.k[:, head, order_k], self.v[:, head, order_k]  # the keys of a tile are runs of memory now
        whole, lost = 0.0, list[float]()  # squared norms of outputs and, by step, of errors
        tiles = len(self.plan.queries)
        read = self.plan.keys.size * len(self.reach.key_tile) // tiles  # keys per tile
        for tile in _spread(tiles, min(max(_FEWEST, tiles // 16, _KEYS // read), _TILES)).tolist():
            size, errors = self._errors(head, tile, k, v, floor)
            whole += size
            lost = [a + b for a, b in itertools.zip_longest(lost, errors, fillvalue=0.0)]
        return floor + _STEP * sum(error > self.plan.tolerance**2 * whole for error in lost)

    def _errors(self, head: int, tile: int, k: Tensor, v: Tensor, margin: float) -> tuple[float, list[float]]:
        """The squared norm of the outputs, and of their errors at this margin and after each further step."""
        queries, keys, reach = self.plan.queries, self.plan.keys, self.reach
        members = queries.order[tile * queries.size : (tile + 1) * queries.size].to(k.device)
        asked = members[_spread(len(members), _QUERIES)]
        importance = _importance(len(asked), len(members), self.query_positions.shape[1]).to(k)
        entries = slice(int(reach.start[tile]), int(reach.start[tile + 1]))
        slots = self.plan.key_slots(reach, tile, entries.stop - entries.start)
        on_device = slots.to(k.device)
        q, k, v = self.q[:, head, asked], k.index_select(1, on_device), v.index_select(1, on_device)

        where_q = self.query_positions[asked].double()
        where_k = self.key_positions[keys.order[slots].to(k.device)].double()
        local_q, local_k = ((w - where_q[0]).to(k.dtype)[None, None] for w in (where_q, where_k))
        penalty = penalty_matrix(local_q, local_k, self.encoding.select([head]), None)[0, 0]
        penalty = penalty - penalty.amin(-1, keepdim=True)
        least = 1.0
        if self.weight is not None:
            penalty = penalty * self.weight[:, head, asked, None]
            least = max(float(self.weight[:, head, members].min()), 1e-6)
        # keys lie in rising order of the margin from which on they are computed
        per_tile = keys.count()[reach.key_tile[entries].long()]
        beyond = (reach.potential[entries] * least - reach.cut[tile]).repeat_interleave(per_tile)

        shares = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) - penalty, dim=-1)
        out = shares @ v
        size, errors = float((importance * out.square()).sum()), list[float]()
        while not errors or errors[-1] > 1e-6 * self.plan.tolerance**2 * size:
            kept = int(torch.searchsorted(beyond, margin + _STEP * len(errors), right=True))
            dropped = shares[..., kept:].sum(-1, keepdim=True)
            error = (dropped * out - shares[..., kept:] @ v[:, kept:]) / (1 - dropped).clamp(min=1e-12)
            errors.append(float((importance * error.square()).sum()))
        return size, errors


def _spread(total: int, count: int) -> Tensor:
    """At most ``count`` numbers below ``total``, evenly spread, with both ends."""
    return torch.linspace(0, total - 1, min(total, count)).long()


def _importance(asked: int, members: int, space_dim: int) -> Tensor:
    """What share of a tile's queries each of ``asked`` (1, asked, 1) stands for.

    The first and the last are corners of the tile, where most is lost: they stand for its rim.
    """
    rim = 1 - max(0.0, 1 - 2 * members ** (-1 / space_dim)) ** space_dim
    share = torch.full((asked,), (1 - rim) / max(1, asked - 2))
    share[[0, -1]] = rim / 2
    return share[None, :, None]
