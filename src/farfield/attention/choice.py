"""Which backend "auto" takes: the one that is expected to be faster, if it can serve the points at all."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from farfield.attention import sweep
from farfield.attention.cloud import Cloud, box_potential, rising_reach
from farfield.attention.dense import AllPairs, channel_error
from farfield.attention.encoding import Encoding
from farfield.attention.locality import LAAPE
from farfield.attention.plan import FINEST, AttentionPlan, plan_cloud, typical_reach
from farfield.attention.tile_bias import channels_end, too_wide

BACKENDS = ("auto", "reference", "dense", "tiled", "flex")


class _Costs(NamedTuple):
    """Of a tiled call in pairs of one head of a dense one, measured (``benchmarks/break_even.py``)."""

    per_call: float
    per_point: float  # of its plan
    per_point_and_head: float
    per_pair: float


_IN_ROUNDS = _Costs(2_000_000, 300, 350, 1.3)
_COMPILED = _Costs(1_400_000, 150, 270, 0.42)
# A pair of tiles so wide that its bias is written out, besides.
_WRITTEN_OUT = 1.5
# A plan that promises to win by less than this is not worth building.
_CLOSE = 1.1
# Queries per tile in clouds for which the choice is close.
_USUAL_TILE = 256


def choose(
    cloud: Cloud,
    encoding: Encoding,
    tolerance: float,
    groups: int,
    dtype: torch.dtype,
    device: torch.device,
    differentiated: bool,
) -> AttentionPlan | AllPairs:
    """The plan that "auto" stands for; ``groups`` are heads times batch entries that share the points."""
    dtype = torch.promote_types(dtype, torch.float32)
    obstacle = obstacle_to_channels(cloud, encoding, dtype)
    compiled = sweep.at_hand(dtype, device) and encoding.decomposes and not differentiated
    costs = _COMPILED if compiled else _IN_ROUNDS
    queries, keys = cloud.query_positions.shape[-2], cloud.key_positions.shape[-2]
    entries = 1 if cloud.one_for_all else cloud.batch()
    pairs = entries * queries * keys

    def all_pairs(backend: str, reason: str) -> AllPairs:
        return AllPairs(cloud, tolerance, encoding.identity(), backend, reason)

    if not encoding.local and cloud.lengths is None and cloud.key_mask is None:
        return all_pairs("dense", f"{type(encoding).__name__} alone is not local, every key counts")
    points = entries * (queries + keys)
    overhead = costs.per_call + (costs.per_point + costs.per_point_and_head * groups) * points
    simple = cloud.lengths is None and cloud.key_mask is None and cloud.period is None
    if simple and groups * pairs <= overhead:
        few = f"{pairs} pairs are so few that a plan would cost more than it saves"
        if not obstacle:
            return all_pairs("dense", few)
        if not encoding.decomposes:
            return all_pairs("reference", f"{type(encoding).__name__} does not decompose, and {pairs} pairs are few")
    if simple and not obstacle:
        share, width = _share_in_reach(cloud, encoding, tolerance), _tile_width(cloud, encoding)
        per_pair = costs.per_pair
        if channels_end(encoding, tolerance, dtype, width):  # no kernel for these, and their bias is written out
            per_pair = _IN_ROUNDS.per_pair + _WRITTEN_OUT
        if groups * pairs <= _CLOSE * (overhead + per_pair * share * groups * pairs):
            return all_pairs(
                "dense", f"{100 * share:.0f} % of all pairs are in reach, so skipping the rest would not pay"
            )
    plan = plan_cloud(cloud, encoding, tolerance)
    density, wide = plan.density(), float(too_wide(plan.queries, tolerance, encoding, dtype).double().mean())
    if simple and not obstacle:
        written_out = _WRITTEN_OUT * wide * groups * plan.pairs()
        expected = plan.cost(groups) if wide or not compiled else costs.per_pair * groups * plan.pairs()
        if groups * pairs <= overhead + expected + written_out:
            return all_pairs(
                "dense", f"{100 * density:.0f} % of all pairs are in reach, so skipping the rest would not pay"
            )
    plan.reason = f"{100 * density:.3g} % of all pairs are in reach"
    if compiled and not wide:
        plan.reason += ", and a compiled kernel serves them"
    if device.type == "cuda" and flex_can_be_trusted(device):
        flex = plan_cloud(cloud, encoding, tolerance, backend="flex")
        flex.reason = plan.reason + ", and the device is CUDA"
        return flex
    return plan


@torch.no_grad()
def _share_in_reach(cloud: Cloud, encoding: Encoding, tolerance: float) -> float:
    """The share of pairs that tiles read in layers with ordinary logits, from some queries and keys.

    A tile reads what any of its queries needs, and whole tiles of keys: displacements count from box to box, with boxes
    as wide as those of an even cloud.
    """
    queries, keys = (p.detach() if p.ndim == 2 else p[0].detach() for p in (cloud.query_positions, cloud.key_positions))
    some_q, some_k = (
        encoding.coordinates(p[torch.linspace(0, len(p) - 1, min(len(p), n)).long()]).double()
        for p, n in ((queries, 24), (keys, 768))
    )
    wide = sum(
        _width_of_tiles(p, n, size) for p, n, size in ((some_q, len(queries), _USUAL_TILE), (some_k, len(keys), FINEST))
    )
    delta = some_q[:, None] - some_k[None]
    smallest = box_potential(encoding, delta - wide / 2, delta + wide / 2)
    excess = smallest - encoding.floor(cloud.space_dim).to(smallest)
    return float((excess <= typical_reach(tolerance)).double().mean())


def _tile_width(cloud: Cloud, encoding: Encoding) -> Tensor:
    """About how wide (P,) tiles of queries will be."""
    points = cloud.query_positions.detach()
    points = encoding.coordinates(points if points.ndim == 2 else points[0]).double()
    return _width_of_tiles(points, len(points), _USUAL_TILE)


def _width_of_tiles(some: Tensor, count: int, size: int) -> Tensor:
    """How wide (P,) tiles of some size are if ``count`` points lie evenly where ``some`` (n, P) of them do."""
    return (some.amax(0) - some.amin(0)) * min(1.0, size / count) ** (1 / some.shape[1])


def obstacle_to_channels(
    cloud: Cloud, encoding: Encoding, dtype: torch.dtype, weight: Tensor | None = None, image_reach: float = 0.0
) -> str | None:
    """Why the dense backend cannot serve these points, and what can; None if it can."""
    name = type(encoding).__name__
    if not encoding.decomposes:
        return (
            f"backend='dense' needs a bias that decomposes into channels, {name} does not: "
            "use backend='tiled' or 'reference'"
        )
    limit = encoding.channel_range(dtype, channel_error(dtype))
    if limit is None:
        return None
    if weight is not None:
        limit = limit / math.sqrt(max(1.0, float(weight.detach().max().nan_to_num(1.0))))
    both = [encoding.coordinates(p.detach()).flatten(0, -2) for p in (cloud.query_positions, cloud.key_positions)]
    width = torch.maximum(both[0].amax(0), both[1].amax(0)) - torch.minimum(both[0].amin(0), both[1].amin(0))
    if cloud.period is not None:  # images lie around the domain
        width = width.double() + 2 * rising_reach(encoding, cloud.space_dim, image_reach).to(width.device)
    if not bool((width > limit.to(width)).any()):
        return None
    failure = "overflows" if isinstance(encoding, LAAPE) else "loses its bias to rounding"
    return (
        f"backend='dense' with {name} {failure} in {dtype} beyond a domain of "
        f"{limit.tolist()} per axis, this one is {width.tolist()} wide: use backend='tiled'"
    )


def flex_can_be_trusted(device: torch.device) -> bool:
    """Whether FlexAttention compiles on a device and agrees with the tiled backend; tried once, said if not."""
    from farfield.attention.flex import agrees_with_tiled

    return agrees_with_tiled(device)
