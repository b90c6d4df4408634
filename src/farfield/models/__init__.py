"""Networks built on :mod:`farfield.attention`."""

from farfield.models.tokens import PatchTokens
from farfield.models.transformer_operator import TransformerOperator

__all__ = ["PatchTokens", "TransformerOperator"]
