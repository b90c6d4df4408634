"""How often the wind blows from where and how fast: EPW files of building simulation, or a table as CSV.

An EPW file holds the hours of a year. A CSV has columns ``direction`` (degrees, where the wind comes from), ``speed``
(m/s) and ``frequency`` (shares, per cent or hours; without it, every row is one hour). Hours without wind count among
all hours, below every threshold; hours without a measurement do not count at all, which is said.

The station's wind becomes that of the city by the logarithmic law at 60 m, where the ground below is taken to be
forgotten (as NEN 8100 does):

    U_site(80 m) = u(h)  ln((60 + s) / s) / ln((h + s) / s)  ln((80 + z0) / z0) / ln((60 + z0) / z0)

with u(h) the station's wind at its height h over a roughness s.

Letters: D directions, H records, N points.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.problems.urban_wind.inflow_profiles import REFERENCE_HEIGHT

Array = NDArray[np.floating]

BLENDING_HEIGHT = 60.0  # m
STATION_HEIGHT, STATION_ROUGHNESS = 10.0, 0.03  # m: an anemometer over grass
CALM = 0.3  # m/s: slower has no direction
FASTEST = 60.0  # m/s: an hour's mean that nobody has measured near the ground; knots or km/h are
MOST_MISSING = 0.5  # share of hours
EPW_HEADER, EPW_DIRECTION, EPW_SPEED, EPW_FIELDS = 8, 20, 21, 22
EPW_MISSING = 999.0


@dataclass(frozen=True)
class Weather:
    """Records of wind, with the share of all hours that each stands for."""

    name: str
    directions: Array  # (H,) degrees, where the wind comes from
    speeds: Array  # (H,) m/s at the station's height
    shares: Array  # (H,); with the calm they sum to 1
    calm: float  # share of hours without wind
    height: float = STATION_HEIGHT
    roughness: float = STATION_ROUGHNESS

    def at_site(self, roughness: float) -> float:
        """The undisturbed wind at 80 m over the city's ground, per m/s at the station."""
        for value, what in ((self.height, "height"), (self.roughness, "roughness length"), (roughness, "roughness")):
            if not (np.isfinite(value) and value > 0):
                raise ValueError(f"the {what} of the wind must be positive, got {value} m")
        up = _law(BLENDING_HEIGHT, self.roughness) / _law(self.height, self.roughness)
        return up * _law(REFERENCE_HEIGHT, roughness) / _law(BLENDING_HEIGHT, roughness)

    def towards(self, directions: Sequence[float]) -> Array:
        """(D, H): how much of each record's hours every one of these directions stands for.

        A record between two directions belongs to both, to the nearer one more.
        """
        given = np.asarray(directions, dtype=float) % 360
        order = np.argsort(given)
        ring = np.append(given[order], given[order[0]] + 360)
        at = (self.directions - ring[0]) % 360 + ring[0]
        first = np.searchsorted(ring, at, side="right") - 1
        first = np.minimum(first, len(given) - 1)
        part = (at - ring[first]) / (ring[first + 1] - ring[first])
        shares = np.zeros((len(given), len(at)))
        every = np.arange(len(at))
        shares[order[first], every] += (1 - part) * self.shares
        shares[order[(first + 1) % len(given)], every] += part * self.shares
        return shares

    def exceedance(self, factors: Array, directions: Sequence[float], thresholds: Sequence[float]) -> Array:
        """(len(thresholds), N): share of hours in which the local wind is faster than each threshold (m/s).

        ``factors`` (D, N) are local speeds per m/s at the station. A record of some speed stands for all speeds up to
        halfway to the next ones in the file, evenly: measured winds are rounded.
        """
        out = np.zeros((len(thresholds), factors.shape[1]))
        for row, local in zip(self.towards(directions), factors, strict=True):
            edges, above = _survival(self.speeds, row)
            for number, threshold in enumerate(thresholds):
                needed = threshold / np.maximum(local, 1e-9)
                out[number] += np.interp(needed, edges, above, left=above[0], right=0.0)
        return out

    def mean_speed(self, factors: Array, directions: Sequence[float]) -> Array:
        """(N,): over all hours, m/s."""
        return (self.towards(directions) @ self.speeds) @ factors


def _law(height: float, roughness: float) -> float:
    return float(np.log((height + roughness) / roughness))


def _survival(speeds: Array, shares: Array) -> tuple[Array, Array]:
    """Speeds, and the share of hours with more than each: all of them at the first, none at the last."""
    values, which = np.unique(speeds, return_inverse=True)
    weights = np.bincount(which, shares, len(values))
    middles = (values[1:] + values[:-1]) / 2
    step = values[1] - values[0] if len(values) > 1 else 1.0
    last = values[-1] - values[-2] if len(values) > 1 else 1.0
    edges = np.concatenate([[max(0.0, values[0] - step / 2)], middles, [values[-1] + last / 2]])
    return edges, np.concatenate([np.cumsum(weights[::-1])[::-1], [0.0]])


