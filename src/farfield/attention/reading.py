"""How query tiles read key tiles: gather the keys, call the fused kernel, join with what was read before.

Tensors are kept point by point in tile order, (N, G, W), with W the padded width and G all heads, of all batch entries
where they share their points: the keys of a tile are then runs of memory that serve all of G. The bias channels of keys
depend on who reads them and are written into the gathered copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from farfield.attention.kernel import attend, join
from farfield.attention.plan import AttentionPlan
from farfield.attention.tile_bias import TileBias

# Pairs that small tiles read in one call of the kernel, and by how much their numbers of keys may differ there.
_TOGETHER = 1 << 20
_ALIKE = 1.25
# The logit of a key that only fills up a table.
_NEVER = -1e30


@dataclass
class Read:
    """Query rows, all of one tile, and the key tiles that they read together."""

    tile: int
    rows: slice
    keys: Tensor  # (n,) int64


@dataclass
class Given:
    """What is attended to and by whom, sorted by tile and padded to one width: (N, G, W).

    The first channel behind the values is their size |v|, so that behind an output it is their mean size.
    """

    q: Tensor
    k: Tensor
    v: Tensor


@dataclass
class Found:
    """Attention over what has been read so far, with its mass as log Z = lse - offset.

    ``offset`` is the potential of the best key where the bias is formed pair by pair, 0 elsewhere: in one number the
    one would drown the other.
    """

    out: Tensor  # (N, G, W)
    lse: Tensor  # (N, G) float64
    offset: Tensor  # (N, G) float64


@dataclass
class Reader:
    """Reads key tiles, and remembers what has been read."""

    plan: AttentionPlan
    bias: TileBias
    where_q: Tensor  # (Nq, P), in tile order, float64, relative to the plan's origin
    where_k: Tensor

    def __post_init__(self) -> None:
        self.head_dim, self.heads = self.bias.head_dim, self.bias.heads
        self.value_dim = self.bias.problem.v.shape[-1]
        self.scale = 1 / sqrt(self.head_dim)
        self.done: list[Read] = []
        self.begun = torch.zeros(len(self.plan.queries), dtype=torch.bool)  # which tiles have read anything
        self._room: Tensor | None = None

    def rows(self, tile: int) -> slice:
        """The slots of a query tile."""
        return slice(int(self.plan.queries.start[tile]), int(self.plan.queries.start[tile + 1]))

    def slots(self, keys: Tensor) -> Tensor:
        """The slots of key tiles."""
        return self.plan.keys.slots(keys).to(self.where_k.device)

    def by_head(self, *tensors: Tensor) -> list[Tensor]:
        """(n, G, W) -> (B, H, n, W)."""
        return [t.unflatten(1, (-1, self.heads)).permute(1, 2, 0, 3) for t in tensors]

    def gather_keys(self, k: Tensor, slots: Tensor, channels: Tensor | None) -> Tensor:
        """The keys at some slots, with their bias channels written in; valid until the next call."""
        if self._room is None or self._room.shape[1] < len(slots):
            self._room = k.new_empty((2, len(slots) * 5 // 4, *k.shape[1:]))  # fresh memory for each tile is slow
        k = torch.index_select(k, 0, slots, out=self._room[0, : len(slots)])
        if channels is not None:
            k[..., self.head_dim : self.head_dim + channels.shape[-1]] = channels.detach()
        return k

    def gather(self, k: Tensor, v: Tensor, slots: Tensor, channels: Tensor | None) -> tuple[Tensor, Tensor]:
        """Keys and values."""
        k = self.gather_keys(k, slots, channels)
        assert self._room is not None
        return k, torch.index_select(v, 0, slots, out=self._room[1, : len(slots)])

    def read(self, wanted: Sequence[Read], given: Given, found: Found) -> None:
        """Let rows, each at most once, read what they want.

        Small tiles that read about as many keys go through the kernel together.
        """
        pair_by_pair = self.bias.pair_by_pair
        for one in wanted:
            if pair_by_pair[one.tile]:
                self._read_pair_by_pair(one, given, found)
                self.begun[one.tile] = True
        for some in self._alike([one for one in wanted if not pair_by_pair[one.tile]]):
            if len(some) == 1:
                self._read_one(some[0], given, found)
            else:
                self._read_many(some, given, found)
            self.begun[[one.tile for one in some]] = True
        self.done += wanted

    def forget(self, tile: int, found: Found) -> None:
        """As if a tile had read nothing yet."""
        found.lse[self.rows(tile)], self.begun[tile] = -torch.inf, False
        self.done = [one for one in self.done if one.tile != tile]

    def together(self) -> list[Read]:
        """What has been read, each key tile once for all rows that read it in different rounds."""
        lists: dict[tuple[int, int, int], list[Tensor]] = {}
        for one in self.done:
            lists.setdefault((one.tile, one.rows.start, one.rows.stop), []).append(one.keys)
        return [Read(tile, slice(*rows), torch.cat(keys).sort().values) for (tile, *rows), keys in lists.items()]

    def sizes(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """|o| and the mean |v| of outputs (N, G, W)."""
        return torch.linalg.vector_norm(out[..., : self.value_dim], dim=-1), out[..., self.value_dim]

    def pairs(self) -> float:
        """How many query-key pairs have been read."""
        points = self.plan.keys.count()
        return float(sum((one.rows.stop - one.rows.start) * int(points[one.keys].sum()) for one in self.done))

    def _alike(self, wanted: list[Read]) -> list[list[Read]]:
        """Groups of small reads of about as many keys as one another."""
        wanted = sorted(wanted, key=lambda one: len(one.keys))
        size, most, first, groups = self.plan.keys.size, 0, 0, []
        for n, one in enumerate([*wanted, None]):
            if one is not None:
                most = max(most, one.rows.stop - one.rows.start)
                fewest = len(wanted[first].keys)
                alike = len(one.keys) <= max(_ALIKE * fewest, fewest + 1)
                if n == first or (alike and (n + 1 - first) * len(one.keys) * size * most <= _TOGETHER):
                    continue
                most = one.rows.stop - one.rows.start
            if n > first:
                groups.append(wanted[first:n])
            first = n
        return groups

    def _read_one(self, one: Read, given: Given, found: Found) -> None:
        slots = self.slots(one.keys)
        where_k, centre = self.where_k.index_select(0, slots), self.bias.centres[one.tile]
        near = self.gather(given.k, given.v, slots, self.bias.key_channels(centre, where_k, given.q.dtype))
        q, k, v = (t.transpose(0, 1)[None] for t in (given.q[one.rows], *near))
        y, mass = attend(q, k, v, self.scale)
        _add(found, one.rows, y[0].transpose(0, 1), mass[0].T.double(), bool(self.begun[one.tile]))

    def _read_many(self, wanted: list[Read], given: Given, found: Found) -> None:
        """In one call of the kernel: short ones are filled up with keys that weigh nothing."""
        device = given.q.device
        begin = torch.tensor([one.rows.start for one in wanted])
        count = torch.tensor([one.rows.stop for one in wanted]) - begin
        inside = torch.arange(int(count.max()))
        rows = (begin[:, None] + inside.minimum(count[:, None] - 1)).to(device)
        there = (inside < count[:, None]).to(device)
        slots, padding = self._slots_of_many([one.keys for one in wanted])
        tiles = torch.tensor([one.tile for one in wanted])
        centre = self.bias.centres[tiles.to(device)].repeat_interleave(slots.shape[1], 0)
        where_k = self.where_k.index_select(0, slots.flatten())
        near = self.gather(given.k, given.v, slots.flatten(), self.bias.key_channels(centre, where_k, given.q.dtype))
        q, (k, v) = given.q[rows], (t.unflatten(0, slots.shape) for t in near)
        q[..., -1] = 1.0
        k[..., -1] = torch.where(padding, _NEVER, 0.0)[..., None]
        y, mass = attend(*(t.transpose(1, 2) for t in (q, k, v)), self.scale)  # type: ignore[call-arg, arg-type]
        y, mass = y.transpose(1, 2), mass.double().transpose(1, 2)
        _add(found, rows[there], y[there], mass[there], bool(self.begun[tiles].any()))

    def _slots_of_many(self, lists: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The slots (B, n) of lists of key tiles, and where they are filled up with one that is read anyhow."""
        points = self.plan.keys.count()
        number = torch.stack([points[keys].sum() for keys in lists])
        slots, ends = self.plan.keys.slots(torch.cat(lists)), number.cumsum(0)
        owner = torch.repeat_interleave(torch.arange(len(lists)), number)
        table = slots[ends - number][:, None].repeat(1, int(number.max()))
        table[owner, torch.arange(len(owner)) - (ends - number)[owner]] = slots
        padding = torch.arange(table.shape[1]) >= number[:, None]
        return table.to(self.where_k.device), padding.to(self.where_k.device)

    def _read_pair_by_pair(self, one: Read, given: Given, found: Found) -> None:
        """With the bias of each pair formed from its best key on."""
        rows, slots = one.rows, self.slots(one.keys)
        weight = None if self.bias.weight is None else self.bias.weight.detach()[rows]
        penalty = self.bias.penalty(one.tile, self.where_q[rows], self.where_k.index_select(0, slots), weight)
        lowest = penalty.amin(-1)
        offset = lowest.expand(given.q.shape[1] // self.heads, self.heads, -1).permute(2, 0, 1).flatten(1)
        q, k, v = self.by_head(given.q[rows], *self.gather(given.k, given.v, slots, None))
        y, mass = attend(q, k, v, self.scale, (lowest[..., None] - penalty).to(q.dtype))
        y, mass = y.permute(2, 0, 1, 3).flatten(1, 2), mass.double().permute(2, 0, 1).flatten(1)
        begun, better = bool(self.begun[one.tile]), offset
        if begun:
            better = torch.minimum(offset, found.offset[rows])  # count both from the better of the two
            found.lse[rows] += better - found.offset[rows]
        found.offset[rows] = better
        _add(found, rows, y, mass + (better - offset), begun)


def _add(found: Found, rows: Any, y: Tensor, mass: Tensor, begun: bool) -> None:
    """Join what rows have found with what they have ``begun`` with."""
    if begun:
        both, mass = join(found.out[rows].double(), found.lse[rows], y.double(), mass)
        y = both.to(y.dtype)
    found.out[rows], found.lse[rows] = y, mass
