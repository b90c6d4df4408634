"""A tiny dataset in the layout of the RandomBuildingsDataset, written with VTK's own classes, not by our writer;
and an AB-SWIFT that is tiny, too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from vtkmodules.util.numpy_support import numpy_to_vtk
from vtkmodules.vtkCommonCore import vtkPoints
from vtkmodules.vtkCommonDataModel import VTK_HEXAHEDRON, vtkCellArray, vtkPolyData, vtkUnstructuredGrid
from vtkmodules.vtkIOLegacy import vtkPolyDataWriter, vtkUnstructuredGridWriter

TINY_AB_SWIFT = {
    "model.width": 24,
    "model.processor_depth": 2,
    "model.decoder_depth": 1,
    "points.obstacles": 32,
    "points.terrain": 24,
    "points.obstacle_supernodes": 8,
    "points.terrain_supernodes": 6,
    "points.anchors": 24,
    "points.queries": 16,
    "training.learning_rate": 3e-3,
    "training.steps": 12,
    "training.validate_every": 5,
    "training.checkpoint_every": 4,
}


def corner_points(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    unit = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]])
    return low + unit * (high - low)


def write_volume(path: Path, scale: float, seed: int, leave_out: str = "") -> dict[str, np.ndarray]:
    """A box of 8 x 4 x 3 hexahedra around the square, a wind that follows from the position, other fields random."""
    rng = np.random.default_rng(seed)
    points, grid = vtkPoints(), vtkUnstructuredGrid()
    grid.Allocate(96)
    low, high = (
        np.array([-145.0, -110, 0]) * [scale, scale, 1],
        np.array([305.0, 110, 55]) * [scale, scale, 1],
    )
    size = (high - low) / [8, 4, 3]
    centres = []
    for cell in np.ndindex(8, 4, 3):
        corners = corner_points(low + cell * size, low + (np.array(cell) + 1) * size)
        ids = [points.InsertNextPoint(corner) for corner in corners]
        grid.InsertNextCell(VTK_HEXAHEDRON, 8, ids)
        centres.append(corners.mean(0))
    grid.SetPoints(points)
    fields = {
        "velocity": rng.normal(3, 0.1, (96, 3)) + np.array(centres) / scale @ np.diag([0.01, 0.02, 0.05]),
        "pressure": rng.normal(0, 5, 96),
        "pottemp": rng.normal(293, 2, 96),
        "k": rng.lognormal(0, 1, 96),
        "epsilon": rng.lognormal(-3, 1, 96),
        "node_type": rng.integers(0, 2, (96, 2)).astype(np.uint8),
    }
    for name, values in fields.items():
        if name != leave_out:
            array = numpy_to_vtk(values, deep=True)
            array.SetName(name)
            grid.GetCellData().AddArray(array)
    writer = vtkUnstructuredGridWriter()
    writer.SetFileName(str(path))
    writer.SetFileTypeToBinary()
    writer.SetInputData(grid)
    writer.Write()
    return {"centres": np.array(centres), **fields}


def write_quads(path: Path, quads: list[np.ndarray]) -> None:
    points, cells = vtkPoints(), vtkCellArray()
    for quad in quads:
        cells.InsertNextCell(4)
        for corner in quad:
            cells.InsertCellPoint(points.InsertNextPoint(corner))
    surface = vtkPolyData()
    surface.SetPoints(points)
    surface.SetPolys(cells)
    writer = vtkPolyDataWriter()
    writer.SetFileName(str(path))
    writer.SetFileTypeToBinary()
    writer.SetInputData(surface)
    writer.Write()


def write_dataset(folder: Path, index: dict[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """The index and its cases, with one building each; returns their fields by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "random_buildings_dataset.json").write_text(json.dumps(index))
    large = [f"{split}_{i}" for split in ("ls", "vls") for i in range(len(index["ls_z0s"]))]
    written = {}
    for seed, name in enumerate([*map(str, range(index["total_size"])), *large]):
        scale = {"l": 2.0, "v": 5.0}.get(name[0], 1.0)
        written[name] = write_volume(folder / f"volume_{name}.vtk", scale, seed)
        box = corner_points(np.array([-10.0, -10, 0]), np.array([10.0, 10, 20]))
        sides = [(4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)]
        write_quads(folder / f"buildings_{name}.vtk", [box[list(side)] for side in sides])
        ground = corner_points(np.array([-145.0 * scale, -110 * scale, 0]), np.array([305 * scale, 110 * scale, 1]))
        write_quads(folder / f"ground_{name}.vtk", [ground[:4]])
    return written
