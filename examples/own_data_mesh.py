"""Own data on unstructured meshes: the steady temperature of a cooled plate with hot holes, in VTK files.

    div grad T = T / l^2   in the plate,     T = the hole's temperature at its rim,     no flux through the outer sides

Small plates with a few holes each are meshed and solved with linear finite elements (yours come from your own solver),
written as .vtu files and read back; a model learns the temperature from each point's distance to the nearest rim and
that rim's temperature, and predicts plates twice as long and wide, with four times as many holes.

    python examples/own_data_mesh.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyvista as pv
import yaml
from rich.console import Console
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve
from scipy.spatial import Delaunay

import farfield as ff

LENGTH, HOLE, SPACING = 0.12, 0.07, 0.05  # the cooling length l, a hole's radius, the distance of points


def mesh(size: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (N, 2) of a plate with holes, triangles (M, 3), and the holes' centres: four per unit of area."""
    holes: list[np.ndarray] = []
    while len(holes) < round(4 * size**2):
        centre = rng.uniform(0.15, size - 0.15, 2)
        if all(np.hypot(*(centre - other)) > 0.25 for other in holes):
            holes.append(centre)
    centres = np.array(holes)
    side = np.arange(0, size + SPACING / 2, SPACING)
    inside = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    free = np.ptp(inside, 0) > 0  # jitter all but the outer sides
    jitter = rng.uniform(-0.25, 0.25, inside.shape) * SPACING * free
    jitter[(inside <= 0) | (inside >= size - 1e-9)] = 0
    inside = inside + jitter
    inside = inside[(np.hypot(*(inside[:, None] - centres).transpose(2, 0, 1)) > HOLE + 0.4 * SPACING).all(1)]
    turns = np.linspace(0, 2 * np.pi, 12, endpoint=False)
    rims = (centres[:, None] + HOLE * np.stack([np.cos(turns), np.sin(turns)], -1)).reshape(-1, 2)
    points = np.concatenate([inside, rims])
    triangles = Delaunay(points).simplices
    middle = points[triangles].mean(1)
    triangles = triangles[(np.hypot(*(middle[:, None] - centres).transpose(2, 0, 1)) > 0.97 * HOLE).all(1)]
    return points, triangles, centres


def solve(points: np.ndarray, triangles: np.ndarray, fixed: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Linear finite elements of div grad T = T / l^2 with T given at the ``fixed`` points."""
    corners = points[triangles]
    edges = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]  # opposite to each corner
    first, second = (corners[:, i] - corners[:, 0] for i in (1, 2))
    area = 0.5 * np.abs(first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0])
    stiffness = np.einsum("eid,ejd->eij", edges, edges) / (4 * area[:, None, None])
    mass = area[:, None, None] / 12 * (np.ones((3, 3)) + np.eye(3))
    local = stiffness + mass / LENGTH**2
    rows, columns = (np.repeat(triangles[..., None], 3, 2), np.repeat(triangles[:, None], 3, 1))
    matrix = coo_matrix((local.ravel(), (rows.ravel(), columns.ravel())), shape=(len(points),) * 2).tocsr()
    free = ~fixed
    temperature = np.where(fixed, values, 0.0)
    temperature[free] = spsolve(matrix[free][:, free].tocsc(), -(matrix[free][:, fixed] @ values[fixed]))
    return temperature


def write_plates(folder: Path, count: int, size: float, seed: int) -> None:
    """One .vtu per plate, and the dataset.yaml that says which fields are given and which are to be predicted."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for number in range(count):
        points, triangles, centres = mesh(size, rng)
        hot = rng.uniform(0.5, 2.0, len(centres))
        distance = np.hypot(*(points[:, None] - centres).transpose(2, 0, 1)) - HOLE
        nearest = distance.argmin(1)
        to_rim = np.maximum(distance.min(1), 0)
        temperature = solve(points, triangles, to_rim < 1e-9, hot[nearest])
        cells = np.insert(triangles, 0, 3, axis=1).ravel()
        plate = pv.PolyData(np.column_stack([points, np.zeros(len(points))]), cells).cast_to_unstructured_grid()
        plate.point_data.update({"T": temperature, "to_rim": to_rim, "rim_T": hot[nearest]})
        plate.save(folder / f"plate_{number:03d}.vtu")
    roles = {"T": {"role": "output", "unit": "K"}, "to_rim": {"role": "input"}, "rim_T": {"role": "input", "unit": "K"}}
    (folder / "dataset.yaml").write_text(yaml.safe_dump({"problem": "hot-holes", "boundary": "wall", "fields": roles}))


def main(folder: Path, steps: int = 400) -> dict[str, float]:
    """Train on small plates and test on large ones; returns the error by scale."""
    write_plates(folder / "small", 40, size=1.0, seed=0)
    write_plates(folder / "large", 4, size=2.0, seed=1)
    print(ff.open_dataset(folder / "small"))
    quiet = Console(quiet=True)
    print(f"training laape, {steps} steps ...", flush=True)
    settings = {"training.steps": steps, "training.batch_size": 4, "model.width": 48, "model.depth": 3}
    run = ff.train(folder / "small", out=folder / "run", settings=settings, console=quiet)
    ff.evaluate(run.folder, console=quiet)
    rows = ff.evaluate(run.folder, folder / "large", console=quiet)
    errors = {row.scale: row.value for row in rows if row.metric == "l1"}
    for scale, error in errors.items():
        print(f"error of the temperature at s = {scale}: {error:.2%}, {error / errors['1']:.2f} of s = 1")
    return errors


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
