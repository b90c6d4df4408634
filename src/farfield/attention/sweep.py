"""Tiled attention in one pass, by a compiled kernel: on CPUs, where nothing is differentiated.

Every 64 queries (a subtile) pass over the key tiles that their tile lists, the nearest first:

1. Those that matter anyhow are read. The mass that they hold is what all others are measured by.
2. From the end of the list, key tiles are left out unseen as long as the certificate's bound allows them together 0.3
   of the tolerance.
3. Between the two, logits are computed and weighed; four queries at a time then read the tile, or leave it out and add
   what it weighs to what they have left out so far, which may come to 0.7 of the tolerance.
4. |o| / V was taken a little larger than it was found in 1. Should it be larger still in the end, the subtile starts
   again and takes it as 1.

So (1) of :mod:`farfield.attention.certificate` holds for each query, added up from the weights themselves. On other
devices, in float64, and where gradients are asked for, the rounds of :mod:`farfield.attention.rounds` do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farfield.attention.certificate import FAR, GROWTH, SAFETY, Certificate, KeySummary, padded, summarise_tiles
from farfield.attention.plan import AttentionPlan
from farfield.attention.problem import Problem
from farfield.attention.rounds import first_reach
from farfield.attention.tile_bias import TileBias, too_wide

# The kernel's own numbers: the most points of a key tile, and of a subtile, and of what channels come in multiples.
KEYS, _MULTIPLE = 64, 16
# Key tiles that are prepared at a time.
_TILES = 64
# The logit of a key that only fills up a tile.
_NEVER = -1e30


def at_hand(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether calls of this kind, if nothing is differentiated, go through the kernel."""
    return device.type == "cpu" and dtype == torch.float32


def serves(problem: Problem, plan: AttentionPlan, bias: TileBias) -> bool:
    """Whether the kernel is made for this call."""
    q, weight = problem.q, problem.weight
    heaviest = None if weight is None else weight.detach().nan_to_num(0.0).amax().expand(len(plan.keys))
    return (
        at_hand(q.dtype, q.device)
        and plan.keys.size <= KEYS
        and plan.subtiles.size <= KEYS
        and not problem.needs_gradients()
        and not problem.has_tangents()
        and not bool(bias.pair_by_pair.any())
        and not bool(too_wide(plan.keys, plan.tolerance, problem.encoding, q.dtype, heaviest).any())
    )


