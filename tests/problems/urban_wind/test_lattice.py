"""The lattice knows where buildings are, whatever their walls' direction."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh
from hypothesis import given, settings
from hypothesis import strategies as st

from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, inside_buildings, random_buildings
from farfield.problems.urban_wind.lattice import LEVELS, SPACING, Lattice, solid_fractions, solid_moments
from farfield.problems.urban_wind.mesh import CartesianMesh

THICKNESS = np.diff(LEVELS)


def turned(mesh: trimesh.Trimesh, degrees: float) -> np.ndarray:
    """The triangles in the axes of a wind at this angle."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.asarray(mesh.triangles) @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]]).T


def volume_of(solid: np.ndarray) -> float:
    return float((solid.sum(axis=(1, 2)) * THICKNESS).sum() * SPACING**2)


def test_levels_are_those_of_the_data() -> None:
    mesh = CartesianMesh.around(UrbanDomain.square(1), [], 4.0, 2.0)
    assert np.allclose(LEVELS, mesh.z)


def test_boxes_on_the_lattice_are_exact() -> None:
    boxes = random_buildings(np.random.default_rng(0), 1.0, module=SPACING)
    mesh = CartesianMesh.around(UrbanDomain.square(1), boxes, 4.0, 2.0)
    lattice = Lattice.around(boxes_to_mesh(list(mesh.boxes)).triangles, UrbanDomain.square(1))
    assert set(np.unique(lattice.solid.round(6))) == {0.0, 1.0}
    levels, rows, columns = np.nonzero(lattice.solid)
    x = lattice.origin[0] + SPACING * (columns + 0.5)
    y = lattice.origin[1] + SPACING * (rows + 0.5)
    z = (LEVELS[levels] + LEVELS[levels + 1]) / 2
    assert inside_buildings(boxes_to_mesh(list(mesh.boxes)), np.stack([x, y, z], axis=1)).all()
    assert volume_of(lattice.solid) == pytest.approx(boxes_to_mesh(list(mesh.boxes)).volume, rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.floats(-180, 180), st.floats(0, 1), st.integers(0, 1000))
def test_volume_of_buildings_is_kept_at_every_angle_and_phase(angle: float, phase: float, seed: int) -> None:
    mesh = boxes_to_mesh(random_buildings(np.random.default_rng(seed), 1.0))
    lattice = Lattice.around(turned(mesh, angle), UrbanDomain.square(1, angle), (phase, 1 - phase))
    assert volume_of(lattice.solid) == pytest.approx(mesh.volume, rel=0.03)
    assert lattice.solid.min() >= 0 and lattice.solid.max() <= 1


@settings(max_examples=4, deadline=None)
@given(st.floats(-45, 45), st.integers(0, 1000))
def test_fractions_equal_the_share_of_points_inside(angle: float, seed: int) -> None:
    """The slow reference: every cell is filled with points, each of which is inside a building or not."""
    rng = np.random.default_rng(seed)
    mesh = boxes_to_mesh([Box(-9, 5, -6, 8, 11.0), Box(9, 15, -7, -2, 23.0)])
    mesh = trimesh.Trimesh(turned(mesh, angle).reshape(-1, 3), np.arange(3 * len(mesh.faces)).reshape(-1, 3))
    origin = tuple((rng.uniform(-2, 2, 2) - 20).tolist())
    solid, *moments = solid_moments(mesh.triangles, origin, (10, 10), LEVELS, SPACING)
    within = rng.uniform(0, 1, (3, 600, *solid.shape))
    level, row, column = np.indices(solid.shape)
    points = np.stack(
        [
            origin[0] + SPACING * (column + within[0]),
            origin[1] + SPACING * (row + within[1]),
            LEVELS[level] + THICKNESS[level] * within[2],
        ],
        axis=-1,
    )
    inside = inside_buildings(mesh, points.reshape(-1, 3)).reshape(points.shape[:-1])
    assert np.abs(inside.mean(0) - solid).max() < 0.2  # sixteen rays see an edge to about an eighth of a column
    for moment, place in zip(moments, within[:2], strict=True):
        assert np.abs((inside * (2 * place - 1)).mean(0) - moment).max() < 0.25  # a wrong side would differ by 0.5
    assert np.abs(inside.mean(0) - solid).mean() < 0.01


