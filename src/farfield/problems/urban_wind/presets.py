"""Which cities a dataset of urban wind has: presets, their cases, and how each case is drawn.

Every case has its own seed, from (seed, split, index, attempt), so the order and number of workers do not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from farfield.problems.urban_wind.buildings import Box, random_buildings
from farfield.problems.urban_wind.files import SPLIT_INDEX, SPLIT_SCALES, case_name
from farfield.problems.urban_wind.openfoam_case import SolverSettings

ROUGHNESS_RANGE = (0.05, 1.0)  # m, log-uniform
# At cities, before a case that has its air for itself draws that again too: with some winds none converges.
ATTEMPTS = 5


@dataclass(frozen=True)
class UrbanPreset:
    """How many cases of each split, how fine, and when a case has converged."""

    cases: dict[str, int]
    cell: float  # m between the buildings; 100 m is a multiple of it, so that the square's edge is a mesh line
    ground_cell: float  # m, height of the first cell
    settings: SolverSettings = field(default_factory=SolverSettings)
    training_settings: SolverSettings | None = None  # for the cities of the split train, where others will do
    large_settings: SolverSettings | None = None  # for s > 1
    max_wind_angle: float = 0.0  # degrees: the wind is drawn up to so far to either side of +x
    stream: int = 0  # presets with different ones draw different cities from the same seed
    starts_from: str | None = None  # a run or a shipped model of columns: what it predicts, training cities start from

    def settings_for(self, split: str) -> SolverSettings:
        """How the cities of a split are solved."""
        special = {"train": self.training_settings, "ls": self.large_settings, "vls": self.large_settings}
        return special.get(split) or self.settings

    def start_for(self, split: str) -> bool:
        """Whether the cities of a split start from a prediction: never those that judge it."""
        return self.starts_from is not None and self.settings_for(split) == FROM_PREDICTION

    def starting_from(self, model: str) -> UrbanPreset:
        """The same cities; those to learn from start from what a model predicts."""
        training, large = (
            FROM_PREDICTION if known == FOR_TRAINING else known
            for known in (self.training_settings, self.large_settings)
        )
        if FROM_PREDICTION not in (training, large):
            raise ValueError("this preset has no cities that are for learning alone: leave out --set starts_from")
        return replace(self, starts_from=model, training_settings=training, large_settings=large)


# Against 1e-4, velocities differ by 0.2 to 0.6 %, pressures by 0.7 to 0.9 %, a tenth of what networks reach: twice as
# many cities in an hour are worth more. Cities that judge are solved to 1e-4.
FOR_TRAINING = SolverSettings(tolerance=3e-3, iteration_limit=150)
# Started from a prediction, cities are as near to their end (0.1 to 0.8 % of the velocity) in half of the iterations.
FROM_PREDICTION = SolverSettings(tolerance=6e-3, iteration_limit=150)
# Wakes of large cities in oblique wind swing a little for ever: with some winds no city of five came below 1e-4.
FOR_SWINGING_WAKES = SolverSettings(tolerance=1e-3)
EVERY_DIRECTION = 45.0  # degrees to either side, by the symmetry of the square
LEARNED_FROM = ("train", "val")
PUBLISHED_CASES = {"train": 138, "val": 10, "test": 80, "ls": 10, "vls": 10}
CPU = UrbanPreset(PUBLISHED_CASES, cell=4.0, ground_cell=2.0, training_settings=FOR_TRAINING)
OBLIQUE = replace(CPU, max_wind_angle=EVERY_DIRECTION)
PRESETS = {
    "quick": UrbanPreset({"train": 6, "val": 1, "test": 2, "ls": 1, "vls": 1}, cell=5.0, ground_cell=2.0),
    "cpu": CPU,
    "paper": UrbanPreset(
        PUBLISHED_CASES,
        cell=2.0,
        ground_cell=1.5,
        settings=SolverSettings(tolerance=1e-5, iteration_limit=1500),
    ),
    "cpu-more": replace(CPU, cases={"train": 270}, stream=1),
    # Others of the same kind, for a network that knows those.
    "cpu-further": replace(CPU, cases={"train": 150}, stream=5),
    "cpu-oblique": replace(
        OBLIQUE,
        cases={"train": 200, "val": 10, "test": 40, "ls": 10, "vls": 3},  # with the next air at s = 5 no city settles
        large_settings=FOR_SWINGING_WAKES,
        stream=2,
    ),
    # To learn from, not to judge by: streets that lie deeper in the lee than any of the training size.
    "cpu-wide": replace(CPU, cases={"ls": 180}, training_settings=None, large_settings=FOR_TRAINING, stream=3),
    "cpu-wide-oblique": replace(
        OBLIQUE, cases={"ls": 60}, training_settings=None, large_settings=FOR_TRAINING, stream=4
    ),
    # Others of all these kinds.
    "cpu-fresh": replace(CPU, cases={"train": 250, "ls": 80}, large_settings=FOR_TRAINING, stream=6),
    "cpu-fresh-oblique": replace(OBLIQUE, cases={"train": 120, "ls": 24}, large_settings=FOR_TRAINING, stream=7),
    # To be started from a prediction (--set starts_from=MODEL): the model knows none of them.
    "cpu-warm": replace(CPU, cases={"train": 360, "ls": 50}, large_settings=FOR_TRAINING, stream=8),
    "cpu-warm-oblique": replace(OBLIQUE, cases={"train": 480, "ls": 26}, large_settings=FOR_TRAINING, stream=9),
}


@dataclass(frozen=True)
class CaseId:
    """One case of a split; ``number`` is its id in the index, ``index`` its place within the split."""

    split: str
    index: int
    number: int

    @property
    def name(self) -> str:
        return case_name(self.split, self.number)


def list_cases(preset: UrbanPreset) -> list[CaseId]:
    """All cases: ids run through train, val, test; the large cities are numbered on their own."""
    cases, next_id = [], 0
    for split, scale in SPLIT_SCALES.items():
        count = preset.cases.get(split, 0)
        first = next_id if scale == 1 else 0
        cases += [CaseId(split, index, first + index) for index in range(count)]
        next_id += count if scale == 1 else 0
    return cases


def draw_air(seed: int, case: CaseId, preset: UrbanPreset, again: bool = False) -> tuple[float, float]:
    """z0 (m) and the wind's angle (degrees) of a case.

    The layout has one list for both large scales, so they share them, index by index.
    """
    split = "ls" if case.split == "vls" else case.split
    rng = _generator(seed, split, case.index, 1 + 2 * ATTEMPTS if again else 0, preset)
    low, high = np.log(ROUGHNESS_RANGE)
    return float(np.exp(rng.uniform(low, high))), preset.max_wind_angle * float(rng.uniform(-1, 1))


def draw_city(seed: int, case: CaseId, attempt: int, preset: UrbanPreset) -> list[Box]:
    """The buildings of an attempt at a case."""
    # Number 0 is the air's: NumPy fills up short seeds with zeros, and shared numbers would correlate.
    rng = _generator(seed, case.split, case.index, 1 + attempt, preset)
    return random_buildings(rng, SPLIT_SCALES[case.split], preset.cell)


def _generator(seed: int, split: str, index: int, number: int, preset: UrbanPreset) -> np.random.Generator:
    stream = [preset.stream] if preset.stream else []  # a fifth number, even 0, would change the cities without one
    return np.random.default_rng([seed, SPLIT_INDEX[split], index, number, *stream])
