"""Networks built on :mod:`farfield.attention`."""

from farfield.models.transformer_operator import TransformerOperator

__all__ = ["TransformerOperator"]
