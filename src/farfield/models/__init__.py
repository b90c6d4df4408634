"""Networks built on :mod:`farfield.attention`."""

from farfield.models.ab_swift import AbSwift, Frame, ab_swift_encodings
from farfield.models.predictor import Predictor, load, shipped_models
from farfield.models.transformer_operator import TransformerOperator

__all__ = ["AbSwift", "Frame", "Predictor", "TransformerOperator", "ab_swift_encodings", "load", "shipped_models"]
