"""A rollout in time: truth beside predictions, with a slider.

Letters: T states, F fields, cells along one or two axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from farfield.style import COLOURS, ERROR_MAP, FIELD_MAP, NAMES, labelled
from farfield.view.page import colours, encoded, page, rounded

CELLS, STATES = 160, 120  # of a map along each axis, and in time: what is more is thinned


@dataclass(frozen=True)
class Rollout:
    """States (T, F, cells...) by who made them ("truth", or an encoding), and what they are."""

    states: Mapping[str, NDArray]
    fields: Sequence[str]
    units: Sequence[str]
    axes: Sequence[str]
    extent: Sequence[float]
    times: Sequence[str]

    def page(self) -> str:
        """One HTML page that needs no server."""
        states, notes = dict(self.states), []
        first = next(iter(states.values()))
        if first.ndim == 5:
            notes.append(f"Three axes: the middle slice along {self.axes[2]} is shown.")
            states = {name: s[..., s.shape[-1] // 2] for name, s in states.items()}
        cells = next(iter(states.values())).shape[2:]
        times = -(-len(first) // STATES)
        steps = [-(-n // (CELLS if len(cells) > 1 else 10 * CELLS)) for n in cells]
        if times > 1 or max(steps) > 1:
            shown = " x ".join(str(len(range(0, n, step))) for n, step in zip(cells, steps, strict=True))
            whole = " x ".join(map(str, cells))
            notes.append(
                f"Thinned: {shown} of {whole} cells, {len(range(0, len(first), times))} of {len(first)} states."
            )
        thinned = (slice(None, None, times), slice(None), *(slice(None, None, step) for step in steps))
        states = {name: np.asarray(s[thinned], dtype=np.float64) for name, s in states.items()}
        top = 65534 if len(cells) == 1 else 254
        reference = states.get("truth", next(iter(states.values())))
        ranges = [(float(np.nanmin(f)), float(np.nanmax(f))) for f in np.moveaxis(reference, 1, 0)]
        kind = np.uint16 if len(cells) == 1 else np.uint8
        columns = [
            {
                "name": NAMES.get(name, name),
                "colour": COLOURS.get(name, "#222"),
                "frames": [encoded(rounded(s[:, i], *ranges[i], top).astype(kind)) for i in range(len(self.fields))],
            }
            for name, s in states.items()
        ]
        fields = [
            {
                "name": name,
                "label": labelled(name, unit or "1"),
                "range": limits,
                "error": max((_largest(s[:, i] - reference[:, i]) for s in states.values()), default=0.0),
            }
            for i, (name, unit, limits) in enumerate(zip(self.fields, self.units, ranges, strict=True))
        ]
        data = {
            "cells": list(next(iter(states.values())).shape[2:]), "extent": list(map(float, self.extent)),
            "axes": list(self.axes), "times": list(self.times)[::times], "fields": fields, "columns": columns,
            "colours": {"field": colours(FIELD_MAP), "error": colours(ERROR_MAP)}, "note": " ".join(notes),
        }  # fmt: skip
        return page("player.html", data)


def _largest(differences: NDArray) -> float:
    """So that the colours show errors, and not the few largest of them."""
    return float(np.nanpercentile(np.abs(differences), 99.5))
