"""One pass over a whole city against overlapping tiles that are blended together: error and cost.

    python benchmarks/urban_tiles.py MODEL DATA [CITIES]

Tiles are 512 m wide and half overlap; each is a city of its own, with the undisturbed wind at its upwind side, and
counts most in its middle (a hat along each axis). So a network that cannot take the whole city is made to. On the test
cities of s = 5; CPU seconds of one core, physics included.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.api import load
from farfield.problems.urban_wind.buildings import DOWNWIND_MARGIN, SIDE_MARGIN, UPWIND_MARGIN, UrbanDomain
from farfield.problems.urban_wind.city import City
from farfield.problems.urban_wind.column_prediction import ColumnPredictor
from farfield.problems.urban_wind.files import UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.lattice import Lattice
from farfield.problems.urban_wind.scoring import region_errors

TILE = 512.0  # m


def whole(predictor: ColumnPredictor, case: UrbanCase) -> NDArray[np.float32]:
    """All channels at all cells from one lattice."""
    return predictor.from_city(City.around(case), case.positions)


def tiled(predictor: ColumnPredictor, case: UrbanCase) -> NDArray[np.float32]:
    """The same from overlapping tiles."""
    (west, east), (south, north) = case.box.bounds[:2]
    total, weights = 0.0, np.zeros((len(case.positions), 1))
    middle = case.obstacles.mean(axis=1)
    for x in _starts(west, east):
        for y in _starts(south, north):
            near = [np.abs(p[:, :2] - (x + TILE / 2, y + TILE / 2)).max(1) < TILE / 2 for p in (middle, case.positions)]
            here = near[1]
            box = UrbanDomain(
                x + UPWIND_MARGIN, x + TILE - DOWNWIND_MARGIN, y + SIDE_MARGIN, y + TILE - SIDE_MARGIN, case.box.height
            )
            city = City.of(Lattice.around(case.obstacles[near[0]], box), case.roughness)
            found = predictor.from_city(city, case.positions[here])
            aside = np.abs(case.positions[here, :2] - (x + TILE / 2, y + TILE / 2)) / (TILE / 2)
            hat = np.clip(1 - aside, 1e-3, 1).prod(axis=1)[:, None]
            part = np.zeros((len(case.positions), found.shape[1]))
            part[here] = hat * found
            total = total + part
            weights[here] += hat
    return np.asarray(total / weights, dtype=np.float32)


def _starts(low: float, high: float) -> NDArray[np.floating]:
    """Where tiles begin that half overlap and cover an extent."""
    count = max(1, int(np.ceil((high - low - TILE) / (TILE / 2))) + 1)
    return np.linspace(low, max(low, high - TILE), count) + 1e-3


def main(model: str, data: str, count: int = 3) -> None:
    torch.set_num_threads(1)
    predictor = load(model, device="cpu")
    files = UrbanWindFiles(data)
    for number in files.neutral_ids("vls")[:count]:
        case = files.load("vls", number)
        for name, run in (("one pass", whole), ("tiles", tiled)):
            began = time.process_time()
            found = run(predictor, case)
            seconds = time.process_time() - began
            errors = region_errors(predictor.columns(found), case)
            told = ", ".join(f"{r} {100 * float(errors['velocity', f'l1_{r}']):.2f} %" for r in ("buildings", "wake"))
            print(f"city {number}, {name}: velocity {told}; {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
