"""VTK files, written in one step; pyvista reads them, and so does ParaView."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from numpy.typing import NDArray
from vtkmodules.vtkIOLegacy import vtkPolyDataWriter, vtkUnstructuredGridWriter
from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter, vtkXMLUnstructuredGridWriter

from farfield.files import atomic_path

_LEGACY = {pv.UnstructuredGrid: vtkUnstructuredGridWriter, pv.PolyData: vtkPolyDataWriter}


def points_mesh(path: Path, positions: NDArray, fields: Mapping[str, NDArray]) -> pv.UnstructuredGrid | pv.PolyData:
    """Points (N, P) with fields (N, C), as what a file of this ending holds."""
    corners = np.zeros((len(positions), 3), dtype=np.float32)
    corners[:, : positions.shape[1]] = positions
    points = pv.PolyData(corners)
    mesh = points if path.suffix == ".vtp" else points.cast_to_unstructured_grid()
    return _with(mesh.point_data, fields, mesh)


def on_mesh(path: Path, given: pv.DataSet, fields: Mapping[str, NDArray]) -> pv.UnstructuredGrid | pv.PolyData:
    """Fields (N, C) at the points or in the cells of a mesh, whichever they are, as a file of this ending holds it."""
    mesh = given.copy()
    count = len(next(iter(fields.values())))
    _with(mesh.point_data if count == mesh.n_points else mesh.cell_data, fields, mesh)
    if path.suffix == ".vtp" and not isinstance(mesh, pv.PolyData):
        raise ValueError(f"{path.name} holds surfaces and points: take .vtu for a mesh of cells")
    if isinstance(mesh, pv.PolyData if path.suffix in (".vtp", ".vtk") else pv.UnstructuredGrid):
        return mesh
    return mesh.cast_to_unstructured_grid()


def _with(data: Any, fields: Mapping[str, NDArray], mesh: Any) -> Any:
    for name, values in fields.items():
        # VTK has three components for a vector in the plane
        vector = np.pad(values, ((0, 0), (0, 1))) if values.shape[1] == 2 else values
        data[name] = vector if vector.shape[1] > 1 else vector[:, 0]
    return mesh


def write_vtk(path: str | Path, dataset: pv.UnstructuredGrid | pv.PolyData) -> None:
    """Write ``.vtu`` (cells), ``.vtp`` (surfaces and points) or ``.vtk`` (either, legacy), binary.

    pyvista's own ``save`` goes by the file's ending, which a file that is not whole yet does not have.
    """
    path = Path(path)
    writer: Any
    expected = {".vtu": pv.UnstructuredGrid, ".vtp": pv.PolyData}.get(path.suffix)
    if path.suffix == ".vtk":
        writer = _LEGACY[type(dataset)]()
        writer.SetFileTypeToBinary()
    elif expected is not None and isinstance(dataset, expected):
        writer = vtkXMLUnstructuredGridWriter() if path.suffix == ".vtu" else vtkXMLPolyDataWriter()
    else:
        raise ValueError(f"expected a name ending in .vtk, .vtu (cells) or .vtp (surfaces), got {path.name}")
    with atomic_path(path) as partial:
        writer.SetFileName(str(partial))
        writer.SetInputData(dataset)
        if not writer.Write():
            raise OSError(f"VTK could not write {path}")
