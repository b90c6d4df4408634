"""How far beyond the plan's cut a layer must look, given what its queries and keys hold.

The plan knows positions only: its cut is right for logits of size one. Trained layers have larger ones, and use them to
look at keys that the potential alone would call far. So each call measures, on a sample of its own queries, what the
keys beyond the cut are worth, and raises the cut until they are worth less than the tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from farfield.attention.dense import penalty_matrix
from farfield.attention.encoding import Encoding
from farfield.attention.plan import AttentionPlan, Reach

# The sample: so many tiles, evenly spread, and so many queries of each.
_TILES = 32
_QUERIES = 8
# The cut rises in steps of this size.
_STEP = 1.0
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
            heads = list(range(q.shape[1])) if reach.heads is None else reach.heads
            sample = _Sample(q, k, v, query_positions, key_positions, encoding, weight, plan, reach, heads)
            margins.append(sample.margin(float(floors[heads].max())))
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
    return 1.3 * (spread.amax(0) - 1.3).clamp(min=0)


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
    heads: list[int]

    @torch.no_grad()
    def margin(self, floor: float) -> float:
        """``floor`` plus as many steps as keep the error of every head to the tolerance."""
        lost: list[Tensor] = []  # squared errors (H,) by step
        whole = torch.zeros(len(self.heads), device=self.q.device, dtype=self.q.dtype)
        tiles = len(self.plan.queries)
        for tile in torch.linspace(0, tiles - 1, min(tiles, _TILES)).long().tolist():
            size, errors = self._errors(tile, floor)
            whole += size
            lost += [torch.zeros_like(whole) for _ in range(len(errors) - len(lost))]
            for step, error in enumerate(errors):
                lost[step] += error
        steps = 0
        while steps < len(lost) and bool((lost[steps].sqrt() > self.plan.tolerance * whole.sqrt()).any()):
            steps += 1
        return floor + steps * _STEP

    def _errors(self, tile: int, margin: float) -> tuple[Tensor, list[Tensor]]:
        """Squared norms (H,) of the sampled outputs, and of their errors at this margin and after each further step."""
        asked, listed, beyond = self._points(tile)
        k, v = self._at(self.k, listed), self._at(self.v, listed)
        where_q, where_k = self.query_positions[asked].double(), self.key_positions[listed].double()
        penalty = penalty_matrix(where_q[None, None], where_k[None, None], self.encoding.select(self.heads), None)
        penalty = penalty - penalty.amin(-1, keepdim=True)
        if self.weight is not None:
            penalty = penalty * self._at(self.weight, asked)[..., None]
        logits = self._at(self.q, asked) @ k.transpose(-1, -2) / sqrt(self.q.shape[-1])
        shares = torch.softmax(logits - penalty.to(logits.dtype), dim=-1)
        out = shares @ v
        negligible = 1e-3 * self.plan.tolerance * out.norm(dim=(-1, -2))
        errors: list[Tensor] = []
        while True:
            kept = int(torch.searchsorted(beyond, margin + len(errors) * _STEP, right=True))
            far, far_v = shares[..., kept:], v[:, :, kept:]
            dropped = far.sum(-1, keepdim=True)
            error = (dropped * out - far @ far_v) / (1 - dropped).clamp(min=1e-12)
            if bool((error.norm(dim=(-1, -2)) <= negligible).all()):
                return out.square().sum((0, 2, 3)), errors
            errors.append(error.square().sum((0, 2, 3)))

    def _points(self, tile: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries that are asked, keys in their tile's list, and the margins from which on these are computed."""
        queries, keys, reach = self.plan.queries, self.plan.keys, self.reach
        members = queries.order[tile * queries.size : (tile + 1) * queries.size].to(self.q.device)
        asked = members[torch.linspace(0, len(members) - 1, min(len(members), _QUERIES)).long()]
        least = 1.0 if self.weight is None else max(float(self._at(self.weight, members).min()), 1e-6)
        entries = slice(int(reach.start[tile]), int(reach.start[tile + 1]))
        slots = (reach.key_tile[entries].long()[:, None] * keys.size + torch.arange(keys.size)).flatten()
        inside = slots < len(keys.order)  # the last tile may be short
        beyond = (reach.potential[entries] * least - reach.cut[tile]).repeat_interleave(keys.size)
        return asked, keys.order[slots[inside]].to(self.q.device), beyond[inside].contiguous()

    def _at(self, t: Tensor, points: Tensor) -> Tensor:
        """t (B, H, N, ...) for the heads of this reach and some points."""
        return t[:, torch.tensor(self.heads, device=t.device)[:, None], points]
