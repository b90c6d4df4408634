"""How large a model's errors are, learned from cities that it was not trained on: split-conformal prediction.

Where buildings disturb the wind more, predictions are worse. So with the disturbance of a place

    d = |u - u0|,    u the predicted velocity, u0 the undisturbed wind at the same height (6 m/s at 80 m),

cells of validation cities are sorted into bins of d, and each bin keeps, for every field, the quantile at level
(1 + 1/n) 0.9 of its n absolute errors. A new cell of such a city is then within it with a probability of 0.9. That
holds for cities like those: of the same size and kind. Errors scale with the wind's speed as their fields do.

Letters: N cells.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from farfield.files import atomic_write_text, read_description
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.runs.run import Run

if TYPE_CHECKING:
    from farfield.problems.urban_wind.prediction import WindPredictor

Array = NDArray[np.floating]

FILE = "calibration.json"
LEVEL = 0.9
BINS = 12
SMALLEST_BIN = 50  # cells
CELLS_PER_CITY = 20_000


@dataclass(frozen=True)
class Calibration:
    """What ``calibration.json`` in a run's folder holds."""

    level: float  # share of cells within the errors
    cities: int  # that it was learned from
    weights: str  # fingerprint of the weights whose errors these are
    edges: tuple[float, ...]  # m/s: inner edges of the bins of d
    widths: dict[str, tuple[float, ...]]  # per field and bin, for the wind of 6 m/s at 80 m
    held_out: dict[str, float]  # share within the errors, each half of the cities judged by the other half

    def __str__(self) -> str:
        return (
            f"{self.level:.0%} of the cells of {self.cities} validation cities are within *_error "
            "(cities of another size or kind may have larger ones)"
        )

    @classmethod
    def of(cls, run: Run) -> Calibration | None:
        """Of a run's weights, if it has been made."""
        path = run.folder / FILE
        if not path.is_file():
            return None
        values = read_description(path)
        try:
            values["edges"] = tuple(values["edges"])
            values["widths"] = {name: tuple(widths) for name, widths in values["widths"].items()}
            calibration = cls(**values)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged ({error}): delete it, or make it anew by `farfield calibrate`"
            ) from None
        if calibration.weights != run.weights_fingerprint():
            raise ValueError(f"{path} is about other weights than the run's: make it anew by `farfield calibrate`")
        return calibration

    def write(self, run: Run) -> None:
        """Into a run's folder."""
        atomic_write_text(run.folder / FILE, json.dumps(asdict(self), indent=1) + "\n")

    def errors(self, roughness: float, points: Array, fields: dict[str, Array]) -> dict[str, Array]:
        """Of fields at points (N, 3), in wind axes and for the wind of 6 m/s at 80 m: (N,) each."""
        bins = np.searchsorted(self.edges, disturbance(roughness, points, fields["velocity"]))
        return {name: np.asarray(widths)[bins] for name, widths in self.widths.items()}


def disturbance(roughness: float, points: Array, velocity: Array) -> Array:
    """d (N,), m/s."""
    heights = np.geomspace(0.05, 1000, 400)
    undisturbed = np.interp(points[:, 2], heights, inflow_profile(roughness, heights=heights)[:, 0])
    return np.linalg.norm(velocity - undisturbed[:, None] * [1.0, 0.0, 0.0], axis=1)


def calibrate(predictor: WindPredictor, run: Run, folders: list[UrbanWindFiles], split: str = "val") -> Calibration:
    """Learn the errors from the cities in neutral air of a split, and judge what was learned by halves of them."""
    cases = [files.load(split, number) for files in folders for number in files.neutral_ids(split)]
    if len(cases) < 2:
        raise ValueError(f"errors are learned from at least two cities in neutral air, {split!r} has {len(cases)}")
    of_cities = []
    for number, case in enumerate(cases):
        rng = np.random.default_rng(number)
        cells = rng.permutation(len(case.positions))[:CELLS_PER_CITY]
        points = case.positions[cells]
        predicted = predictor.columns(predictor.from_case(case, points, rng))
        wrong = {name: _size(values - case.fields[name][cells]) for name, values in predicted.items()}
        of_cities.append((disturbance(case.roughness, points, predicted["velocity"]), wrong))
    halves = of_cities[::2], of_cities[1::2]
    judged: dict[str, list[float]] = {name: [] for name in predictor.fields}
    for learned, tested in (halves, halves[::-1]):
        edges, widths = _learn(learned)
        for d, wrong in tested:
            for name, values in wrong.items():
                within = values <= np.asarray(widths[name])[np.searchsorted(edges, d)]
                judged[name].append(float(within.mean()))
    edges, widths = _learn(of_cities)
    return Calibration(
        level=LEVEL,
        cities=len(cases),
        weights=run.weights_fingerprint() or "",
        edges=edges,
        widths=widths,
        held_out={name: round(float(np.mean(shares)), 4) for name, shares in judged.items()},
    )


def _size(difference: Array) -> Array:
    return np.abs(difference) if difference.ndim == 1 else np.linalg.norm(difference, axis=1)


def _learn(of_cities: list[tuple[Array, dict[str, Array]]]) -> tuple[tuple[float, ...], dict[str, tuple[float, ...]]]:
    """Edges of the bins, and the errors of each field in them."""
    d = np.concatenate([city[0] for city in of_cities])
    bins = max(1, min(BINS, len(d) // SMALLEST_BIN))
    edges = np.unique(np.quantile(d, np.arange(1, bins) / bins))
    which = np.searchsorted(edges, d)
    widths: dict[str, Any] = {}
    for name in of_cities[0][1]:
        wrong = np.concatenate([city[1][name] for city in of_cities])
        widths[name] = tuple(float(_quantile(wrong[which == number])) for number in range(len(edges) + 1))
    return tuple(edges.tolist()), widths


def _quantile(errors: Array) -> np.floating:
    """The smallest error that at least (n + 1) 0.9 of them do not exceed; the largest where n is too small for that."""
    rank = min(len(errors), int(np.ceil((len(errors) + 1) * LEVEL)))
    return np.sort(errors)[rank - 1]