@dataclass
class KeyTiles:
    """Keys and values as the kernel wants them, tile by tile, and their summary."""

    keys: Tensor  # (T, G, D + C + 1, 64)
    values: Tensor  # (T, G, 64, W)
    sizes: Tensor  # (T, G, 64)
    centres: Tensor  # (T, P), from which the channels count
    summary: KeySummary

    @classmethod
    def of(cls, problem: Problem, plan: AttentionPlan, bias: TileBias, source: Tensor, where: Tensor) -> KeyTiles:
        """From keys in the order ``source``, at ``where`` (N, P)."""
        tiles, encoding = plan.keys, problem.encoding
        given_k, given_v = problem.by_point(problem.k), problem.by_point(problem.v)
        (groups, dim), value_dim = given_k.shape[1:], given_v.shape[-1]
        centres = bias.in_space((tiles.low + tiles.high) / 2)
        extra = bias.key_channels(centres[:1], where[:1], given_k.dtype).shape[-1]
        keys = given_k.new_empty((len(tiles), groups, dim + extra + 1, KEYS))
        values = given_v.new_empty((len(tiles), groups, KEYS, -(-value_dim // _MULTIPLE) * _MULTIPLE))
        sizes = given_v.new_empty((len(tiles), groups, KEYS))
        summaries = []
        for first in range(0, len(tiles), _TILES):
            some = slice(first, first + _TILES)
            start = tiles.start[first : first + _TILES + 1]
            rows, count = slice(int(start[0]), int(start[-1])), start.diff()
            k = encoding.rotate(given_k[source[rows]].transpose(0, 1), where[rows]).transpose(0, 1)
            v = given_v[source[rows]]
            channels = bias.key_channels(centres[some].repeat_interleave(count, 0), where[rows], k.dtype)
            k, v, size, channels = (
                padded(t, start, KEYS) for t in (k, v, torch.linalg.vector_norm(v, dim=-1), channels)
            )
            keys[some, :, :dim] = k.permute(0, 2, 3, 1)
            keys[some, :, dim : dim + extra] = channels.permute(0, 2, 3, 1)
            keys[some, :, -1] = torch.where(torch.arange(KEYS) < count[:, None], 0.0, _NEVER)[:, None]
            values[some, ..., :value_dim], values[some, ..., value_dim:] = v.transpose(1, 2), 0.0
            sizes[some] = size.transpose(1, 2)
            summaries.append(summarise_tiles(k, size, count, problem.certify))
        return cls(keys, values, sizes, centres, KeySummary.joined(summaries))


@torch.no_grad()
def swept(
    certificate: Certificate, bias: TileBias, tiles: KeyTiles, q: Tensor, channels: Tensor
) -> tuple[Tensor, float, float, float]:
    """The output (Nq, G, W) of queries q (Nq, G, D), sorted, rotated and overwritten here, with their bias channels.

    Besides: the pairs read, the pairs only weighed, and by how much (in Phi) the lists are too short, if above 0.
    """
    from farfield.attention.sweep_kernel import sweep

    plan = certificate.plan
    scale = q.shape[-1] ** -0.5
    by_point = [t.contiguous().numpy() for t in (q.mul_(scale), scale * channels)]
    by_key = [t.numpy() for t in (tiles.keys.flatten(), tiles.values.flatten(), tiles.sizes.flatten(0, 1))]
    by_key += [plan.keys.count().numpy(), tiles.summary.value.numpy()]
    by_head = [t.double().numpy() for t in (certificate.largest, certificate.least)]
    out = q.new_empty((*q.shape[:2], tiles.values.shape[-1]))
    totals, limits = torch.zeros(3, dtype=torch.float64), (plan.tolerance / SAFETY, FAR, GROWTH)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        for tile, stop in certificate.tables():
            lists = _lists(certificate, bias, tiles, tile, stop)
            found = torch.zeros(len(lists.start) - 1, q.shape[1], 3, dtype=torch.float64)
            given = (*lists.arrays(), *by_point, *by_key, *by_head, *limits, out.numpy(), found.numpy())
            _in_parallel(pool, functools.partial(_call, sweep, given), len(found))
            totals[:2] += found[..., :2].sum((0, 1))
            totals[2] = totals[2].maximum(found[..., 2].max())
    read, weighed, short = totals.tolist()
    return out, read / q.shape[1], weighed / q.shape[1], short


def _call(kernel: Callable[..., None], given: tuple[Any, ...], first: int, last: int) -> None:
    kernel(first, last, *given)


def _in_parallel(pool: ThreadPoolExecutor, run: Callable[[int, int], None], count: int) -> None:
    """Let each thread take the next few of ``count`` subtiles until none are left."""
    threads = torch.get_num_threads()
    if threads == 1:
        run(0, count)
        return
    step = max(1, count // (8 * threads))
    for done in [pool.submit(run, first, min(first + step, count)) for first in range(0, count, step)]:
        done.result()


@dataclass
class _Lists:
    """What the subtiles of some query tiles may read, as the kernel wants it."""

    start: Tensor
    owner: Tensor
    listed: Tensor
    order: Tensor
    number: Tensor
    near: Tensor
    tail: Tensor
    shift: Tensor
    log_bound: Tensor
    outside: Tensor

    def arrays(self) -> list[Any]:
        return [t.contiguous().numpy() for t in vars(self).values()]


def _lists(certificate: Certificate, bias: TileBias, tiles: KeyTiles, tile: int, stop: int) -> _Lists:
    """Each subtile's list, in the order of its own potentials."""
    plan, reach = certificate.plan, certificate.reach
    t = certificate.weights(tile, stop)
    # NaN is of diverged queries alone, whose heads must not decide for the others
    potential = t.potential.nan_to_num(1e300, 1e300).amin(-1).masked_fill(~t.listed[t.owner], torch.inf)  # (S, T)
    potential, order = potential.sort(dim=1)
    number = t.listed.sum(1)[t.owner]
    best = reach.best[tile:stop][t.owner]
    near = (potential - best[:, None] <= first_reach(plan.tolerance)).sum(1).clamp(min=1).minimum(number)
    points = plan.keys.count()[t.keys].double()[t.owner].gather(1, order)
    weight = points * torch.exp(potential[:, :1] - potential)  # of the nearest is 1; 0 for what is not listed
    tail = (weight.flip(1).cumsum(1).flip(1) / weight.clamp(min=1e-300)).clamp(min=1.0)  # where that underflows
    centres = bias.centres[tile:stop, None] - tiles.centres[t.keys]
    shift = bias.channel_shift(centres, torch.float32)
    bound = t.bound.gather(1, order[..., None].expand(-1, -1, t.bound.shape[-1]))
    return _Lists(
        plan.subtiles.start[t.subtiles.start : t.subtiles.stop + 1], t.owner, t.keys, order, number, near,
        tail.float(), shift, bound.float(), t.outside,
    )  # fmt: skip
