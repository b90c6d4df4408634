"""Attention that is translation-equivariant (RoPE) and explicitly local (LASPE, LAAPE)."""

from farfield.attention.decay_lengths import DecayLengths, propose_decay_lengths
from farfield.attention.functional import local_attention
from farfield.attention.locality import LAAPE, LASPE, ALiBi, Encoding, FlashBias, RoPE, Window

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "DecayLengths",
    "Encoding",
    "FlashBias",
    "RoPE",
    "Window",
    "local_attention",
    "propose_decay_lengths",
]
