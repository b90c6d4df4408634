"""Round after round: how much of its list each query tile reads until what is left is certain not to matter.

1. Every tile reads the keys that matter anyhow. The mass that it finds, log Z, is what all others are measured by.
2. The certificate tells from it how far the tile would have to read to be certain by its bound alone (``needed``).
3. Where that is far, the tile sounds what lies beyond instead (:mod:`farfield.attention.sounding`), from where the
   bound rules the rest out (``far``), and reads what turns out to be too heavy.
4. Should an output have grown beyond what was assumed of it, its tile starts again and reads as far as the bound says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from farfield.attention.certificate import Certificate, Kept, Limits
from farfield.attention.reading import Found, Given, Read, Reader
from farfield.attention.sounding import sound

# What sounding a pair costs beside reading it, and how many pairs it must spare: it is done tile by tile.
_SOUNDING = 0.5
WORTH_SOUNDING = 300_000


def first_reach(tolerance: float) -> float:
    """How far (in Phi beyond the best key) every tile reads at first.

    About exp(4) = 55 times the tolerance is left of the mass then, if logits are alike: no key is read in vain.
    """
    return max(1.0, -math.log(tolerance) - 4.0)


@dataclass
class Rounds:
    """What the tiles of one call have read, and must still read."""

    reader: Reader
    certificate: Certificate
    certify: bool
    counts: Tensor = field(init=False)  # (Tq,) how much of its list each tile has read from the start
    short: float = 0.0  # by how much (in Phi) the lists end too early; 0 if they suffice
    sounded: float = 0.0  # pairs

    def __post_init__(self) -> None:
        self.plan, self.reach = self.reader.plan, self.certificate.reach

    def run(self, given: Given) -> Found:
        """All rounds; where the lists are too ``short`` for these queries and keys, only the first."""
        lse = torch.full(given.q.shape[:2], -torch.inf, dtype=torch.float64, device=given.q.device)
        found = Found(torch.zeros_like(given.q), lse, torch.zeros_like(lse))
        self.counts = torch.zeros(len(self.plan.queries), dtype=torch.int64)
        first = self.reach.counts(first_reach(self.plan.tolerance))
        self._read_up_to(first.clamp(min=1).minimum(self.reach.lengths()), given, found)
        kept = self._kept(found)
        limits = self.certificate.limits(kept, self.counts)
        self.short = limits.short
        if limits.short > 0:
            return found
        if not self.certify:
            self._read_up_to(limits.likely, given, found)
            return found
        sounding = self._worth_sounding(limits, given.q.shape[1])
        self._read_up_to(torch.where(sounding, self.counts, limits.needed), given, found)
        for tile in sounding.nonzero()[:, 0].tolist():
            output = limits.output[self.certificate.first[tile] : self.certificate.first[tile + 1]].amax(0)
            bounds = self.certificate.shares(tile, kept)
            read = int(self.counts[tile])
            *reads, pairs = sound(self.reader, self.certificate, tile, read, bounds, output, given, found)
            for some in reads:
                self.reader.read(some, given, found)
            self.sounded += pairs
        self._start_again(limits, given, found)
        return found

    def _worth_sounding(self, limits: Limits, groups: int) -> Tensor:
        """Tiles (Tq,) that would have to read much more than they are likely to need."""
        likely = torch.minimum(limits.likely, limits.needed)
        spared = limits.needed - likely - _SOUNDING * (limits.far - likely)
        pairs = spared * self.plan.keys.size * self.plan.queries.count() * groups
        return (pairs > WORTH_SOUNDING) & (limits.needed > self.counts) & ~self.reader.bias.pair_by_pair

    def _read_up_to(self, wanted: Tensor, given: Given, found: Found) -> None:
        """Let every tile read its list up to ``wanted`` (Tq,)."""
        reads = []
        for tile in (wanted > self.counts).nonzero()[:, 0].tolist():
            begin = int(self.reach.start[tile])
            keys = self.reach.key_tile[begin + int(self.counts[tile]) : begin + int(wanted[tile])].long()
            reads.append(Read(tile, self.reader.rows(tile), keys.sort().values))  # in the order of memory
        self.reader.read(reads, given, found)
        self.counts = torch.maximum(self.counts, wanted)

    def _kept(self, found: Found) -> Kept:
        output, sizes = self.reader.sizes(found.out)
        return Kept.of(found.lse - found.offset, sizes.maximum(self.certificate.least), output, self.plan.subtiles)

    def _start_again(self, limits: Limits, given: Given, found: Found) -> None:
        """Tiles whose |o| / V is larger than the certificate assumed read up to its bound for the largest there is."""
        grown = (self._kept(found).output > limits.output).any(-1).cpu()
        owner = torch.searchsorted(self.plan.queries.start, self.plan.subtiles.start[:-1], right=True) - 1
        wanted = self.counts.clone()
        for tile in owner[grown].unique().tolist():
            if self.counts[tile] < limits.needed[tile]:
                self.reader.forget(tile, found)
                self.counts[tile], wanted[tile] = 0, limits.needed[tile]
        self._read_up_to(wanted, given, found)
