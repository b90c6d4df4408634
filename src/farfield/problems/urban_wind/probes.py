"""Points of interest as a table: a CSV with columns x, y, z (m), or longitude, latitude, z; other columns are kept."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.problems.urban_wind.comfort import HEIGHT
from farfield.problems.urban_wind.footprints import LocalFrame

PLACES = (("x", "y"), ("longitude", "latitude"), ("lon", "lat"))


@dataclass(frozen=True)
class Probes:
    """Points (N, 3) in the buildings' coordinates, and the table that they came from."""

    positions: NDArray[np.float64]
    columns: dict[str, list[str]] = field(default_factory=dict)  # as they were given

    def table(self, values: Mapping[str, NDArray[Any]]) -> tuple[list[str], list[list[Any]]]:
        """Header and rows: what was given, x, y and z, and these values (N,) or (N, 3)."""
        columns: dict[str, Any] = dict(self.columns)
        columns |= {axis: np.round(self.positions[:, i], 3) for i, axis in enumerate("xyz")}
        for name, array in values.items():
            parts = {name: array} if array.ndim == 1 else {f"{name}_{a}": array[:, i] for i, a in enumerate("xyz")}
            columns |= {part: [_text(value) for value in numbers.tolist()] for part, numbers in parts.items()}
        return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def read_probes(path: str | Path, frame: LocalFrame | None = None) -> Probes:
    """Read the table; longitudes and latitudes need a city that has them (``frame``)."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        separator = ";" if ";" in text.partition("\n")[0] else ","
        rows = [row for row in csv.reader(text.splitlines(), delimiter=separator) if any(cell.strip() for cell in row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    names = [name.strip() for name in rows[0]] if rows else []
    lower = [name.lower() for name in names]
    place = next((pair for pair in PLACES if set(pair) <= set(lower)), None)
    if place is None or len(rows) < 2:
        raise ValueError(
            f"{path}: expected a table with columns x, y, z in metres (or longitude, latitude, z) and one row or more, "
            f"got {len(rows[1:])} rows of {', '.join(names) or 'nothing'}"
        )
    if place != ("x", "y") and frame is None:
        raise ValueError(f"{path} has {' and '.join(place)}, the buildings have not: give x and y in their coordinates")
    ragged = [number for number, row in enumerate(rows[1:], 2) if len(row) != len(names)]
    if ragged:
        raise ValueError(f"{path}, line {ragged[0]}: expected {len(names)} columns, got {len(rows[ragged[0] - 1])}")
    columns = {name: [row[i].strip() for row in rows[1:]] for i, name in enumerate(names)}
    by_lower = dict(zip(lower, columns.values(), strict=True))
    plan = np.stack([_numbers(path, name, by_lower[name]) for name in place], axis=1)
    if "z" in by_lower:
        heights = _numbers(path, "z", by_lower["z"])
    else:
        warnings.warn(f"{path} has no column z: its points are taken at {HEIGHT:g} m above the ground", stacklevel=2)
        heights = np.full(len(plan), HEIGHT)
    at = plan if place == ("x", "y") or frame is None else frame.to_metres(plan)
    kept = {name: column for name, column in columns.items() if name.lower() not in ("x", "y", "z")}
    return Probes(np.c_[at, heights], kept)


def _numbers(path: Path, name: str, column: list[str]) -> NDArray[np.float64]:
    out = np.empty(len(column))
    for row, text in enumerate(column):
        try:
            out[row] = float(text)
        except ValueError:
            out[row] = np.nan
        if not np.isfinite(out[row]):
            raise ValueError(f"{path}, line {row + 2}: {name} must be a number, got {text!r}")
    return out
