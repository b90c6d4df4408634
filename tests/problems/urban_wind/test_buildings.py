"""Random cities and STL files."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from farfield.problems.urban_wind.buildings import (
    SMALLEST_GAP,
    Box,
    UrbanDomain,
    boxes_to_mesh,
    inside_buildings,
    random_buildings,
    sample_surface,
    walls_and_roofs,
)


@pytest.mark.parametrize("scale", [1, 2, 5])
@pytest.mark.parametrize("module", [None, 3.125])
def test_density_does_not_depend_on_the_size_of_the_city(scale: int, module: float | None) -> None:
    one = random_buildings(np.random.default_rng(7), 1, module)
    city = random_buildings(np.random.default_rng(7), scale, module)
    assert len(city) == len(one) * scale**2


@pytest.mark.parametrize("seed", range(5))
def test_buildings_stay_apart_and_inside_the_square(seed: int) -> None:
    boxes = random_buildings(np.random.default_rng(seed), 2, module=3.125)
    for i, a in enumerate(boxes):
        assert -100 <= a.x_min < a.x_max <= 100 and -100 <= a.y_min < a.y_max <= 100 and a.height > 0
        assert np.isclose((a.x_min + 100) / 3.125 % 1, [0, 1]).any(), "walls stand on the module"
        for b in boxes[i + 1 :]:
            gap = max(a.x_min - b.x_max, b.x_min - a.x_max, a.y_min - b.y_max, b.y_min - a.y_max)
            assert gap >= SMALLEST_GAP


def test_the_same_seed_gives_the_same_city() -> None:
    assert random_buildings(np.random.default_rng(3)) == random_buildings(np.random.default_rng(3))
    assert random_buildings(np.random.default_rng(3)) != random_buildings(np.random.default_rng(4))


def test_too_many_buildings_are_refused() -> None:
    with pytest.raises(RuntimeError, match="do not fit"):
        random_buildings(np.random.default_rng(0), 1, count=60)


def test_margins_do_not_grow_with_the_city() -> None:
    small, large = UrbanDomain.square(1), UrbanDomain.square(5)
    assert np.allclose(small.bounds, [[-145, 305], [-110, 110], [0, 55]])
    assert np.allclose(large.bounds - small.bounds, [[-200, 200], [-200, 200], [0, 0]])


def test_points_are_spread_by_area() -> None:
    box = boxes_to_mesh([Box(0, 10, 0, 10, 30)])
    points = sample_surface(walls_and_roofs(box), 40_000, np.random.default_rng(0))
    on_roof = np.isclose(points[:, 2], 30).mean()
    assert on_roof == pytest.approx(100 / (100 + 4 * 300), rel=0.1)
    assert points[:, 2].min() > 0, "the floor is out of the wind"
    again = sample_surface(walls_and_roofs(box), 40_000, np.random.default_rng(0))
    assert np.array_equal(points, again)


def test_inside_and_outside() -> None:
    mesh = boxes_to_mesh([Box(0, 10, 0, 10, 30), Box(20, 30, 0, 10, 5)])
    points = np.array([[5, 5, 10], [25, 5, 4], [25, 5, 6], [15, 5, 1], [-100, 0, 50]], dtype=float)
    assert inside_buildings(mesh, points).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize(
    "neighbour",
    [
        Box(5, 15, 5, 15, 20),  # overlaps
        Box(10, 15, 0, 10, 30),  # shares a wall
        Box(2, 15, 2, 8, 10),  # mostly within
    ],
)
def test_a_point_in_either_of_two_buildings_is_inside(neighbour: Box) -> None:
    boxes = [Box(0, 10, 0, 10, 30), neighbour]
    points = np.random.default_rng(0).uniform([-5, -5, 0], [20, 20, 40], (5000, 3))
    points = np.concatenate([points, np.floor(points)])  # also on walls, edges and the diagonals of roofs
    strictly, at_least = (
        np.any(
            [
                (points[:, :2] > [b.x_min - s, b.y_min - s]).all(1)
                & (points < [b.x_max + s, b.y_max + s, b.height + s]).all(1)
                for b in boxes
            ],
            axis=0,
        )
        for s in (-1e-3, 1e-3)
    )
    found = inside_buildings(boxes_to_mesh(boxes), points)
    assert found[strictly].all() and not found[~at_least].any()


def test_pitched_roofs_and_courtyards() -> None:
    roof = trimesh.convex.convex_hull([[x, y, 0] for x in (0, 10) for y in (0, 20)] + [[5, 0, 8], [5, 20, 8]])
    assert inside_buildings(roof, np.array([[5.0, 10, 7], [1, 10, 7], [1, 10, 1]])).tolist() == [True, False, True]
    court = trimesh.creation.annulus(r_min=5, r_max=10, height=12).apply_translation([0, 0, 6])
    assert inside_buildings(court, np.array([[0.0, 0, 3], [7, 0, 3], [7, 0, 13]])).tolist() == [False, True, False]


def test_what_is_below_the_ground_is_out_of_the_wind() -> None:
    sunk = walls_and_roofs(boxes_to_mesh([Box(0, 10, 0, 10, 30)], foundation=4))
    assert sunk[..., 2].min() == 0
    edges = sunk[:, 1:] - sunk[:, :1]
    area = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1).sum() / 2
    assert area == pytest.approx(100 + 4 * 300)
