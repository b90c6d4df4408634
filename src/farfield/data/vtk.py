"""VTK files, written in one step; pyvista reads them, and so does ParaView."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyvista as pv
from vtkmodules.vtkIOLegacy import vtkPolyDataWriter, vtkUnstructuredGridWriter
from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter, vtkXMLUnstructuredGridWriter

from farfield.files import atomic_path

_LEGACY = {pv.UnstructuredGrid: vtkUnstructuredGridWriter, pv.PolyData: vtkPolyDataWriter}


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
