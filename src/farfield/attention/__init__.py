"""Attention that is translation-equivariant (RoPE) and explicitly local (LASPE, LAAPE)."""

from farfield.attention.checks import shared_positions
from farfield.attention.decay_lengths import DecayLengths, propose_decay_lengths
from farfield.attention.dense import AllPairs
from farfield.attention.functional import Plan, explain_backend, local_attention, plan_attention
from farfield.attention.group import Group, InTurn, Processes
from farfield.attention.locality import LAAPE, LASPE, ALiBi, Encoding, FlashBias, RoPE, Window
from farfield.attention.plan import AttentionPlan
from farfield.attention.rotary import Rotary
from farfield.attention.sharded import ShardedPlan

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "AllPairs",
    "AttentionPlan",
    "DecayLengths",
    "Encoding",
    "FlashBias",
    "Group",
    "InTurn",
    "Plan",
    "Processes",
    "RoPE",
    "Rotary",
    "ShardedPlan",
    "Window",
    "explain_backend",
    "local_attention",
    "plan_attention",
    "propose_decay_lengths",
    "shared_positions",
]
