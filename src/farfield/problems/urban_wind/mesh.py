"""Graded Cartesian meshes around box-shaped buildings, written straight to OpenFOAM's ``polyMesh``.

Walls stand on mesh lines and the cells inside buildings are left out, so the boxes are exact: no stair steps,
no skewed cells. Arrays over cells are indexed [z, y, x]; OpenFOAM's cells are the fluid ones in that order.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import Box, UrbanDomain, leaves_through

Array = NDArray[np.floating]
Labels = NDArray[np.int32]

GROWTH_OUTWARD, GROWTH_UPWARD = 1.15, 1.06  # largest ratio of neighbouring cells
LARGEST_CELL = 16.0  # m
CORE_UPWIND, CORE_DOWNWIND = 10.0, 30.0  # m of fine cells around the built rectangle; aside as upwind
PATCHES = ("inlet", "outlet", "sides", "top", "ground", "buildings")
WALLS = ("ground", "buildings")
_SOLID, _OUTSIDE = -1, -2  # marks in place of a cell's label


def growing_cells(length: float, first: float, growth: float, largest: float) -> Array:
    """Cell sizes that grow from ``first`` and fill ``length`` exactly."""
    sizes: list[float] = []
    while sum(sizes) < length:
        sizes.append(min(first * growth ** len(sizes), largest))
    if len(sizes) > 1 and sum(sizes) - length > sizes[-1] / 2:
        sizes.pop()
    return np.array(sizes) * (length / sum(sizes))


def _graded_lines(bounds: Array, core: tuple[float, float], origin: float, cell: float) -> Array:
    """Mesh lines: multiples of ``cell`` from ``origin`` across the core, growing cells to the bounds."""
    low = origin - np.ceil((origin - core[0]) / cell - 1e-9) * cell
    count = int(np.ceil((core[1] - low) / cell - 1e-9))
    core_lines = low + cell * np.arange(count + 1)
    before = growing_cells(low - bounds[0], cell * GROWTH_OUTWARD, GROWTH_OUTWARD, LARGEST_CELL)
    after = growing_cells(bounds[1] - core_lines[-1], cell * GROWTH_OUTWARD, GROWTH_OUTWARD, LARGEST_CELL)
    return np.concatenate(
        [low - np.cumsum(before)[::-1], core_lines, core_lines[-1] + np.cumsum(after)],
    )


@dataclass(frozen=True)
class CartesianMesh:
    """Mesh lines along each axis (m), and which cells (nz, ny, nx) are inside a building."""

    x: Array
    y: Array
    z: Array
    solid: NDArray[np.bool_]
    boxes: tuple[Box, ...]  # as meshed: every wall on a line
    wind: tuple[float, float] = (1.0, 0.0)  # where it blows to: says which sides are inlet and outlet

    @classmethod
    def around(cls, domain: UrbanDomain, boxes: list[Box], cell: float, ground_cell: float) -> CartesianMesh:
        """Mesh of this cell size between the buildings; walls and roofs move to the nearest line."""
        bounds = domain.bounds
        (west, east), (south, north) = domain.margins(CORE_UPWIND, CORE_UPWIND, CORE_DOWNWIND)
        x = _graded_lines(bounds[0], (domain.x_min - west, domain.x_max + east), domain.x_min, cell)
        y = _graded_lines(bounds[1], (domain.y_min - south, domain.y_max + north), domain.y_min, cell)
        heights = growing_cells(domain.height, ground_cell, GROWTH_UPWARD, 1.3 * cell)
        z = np.concatenate([[0.0], np.cumsum(heights)])

        def nearest(lines: Array, value: float) -> int:
            return int(np.argmin(np.abs(lines - value)))

        solid = np.zeros((len(z) - 1, len(y) - 1, len(x) - 1), dtype=bool)
        meshed = []
        for box in boxes:
            i0, i1 = nearest(x, box.x_min), nearest(x, box.x_max)
            j0, j1 = nearest(y, box.y_min), nearest(y, box.y_max)
            k1 = nearest(z, box.height)
            if i0 == i1 or j0 == j1 or k1 == 0:
                raise ValueError(f"a building of {box} is thinner than half a cell; use cells below {cell} m")
            solid[:k1, j0:j1, i0:i1] = True
            meshed.append(Box(*map(float, (x[i0], x[i1], y[j0], y[j1], z[k1]))))
        along_x, along_y = domain.wind.tolist()
        return cls(x, y, z, solid, tuple(meshed), (along_x, along_y))

    @property
    def cell_count(self) -> int:
        return int((~self.solid).sum())

    def cell_centres(self) -> Array:
        """Centres (cells, 3) of the cells with air, in OpenFOAM's order."""
        z, y, x = np.meshgrid(*((lines[1:] + lines[:-1]) / 2 for lines in (self.z, self.y, self.x)), indexing="ij")
        fluid = ~self.solid
        return np.stack([x[fluid], y[fluid], z[fluid]], axis=1)

    def patch_heights(self, patch: str) -> Array:
        """Height of the middle of every face of a patch, in OpenFOAM's order."""
        faces, _, neighbour, sizes = self._faces()
        before = list(sizes)[: list(sizes).index(patch)]
        first = len(neighbour) + sum(sizes[name] for name in before)
        corners = faces[first : first + sizes[patch]]
        return self.z[corners // (len(self.x) * len(self.y))].mean(axis=1)

    def write(self, case: Path) -> None:
        """Write ``constant/polyMesh`` of an OpenFOAM case."""
        faces, owner, neighbour, patch_sizes = self._faces()
        used, faces_compact = np.unique(faces, return_inverse=True)
        z, y, x = np.meshgrid(self.z, self.y, self.x, indexing="ij")
        points = np.stack([x.ravel(), y.ravel(), z.ravel()], axis=1)[used]
        note = f"nPoints:{len(points)} nCells:{self.cell_count} nFaces:{len(faces)} nInternalFaces:{len(neighbour)}"

        folder = case / "constant" / "polyMesh"
        folder.mkdir(parents=True, exist_ok=True)
        corners = np.arange(len(faces) + 1) * 4
        lists: dict[str, tuple[str, list[NDArray]]] = {
            "points": ("vectorField", [points.astype("<f8")]),
            "faces": ("faceCompactList", [corners.astype("<i4"), faces_compact.astype("<i4").ravel()]),
            "owner": ("labelList", [owner.astype("<i4")]),
            "neighbour": ("labelList", [neighbour.astype("<i4")]),
        }
        for name, (kind, arrays) in lists.items():
            body = b"\n".join(b"%d\n(%b)" % (len(array), array.tobytes()) for array in arrays)
            header = foam_header(kind, name, binary=True, note=note)
            (folder / name).write_bytes(header.encode() + body + b"\n")
        start, entries = len(neighbour), []
        for name, size in patch_sizes.items():
            kind = "wall" if name in WALLS else "patch"
            entries.append(f"    {name} {{ type {kind}; nFaces {size}; startFace {start}; }}")
            start += size
        entries = [entry for entry, size in zip(entries, patch_sizes.values(), strict=True) if size]
        text = foam_header("polyBoundaryMesh", "boundary") + f"{len(entries)}\n(\n" + "\n".join(entries) + "\n)\n"
        (folder / "boundary").write_text(text)

    @staticmethod
    def _side_names(along: float, aside: float) -> tuple[str, str]:
        """The patches at the low and the high end of an axis, with so much of the wind along it and so much aside.

        At an inlet the undisturbed wind is prescribed, also where a grazing one passes outward.
        """
        if along == 0:
            return "sides", "sides"
        low, high = ("outlet" if leaves_through(sign * along, aside) else "inlet" for sign in (-1, 1))
        return low, high

    def _faces(self) -> tuple[Labels, Labels, Labels, dict[str, int]]:
        """Corner labels (F, 4), owner and neighbour cells, and the number of faces of each patch.

        OpenFOAM wants inner faces first, sorted by owner then neighbour, with the normal from the owner (the
        lower label) to the neighbour; then the patches one after the other, normals outward.
        """
        _, ny, nx = self.solid.shape
        cells = np.full(self.solid.shape, _SOLID, dtype=np.int32)
        cells[~self.solid] = np.arange(self.cell_count)
        stride = {0: (ny + 1) * (nx + 1), 1: nx + 1, 2: 1}  # of a point's label along z, y, x
        sides = {0: ("ground", "top"), 1: self._side_names(*self.wind[::-1]), 2: self._side_names(*self.wind)}

        inner: list[tuple[Labels, Labels, Labels]] = []
        patches: dict[str, list[tuple[Labels, Labels]]] = {name: [] for name in PATCHES}
        for axis in (0, 1, 2):
            width = [(1, 1) if a == axis else (0, 0) for a in range(3)]
            padded = np.pad(cells, width, constant_values=_OUTSIDE)
            before = np.take(padded, range(cells.shape[axis] + 1), axis)  # the cell on each side of a plane
            after = np.take(padded, range(1, cells.shape[axis] + 2), axis)
            k, j, i = np.indices(before.shape, dtype=np.int32)
            first = k * stride[0] + j * stride[1] + i * stride[2]
            # The other two axes in cyclic order x -> y -> z, so that the corners turn about +axis.
            u, v = stride[(axis + 2) % 3], stride[(axis + 1) % 3]
            corners = np.stack([first, first + u, first + u + v, first + v], axis=-1)

            between = (before >= 0) & (after >= 0)
            inner.append((corners[between], before[between], after[between]))
            for low_side, high_side, name_low, name_high in (
                (_OUTSIDE, _OUTSIDE, *sides[axis]),
                (_SOLID, _SOLID, "buildings", "buildings"),
            ):
                at_low = (before == low_side) & (after >= 0)
                at_high = (before >= 0) & (after == high_side)
                patches[name_low].append((corners[at_low][:, ::-1], after[at_low]))
                patches[name_high].append((corners[at_high], before[at_high]))

        faces, owner, neighbour = (np.concatenate(parts) for parts in zip(*inner, strict=True))
        order = np.lexsort((neighbour, owner))
        all_faces, all_owners, sizes = [faces[order]], [owner[order]], {}
        for name, parts in patches.items():
            all_faces += [part[0] for part in parts]
            all_owners += [part[1] for part in parts]
            sizes[name] = sum(len(part[0]) for part in parts)
        return np.concatenate(all_faces), np.concatenate(all_owners), neighbour[order], sizes


def foam_header(kind: str, name: str, *, binary: bool = False, note: str = "") -> str:
    """The header that every OpenFOAM file begins with (labels of 32 and scalars of 64 bits when binary)."""
    form = 'binary;\n    arch "LSB;label=32;scalar=64"' if binary else "ascii"
    note = f'    note "{note}";\n' if note else ""
    entries = f"    version 2.0;\n    format {form};\n    class {kind};\n{note}    object {name};\n"
    return f"FoamFile\n{{\n{entries}}}\n"