def test_slanted_roofs_and_open_floors_are_represented() -> None:
    roof = trimesh.creation.extrude_triangulation(np.array([[0.0, 0], [16, 0], [8, 12]]), np.array([[0, 1, 2]]), 24.0)
    roof.apply_transform(trimesh.transformations.rotation_matrix(np.pi / 2, [1, 0, 0]))  # a tent along y
    roof.apply_translation([0, 24, 0])
    assert roof.bounds[:, 2].tolist() == pytest.approx([0, 12])
    whole = solid_fractions(roof.triangles, (-4.0, -4.0), (8, 8), LEVELS, SPACING)
    assert volume_of(whole) == pytest.approx(16 * 12 / 2 * 24, rel=0.01)
    without_floor = np.asarray(roof.triangles)[np.asarray(roof.triangles)[:, :, 2].max(1) > 0]
    assert np.allclose(solid_fractions(without_floor, (-4.0, -4.0), (8, 8), LEVELS, SPACING), whole)
    inward = np.asarray(roof.triangles)[:, ::-1]
    assert np.allclose(solid_fractions(inward, (-4.0, -4.0), (8, 8), LEVELS, SPACING), whole)


def test_bridges_leave_the_air_below_them() -> None:
    deck = trimesh.creation.box(bounds=[[0, 0, 10], [8, 8, 14]])
    solid = solid_fractions(deck.triangles, (0.0, 0.0), (2, 2), LEVELS, SPACING)
    assert solid[LEVELS[1:] < 10].max() == 0
    assert volume_of(solid) == pytest.approx(8 * 8 * 4, rel=1e-6)


def test_a_city_without_buildings_has_no_solids() -> None:
    lattice = Lattice.around(np.zeros((0, 3, 3)), UrbanDomain.square(1))
    assert not lattice.solid.any() and lattice.air.any()


@pytest.mark.parametrize("angle", [0.0, 30.0, -45.0, 90.0])
def test_columns_know_whether_they_are_in_the_air(angle: float) -> None:
    domain = UrbanDomain.square(1, angle)
    lattice = Lattice.around(np.zeros((0, 3, 3)), domain)
    (west, east), (south, north) = domain.bounds[:2]
    assert lattice.air.sum() * SPACING**2 == pytest.approx((east - west) * (north - south), rel=0.01)
    ring = np.ones(lattice.shape[1:], dtype=bool)
    ring[1:-1, 1:-1] = False
    assert not (lattice.air & ring).any(), "the ring is outside"
    assert np.array_equal(lattice.air, ~ring) == (angle % 90 == 0)


@pytest.mark.parametrize("angle", [0.0, 5.0, -5.0, 30.0, -45.0, 90.0])
def test_the_wind_leaves_beyond_the_sides_that_it_reaches(angle: float) -> None:
    """Downwind of the air in every row; but a grazing wind does not leave through the side that it nearly follows."""
    domain = UrbanDomain.square(1, angle)
    lattice = Lattice.around(np.zeros((0, 3, 3)), domain)
    assert lattice.outflow is not None
    downwind = np.logical_or.accumulate(lattice.air, axis=1) & ~lattice.air
    assert not (lattice.outflow & lattice.air).any()
    if abs(angle) != 5.0:
        assert lattice.outflow[downwind].mean() > 0.9
    assert domain.outlets.sum() == (2 if abs(angle) in (30.0, 45.0) else 1)
    if abs(angle) == 5.0:
        last = np.flatnonzero(lattice.outflow.any(0))[0]
        assert last > 0.9 * lattice.shape[2], "only through the end"


def test_interpolation_reproduces_linear_fields_and_stays_out_of_walls() -> None:
    rng = np.random.default_rng(0)
    lattice = Lattice.around(np.zeros((0, 3, 3)), UrbanDomain.square(1))
    points = rng.uniform([-140, -105, 1.1], [300, 105, 50], (500, 3))
    index, weight = lattice.corners(points)
    heights = (LEVELS[1:] + LEVELS[:-1]) / 2
    row, column, level = np.unravel_index(index, (*lattice.shape[1:], lattice.shape[0]))
    at = np.stack(
        [
            lattice.origin[0] + SPACING * (column + 0.5),
            lattice.origin[1] + SPACING * (row + 0.5),
            heights[level],
        ],
        axis=-1,
    )
    assert np.allclose((at * weight[..., None]).sum(1), points, atol=2e-3)
    assert np.allclose(weight.sum(1), 1, atol=1e-5)
    wall = Lattice.around(boxes_to_mesh([Box(-10, 10, -10, 10, 30)]).triangles, UrbanDomain.square(1))
    beside = np.array([[11.0, 0.0, 5.0]])  # a metre from the wall: half a column has solid neighbours
    index, weight = wall.corners(beside)
    solid = wall.solid.transpose(1, 2, 0).reshape(-1)
    assert (weight * solid[index]).sum() < 0.01
