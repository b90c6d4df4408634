"""Networks built on :mod:`farfield.attention`."""

from farfield.models.ab_swift import AbSwift, ab_swift_encodings
from farfield.models.tokens import PatchTokens
from farfield.models.transformer_operator import TransformerOperator

__all__ = ["AbSwift", "PatchTokens", "TransformerOperator", "ab_swift_encodings"]
