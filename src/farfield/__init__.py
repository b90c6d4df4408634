"""farfield: transformer neural operators, trained on small domains, used on much larger ones."""

from farfield.attention import (
    LAAPE,
    LASPE,
    ALiBi,
    AttentionPlan,
    Encoding,
    FlashBias,
    RoPE,
    Window,
    explain_backend,
    local_attention,
    plan_attention,
    propose_decay_lengths,
)
from farfield.models import TransformerOperator

__version__ = "0.1.0"

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "AttentionPlan",
    "Encoding",
    "FlashBias",
    "RoPE",
    "TransformerOperator",
    "Window",
    "explain_backend",
    "local_attention",
    "plan_attention",
    "propose_decay_lengths",
]
