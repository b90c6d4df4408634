"""What the mean of a city's wind and that of its mirror image, mirrored back, would be worth, beside one pass.

    python benchmarks/urban_mirrored.py urban-wind-laape data/urban-wind-unspent

It is not what `farfield predict` does: it costs the network twice.
"""

from __future__ import annotations

import sys

import numpy as np

from farfield.problems.urban_wind.city import City
from farfield.problems.urban_wind.column_prediction import ColumnPredictor
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.scoring import region_errors
from farfield.runs.run import Run

REGIONS = ("buildings", "wake")
MIRROR = np.array([1, -1, 1], dtype=np.float32)


def main(model: str, data: str, split: str = "test") -> None:
    predictor = ColumnPredictor.load(Run.find(model), "cpu")
    files = UrbanWindFiles(data, predictor.fields)
    errors: dict[str, list[list[float]]] = {"one pass": [], "with its mirror image": []}
    for number in files.neutral_ids(split):
        case = files.load(split, number)
        city = City.around(case)
        once = predictor.from_city(city, case.positions)
        back = predictor.from_city(city.mirrored(), case.positions * MIRROR)
        back[:, :3] *= MIRROR
        for way, fields in zip(errors, (once, (once + back) / 2), strict=True):
            found = region_errors(predictor.columns(fields), case)
            errors[way].append([float(found["velocity", f"l1_{region}"]) for region in REGIONS])
    print(f"{len(errors['one pass'])} cities of {data}, relative L1 of the velocity, {' / '.join(REGIONS)}:")
    for way, rows in errors.items():
        print(f"{way}: " + " / ".join(f"{100 * mean:.2f}" for mean in np.mean(rows, axis=0)) + " %")


if __name__ == "__main__":
    main(*sys.argv[1:])
