"""Attention that is translation-equivariant (RoPE) and explicitly local (LASPE, LAAPE)."""

from farfield.attention.decay_lengths import DecayLengths, propose_decay_lengths
from farfield.attention.functional import explain_backend, local_attention
from farfield.attention.locality import LAAPE, LASPE, ALiBi, Encoding, FlashBias, RoPE, Window
from farfield.attention.plan import AttentionPlan, plan_attention

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "AttentionPlan",
    "DecayLengths",
    "Encoding",
    "FlashBias",
    "RoPE",
    "Window",
    "explain_backend",
    "local_attention",
    "plan_attention",
    "propose_decay_lengths",
]
