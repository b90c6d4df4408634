"""The network for some data: its channels, axes and conditions follow from the contract."""

from __future__ import annotations

from farfield.data.spec import SampleSpec
from farfield.models.config import EncodingConfig, ModelConfig
from farfield.models.transformer_operator import TransformerOperator


def build_network(spec: SampleSpec, encoding: EncodingConfig, size: ModelConfig) -> TransformerOperator:
    """With fresh weights."""
    periodic = tuple(boundary == "periodic" for boundary in spec.boundaries)
    return size.build(
        encoding, spec.in_features, spec.out_features, spec.normalised_spacing, periodic, len(spec.parameters)
    )
