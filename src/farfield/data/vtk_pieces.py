"""VTK files in pieces: one file per part of a domain, and one that lists them (.pvtu for points and meshes, .pvti for
grids)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyvista as pv
from numpy.typing import NDArray

from farfield.data.vtk import write_vtk

Extent = tuple[int, ...]
Declared = dict[str, dict[str, tuple[str, int]]]
"""Names, types and components of the arrays of a piece: at its Points, of its PointData and of its CellData."""


def mesh_piece(path: Path, mesh: pv.UnstructuredGrid) -> Declared:
    """A part of a mesh as a .vtu; returns what the file that lists the pieces has to say of their arrays."""
    write_vtk(path, mesh)
    return {
        "Points": _declared({"Points": mesh.points}),
        "PointData": _declared(dict(mesh.point_data.items())),
        "CellData": _declared(dict(mesh.cell_data.items())),
    }


def _declared(arrays: Mapping[str, NDArray]) -> dict[str, tuple[str, int]]:
    kinds = {"f": "Float", "i": "Int", "u": "UInt"}
    return {
        name: (f"{kinds[values.dtype.kind]}{8 * values.dtype.itemsize}", 1 if values.ndim == 1 else values.shape[1])
        for name, values in arrays.items()
        if values.dtype.kind in kinds
    }


def image_piece(
    path: Path, block: Sequence[slice], spacing: Sequence[float], origin: Sequence[float], fields: Mapping[str, NDArray]
) -> Extent:
    """A block of a grid's cells with fields (N, C), the last axis running fastest, as a .vti; returns its extent."""
    extent = _extent([(cut.start, cut.stop) for cut in block])
    image = pv.ImageData(spacing=_padded(spacing, 1.0), origin=_padded(origin, 0.0))
    image.extent = extent
    shape = tuple(cut.stop - cut.start for cut in block)
    for name, values in fields.items():
        by_axis = values.reshape(*shape, -1).transpose(*reversed(range(len(shape))), len(shape))  # VTK: x fastest
        flat = by_axis.reshape(len(values), -1)
        image.cell_data[name] = flat if flat.shape[1] > 1 else flat[:, 0]
    image.save(path)
    return extent


def index_text(
    out: Path,
    pieces: Sequence[tuple[str, Extent | None]],
    declared: Declared,
    cells: Sequence[int] | None = None,
    spacing: Sequence[float] = (),
    origin: Sequence[float] = (),
) -> str:
    """The text of a .pvtu or .pvti whose pieces lie in a folder of its own name."""
    data = []
    for part, arrays in declared.items():
        data += [f"<P{part}>"]
        data += [
            f"<PDataArray type={quoteattr(kind)} Name={quoteattr(name)} NumberOfComponents={quoteattr(str(count))}/>"
            for name, (kind, count) in arrays.items()
        ]
        data += [f"</P{part}>"]
    sources = []
    for name, extent in pieces:
        where = f" Extent={quoteattr(_numbers(extent))}" if extent is not None else ""
        sources.append(f"<Piece{where} Source={quoteattr(f'{out.stem}/{name}')}/>")
    if out.suffix == ".pvtu":
        kind, where = "PUnstructuredGrid", ""
    else:
        assert cells is not None
        kind = "PImageData"
        whole = _extent([(0, n) for n in cells])
        where = f" WholeExtent={quoteattr(_numbers(whole))} Origin={quoteattr(_numbers(_padded(origin, 0.0)))}"
        where += f" Spacing={quoteattr(_numbers(_padded(spacing, 1.0)))}"
    body = "\n".join([f'<{kind} GhostLevel="0"{where}>', *data, *sources, f"</{kind}>"])
    head = f'<?xml version="1.0"?>\n<VTKFile type="{kind}" version="0.1" byte_order="LittleEndian">'
    return f"{head}\n{body}\n</VTKFile>\n"


def _extent(ranges: Sequence[tuple[int, int]]) -> Extent:
    """Of a grid with fewer than three axes the others have one layer of cells."""
    return tuple(end for pair in [*ranges, *[(0, 1)] * (3 - len(ranges))] for end in pair)


def _padded(values: Sequence[float], other: float) -> tuple[float, float, float]:
    x, y, z = [*map(float, values), *[other] * (3 - len(values))]
    return x, y, z


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value!r}" for value in values)
