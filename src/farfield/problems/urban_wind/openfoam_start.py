"""A prediction as the start of somebody's own OpenFOAM case, on whatever mesh: U, p, k, epsilon or omega.

Only ``internalField`` of the files in the case's start time is replaced; boundary conditions, dimensions and all else
stay byte by byte. Cells beyond the air that the network is told about start from the undisturbed wind at their height,
cells inside the buildings (of a mesh that follows them less closely) at rest.

Letters: N cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import pyvista as pv
from numpy.typing import NDArray
from rich.console import Console

from farfield.files import atomic_path
from farfield.problems.urban_wind.city_files import progress
from farfield.problems.urban_wind.formats import Buildings, read_buildings
from farfield.problems.urban_wind.inflow_profiles import (
    AIR_DENSITY,
    REFERENCE_HEIGHT,
    REFERENCE_SPEED,
    inflow_profile,
    speed_ratio,
)
from farfield.problems.urban_wind.prediction import WindPredictor
from farfield.problems.urban_wind.site import Site

Array = NDArray[np.floating]

OMEGA_C_MU = 0.09  # of the k-omega models: omega = epsilon / (C_mu k)
KINEMATIC, PASCAL = "0 2 -2 0 0 0 0", "1 -1 -2 0 0 0 0"  # dimensions of p
_COMMENT = re.compile(rb"//[^\n]*|/\*.*?\*/", re.S)


def write_start(
    predictor: WindPredictor,
    buildings: Buildings | str | Path,
    case: str | Path,
    *,
    roughness: float,
    wind_direction: float | Sequence[float],
    wind_speed: float = REFERENCE_SPEED,
    speed_height: float = REFERENCE_HEIGHT,
    seed: int = 0,
    draws: int = 1,
    console: Console | None = None,
) -> list[Path]:
    """Put the predicted wind into the start time of an OpenFOAM case; returns the files that were changed.

    The case's coordinates are the buildings': metres, x east, y north, z = 0 the ground. All files change, or none.
    """
    case, directions = Path(case), np.atleast_1d(wind_direction).tolist()
    if len(directions) != 1:
        raise ValueError(f"a case starts from one wind: give one --wind-direction with --openfoam, got {directions}")
    ratio = speed_ratio(wind_speed, speed_height, roughness)
    start = start_folder(case)
    templates = {name: start / name for name in ("U", "p", "k", "epsilon", "omega") if (start / name).is_file()}
    if not {"U", "p"} <= templates.keys():
        packed = " (unpack the .gz files there)" if any(start.glob("*.gz")) else ""
        raise ValueError(f"{start} has no files U and p to be filled{packed}: prepare the case for simpleFoam first")
    files = {name: FieldFile.read(path) for name, path in templates.items()}
    centres = cell_centres(case)
    city = buildings if isinstance(buildings, Buildings) else read_buildings(buildings)
    (site,) = predictor.sites(city.mesh, directions, roughness)
    with progress(f"wind in {len(centres):,} cells", draws, console) as advance:
        fields = start_fields(predictor, site, centres, ratio, seed=seed, draws=draws, advance=advance)
    values = {
        "U": fields["velocity"],
        "p": fields["pressure"] / (AIR_DENSITY if files["p"].dimensions == KINEMATIC else 1.0),
        "k": fields["k"],
        "epsilon": fields["epsilon"],
        "omega": fields["epsilon"] / (OMEGA_C_MU * fields["k"]),
    }
    contents = {name: file.filled(values[name]) for name, file in files.items()}
    with ExitStack() as together:  # renamed only when all of them are on disk
        for name, content in contents.items():
            together.enter_context(atomic_path(templates[name])).write_bytes(content)
    return list(templates.values())


def start_fields(
    predictor: WindPredictor, site: Site, points: Array, ratio: float, **options: object
) -> dict[str, NDArray[np.float64]]:
    """What cells with these centres (N, 3) start from; finite everywhere."""
    in_wind = site.to_wind(points)
    in_air = site.in_air(in_wind)
    asked = in_air & site.in_domain(in_wind)
    if not asked.any():
        raise ValueError("none of the cells lies in the air around the buildings: are both in the same coordinates?")
    heights = np.maximum(points[:, 2], 0.01)
    speed, _, k, epsilon = (inflow_profile(site.roughness, heights=heights) * [ratio, 1, ratio**2, ratio**3]).T
    fields = {
        "velocity": (speed * in_air)[:, None] * site.basis[0],
        "pressure": np.zeros(len(points)),
        "k": k,
        "epsilon": epsilon,
    }
    found = predictor.at(site, points[asked], ratio=ratio, fields=list(fields), **options)  # type: ignore[arg-type]
    for name in fields:
        fields[name][asked] = found[name]
    return fields


def start_folder(case: Path) -> Path:
    """Where a case starts from: its ``startTime``, usually 0."""
    control = case / "system" / "controlDict"
    if not control.is_file():
        raise ValueError(f"{case} is not an OpenFOAM case: it has no system/controlDict")
    text = _COMMENT.sub(b" ", control.read_bytes()).decode("latin-1")
    starts = dict(re.findall(r"\b(startFrom|startTime)\s+([^;\s]+)\s*;", text))
    name = starts.get("startTime", "0")
    times = [path for path in case.iterdir() if path.is_dir() and _is_number(path.name)]
    if starts.get("startFrom", "startTime") == "latestTime" and times:
        return max(times, key=lambda path: float(path.name))
    found = [path for path in times if _is_number(name) and float(path.name) == float(name)]
    if not found:
        raise ValueError(f"{case} has no folder of its start time {name}: prepare U, p, k and epsilon there first")
    return found[0]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", text) is not None


def cell_centres(case: Path) -> NDArray[np.float64]:
    """(N, 3) of a case's mesh, in its order of cells."""
    if not any((case / "constant" / "polyMesh").glob("points*")):
        raise ValueError(f"{case} has no mesh (constant/polyMesh): make it first, e.g. by blockMesh or snappyHexMesh")
    marker = case / f".{case.resolve().name}.foam"
    existed = marker.exists()
    marker.touch()
    try:
        reader = pv.OpenFOAMReader(str(marker))
        if hasattr(reader.reader, "SetDecomposePolyhedra"):  # VTK before 9.4; later ones keep every cell whole
            reader.decompose_polyhedra = False
        reader.disable_all_patch_arrays()
        reader.enable_patch_array("internalMesh")
        reader.disable_all_cell_arrays()
        reader.disable_all_point_arrays()
        mesh = cast(pv.UnstructuredGrid, reader.read()["internalMesh"])
    finally:
        if not existed:
            marker.unlink()
    if mesh.n_cells == 0:
        raise ValueError(f"{case}: its mesh in constant/polyMesh has no cells or cannot be read")
    return np.asarray(mesh.cell_centers().points, dtype=np.float64)


