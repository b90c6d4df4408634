"""What a figure is to the page."""

from __future__ import annotations

from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

# Decorates what draws a page: its type is smaller than matplotlib's default, which is left alone.
in_small_type = mpl.rc_context({"font.size": 9})


class Drawn(NamedTuple):
    """A figure and what it shows."""

    name: str
    caption: str
    figure: Figure
