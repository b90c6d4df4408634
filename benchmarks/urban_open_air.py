"""A city in the open, against OpenFOAM: what the physics in a box that grows with the city is worth.

    python benchmarks/urban_open_air.py MODEL [scale]

The data's boxes have the same margins for every size of city, so that large ones are in a duct; around a user's city
the physics inputs are computed in a box that grows with it (:meth:`UrbanDomain.in_the_open`), although the network was
trained in the data's boxes alone. One random city of this scale is solved by OpenFOAM in the wide box (half a million
cells and some 100 s of CPU at scale 3), and predicted with the physics of either box. Prints the relative L1 error of
the velocity between the buildings, in the wake and below 6 m between the buildings, and the mean speed there.
"""

from __future__ import annotations

import sys

import numpy as np

import farfield as ff
from farfield.problems.urban_wind.buildings import UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.city import City
from farfield.problems.urban_wind.lattice import SPACING, Lattice
from farfield.problems.urban_wind.openfoam_case import SolverSettings
from farfield.problems.urban_wind.solver import solve_boxes

ROUGHNESS, SEED = 0.5, 11


def main(model: str, scale: float) -> None:
    boxes = random_buildings(np.random.default_rng(SEED), scale, SPACING)
    domain = UrbanDomain.square(scale)
    wide = domain.in_the_open()
    settings = SolverSettings(tolerance=3e-3, iteration_limit=300)
    volume = solve_boxes(boxes, wide, ROUGHNESS, SPACING, 2.0, settings).volume
    points, truth = np.asarray(volume.cell_centers().points, dtype=np.float64), np.asarray(volume["velocity"])
    low, high = domain.bounds.T
    known = ((points > low) & (points < high)).all(1)
    points, truth = points[known], truth[known]
    built = (np.abs(points[:, 0]) < domain.x_max) & (np.abs(points[:, 1]) < domain.y_max)
    regions = {"buildings": built, "wake": points[:, 0] > domain.x_max, "below 6 m": built & (points[:, 2] < 6)}

    triangles = np.asarray(boxes_to_mesh(boxes).triangles)
    lattice = Lattice.around(triangles, domain)
    cities = {
        "physics in the wide box": City.in_the_open(lattice, triangles, domain, ROUGHNESS),
        "physics in the data's box": City.of(lattice, ROUGHNESS),
    }
    predictor = ff.load(model)
    slow = regions["below 6 m"]
    print(f"{len(boxes)} buildings, {volume.n_cells} cells, box {wide.bounds.tolist()}")
    print(f"OpenFOAM: mean speed below 6 m {np.linalg.norm(truth[slow], axis=1).mean():.2f} m/s")
    for name, city in cities.items():
        found = predictor.from_city(city, points)[:, :3]
        errors = [
            f"{where} {100 * np.abs(found[some] - truth[some]).sum() / np.abs(truth[some]).sum():.1f} %"
            for where, some in regions.items()
        ]
        print(f"{name}: {', '.join(errors)}; {np.linalg.norm(found[slow], axis=1).mean():.2f} m/s")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3.0)
