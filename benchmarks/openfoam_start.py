"""What `farfield predict --openfoam` saves: simpleFoam from a prediction, from potentialFoam, from a uniform start.

    python benchmarks/openfoam_start.py --model MODEL [--cities 2] [--scale 1] [--out benchmarks/openfoam_start.md]

Every start runs the same case (random city of 100 m times the scale, the generator's mesh and settings) to the same
residuals (1e-4). potentialFoam begins anew from the boundary values: nothing is gained by running it on a prediction.
Fields are saved every fifth iteration and compared with the converged ones: the relative L1 error of the velocity.
CPU seconds are the solver's own, and those of the prediction (everything but loading Python) are added to its row.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pyvista as pv

from farfield.api import load
from farfield.files import atomic_write_text, this_command
from farfield.problems.urban_wind.buildings import UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.formats import Buildings
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.openfoam_case import SolverSettings, write_case
from farfield.problems.urban_wind.openfoam_start import write_start
from farfield.problems.urban_wind.solver import require_openfoam

STARTS = {
    "uniform": "one value everywhere",
    "potentialFoam": "from uniform",
    "inflow profile": "the undisturbed wind at every height",
    "profile and potentialFoam": "how our data are made",
    "prediction": "--openfoam",
}
ROUGHNESS, CELL = 0.3, 4.0  # m
EVERY = 5  # iterations
WITHIN = (0.05, 0.02)  # of the converged velocity


def prepare(case: Path, mesh: CartesianMesh, domain: UrbanDomain, start: str) -> None:
    """The case with its first fields."""
    mesh.write(case)
    heights = mesh.cell_centres()[:, 2] if "profile" in start else None
    write_case(case, ROUGHNESS, float(mesh.z[1]), domain.height, SolverSettings(), cell_heights=heights)
    control = case / "system" / "controlDict"
    text = re.sub(r"writeInterval \d+;", f"writeInterval {EVERY};", control.read_text())
    control.write_text(text.replace("purgeWrite 1;", "purgeWrite 0;"))


def run(case: Path, tool: str) -> float:
    """Run a tool of OpenFOAM; its CPU seconds."""
    environment = {**require_openfoam(), "PWD": str(case)}
    with (case / f"log.{tool}").open("w") as log:
        subprocess.run([tool], cwd=case, env=environment, stdout=log, stderr=subprocess.STDOUT, check=True)
    return float(re.findall(r"ExecutionTime = ([\d.]+) s", (case / f"log.{tool}").read_text())[-1])


def history(case: Path) -> dict[int, np.ndarray]:
    """Velocities (cells, 3) by iteration."""
    (case / "case.foam").touch()
    reader = pv.OpenFOAMReader(str(case / "case.foam"))
    reader.cell_to_point_creation = False
    reader.skip_zero_time = False
    found = {}
    for moment in reader.time_values:
        reader.set_active_time_value(moment)
        found[int(moment)] = np.asarray(reader.read()["internalMesh"]["U"], dtype=float)
    return found


def measure(model: str, seed: int, scale: float, folder: Path) -> list[dict[str, float | str]]:
    """One city by every start."""
    predictor = load(model, device="cpu")
    domain = UrbanDomain.square(scale)
    boxes = random_buildings(np.random.default_rng(seed), scale, module=CELL)
    mesh = CartesianMesh.around(domain, boxes, CELL, CELL / 2)
    city = Buildings(boxes_to_mesh(list(mesh.boxes)))
    rows, histories = [], {}
    for start in STARTS:
        case = folder / start.replace(" ", "-")
        prepare(case, mesh, domain, start)
        cpu = time.process_time()
        if start.startswith("prediction"):
            write_start(predictor, city, case, roughness=ROUGHNESS, wind_direction=270.0)
        preparing = time.process_time() - cpu
        if start.endswith("potentialFoam"):
            preparing += run(case, "potentialFoam")
        solving = run(case, "simpleFoam")
        log = (case / "log.simpleFoam").read_text()
        histories[start] = history(case)
        converged = "SIMPLE solution converged" in log
        rows.append(
            {
                "start": start,
                "iterations": len(re.findall(r"^Time = \d+$", log, re.M)) if converged else float("nan"),
                "solver": solving,
                "start_cpu": preparing,
            }
        )
        print(seed, start, rows[-1]["iterations"], solving, flush=True)
    reference = histories["profile and potentialFoam"]
    final = reference[max(reference)]
    for row in rows:
        errors = {
            n: np.abs(u - final).sum() / np.abs(final).sum() for n, u in sorted(histories[str(row["start"])].items())
        }
        row["at the start"] = next(iter(errors.values()))
        for share in WITHIN:
            row[f"within {share:.0%}"] = next((n for n, error in errors.items() if error <= share), float("nan"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cities", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/openfoam_start.md"))
    arguments = parser.parse_args()
    every = []
    for seed in range(1000, 1000 + arguments.cities):
        folder = Path(tempfile.mkdtemp(prefix="farfield-start-"))
        try:
            every.append(measure(arguments.model, seed, arguments.scale, folder))
        finally:
            shutil.rmtree(folder)
    names = ["iterations", *(f"within {share:.0%}" for share in WITHIN), "at the start", "solver", "start_cpu"]
    lines = [
        "# simpleFoam from a prediction",
        "",
        f"`{this_command()}`, {arguments.cities} random cities of {100 * arguments.scale:g} m, cells of {CELL:g} m, "
        "one core. Means over the cities; errors are relative L1 of the velocity, against the converged one of the "
        "fourth row. CPU seconds are the solver's own and those of making the start.",
        "",
        "| start | iterations to 1e-4 | to 5 % | to 2 % | error of the start | CPU of simpleFoam | CPU of the start |",
        "|---|---|---|---|---|---|---|",
    ]
    for number, start in enumerate(STARTS):
        means = [float(np.mean([rows[number][name] for rows in every])) for name in names]
        shown = [
            f"{means[0]:.0f}",
            f"{means[1]:.0f}",
            f"{means[2]:.0f}",
            f"{means[3]:.1%}",
            *(f"{m:.1f} s" for m in means[4:]),
        ]
        lines.append(f"| {start} ({STARTS[start]}) | {' | '.join(shown)} |")
    atomic_write_text(arguments.out, "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