def read_weather(path: str | Path, height: float = STATION_HEIGHT, roughness: float = STATION_ROUGHNESS) -> Weather:
    """Read an EPW file or a CSV, checked; ``height`` and ``roughness`` are the station's."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.suffix.lower() not in (".epw", ".csv"):
        raise ValueError(f"{path.name}: expected a weather file that ends in .epw or .csv")
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig", errors="replace").splitlines(), delimiter=","))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    records = _epw(path, rows) if path.suffix.lower() == ".epw" else _table(path, rows)
    if not len(records):
        raise ValueError(f"{path} has no records of wind")
    return _checked(path, records, height, roughness)


def _epw(path: Path, rows: list[list[str]]) -> Array:
    """(H, 4): direction, speed, weight, line; NaN where nothing was measured."""
    if not rows or not rows[0] or rows[0][0].upper() != "LOCATION":
        raise ValueError(f"{path} is not an EPW file: its first line does not begin with LOCATION")
    records = []
    for line, row in enumerate(rows[EPW_HEADER:], EPW_HEADER + 1):
        if not any(row):
            continue
        if len(row) < EPW_FIELDS:
            raise ValueError(f"{path}, line {line}: expected at least {EPW_FIELDS} columns, got {len(row)}")
        direction, speed = (_number(path, line, row[column]) for column in (EPW_DIRECTION, EPW_SPEED))
        missing = direction >= EPW_MISSING or speed >= EPW_MISSING
        records.append((np.nan, np.nan, 1.0, line) if missing else (direction, speed, 1.0, line))
    return np.array(records).reshape(-1, 4)


def _table(path: Path, rows: list[list[str]]) -> Array:
    """The same from columns by name."""
    if rows and len(rows[0]) == 1 and ";" in rows[0][0]:
        rows = [row[0].split(";") if row else [] for row in rows]
    names = [name.strip().lower() for name in rows[0]] if rows else []
    if not {"direction", "speed"} <= set(names):
        raise ValueError(
            f"{path}: expected columns direction, speed and, if the rows are no hours, frequency; got "
            f"{', '.join(names) or 'nothing'}"
        )
    records = []
    for line, row in enumerate(rows[1:], 2):
        if not any(cell.strip() for cell in row):
            continue
        cells = dict(zip(names, row, strict=False))
        direction, speed = (_number(path, line, cells.get(name, "")) for name in ("direction", "speed"))
        weight = _number(path, line, cells.get("frequency", "")) if "frequency" in names else 1.0
        if not weight >= 0:
            raise ValueError(f"{path}, line {line}: a frequency must be zero or more, got {cells.get('frequency')!r}")
        records.append((direction, speed, weight, line))
    return np.array(records).reshape(-1, 4)


def _number(path: Path, line: int, text: str) -> float:
    """NaN for an empty cell."""
    try:
        return float(text) if text.strip() else float("nan")
    except ValueError:
        raise ValueError(f"{path}, line {line}: expected a number, got {text!r}") from None


def _checked(path: Path, records: Array, height: float, roughness: float) -> Weather:
    directions, speeds, weights, lines = records.T
    still = speeds < CALM
    measured = np.isfinite(speeds) & (np.isfinite(directions) | still)
    for wrong, what in (
        (
            measured & ~still & ~((directions >= 0) & (directions <= 360)),
            "a direction from 0 to 360 degrees, got {d:g}",
        ),
        (measured & ~((speeds >= 0) & (speeds <= FASTEST)), f"a speed from 0 to {FASTEST:g} m/s, got {{s:g}}"),
    ):
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            told = what.format(d=directions[first], s=speeds[first])
            more = f" (and in {wrong.sum() - 1} more lines)" if wrong.sum() > 1 else ""
            raise ValueError(f"{path}, line {lines[first]:.0f}: expected {told}{more}")
    total = weights.sum()
    if not total > 0:
        raise ValueError(f"{path}: its frequencies sum to zero")
    missing = weights[~measured].sum() / total
    if missing > MOST_MISSING:
        raise ValueError(f"{path}: {missing:.0%} of the hours have no measured wind: too few to judge by")
    if missing > 0:
        warnings.warn(f"{path}: {missing:.1%} of the hours have no measured wind and are left out", stacklevel=3)
    known = weights[measured].sum()
    calm = measured & still
    if calm.any():
        share = weights[calm].sum() / known
        warnings.warn(f"{path}: {share:.1%} of the hours are calm; they count as hours without wind", stacklevel=3)
    blows = measured & ~still
    if not blows.any():
        raise ValueError(f"{path}: in none of its hours does a wind blow")
    shares = weights[blows] / known
    calm_share = float(weights[calm].sum() / known)
    return Weather(path.name, directions[blows] % 360, speeds[blows], shares, calm_share, height, roughness)