class FieldFile:
    """A field file of OpenFOAM, in text or binary, whose ``internalField`` can be replaced."""

    def __init__(self, path: Path, content: bytes, entry: tuple[int, int], binary: bool, dimensions: str):
        self.path, self.content, self.entry = path, content, entry
        self.binary, self.dimensions = binary, dimensions

    @classmethod
    def read(cls, path: Path) -> FieldFile:
        """Find the entry; comments are passed over."""
        content = path.read_bytes()
        # Comments become blanks of the same length, but not within binary numbers, which come after the entry's name.
        head = content[: content.find(b"boundaryField")] if b"boundaryField" in content else content
        match = re.search(rb"(?m)^[ \t]*internalField\b\s*", _blanked(head[: 1 << 20]))
        binary = re.search(rb"\bformat\s+binary\s*;", _blanked(content[:4096])) is not None
        dimensions = re.search(rb"\bdimensions\s*\[([^\]]*)\]", _blanked(content[:8192]))
        if match is None or dimensions is None:
            raise ValueError(f"{path} is not a field of OpenFOAM: it has no internalField or no dimensions")
        described = " ".join(dimensions[1].decode("latin-1").split())
        if path.name == "p" and described not in (KINEMATIC, PASCAL):
            raise ValueError(f"{path}: expected a pressure in m2/s2 [{KINEMATIC}] or Pa [{PASCAL}], got [{described}]")
        end = _entry_end(path, content, match.end(), binary)
        return cls(path, content, (match.start(), end), binary, described)

    def filled(self, values: Array) -> bytes:
        """The file with these values (N,) or (N, 3)."""
        kind = b"vector" if values.ndim == 2 else b"scalar"
        head = b"internalField   nonuniform List<" + kind + b">\n" + str(len(values)).encode() + b"\n("
        if self.binary:
            body = np.ascontiguousarray(values, dtype="<f8").tobytes()
        elif values.ndim == 2:
            body = b"\n" + "\n".join(f"({x:.6g} {y:.6g} {z:.6g})" for x, y, z in values.tolist()).encode() + b"\n"
        else:
            body = b"\n" + "\n".join(f"{value:.6g}" for value in values.tolist()).encode() + b"\n"
        return self.content[: self.entry[0]] + head + body + b")\n;" + self.content[self.entry[1] :]


def _blanked(content: bytes) -> bytes:
    return _COMMENT.sub(lambda match: b" " * len(match[0]), content)


def _entry_end(path: Path, content: bytes, start: int, binary: bool) -> int:
    """Where the entry that begins at ``start`` ends, after its semicolon."""
    numbers = re.compile(rb"nonuniform\s+List<(scalar|vector)>\s*(\d+)\s*\(").match(content, start)
    if binary and numbers is not None:
        width = {b"scalar": 1, b"vector": 3}[numbers[1]] * 8
        start = numbers.end() + int(numbers[2]) * width
    end = content.find(b";", start)
    if end < 0:
        raise ValueError(f"{path}: its internalField has no end")
    return end + 1
