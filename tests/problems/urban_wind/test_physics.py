"""Inputs of physics obey it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.lattice import HEIGHTS, LEVELS, SPACING, Lattice
from farfield.problems.urban_wind.physics import (
    WALL_MEMORY,
    mass_consistent_wind,
    nearness_of_walls,
    pressure_of,
    wake_deficits,
)
from farfield.problems.urban_wind.projection import Openings, pair

ROUGHNESS = 0.3
THICKNESS = np.diff(LEVELS)[:, None, None]
CUBE = [Box(-10, 10, -10, 10, 20.0)]
U0 = inflow_profile(ROUGHNESS, heights=HEIGHTS)[:, 0]


def city(seed: int, angle: float = 0.0) -> Openings:
    mesh = boxes_to_mesh(random_buildings(np.random.default_rng(seed), 1.0, module=SPACING))
    c, s = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
    triangles = np.asarray(mesh.triangles) @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]).T
    return Openings(Lattice.around(triangles, UrbanDomain.square(1, angle)))


def start(openings: Openings, deficit: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    from farfield.problems.urban_wind.physics import _start

    return _start(openings, ROUGHNESS, deficit)


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 25.0, -45.0]), st.booleans())
def test_projected_wind_has_no_divergence_and_enters_no_wall(seed: int, angle: float, slowed: bool) -> None:
    openings = city(seed, angle)
    deficit = wake_deficits(openings.lattice, ROUGHNESS, (1.0,))[0] if slowed else None
    before = start(openings, deficit)
    phi, iterations = openings.potential(before, tolerance=1e-4)
    assert iterations < 200
    wind = openings.corrected(before, phi)
    left_over = np.linalg.norm(openings.divergence(wind)) / np.linalg.norm(openings.divergence(before))
    assert left_over < 5e-4  # rounding of single precision adds to the tolerance
    solid = openings.lattice.solid >= 0.96
    along, across, up = (share * normal for share, normal in zip(openings.share, wind, strict=True))
    assert not along[solid[:, :, 1:] | solid[:, :, :-1]].any()
    assert not across[solid[:, 1:] | solid[:, :-1]].any()
    assert not up[solid[1:] | solid[:-1]].any()


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.0, 25.0, -45.0]))
def test_compiled_sums_over_faces_are_those_of_whole_arrays(seed: int, angle: float) -> None:
    openings = city(seed, angle)
    rng = np.random.default_rng(seed)
    velocity = tuple(rng.normal(size=share.shape).astype(np.float32) for share in openings.share)
    phi = rng.normal(size=openings.lattice.shape).astype(np.float32)
    leaving, through = np.zeros_like(phi), np.zeros((3, *phi.shape), dtype=np.float32)
    sizes = (openings.thickness / SPACING, openings.thickness / SPACING, 1)
    distances = (SPACING, SPACING, openings.between)
    corrected = openings.corrected(velocity, phi)
    field = rng.normal(size=(3, *phi.shape)).astype(np.float32)
    between = openings.between_cells(field)
    for number, axis in enumerate((2, 1, 0)):
        share, normal, free = openings.share[number], velocity[number], openings.weights[number] > 0
        for array, factors in ((leaving, (1, -1)), (through[number], (0.5, 0.5))):
            size = sizes[number] if array is leaving else 1
            for cells, factor in zip(pair(array, axis), factors, strict=True):
                cells += factor * share * normal * size
        a, b = pair(phi, axis)
        assert np.allclose(corrected[number], normal + free * (b - a) / distances[number], atol=1e-5)
        a, b = pair(field[number], axis)
        assert np.allclose(between[number], free * (a + b) / 2, atol=1e-6)
    assert np.allclose(openings.divergence(velocity), leaving * openings.active, atol=1e-5)
    assert np.allclose(openings.at_cells(velocity), through * openings.lattice.air, atol=1e-6)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1000), st.booleans())
def test_what_enters_leaves_through_every_cross_plane(seed: int, slowed: bool) -> None:
    openings = city(seed)
    deficit = wake_deficits(openings.lattice, ROUGHNESS, (1.0,))[0] if slowed else None
    wind = openings.project(start(openings, deficit), tolerance=1e-5)
    through = (openings.share[0] * wind[0] * THICKNESS).sum(axis=(0, 1)) * SPACING
    through = through[through > 0]  # planes within the air
    entering = (U0 * np.diff(LEVELS)).sum() * openings.lattice.air.any(1).sum() * SPACING
    assert np.allclose(through, entering, rtol=5e-4)


def test_prescribed_inflow_is_not_changed() -> None:
    openings = city(3)
    wind = mass_consistent_wind(openings, ROUGHNESS, wake_deficits(openings.lattice, ROUGHNESS, (1.0,))[0])
    first = np.flatnonzero(openings.lattice.air.any(0))[0]
    rows = openings.lattice.air[:, first]
    assert np.allclose(wind[0][:, rows, first - 1], U0[:, None], rtol=1e-5)


def test_empty_ground_leaves_the_inflow_as_it_is() -> None:
    openings = Openings(Lattice.around(np.zeros((0, 3, 3)), UrbanDomain.square(1)))
    phi, iterations = openings.potential(start(openings))
    assert iterations == 0 and not phi.any()
    assert not wake_deficits(openings.lattice, ROUGHNESS, (0.5, 2.5)).any()
    assert not nearness_of_walls(openings.lattice).any()


def test_the_preconditioner_inverts_the_balance_of_an_empty_box() -> None:
    """Over open ground one step of conjugate gradients is the exact solution, whatever the right-hand side."""
    openings = Openings(Lattice.around(np.zeros((0, 3, 3)), UrbanDomain.square(0.5)))
    rng = np.random.default_rng(0)
    velocity = tuple(rng.normal(size=share.shape).astype(np.float32) for share in openings.share)
    _, iterations = openings.potential(velocity, tolerance=1e-4)  # type: ignore[arg-type]
    assert iterations <= 12  # the ring outside the air is the only difference


def test_air_speeds_up_beside_and_above_a_building() -> None:
    openings = Openings(Lattice.around(boxes_to_mesh(CUBE).triangles, UrbanDomain.square(1)))
    wind = openings.at_cells(mass_consistent_wind(openings, ROUGHNESS))
    x0, y0 = openings.lattice.origin
    column = int((0 - x0) // SPACING)
    beside, level = int((14 - y0) // SPACING), 4
    assert wind[0, level, beside, column] > 1.05 * U0[level]
    above = int(np.searchsorted(LEVELS, 25.0)) - 1
    assert wind[0, above, int((0 - y0) // SPACING), column] > 1.03 * U0[above]
    assert np.allclose(wind[1], -wind[1][:, ::-1], atol=2e-2), "symmetric about the wind"


def test_nearness_of_walls_is_the_exponential_of_the_distance() -> None:
    lattice = Lattice.around(boxes_to_mesh(CUBE).triangles, UrbanDomain.square(0.5, 0.0), (0.25, 0.25))
    assert lattice.solid.max() == 1
    near = nearness_of_walls(lattice)
    row = int((0 - lattice.origin[1]) // SPACING)
    columns = np.flatnonzero(lattice.solid[2, row] >= 1)
    for steps in (1, 3, 10):
        downwind, upwind = columns[-1] + steps, columns[0] - steps
        for value, edge in ((near[0, 2, row, downwind], columns[-1] + 1), (near[1, 2, row, upwind], columns[0] - 1)):
            partial = float(lattice.solid[2, row, edge])  # a cell that the wall fills in part
            far = np.exp(-SPACING * steps / WALL_MEMORY)
            if steps == 1:
                assert value == pytest.approx(partial + (1 - partial) * far, rel=1e-4)
            else:
                assert far <= value * 1.0001 and value <= far * np.exp(SPACING / WALL_MEMORY) * 1.0001


def test_wakes_start_at_one_lie_downwind_and_fade() -> None:
    lattice = Lattice.around(boxes_to_mesh(CUBE).triangles, UrbanDomain.square(0.5))
    narrow, wide = wake_deficits(lattice, ROUGHNESS, (0.5, 2.5))
    x0, y0 = lattice.origin
    row = int((0 - y0) // SPACING)
    front, back = (int((x - x0) // SPACING) for x in (-14, 14))
    for deficit in (narrow, wide):
        assert deficit.min() >= -1e-6 and deficit.max() <= 1 + 1e-6
        assert np.allclose(deficit[lattice.solid == 1], 1)
        assert not deficit[:, :, :front].any(), "nothing upwind"
        behind = deficit[3, row, back : back + 50]
        assert (np.diff(behind) < 0).all()
    assert narrow[3, row, back + 20] > wide[3, row, back + 20]
    assert narrow[3, row + 10, back + 20] < wide[3, row + 10, back + 20]


def test_pressure_pushes_in_front_and_pulls_behind() -> None:
    openings = Openings(Lattice.around(boxes_to_mesh(CUBE).triangles, UrbanDomain.square(0.5)))
    deficit = wake_deficits(openings.lattice, ROUGHNESS, (1.0,))[0]
    wind = mass_consistent_wind(openings, ROUGHNESS, deficit)
    pressure = pressure_of(openings, wind, ROUGHNESS, deficit, density=1.204)
    x0, y0 = openings.lattice.origin
    row, level = int((0 - y0) // SPACING), int(np.searchsorted(LEVELS, 12)) - 1
    front, back, outlet = (int((x - x0) // SPACING) for x in (-12, 12, 275))
    dynamic = 0.602 * U0[level] ** 2
    assert 0.3 * dynamic < pressure[level, row, front] < 2.0 * dynamic
    assert pressure[level, row, back] < pressure[level, row, front] / 2
    assert abs(pressure[level, row, outlet]) < 0.05 * dynamic
    assert not pressure[:, ~openings.lattice.air].any()
