"""What a network is, as typed values: its encoding and its size; part of a run's configuration and of a trained model.

Unknown keys are refused with the nearest valid name.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from farfield.attention import LAAPE, LASPE, ALiBi, Encoding, FlashBias, RoPE, Window
from farfield.models.tokens import PatchTokens
from farfield.models.transformer_operator import TransformerOperator
from farfield.settings import Strict

Lengths = float | list[float] | list[list[float]]
EncodingName = Literal["rope", "laspe", "laape", "flashbias", "alibi", "window", "none"]


class RotaryConfig(Strict):
    """The rotary embedding's wavelengths, in units of position (the training domain is 1000 wide)."""

    max_wavelength: float = Field(10_000.0, gt=1)
    """The paper's base: frequencies are max_wavelength^(-2 j P / D). With min_wavelength, the longest wavelength."""
    min_wavelength: float | None = Field(None, gt=0)
    """None for the paper's frequencies, else wavelengths from here (twice the point spacing, say) to max_wavelength."""

    def build(self) -> RoPE:
        """The rotation itself."""
        return RoPE(self.max_wavelength, self.min_wavelength)


class NamedEncoding(Strict):
    """What the encodings of all networks have: the name under which results are reported."""

    name: EncodingName


class EncodingConfig(NamedEncoding):
    """How positions act on attention: a rotation of queries and keys, and a distance bias."""

    name: EncodingName = "laape"
    """rope (no bias), laspe, laape, flashbias (all decompose into channels), alibi or window (for comparison)."""
    decay_length: Lengths | None = None
    """One number, one per axis, or one list per head; 250 unless given. ALiBi: 1 / slope. Window: half the radius."""
    decay_length_plus: Lengths | None = None
    """LAAPE only, with decay_length_minus and instead of decay_length: the reach where the query lies upstream."""
    decay_length_minus: Lengths | None = None
    """LAAPE only: the reach where the query lies downstream of the key."""
    learned: bool = False
    """Learn the decay lengths (LASPE and LAAPE), below max_decay_length."""
    max_decay_length: Lengths | None = None
    """The bound that keeps learned decay lengths local."""
    rotary: RotaryConfig | None = RotaryConfig()
    """The rotary embedding; null for none."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        lengths = {n: getattr(self, n) for n in ("decay_length", "decay_length_plus", "decay_length_minus")}
        given = [name for name, value in lengths.items() if value is not None]
        if self.name == "none":
            raise ValueError("this network is nothing without attention: none is for the columns of urban wind")
        if self.name == "rope" and (given or self.learned):
            raise ValueError(f"rope has no decay length, got {', '.join(given) or 'learned'}")
        if self.name == "rope" and self.rotary is None:
            raise ValueError("rope needs the rotary settings, got null")
        if self.name != "laape" and len(set(given) - {"decay_length"}) > 0:
            raise ValueError(f"{self.name} is symmetric: give decay_length, got {', '.join(given)}")
        if self.learned and self.name not in ("laspe", "laape"):
            raise ValueError(f"only laspe and laape learn their decay lengths, got learned with {self.name}")
        if self.name in ("flashbias", "alibi", "window") and isinstance(self.decay_length, list):
            raise ValueError(f"{self.name} takes one number as decay_length, got {self.decay_length}")
        return self

    def lengths(self) -> list[float] | None:
        """The decay lengths that are given, along every axis and of every head; None for none."""
        given = (self.decay_length, self.decay_length_plus, self.decay_length_minus)
        found = [float(x) for value in given if value is not None for x in np.ravel(np.asarray(value, dtype=float))]
        return found or None

    def build(self, heads: int, head_dim: int) -> Encoding:
        """The encoding itself."""
        rotary = None if self.rotary is None else self.rotary.build()
        length = 250.0 if self.decay_length is None else self.decay_length
        limits: dict[str, Any] = {"learned": self.learned, "max_decay_length": self.max_decay_length}
        if self.name == "rope":
            assert rotary is not None
            return rotary
        if self.name == "laspe":
            return LASPE(length, rotary=rotary, **limits)
        if self.name == "laape":
            if self.decay_length_plus is None and self.decay_length_minus is None:
                return LAAPE(length, rotary=rotary, **limits)
            return LAAPE(
                self.decay_length,
                decay_length_plus=self.decay_length_plus,
                decay_length_minus=self.decay_length_minus,
                rotary=rotary,
                **limits,
            )
        assert not isinstance(length, list)
        if self.name == "flashbias":
            return FlashBias(length, heads, head_dim, rotary=rotary)
        if self.name == "alibi":
            return ALiBi(1 / length, rotary=rotary)
        return Window(2 * length, rotary=rotary)


class SizeConfig(Strict):
    """What both networks have: the size of their blocks and how their attention is computed."""

    width: int = Field(192, ge=1)
    """Channels per point."""
    heads: int = Field(3, ge=1)
    """Attention heads; width must be a multiple of it."""
    expansion: int = Field(4, ge=1)
    """Inner width of the point-wise networks over width."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    backend: Literal["auto", "reference", "dense", "tiled", "flex"] = "auto"
    """Attention backend, as in farfield.local_attention."""
    tolerance: float = Field(1e-4, gt=0, lt=1)
    """Relative error that a sparse backend may make."""


class PatchConfig(Strict):
    """Patches of a regular grid as tokens."""

    patch: int = Field(4, ge=1)
    """Cells per token along each axis."""
    overlap: int | None = Field(None, ge=0)
    """Cells by which a patch reaches into its neighbours; null for half a patch."""
    levels: tuple[int, ...] = ()
    """Features of the U-Net's levels between cells and tokens, the finest first."""


class ModelConfig(SizeConfig):
    """The transformer operator: its size and how its attention is computed."""

    depth: int = Field(6, ge=1)
    """Transformer blocks."""
    tokens: PatchConfig | None = None
    """Patches of a regular grid as tokens; null for points."""

    def build(
        self,
        encoding: EncodingConfig,
        in_features: int,
        out_features: int,
        spacing: tuple[float, ...],
        periodic: bool | tuple[bool, ...] = False,
        conditions: int = 0,
    ) -> TransformerOperator:
        """The network, with fresh weights, for data on a grid of this spacing in units of position."""
        built = encoding.build(self.heads, self.width // self.heads)
        tokens = None
        if self.tokens is not None:
            patches = self.tokens
            tokens = PatchTokens(patches.patch, tuple(spacing), patches.overlap, periodic, patches.levels)
        size = self.model_dump(exclude={"tokens"})
        model = TransformerOperator(
            in_features, out_features, len(spacing), encoding=built, tokens=tokens, conditions=conditions, **size
        )
        model.warns = False
        return model
