"""What far keys weigh, added up pair by pair without reading them, and which of them must be read after all.

A pair costs about half as much to sound as to read: its logit is computed, its value is not touched, and nothing of it
is in the backward pass. Key by key the sum of (1) in :mod:`farfield.attention.certificate` is formed from above, where
the keys lie that its bound cannot rule out; it is kept by key tile and by query, so that each part of a tile leaves out
what weighs least for its own queries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from farfield.attention.certificate import FAR, SAFETY, Certificate
from farfield.attention.kernel import weight_units, weights_from_above
from farfield.attention.reading import Found, Given, Read, Reader

# Query rows that choose on their own what to read.
_ROWS = 256
# Key tiles that are sounded at a time, neighbours in memory and so in space: a table of weights stays in the cache.
_TILES = 16
# A part of a tile stops sounding where it has met this many times what it may leave out: nearer keys matter to it.
_ENOUGH = 3.0


@dataclass
class _Part:
    """Some rows of a tile: what they must look at, and what was found."""

    rows: slice  # in the tile
    open: Tensor  # (T,) key tiles that neither the bound rules out nor sounding has weighed
    total: Tensor  # (G, n), weights over what may be left out
    sounded: list[Tensor] = field(default_factory=list)  # key tiles, as places in the list
    shares: list[Tensor] = field(default_factory=list)  # (G, n, tiles), their weights over what may be left out

    def wants(self) -> Tensor:
        """Places in the list that must be read: what was not weighed, and what weighs too much.

        The lightest are left out, one after the other, until some query has no more room.
        """
        wanted = [self.open.nonzero()[:, 0]]
        if self.sounded:
            places, shares = torch.cat(self.sounded), torch.cat(self.shares, -1)
            order = shares.amax((0, 1)).argsort()
            together = shares[..., order].cumsum(-1).amax((0, 1))
            wanted.append(places[order[int((together <= 1).sum()) :].cpu()])
        return torch.cat(wanted)


def sound(
    reader: Reader, certificate: Certificate, tile: int, first: int, bounds: tuple[Tensor, Tensor], output: Tensor,
    given: Given, found: Found,
) -> tuple[list[Read], list[Read], int]:  # fmt: skip
    """What a tile must still read of its list, which it has read up to ``first``: all rows, and parts of them besides.

    ``bounds`` are ``Certificate.shares`` of the tile; ``output`` (G,) is at least |o| / V of its queries, also in the
    end. The number counts the pairs sounded.

    Key j counts e_j (|v_j| + x_i) / (Z V) for query i, where x_i = V ``output``. With x the mean of all x_i, the sum in
    brackets is at most |v_j| + x, times x_i / x where that is above 1: one channel of the key and one of the query.
    """
    q, rows = given.q, reader.rows(tile)
    listed = certificate.reach.key_tile[certificate.reach.start[tile] : certificate.reach.start[tile + 1]].long()
    allowed = (1 - FAR) * certificate.plan.tolerance / SAFETY
    sizes = reader.sizes(found.out[rows])[1].maximum(certificate.least)  # V, (n, G)
    usual = (output * sizes).nanmean(0)
    more = (output * sizes / usual).clamp(min=1.0)
    unit, start = weight_units(q.dtype)
    queries = unit * reader.scale * q[rows].transpose(0, 1)  # (G, n, W); two channels more meet those of _gather
    queries[..., -2] = unit
    queries[..., -1] = (start - unit * (found.lse[rows] + (sizes / more).log().double())).T
    parts = _parts(certificate, tile, first, bounds)
    most = max(part.rows.stop - part.rows.start for part in parts) * _TILES * reader.plan.keys.size
    room = q.new_empty(2, most)  # fresh memory for each table is slow
    pairs = 0
    for places in _chunks(listed, torch.stack([part.open for part in parts]).any(0)):
        looking = [part for part in parts if bool((part.total <= _ENOUGH).all()) and bool(part.open[places].any())]
        if not looking:
            continue
        keys, points = _gather(reader, tile, listed[places], usual, given), reader.plan.keys.count()[listed[places]]
        for part in looking:
            number = part.rows.stop - part.rows.start
            table = q.new_empty(len(queries), number, len(places))
            logits, weights = (t[: number * len(keys)].view(number, -1) for t in room)
            for g in range(len(queries)):
                torch.mm(queries[g, part.rows], keys[:, g].T, out=logits)
                table[g] = _by_tile(weights_from_above(logits, weights), points)
            table.nan_to_num_(0.0).div_(allowed)  # nothing of a diverged query; it goes on
            part.total = part.total + table.sum(-1)
            part.open[places] = False
            part.sounded.append(places)
            part.shares.append(table)
            pairs += number * len(keys)
    wanted = torch.stack([torch.isin(torch.arange(len(listed)), part.wants()) for part in parts])
    together = wanted.all(0)
    by_all = [Read(tile, rows, listed[together].sort().values)] if bool(together.any()) else []
    by_parts = [
        Read(tile, slice(rows.start + part.rows.start, rows.start + part.rows.stop), listed[own].sort().values)
        for part, own in zip(parts, wanted & ~together, strict=True)
        if bool(own.any())
    ]
    return by_all, by_parts, pairs


def _parts(certificate: Certificate, tile: int, first: int, bounds: tuple[Tensor, Tensor]) -> list[_Part]:
    """A tile's rows, some subtiles at a time, with the key tiles that their bounds do not allow to leave out unseen."""
    subtiles, own = certificate.plan.subtiles, slice(int(certificate.first[tile]), int(certificate.first[tile + 1]))
    start = (subtiles.start[own.start : own.stop + 1] - subtiles.start[own.start]).tolist()
    together = max(1, _ROWS // subtiles.size)
    out = []
    for a in range(0, len(start) - 1, together):
        b = min(a + together, len(start) - 1)
        shares, outside = (t[a:b] for t in bounds)
        order = shares[:, first:].amax(0).argsort()
        left_out = shares[:, first:][:, order].cumsum(1) + outside[:, None]
        ruled_out = order[: int((left_out.amax(0) <= FAR).sum())]
        look_at = torch.ones(shares.shape[1], dtype=torch.bool)
        look_at[:first] = False
        look_at[first + ruled_out.cpu()] = False
        out.append(_Part(slice(start[a], start[b]), look_at, certificate.keys.value.new_zeros(1, 1)))
    return out


def _chunks(listed: Tensor, places: Tensor) -> list[Tensor]:
    """Places in the list, some neighbours at a time, the furthest first."""
    where = places.nonzero()[:, 0]
    if len(where) == 0:  # parts may rule out one by one what the tile as a whole could not
        return []
    by_memory = where[listed[where].argsort()]
    return sorted(by_memory.split(_TILES), key=lambda chunk: -int(chunk.min()))


def _gather(reader: Reader, tile: int, chunk: Tensor, usual: Tensor, given: Given) -> Tensor:
    """Keys (n, G, W) as the tile's queries see them, with log(|v| + x) and a one in the last channels."""
    slots = reader.slots(chunk)
    where_k, centre = reader.where_k.index_select(0, slots), reader.bias.centres[tile]
    keys = reader.gather_keys(given.k, slots, reader.bias.key_channels(centre, where_k, given.q.dtype))
    smallest = torch.finfo(given.q.dtype).tiny
    keys[..., -2] = (given.v[slots, :, reader.value_dim] + usual).clamp(min=smallest).log()
    keys[..., -1] = 1.0
    return keys


def _by_tile(weights: Tensor, points: Tensor) -> Tensor:
    """(n, keys) -> (n, tiles): sums over the keys of tiles that hold so many points."""
    if bool((points == points[0]).all()):
        return weights.unflatten(1, (len(points), -1)).sum(-1)
    owner = torch.repeat_interleave(torch.arange(len(points)), points).to(weights.device)
    return weights.new_zeros(len(weights), len(points)).index_add_(1, owner, weights)
