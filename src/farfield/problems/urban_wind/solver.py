"""Neutral wind around buildings, solved by OpenFOAM: cases are written, run, checked and read back.

    solution = solve_boxes([Box(-10, 10, -10, 10, 20)], UrbanDomain.square(1), roughness=0.3)
    solution.volume["velocity"]        # (cells, 3) in m/s

Steady incompressible RANS with the k-epsilon model (see :mod:`farfield.problems.urban_wind.openfoam_case`). Stratified
air is deliberately not solved: its inflow would interact with buildings this close to it. In neutral air the
potential temperature is the same everywhere, and is written as such.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyvista as pv
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import Box, UrbanDomain
from farfield.problems.urban_wind.inflow_profiles import AIR_DENSITY, REFERENCE_SPEED, REFERENCE_TEMPERATURE
from farfield.problems.urban_wind.mesh import PATCHES, CartesianMesh
from farfield.problems.urban_wind.openfoam_case import SolverSettings, write_case

DEBIAN_PROJECT_DIR = "/usr/share/openfoam"
# The fields that a solution starts from, by a city's mesh, box of air and roughness: see :func:`write_case`.
Start = Callable[[CartesianMesh, UrbanDomain, float], Mapping[str, NDArray[np.floating]]]
NODE_TYPES = ("interior", *PATCHES)  # a cell carries the type of every patch that it touches


@dataclass(frozen=True)
class Convergence:
    """What is kept of every run, good or bad."""

    converged: bool
    reason: str  # why not, else empty
    cells: int
    iterations: int
    seconds: float  # wall time of both solvers
    cpu_seconds: float  # of simpleFoam, as it counts them itself: what it costs on a free core
    continuity_error: float  # OpenFOAM's summed local error of the last iteration
    residuals: dict[str, list[float]]  # initial residual of each equation at every iteration

    @property
    def last_residuals(self) -> dict[str, float]:
        return {name: history[-1] for name, history in self.residuals.items() if history}


class NotConvergedError(RuntimeError):
    """A run that stalled or diverged; ``convergence`` holds its record."""

    def __init__(self, convergence: Convergence):
        super().__init__(convergence.reason)
        self.convergence = convergence


@dataclass(frozen=True)
class WindSolution:
    """Steady wind: the volume with its cell data, the surfaces that bound it, and how it converged.

    Cell data of ``volume``: velocity (m/s), pressure (Pa), pottemp (K), k (m²/s²), epsilon (m²/s³) and
    node_type (one column per :data:`NODE_TYPES`). ``boundary`` has one surface per patch.
    """

    volume: pv.UnstructuredGrid
    boundary: dict[str, pv.PolyData]
    boxes: tuple[Box, ...]  # as meshed; empty for an STL
    convergence: Convergence


def require_openfoam() -> dict[str, str]:
    """The environment to run OpenFOAM in; an error that says what to install when it is missing."""
    if shutil.which("simpleFoam") is None:
        raise RuntimeError(
            "OpenFOAM's solver simpleFoam is not on the PATH. On Debian and Ubuntu: apt install openfoam"
        )
    return {"WM_PROJECT_DIR": DEBIAN_PROJECT_DIR, **os.environ, "OMP_NUM_THREADS": "1"}


def solve_boxes(
    boxes: list[Box],
    domain: UrbanDomain,
    roughness: float,
    cell: float = 4.0,
    ground_cell: float = 2.0,
    settings: SolverSettings | None = None,
    folder: Path | None = None,
    start: Start | None = None,
) -> WindSolution:
    """Solve the wind around boxes on a graded Cartesian mesh.

    ``cell`` and ``ground_cell`` are the cell size between the buildings and the height of the first cell, in
    metres. The wind blows as ``domain`` says. ``folder`` keeps the OpenFOAM case (it must be empty or new). Without a
    ``start``, potential flow is what the solver begins with. Raises :class:`NotConvergedError`.
    """
    settings = settings or SolverSettings()
    environment = require_openfoam()
    with _case_folder(folder) as case:
        mesh = CartesianMesh.around(domain, boxes, cell, ground_cell)
        mesh.write(case)
        write_case(
            case,
            roughness,
            float(mesh.z[1]),
            domain.height,
            settings,
            cell_heights=mesh.cell_centres()[:, 2],
            wind=mesh.wind,
            face_heights={name: mesh.patch_heights(name) for name in ("inlet", "outlet")} if domain.wind_angle else {},
            start=start(mesh, domain, roughness) if start else None,
        )
        return _solve(case, environment, settings, mesh.boxes, potential=start is None)


@contextmanager
def _case_folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="farfield-wind-") as temporary:
            yield Path(temporary)
        return
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty; an OpenFOAM case needs a folder of its own")
    yield folder


def _run(case: Path, tool: str, environment: dict[str, str], *arguments: str) -> int:
    """Run one OpenFOAM tool, its output in ``log.<tool>``; only a solver that diverges may return a code."""
    log = case / f"log.{tool}"
    with log.open("w") as output:
        code = subprocess.run(
            [*_with_us(), tool, *arguments],
            cwd=case,
            env={**environment, "PWD": str(case)},  # without it, every tool warns about its folder
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    diverged = tool == "simpleFoam" and -code == signal.SIGFPE
    if code and not diverged:  # a wrong installation, or killed
        raise RuntimeError(f"{tool} failed with code {code}; the end of its log:\n{log.read_text()[-2000:]}")
    return code


def _with_us() -> list[str]:
    """What to put before a command so that it ends with this process, even if that is killed (on Linux)."""
    return ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []


def _solve(
    case: Path, environment: dict[str, str], settings: SolverSettings, boxes: tuple[Box, ...], potential: bool = True
) -> WindSolution:
    began = time.monotonic()
    if potential:
        _run(case, "potentialFoam", environment)
    code = _run(case, "simpleFoam", environment)
    record = _convergence(case, settings, code, time.monotonic() - began)
    if not record.converged:
        raise NotConvergedError(record)
    volume, boundary = _read_fields(case)
    fastest = float(np.linalg.norm(volume["velocity"], axis=1).max())
    finite = all(np.isfinite(volume[name]).all() for name in volume.cell_data)
    if not finite or not REFERENCE_SPEED / 10 < fastest < 10 * REFERENCE_SPEED:
        reason = f"diverged: largest speed {fastest:g} m/s for an inflow of {REFERENCE_SPEED} m/s"
        raise NotConvergedError(replace(record, converged=False, reason=reason))
    return WindSolution(volume, boundary, boxes, record)


def _convergence(case: Path, settings: SolverSettings, code: int, seconds: float) -> Convergence:
    """Read the residual history from the solver's log and judge it."""
    log = (case / "log.simpleFoam").read_text()
    iterations = re.findall(r"^Time = (\d+)$", log, re.M)
    residuals: dict[str, list[float]] = {}
    for step in re.split(r"^Time = \d+$", log, flags=re.M)[1:]:
        first: dict[str, float] = {}
        for name, value in re.findall(r"Solving for (\w+), Initial residual = ([^,]+),", step):
            first.setdefault(name, float(value))
        for name, residual in first.items():
            residuals.setdefault(name, []).append(residual)
    continuity = re.findall(r"continuity errors : sum local = ([^,]+),", log)
    execution = re.findall(r"ExecutionTime = ([\d.]+) s", log)
    last = {name: history[-1] for name, history in residuals.items()}
    summary = ", ".join(f"{name} {value:.1e}" for name, value in last.items())
    finite = bool(residuals) and all(np.isfinite(history).all() for history in residuals.values())
    if code or not finite:
        reason = f"diverged: floating-point error after {len(iterations)} iterations ({summary})"
    elif "SIMPLE solution converged" not in log:
        reason = f"stalled: above {settings.tolerance:g} after {len(iterations)} iterations ({summary})"
    else:
        reason = ""
    return Convergence(
        converged=not reason,
        reason=reason,
        cells=int(_mesh_note(case, "nCells")),
        iterations=len(iterations),
        seconds=round(seconds, 2),
        cpu_seconds=float(execution[-1]) if execution else 0.0,
        continuity_error=float(continuity[-1]) if continuity else float("nan"),
        residuals=residuals,
    )


