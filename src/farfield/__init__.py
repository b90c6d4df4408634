"""farfield: transformer neural operators, trained on small domains, used on much larger ones."""

from farfield.attention import (
    LAAPE,
    LASPE,
    ALiBi,
    Encoding,
    FlashBias,
    RoPE,
    Window,
    local_attention,
    propose_decay_lengths,
)
from farfield.models import TransformerOperator

__version__ = "0.1.0"

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "Encoding",
    "FlashBias",
    "RoPE",
    "TransformerOperator",
    "Window",
    "local_attention",
    "propose_decay_lengths",
]
