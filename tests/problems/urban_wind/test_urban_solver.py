"""The CFD behind the urban-wind data obeys its physics. Meshes are coarse so that the file takes a minute."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv

from farfield.problems.urban_wind.buildings import Box, UrbanDomain
from farfield.problems.urban_wind.inflow_profiles import friction_velocity, inflow_profile
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.openfoam_case import SolverSettings
from farfield.problems.urban_wind.solver import (
    NODE_TYPES,
    NotConvergedError,
    WindSolution,
    require_openfoam,
    solve_boxes,
)

needs_openfoam = pytest.mark.skipif(
    shutil.which("simpleFoam") is None, reason="OpenFOAM is not installed (Debian package openfoam)"
)
CUBE = Box(-10, 10, -10, 10, 20)


@pytest.fixture(scope="module")
def wind_behind_cube() -> WindSolution:
    return solve_boxes([CUBE], UrbanDomain.square(0.5), roughness=0.3, cell=5.0)


def flow_rate(patch: pv.PolyData) -> float:
    """Volume through a patch whose normal is along x, m³/s."""
    return float((patch.compute_cell_sizes()["Area"] * patch["U"][:, 0]).sum())


@needs_openfoam
@pytest.mark.parametrize("roughness", [0.05, 0.3, 1.0])
def test_inflow_profile_is_kept_over_open_ground(roughness: float) -> None:
    solution = solve_boxes([], UrbanDomain.square(1), roughness, cell=8.0, ground_cell=2.0)
    centres = solution.volume.cell_centers().points
    last = centres[:, 0] > centres[:, 0].max() - 1  # the column of cells at the outlet, 450 m downwind
    heights = centres[last, 2].astype(float)
    expected = inflow_profile(roughness, heights=heights)
    speed = solution.volume["velocity"][last, 0] / expected[:, 0]
    k = solution.volume["k"][last] / expected[:, 2]
    epsilon = solution.volume["epsilon"][last] / expected[:, 3]
    assert np.abs(speed - 1).max() < 0.05
    assert np.abs(k - 1).max() < 0.05
    # epsilon ~ 1/z is too steep for the second and third cell, whatever their size; higher up it is kept too.
    assert np.abs(epsilon[heights > 15] - 1).max() < 0.05
    assert np.abs(epsilon - 1).max() < 0.25
    # No pressure gradient drives the flow: the stress at the top balances that at the ground.
    assert np.abs(solution.volume["pressure"]).max() < 0.5 * friction_velocity(roughness) ** 2


@needs_openfoam
@pytest.mark.parametrize("angle", [30.0, -10.0, 200.0])
def test_oblique_inflow_is_kept_over_open_ground(angle: float) -> None:
    solution = solve_boxes([], UrbanDomain.square(0.5, angle), 0.3, cell=12.5, ground_cell=2.0)
    heights = solution.volume.cell_centers().points[:, 2].astype(float)
    wind = np.array([np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle)), 0.0])
    expected = inflow_profile(0.3, heights=heights)[:, :1] * wind
    assert np.abs(solution.volume["velocity"] - expected).max() < 0.05 * 6
    assert set(solution.boundary) == {"inlet", "outlet", "top", "ground"}, "no side is a slip plane"


@needs_openfoam
def test_a_wind_that_is_hardly_turned_is_hardly_another_and_leaves_through_no_inlet() -> None:
    """A wall of buildings across the air: it must pass over and beside them, not escape through the sides."""
    wall = [Box(-12.5, 12.5, -50, 50, 25.0)]
    solutions = [solve_boxes(wall, UrbanDomain.square(1, angle), 0.3, cell=12.5) for angle in (0.0, 0.1)]
    straight, turned = (solution.volume["velocity"] for solution in solutions)
    assert np.abs(turned - straight).sum() < 0.03 * np.abs(straight).sum()
    inlet = solutions[1].boundary["inlet"]
    speed = inflow_profile(0.3, heights=inlet.cell_centers().points[:, 2].astype(float))[:, 0]
    angle = np.deg2rad(0.1)
    assert np.allclose(inlet["U"], speed[:, None] * [np.cos(angle), np.sin(angle), 0], atol=1e-5)


@needs_openfoam
def test_turning_a_symmetric_city_with_the_wind_turns_the_flow(wind_behind_cube: WindSolution) -> None:
    """The mesh of a cube with wind along +y is that with wind along +x, turned; only the order of cells differs."""
    turned = solve_boxes([CUBE], UrbanDomain.square(0.5, 90.0), roughness=0.3, cell=5.0)
    points = pv.PolyData([(-20.0, 0.0, 10.0), (30.0, 0.0, 25.0), (80.0, 3.0, 10.0), (0.0, 30.0, 10.0)])
    there = pv.PolyData(np.asarray(points.points) @ [[0, 1, 0], [-1, 0, 0], [0, 0, 1]])
    straight = points.sample(wind_behind_cube.volume.cell_data_to_point_data())["velocity"]
    after = there.sample(turned.volume.cell_data_to_point_data())["velocity"]
    assert np.allclose(np.asarray(after), np.asarray(straight) @ [[0, 1, 0], [-1, 0, 0], [0, 0, 1]], atol=0.02)


@needs_openfoam
def test_mass_is_conserved(wind_behind_cube: WindSolution) -> None:
    entering = flow_rate(wind_behind_cube.boundary["inlet"])
    leaving = flow_rate(wind_behind_cube.boundary["outlet"])
    assert entering > 0
    assert leaving == pytest.approx(entering, rel=1e-3)


@needs_openfoam
def test_wake_behind_a_cube_is_as_long_as_the_literature_says(wind_behind_cube: WindSolution) -> None:
    """Reattachment at 1.2 - 1.6 heights in experiments (Castro and Robins 1977; Martinuzzi and Tropea
    1993), up to 2.7 with the standard k-epsilon model (Lakehal and Rodi 1997; Tominaga et al. 2009)."""
    height = wind_behind_cube.boxes[0].height
    line = pv.Line((10.01, 0, 1), (10 + 5 * height, 0, 1), resolution=500)
    sampled = line.sample(wind_behind_cube.volume.cell_data_to_point_data())
    reversed_flow = sampled["velocity"][:, 0] < 0
    assert reversed_flow[:20].all(), "the air behind the cube flows back"
    reattachment = (sampled.points[np.argmin(reversed_flow), 0] - 10) / height
    assert 1.2 < reattachment < 2.7


@needs_openfoam
def test_fields_are_finite_and_physical(wind_behind_cube: WindSolution) -> None:
    volume = wind_behind_cube.volume
    for name in ("velocity", "pressure", "pottemp", "k", "epsilon"):
        assert np.isfinite(volume[name]).all()
    assert volume["k"].min() > 0 and volume["epsilon"].min() > 0
    front = wind_behind_cube.volume.find_closest_cell((-12, 0, 12))
    back = wind_behind_cube.volume.find_closest_cell((12, 0, 12))
    assert volume["pressure"][front] > 0 > volume["pressure"][back], "stagnation in front, suction behind"
    record = wind_behind_cube.convergence
    assert record.converged and record.cells == volume.n_cells
    assert all(len(history) == record.iterations for history in record.residuals.values())
    assert all(value < 1e-3 for value in record.last_residuals.values())


@needs_openfoam
def test_flow_is_symmetric_about_a_symmetric_building(wind_behind_cube: WindSolution) -> None:
    centres = wind_behind_cube.volume.cell_centers().points
    order = np.lexsort(centres.round(2).T)
    mirrored = np.lexsort((centres * [1, -1, 1]).round(2).T)
    velocity = np.asarray(wind_behind_cube.volume["velocity"])
    difference = np.abs(velocity[order] - velocity[mirrored] * [1, -1, 1])
    assert difference.max() < 0.02


@needs_openfoam
def test_cells_know_which_patches_they_touch(wind_behind_cube: WindSolution) -> None:
    types = wind_behind_cube.volume["node_type"]
    centres = wind_behind_cube.volume.cell_centers().points
    assert types.shape == (len(centres), len(NODE_TYPES))
    assert np.array_equal(types[:, NODE_TYPES.index("ground")] == 1, centres[:, 2] < centres[:, 2].min() + 0.1)
    assert np.array_equal(types[:, NODE_TYPES.index("inlet")] == 1, centres[:, 0] < centres[:, 0].min() + 0.1)
    beside = types[:, NODE_TYPES.index("buildings")] == 1
    assert np.abs(centres[beside, :2]).max() < 13 and centres[beside, 2].max() < 24
    assert np.array_equal(types[:, 0] == 1, types[:, 1:].sum(1) == 0)


@needs_openfoam
def test_a_stalled_case_says_so_and_keeps_its_residuals() -> None:
    settings = SolverSettings(iteration_limit=4)
    with pytest.raises(NotConvergedError, match=r"stalled: above 0\.0001 after 4 iterations") as caught:
        solve_boxes([CUBE], UrbanDomain.square(0.5), 0.3, cell=10.0, settings=settings)
    record = caught.value.convergence
    assert not record.converged and record.iterations == 4
    assert len(record.residuals["Ux"]) == 4


@needs_openfoam
def test_a_diverged_case_says_so() -> None:
    settings = replace(SolverSettings(), momentum_relaxation=1.8, turbulence_relaxation=1.8, iteration_limit=60)
    with pytest.raises(NotConvergedError, match="diverged: floating-point error") as caught:
        solve_boxes([CUBE], UrbanDomain.square(0.5), 0.3, cell=10.0, settings=settings)
    assert not caught.value.convergence.converged


def test_missing_openfoam_names_the_package(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt install openfoam"):
        require_openfoam()
    with pytest.raises(RuntimeError, match="apt install openfoam"):
        solve_boxes([CUBE], UrbanDomain.square(0.5), 0.3)


def test_a_case_folder_is_never_overwritten(tmp_path) -> None:
    if shutil.which("simpleFoam") is None:
        pytest.skip("OpenFOAM is not installed (Debian package openfoam)")
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(FileExistsError, match="not empty"):
        solve_boxes([CUBE], UrbanDomain.square(0.5), 0.3, folder=tmp_path)


@pytest.mark.parametrize("scale", [1, 2])
def test_mesh_lines_meet_the_walls_and_grow_gently(scale: int) -> None:
    boxes = [Box(-50.0 * scale, -25, 0, 25, 21), Box(12.5, 25, -12.5, 0, 9)]
    mesh = CartesianMesh.around(UrbanDomain.square(scale), boxes, cell=3.125, ground_cell=2.0)
    for lines, bounds in zip((mesh.x, mesh.y, mesh.z), UrbanDomain.square(scale).bounds, strict=True):
        sizes = np.diff(lines)
        assert np.allclose([lines[0], lines[-1]], bounds) and (sizes > 0).all()
        assert np.maximum(sizes[1:] / sizes[:-1], sizes[:-1] / sizes[1:]).max() < 1.2
    for asked, meshed in zip(boxes, mesh.boxes, strict=True):
        assert np.allclose(asked[:4], meshed[:4])
        assert asked.height == pytest.approx(meshed.height, abs=1.6)
    volumes = np.einsum("i,j,k->kji", np.diff(mesh.x), np.diff(mesh.y), np.diff(mesh.z))
    solid = sum((b.x_max - b.x_min) * (b.y_max - b.y_min) * b.height for b in mesh.boxes)
    assert volumes[mesh.solid].sum() == pytest.approx(solid)
    assert len(mesh.cell_centres()) == mesh.cell_count


def solvers_in(case: Path) -> list[str]:
    """The ids of the solvers that run in a case's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "simpleFoam" and (process / "cwd").resolve() == case:
                found.append(process.name)
        except OSError:  # ended meanwhile
            continue
    return found


@needs_openfoam
@pytest.mark.skipif(shutil.which("setpriv") is None or not Path("/proc/self").exists(), reason="needs Linux's setpriv")
def test_a_solver_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    case = (tmp_path / "case").resolve()
    solves = (
        "import sys; from pathlib import Path; from farfield.problems.urban_wind.buildings import Box, UrbanDomain;"
        "from farfield.problems.urban_wind.openfoam_case import SolverSettings;"
        "from farfield.problems.urban_wind.solver import solve_boxes;"
        "for_a_minute = SolverSettings(tolerance=1e-15, iteration_limit=1000);"
        "solve_boxes([Box(-10, 10, -10, 10, 20)], UrbanDomain.square(1), 0.3, settings=for_a_minute,"
        " folder=Path(sys.argv[1]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", solves, str(case)], env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as ours:
        until = time.monotonic() + 120
        while not solvers_in(case):
            assert ours.poll() is None and time.monotonic() < until, "the solver never began"
            time.sleep(0.05)
        ours.kill()
    until = time.monotonic() + 10
    while solvers_in(case) and time.monotonic() < until:
        time.sleep(0.05)
    assert not solvers_in(case)