def _mesh_note(case: Path, entry: str) -> str:
    header = (case / "constant/polyMesh/owner").read_bytes()[:2000].decode("latin-1")
    found = re.search(rf"{entry}:\s*(\d+)", header)
    if found is None:
        raise RuntimeError(f"{case}/constant/polyMesh/owner does not say {entry}")
    return found[1]


def _read_fields(case: Path) -> tuple[pv.UnstructuredGrid, dict[str, pv.PolyData]]:
    """The last written fields, with the names and units of the dataset."""
    marker = case / "case.foam"
    marker.touch()
    reader = pv.OpenFOAMReader(str(marker))
    reader.cell_to_point_creation = False
    reader.enable_all_patch_arrays()
    reader.set_active_time_value(reader.time_values[-1])
    blocks = reader.read()
    source = cast(pv.UnstructuredGrid, blocks["internalMesh"])
    volume = pv.UnstructuredGrid()
    volume.copy_structure(source)
    cell_data: dict[str, Any] = {
        "velocity": source["U"],
        "pressure": AIR_DENSITY * np.asarray(source["p"]),
        "pottemp": np.full(source.n_cells, REFERENCE_TEMPERATURE),
        "k": source["k"],
        "epsilon": source["epsilon"],
    }
    for name, values in cell_data.items():
        volume.cell_data[name] = np.asarray(values, dtype=np.float32)
    volume.cell_data["node_type"] = _node_types(case, source.n_cells)
    patches = cast(pv.MultiBlock, blocks["boundary"])
    boundary = {name: cast(pv.PolyData, patches[name]) for name in patches.keys()}  # noqa: SIM118
    return volume, boundary


def _node_types(case: Path, cells: int) -> NDArray[np.uint8]:
    """(cells, types): 1 for every patch that a cell touches, the first column for cells that touch none."""
    folder = case / "constant" / "polyMesh"
    data = (folder / "owner").read_bytes()
    start = re.search(rb"\n(\d+)\s*\(", data)
    if start is None:
        raise RuntimeError(f"cannot read the binary list in {folder / 'owner'}")
    owner = np.frombuffer(data, dtype="<i4", count=int(start[1]), offset=start.end())
    types = np.zeros((cells, len(NODE_TYPES)), dtype=np.uint8)
    for name, entry in re.findall(r"(\w+)\s*\{([^}]*)\}", (folder / "boundary").read_text()):
        if name in PATCHES:
            size, first = (int(re.findall(rf"{key}\s+(\d+);", entry)[0]) for key in ("nFaces", "startFace"))
            types[owner[first : first + size], NODE_TYPES.index(name)] = 1
    types[:, 0] = types.sum(1) == 0
    return types
