"""A network of urban wind held against physics, on the first test cities of a dataset.

    python benchmarks/urban_physics.py MODEL DATA [CITIES]

- flux: what passes through every plane across the wind over what enters, the largest deviation within the domain;
- mirror: change of the velocity when the city is mirrored along the wind and the answer mirrored back;
- turned: the same when the city and its wind are turned by 17 and by 30 degrees together;
- cube: where the air behind a cube of 20 m flows forward again at 1 m height, by the network and by OpenFOAM.

Changes and errors are relative L1, over all cells.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from farfield.api import load
from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh
from farfield.problems.urban_wind.files import UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.prediction import WindPredictor
from farfield.problems.urban_wind.solver import solve_boxes

MIRROR = np.array([1, -1, 1], dtype=np.float32)


def velocity(predictor: WindPredictor, case: UrbanCase) -> NDArray[np.float32]:
    """(N, 3) at the cells of a case, in wind axes."""
    return predictor.from_case(case, case.positions, np.random.default_rng(0))[:, :3]


def flux_deviation(case: UrbanCase, wind: NDArray[np.floating]) -> float:
    """Largest deviation of the flux through a plane across the wind from what enters."""
    mesh = CartesianMesh.around(case.box, [], 4.0, 2.0)
    cells = [np.searchsorted(lines, case.positions[:, a]) - 1 for a, lines in enumerate((mesh.x, mesh.y, mesh.z))]
    area = np.diff(mesh.y)[cells[1]] * np.diff(mesh.z)[cells[2]]
    through = np.bincount(cells[0], weights=wind[:, 0] * area)
    heights = (mesh.z[1:] + mesh.z[:-1]) / 2
    entering = (inflow_profile(case.roughness, heights=heights)[:, 0] * np.diff(mesh.z)).sum() * np.ptp(mesh.y)
    return float(np.abs(through / entering - 1).max())


def change(after: NDArray[np.floating], before: NDArray[np.floating]) -> float:
    return float(np.abs(after - before).sum() / np.abs(before).sum())


def mirrored(case: UrbanCase) -> UrbanCase:
    return replace(case, positions=case.positions * MIRROR, obstacles=case.obstacles[:, ::-1] * MIRROR)


def turned(predictor: WindPredictor, case: UrbanCase, boxes: list[Box], degrees: float) -> float:
    """Change of the wind at the cells when city, wind and cells are turned together."""
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    mesh, points = boxes_to_mesh(boxes), case.positions.astype(float)
    options = {"roughness": case.roughness, "fields": ["velocity"]}
    before = np.asarray(predictor.predict(mesh, wind_direction=270, points=points, **options)["velocity"])
    mesh.vertices = mesh.vertices @ turn.T
    after = predictor.predict(mesh, wind_direction=270 - degrees, points=points @ turn.T, **options)["velocity"]
    return change(np.asarray(after) @ turn, before)


def recirculation(predictor: WindPredictor) -> tuple[float, float]:
    """Length of the reversed flow behind a cube, m: by the network and by OpenFOAM."""
    box = Box(-10.0, 10.0, -10.0, 10.0, 20.0)
    solution = solve_boxes([box], UrbanDomain.square(1), roughness=0.3)
    x = 10 + np.arange(0.25, 80, 0.25)
    line = np.stack([x, np.zeros_like(x), np.ones_like(x)], axis=1)
    predicted = np.asarray(predictor.predict(boxes_to_mesh([box]), roughness=0.3, points=line)["velocity"])[:, 0]
    import pyvista as pv

    sampled = pv.PolyData(line).sample(solution.volume.cell_data_to_point_data())["velocity"][:, 0]
    return tuple(float(x[np.argmin(u < 0)] - 10) for u in (predicted, sampled))  # type: ignore[return-value]


def main(model: str, data: str, count: int = 3) -> None:
    import json

    predictor = load(model, device="cpu")
    files = UrbanWindFiles(data)
    for number in files.neutral_ids("test")[:count]:
        case = files.load("test", number)
        record = json.loads((files.folder / "records" / f"{case.name}.json").read_text())
        boxes = [Box(*box) for box in record["attempts"][-1]["buildings"]]
        wind, truth = velocity(predictor, case), case.fields["velocity"]
        other = velocity(predictor, mirrored(case)) * MIRROR
        print(
            f"city {number}: error {100 * change(wind, truth):.2f} %, flux {100 * flux_deviation(case, wind):.2f} % "
            f"(OpenFOAM {100 * flux_deviation(case, truth):.2f} %), mirror {100 * change(other, wind):.2f} %, turned "
            f"{100 * turned(predictor, case, boxes, 17):.2f} and {100 * turned(predictor, case, boxes, 30):.2f} %",
            flush=True,
        )
    print("cube: flow reversed for {:.1f} m, by OpenFOAM for {:.1f} m".format(*recirculation(predictor)))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
