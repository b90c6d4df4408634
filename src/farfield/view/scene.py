"""Wind in three dimensions: buildings, a field at a height, streamlines; truth, prediction and error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull

from farfield.style import FIELD_MAP
from farfield.view.page import colours, encoded, page, rounded
from farfield.view.volume import Volume, blocks, edges, streamlines

UNITS = {"velocity": "m/s", "speed": "m/s", "pressure": "m²/s²", "k": "m²/s²", "epsilon": "m²/s³"}
START = 2.0  # m: the height of a pedestrian


def scene_page(volumes: Mapping[str, Volume], buildings: NDArray[np.float32] | None = None) -> str:
    """One HTML page that needs no server.

    Args:
        volumes: "prediction" and, where there is one, "truth": on the same grid, with the same fields.
        buildings: triangles (n, 3, 3); what is no air in the volumes, if not given.
    """
    some = next(iter(volumes.values()))
    fields: list[dict[str, Any]] = []
    for name, values in some.fields.items():
        shown = {kind: _magnitude(volume.fields[name]) for kind, volume in volumes.items()}
        every = np.concatenate([v[np.isfinite(v)] for v in shown.values()])
        if not len(every):
            continue
        low, high = map(float, np.percentile(every, (0.5, 99.5)))
        low = 0.0 if len(values) > 1 else low
        coded = {kind: _coded(v, low, high) for kind, v in shown.items()}
        worst = 0.0
        if len(volumes) > 1:
            error = _magnitude(volumes["prediction"].fields[name] - volumes["truth"].fields[name])
            worst = float(np.percentile(error[np.isfinite(error)], 99.5))
            coded["error"] = _coded(error, 0.0, worst)
        about = {"name": _title(name, len(values)), "unit": UNITS.get(name, ""), "volumes": coded}
        fields.append(about | {"range": [low, high], "error": [0.0, worst]})
    if not fields:
        raise ValueError("there is nothing to show: every value is NaN")
    vectors = [name for name, values in some.fields.items() if len(values) == 3]
    if vectors:  # first what the streamlines are of
        fields.sort(key=lambda field: field["name"] != _title(vectors[0], 3))
    lines = {}
    for kind, volume in volumes.items() if vectors else ():
        points, speeds = streamlines(volume, vectors[0])
        speeds = np.clip(speeds / (fields[0]["range"][1] or 1.0), 0, 1).astype(np.float32)
        lines[kind] = {"points": encoded(points), "speeds": encoded(speeds)}
    note = f"{some.told}. Drag turns, wheel or pinch zooms, shift and drag moves."
    data = {
        "bounds": [float(end) for axis in (some.x, some.y) for end in edges(axis)[[0, -1]]],
        "cells": list(some.shape[:2]), "outline": _outline(some),
        "heights": some.z.tolist(), "start": int(np.abs(some.z - START).argmin()), "fields": fields, "lines": lines,
        "buildings": encoded((blocks(some) if buildings is None else buildings).astype(np.float32)),
        "colours": colours(FIELD_MAP), "note": note,
    }  # fmt: skip
    return page("scene.html", data)


def _outline(volume: Volume) -> list[list[float]]:
    """Corners of the convex region of air, seen from above: the grid around it is larger where the wind is oblique."""
    (x0, x1), (y0, y1) = (edges(axis)[[0, -1]].tolist() for axis in (volume.x, volume.y))
    air = np.isfinite(next(iter(volume.fields.values()))).any(axis=(0, 3))
    if min(air.sum(0).max(initial=0), air.sum(1).max(initial=0)) < 2:  # a line, which has no region
        return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]
    i, j = np.nonzero(air)
    steps = [np.diff(edges(axis)).max() / 2 for axis in (volume.x, volume.y)]
    centres = np.stack([volume.x[i], volume.y[j]], axis=-1)
    corners = np.concatenate([centres + np.multiply(steps, sign) for sign in ((1, 1), (1, -1), (-1, 1), (-1, -1))])
    return corners[ConvexHull(corners).vertices].tolist()


def _magnitude(values: NDArray) -> NDArray:
    return np.linalg.norm(values, axis=0) if len(values) > 1 else values[0]


def _title(name: str, components: int) -> str:
    return "wind speed" if name == "velocity" else f"|{name}|" if components > 1 else name


def _coded(values: NDArray, low: float, high: float) -> str:
    """(nx, ny, nz) -> level by level, row by row, a byte each."""
    return encoded(rounded(values, low, high, 254).astype(np.uint8).transpose(2, 1, 0))
