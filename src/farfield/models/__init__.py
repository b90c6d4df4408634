"""Networks built on :mod:`farfield.attention`."""

from farfield.models.ab_swift import AbSwift, ab_swift_encodings
from farfield.models.transformer_operator import TransformerOperator

__all__ = ["AbSwift", "TransformerOperator", "ab_swift_encodings"]
