"""Networks built on :mod:`farfield.attention`."""

from farfield.models.ab_swift import AbSwift, Frame, ab_swift_encodings
from farfield.models.transformer_operator import TransformerOperator

__all__ = ["AbSwift", "Frame", "TransformerOperator", "ab_swift_encodings"]
