"""Queries that have no key in reach, found in linear time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from farfield.attention.cloud import Cloud
from farfield.attention.encoding import Encoding
from farfield.attention.plan import AttentionPlan, Reach, plan_cloud
from farfield.attention.problem import Problem

# Pairs whose penalty is looked at, at a time.
_PAIRS = 1 << 22


@torch.no_grad()
def out_of_reach(problem: Problem, plan: AttentionPlan | None) -> Tensor | None:
    """Queries (B, H, Nq) whose every key weighs less than ``tolerance`` times the kernel's peak; None if none are.

    The best key of a query lies in one of the tiles that begin before ``best``, the bound that the plan has for it:
    only these are searched, and only for tiles whose bound does not settle it.
    """
    cloud, encoding, most = problem.cloud, problem.encoding, -math.log(problem.tolerance)
    if not encoding.local:
        return None
    here = torch.zeros(cloud.space_dim, dtype=torch.float64)
    floor = encoding.floor(cloud.space_dim).cpu().double()
    if cloud.own and problem.weight is None and bool((encoding.penalty(here).cpu() - floor.squeeze() <= most).all()):
        return None
    if plan is None:
        plan = plan_cloud(cloud, encoding, problem.tolerance, reserve=0.0)
    heads = problem.q.shape[1]
    excess = torch.zeros(heads, len(cloud.flat(cloud.query_positions)), dtype=torch.float64)
    for reach in plan.reaches:
        members = list(range(heads)) if reach.heads is None else reach.heads
        one_of_each = encoding if reach.heads is None else encoding.select(members[:1])
        if encoding.learns_lengths():
            one_of_each = encoding.select(members) if reach.heads is not None else encoding
        excess[members] = _excess(cloud, plan, reach, one_of_each, most, problem.weight is None)
    by_query = excess.to(problem.q.device)
    if cloud.one_for_all:
        by_query = by_query[None]
    else:
        by_query = by_query.unflatten(1, (cloud.batch(), -1)).transpose(0, 1)
    weighted = by_query if problem.weight is None else problem.weight * by_query
    lonely = (weighted > most).expand(problem.q.shape[:3])
    return lonely if bool(lonely.any()) else None


def _excess(
    cloud: Cloud, plan: AttentionPlan, reach: Reach, encoding: Encoding, most: float, bound_will_do: bool
) -> Tensor:
    """Phi of each query's best key above the kernel's smallest, (1 or heads, Nq); 0 where a bound puts it in reach."""
    flat_q = cloud.flat(cloud.query_positions).detach().cpu()
    where_k = plan.seen.positions(cloud.flat(cloud.key_positions).detach().cpu())[plan.keys.order]
    floor = encoding.floor(cloud.space_dim).cpu().double().reshape(-1, 1, 1)
    out = torch.zeros(floor.shape[0], len(flat_q), dtype=torch.float64)
    candidates = reach.counts(0.0)
    settled = (reach.best - floor.min() <= most) if bound_will_do else torch.zeros(len(reach.best), dtype=torch.bool)
    for tile in (~settled).nonzero()[:, 0].tolist():
        begin = int(reach.start[tile])
        listed = reach.key_tile[begin : begin + max(1, int(candidates[tile]))].long()
        keys = where_k[plan.keys.slots(listed)]
        members = plan.queries.order[int(plan.queries.start[tile]) : int(plan.queries.start[tile + 1])]
        for some in members.split(max(1, _PAIRS // len(keys))):
            penalty = encoding.penalty(flat_q[some].double()[:, None] - keys[None])
            out[:, some] = (penalty.reshape(-1, len(some), len(keys)) - floor).amin(-1)
    return out
