"""What both pages share: a template with its data inside, and numbers as few bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from numpy.typing import NDArray


def page(template: str, data: dict[str, Any]) -> str:
    """A template of this folder with ``data`` inside."""
    inside = json.dumps(data).replace("<", "\\u003c")  # a name in it cannot end the script
    return (Path(__file__).parent / template).read_text(encoding="utf-8").replace("/*DATA*/", inside)


def encoded(values: NDArray) -> str:
    """The bytes of an array, as text."""
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")


def colours(name: str) -> str:
    """256 colours of a colour map of matplotlib."""
    return encoded((255 * mpl.colormaps[name](np.linspace(0, 1, 256))[:, :3]).round().astype(np.uint8))


def rounded(values: NDArray, low: float, high: float, top: int) -> NDArray[np.uint16]:
    """Values between ``low`` and ``high`` as whole numbers from 0 to ``top``; NaN as ``top + 1``."""
    shares = (np.asarray(values, dtype=np.float64) - low) / ((high - low) or 1.0)
    return np.where(np.isnan(shares), top + 1, (top * np.clip(np.nan_to_num(shares), 0, 1)).round()).astype(np.uint16)
