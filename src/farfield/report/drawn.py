"""What a figure is to the page."""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

TYPE = {"font.size": 9}  # matplotlib's settings while a page is drawn


class Drawn(NamedTuple):
    """A figure and what it shows."""

    name: str
    caption: str
    figure: Figure
