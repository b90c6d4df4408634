"""Pedestrian comfort and safety: how often the wind at 1.75 m is faster than people like it, or than is safe.

A place has the first class of a scale whose speed is exceeded in less than the class' share of hours. Speeds are the
mean speed of an hour. Gusts are deliberately not used, though Lawson's criteria take the larger of the mean and a
gust-equivalent mean: near the ground they would follow from the turbulence model more than from the wind.

- *Lawson*, the variant of his report TVL 9025 (1990) that is also called LDDC: 4, 6, 8, 10 m/s in 5 % of the hours, and
  15 and 20 m/s about twice a year, 0.022 % of them. Published e.g. by CPP Wind Engineering with their reports. Not the
  City of London's of 2019 (2.5, 4, 6, 8 m/s), nor Lawson's Beaufort ranges of 1978 or 2001.
- *NEN 8100:2006*: 5 m/s in 2.5, 5, 10, 20 % of the hours, and 15 m/s in 0.05 and 0.3 %. The standard is sold, not
  public; the numbers are those of open tools that implement it (Eddy3D's wind comfort metrics, among others).

Letters: N points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

HEIGHT = 1.75  # m above the ground


@dataclass(frozen=True)
class Level:
    """A class: its name, what it is good for, and the wind (m/s) that is exceeded in less than a share of hours."""

    name: str
    use: str
    speed: float
    share: float


@dataclass(frozen=True)
class Scale:
    """Classes from the calmest to the windiest, which is what remains."""

    name: str  # of the array in files
    title: str
    source: str
    levels: tuple[Level, ...]

    def classes(self, exceeded: dict[float, Array]) -> NDArray[np.int64]:
        """(N,): the number of the class, from 0; ``exceeded`` are shares of hours by speed."""
        return np.select([exceeded[level.speed] < level.share for level in self.levels[:-1]],
                         range(len(self.levels) - 1), len(self.levels) - 1)  # fmt: skip


_REST = (np.inf, 1.0)
LAWSON = "T. V. Lawson (1990), The determination of the wind environment of a building complex before construction, TVL 9025; as used by the London Docklands Development Corporation (LDDC), mean speeds"  # noqa: E501
NEN = "NEN 8100:2006, Wind comfort and wind danger in the built environment"

SCALES = (
    Scale(
        "lawson_comfort",
        "Comfort, Lawson LDDC",
        LAWSON,
        (
            Level("sitting", "outdoor seating, long stays", 4.0, 0.05),
            Level("standing", "entrances, bus stops, short stays", 6.0, 0.05),
            Level("strolling", "leisure walking, shopping streets", 8.0, 0.05),
            Level("walking", "walking from A to B", 10.0, 0.05),
            Level("uncomfortable", "unsuitable for pedestrians", *_REST),
        ),
    ),
    Scale(
        "lawson_safety",
        "Safety, Lawson LDDC",
        LAWSON,
        (
            Level("safe", "15 m/s in less than two hours a year", 15.0, 0.00022),
            Level("unsafe for the frail", "and for cyclists", 20.0, 0.00022),
            Level("unsafe", "for everybody", *_REST),
        ),
    ),
    Scale(
        "nen_comfort",
        "Comfort, NEN 8100",
        NEN,
        (
            Level("A", "good for sitting, strolling and walking", 5.0, 0.025),
            Level("B", "moderate for sitting, good for strolling and walking", 5.0, 0.05),
            Level("C", "poor for sitting, moderate for strolling, good for walking", 5.0, 0.10),
            Level("D", "poor for sitting and strolling, moderate for walking", 5.0, 0.20),
            Level("E", "poor for all of them", *_REST),
        ),
    ),
    Scale(
        "nen_safety",
        "Danger, NEN 8100",
        NEN,
        (
            Level("no danger", "15 m/s in less than 0.05 % of the hours", 15.0, 0.0005),
            Level("limited risk", "15 m/s in less than 0.3 % of the hours", 15.0, 0.003),
            Level("dangerous", "15 m/s in more of the hours", *_REST),
        ),
    ),
)
SPEEDS = tuple(sorted({level.speed for scale in SCALES for level in scale.levels if np.isfinite(level.speed)}))
