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
from farfield.evaluation.loading import load
from farfield.models import Predictor, TransformerOperator
from farfield.version import __version__

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "AttentionPlan",
    "Encoding",
    "FlashBias",
    "Predictor",
    "RoPE",
    "TransformerOperator",
    "Window",
    "__version__",
    "explain_backend",
    "load",
    "local_attention",
    "plan_attention",
    "propose_decay_lengths",
]
