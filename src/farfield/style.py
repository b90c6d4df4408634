"""How things are called and coloured wherever they are shown: the one place for it."""

from __future__ import annotations

# Of encodings, in the order of tables and legends.
NAMES = {
    "rope": "RoPE",
    "laspe": "LASPE",
    "laape": "LAAPE",
    "flashbias": "FlashBias",
    "alibi": "ALiBi",
    "window": "Window",
    "none": "no attention",
}
# What these names stand for, in a sentence that starts with the name.
MEANINGS = {
    "rope": "rotary position embedding: every point sees the whole domain, whatever its size.",
    "laspe": "local anisotropic symmetric positional encoding: it fades with the distance, like a Gaussian.",
    "laape": "local anisotropic asymmetric positional encoding: it fades faster still, and may reach further one way.",
    "flashbias": "a Gaussian like LASPE's, whose width is learned for each query.",
    "alibi": "attention with linear biases: it fades exponentially with the distance.",
    "window": "a window: all within a distance is seen alike, nothing beyond.",
    "none": "the same network without attention.",
}
# Okabe and Ito's colours, which colour-blind readers tell apart.
COLOURS = dict(zip(NAMES, ("#D55E00", "#009E73", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9", "#999999"), strict=True))
ASYMMETRIC_COLOUR = "#56B4E9"  # LAAPE with two decay lengths, beside the symmetric one
ERROR_MAP, FIELD_MAP = "RdBu_r", "viridis"  # matplotlib's colour maps for errors and changes, and for fields


def quantity(value: float, unit: str) -> str:
    """A number with its unit; "1" is none."""
    return f"{value:g}" if unit == "1" else f"{value:g} {unit}"


def labelled(name: str, unit: str) -> str:
    """A field at an axis: "h [m]"."""
    return name if unit == "1" else f"{name} [{unit}]"
