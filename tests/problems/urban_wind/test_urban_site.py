"""The user's coordinates and the wind's: there and back, and points as dense as in training."""

import numpy as np
import pytest
import trimesh

from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, inside_buildings, random_buildings
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.sampling import PointCounts, UrbanNormalisation, draw_sample
from farfield.problems.urban_wind.site import Site, training_cell, wind_axes

SQUARE_CELLS = CartesianMesh.around(UrbanDomain.square(1), [], 10.0, 5.0).cell_count
NORMALISATION = UrbanNormalisation(
    fields=("velocity",),
    target_mean=(0.0, 0.0, 0.0),
    target_std=(1.0, 1.0, 1.0),
    profile_mean=(0.0,) * 4,
    profile_std=(1.0,) * 4,
    terrain_mean=(np.log(0.3), 0.0),
    terrain_std=(0.8, 1.0),
    cells=float(SQUARE_CELLS),
    ground_area=99_000.0,
    building_height=(12.0, 38.0),
    plan_density=(0.06, 0.3),
)


def make_site(mesh, direction=270.0, roughness=0.3, inverse_length=0.0) -> Site:
    return Site.facing(mesh, direction, roughness, inverse_length, NORMALISATION)


@pytest.mark.parametrize(
    ("direction", "blows_to"),
    [
        (270, (1, 0)),
        (0, (0, -1)),
        (360, (0, -1)),
        (90, (-1, 0)),
        (180, (0, 1)),
        (250, (np.cos(np.deg2rad(20)), np.sin(np.deg2rad(20)))),
    ],
)
def test_the_wind_blows_away_from_where_it_comes(direction, blows_to) -> None:
    basis = wind_axes(direction)
    np.testing.assert_allclose(basis[0, :2], blows_to, atol=1e-15)
    np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-14)
    assert np.linalg.det(basis) == pytest.approx(1)


def test_a_city_lies_in_the_wind_and_comes_back() -> None:
    mesh = boxes_to_mesh([Box(100, 120, 200, 230, 20)])
    site = make_site(mesh, 180)  # from the south: downwind is north
    np.testing.assert_allclose(site.buildings.bounds, [[-15, -10, 0], [15, 10, 20]])
    points = np.random.default_rng(0).uniform(-300, 300, (20, 3))
    np.testing.assert_allclose(site.to_user(site.to_wind(points)), points)
    np.testing.assert_allclose(site.to_wind(np.array([[110.0, 215 + 7, 3]])), [[7, 0, 3]], atol=1e-9)
    np.testing.assert_allclose(site.turn_back(np.array([[6.0, 0, 0]])), [[0, 6, 0]], atol=1e-12)


def test_the_spacing_of_the_training_data_is_found_again() -> None:
    for cell in (3.0, 5.0, 10.0):
        cells = CartesianMesh.around(UrbanDomain.square(1), [], cell, cell / 2).cell_count
        assert training_cell(cells) == pytest.approx(cell, rel=0.05)


@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize("direction", [270, 225])
def test_points_are_as_dense_as_in_training(scale: int, direction: float) -> None:
    site = make_site(boxes_to_mesh(random_buildings(np.random.default_rng(1), scale, count=8 * scale**2)), direction)
    sample = draw_sample(site.case, NORMALISATION, PointCounts(4000, 4000, 1000, 1000, 1000), np.random.default_rng(0))
    assert len(sample.obstacle_supernodes) == pytest.approx(1000 * scale**2, rel=0.25)
    assert len(sample.obstacle_points) == pytest.approx(4000 * scale**2, rel=0.25)
    per_ground = len(sample.terrain_points) / 4000 / (site.case.ground_area / NORMALISATION.ground_area)
    assert per_ground == pytest.approx(1, rel=0.01)
    air = np.prod(UrbanDomain.around(site.buildings).bounds[:2] @ [-1, 1]) * 55
    training_air = np.prod(UrbanDomain.square(1).bounds @ [-1, 1])
    assert len(sample.anchors) / 1000 == pytest.approx(air / training_air, rel=0.35), "finer between the buildings"


def test_a_lone_building_counts_as_one_of_a_dense_city() -> None:
    site = make_site(boxes_to_mesh([Box(0, 20, 0, 20, 20)]))
    assert site.case.scale**2 * 1e4 * 0.3 == pytest.approx(400)


def test_a_roof_down_to_the_ground_is_a_roof() -> None:
    tent = trimesh.convex.convex_hull([[x, y, 0] for x in (0, 10) for y in (0, 20)] + [[5, 0, 15], [5, 20, 15]])
    assert make_site(tent, 200).case.roof_area == pytest.approx(200, rel=1e-4)


def test_cells_are_in_the_air_and_fill_it() -> None:
    mesh = boxes_to_mesh([Box(-20, 0, -20, 0, 20), Box(10, 30, 5, 30, 30)])
    cells = make_site(mesh, 250).mesh(5.0)
    assert set(cells.celltypes) == {12}, "hexahedra"
    sizes = cells.compute_cell_sizes()["Volume"]
    assert sizes.min() > 0
    air = np.prod(UrbanDomain.around(make_site(mesh, 250).buildings).bounds @ [-1, 1])
    assert sizes.sum() == pytest.approx(air - mesh.volume, rel=0.01)
    assert not inside_buildings(mesh, np.asarray(cells.cell_centers().points)).any()
    assert cells.n_arrays == 0


@pytest.mark.parametrize("spacing", [0.0, -3.0, 1e-3, 400.0, np.nan])
def test_impossible_spacings_are_refused(spacing) -> None:
    with pytest.raises(ValueError, match=r"spacing must be from 0\.5 to 25\.0 m"):
        make_site(boxes_to_mesh([Box(0, 20, 0, 20, 20)])).mesh(spacing)


def test_what_is_unlike_the_training_data_is_said() -> None:
    usual = boxes_to_mesh(random_buildings(np.random.default_rng(3), 1, count=6))
    assert make_site(usual).surprises(NORMALISATION) == []
    assert make_site(usual, 225).surprises(NORMALISATION) == [], "the angle of the wind does not change the density"
    tower = boxes_to_mesh([Box(0, 20, 0, 20, 120), Box(60, 80, 60, 80, 10)])
    assert (
        "tallest building is 120 m high, in training it was 12 to 38 m" in make_site(tower).surprises(NORMALISATION)[0]
    )
    terraces = boxes_to_mesh([Box(0, 100, y, y + 15, 20) for y in range(0, 100, 20)])
    assert "share of roofs in the built rectangle is 0.7" in make_site(terraces).surprises(NORMALISATION)[0]
    rough = make_site(usual, roughness=5.0).surprises(NORMALISATION)
    assert rough == ["the roughness length is 5 m, in training it was 0.061 to 1.5 m"]
    flat = boxes_to_mesh([Box(0, 20, 0, 20, 41), Box(60, 80, 60, 80, 10)])
    assert make_site(flat).surprises(NORMALISATION) == [], "less above the highest than the heights vary"
    assert (
        "1/L is 0.02, in training it was always 0" in make_site(usual, inverse_length=0.02).surprises(NORMALISATION)[0]
    )


def test_walls_oblique_to_the_wind_are_said_where_none_were_seen() -> None:
    usual = boxes_to_mesh(random_buildings(np.random.default_rng(3), 1, count=6))
    assert make_site(usual, 268).surprises(NORMALISATION, oblique=False) == []
    (said,) = make_site(usual, 240).surprises(NORMALISATION, oblique=False)
    assert said == "walls stand at more than 5° to the wind and to its normal, in training none did"
    assert make_site(usual, 240).surprises(NORMALISATION, oblique=True) == []


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"roughness": 0.0}, "roughness length must be positive"),
        ({"roughness": np.nan}, "roughness must be a finite number"),
        ({"direction": np.inf}, "wind direction must be a finite number"),
        ({"direction": 365.0}, r"wind direction must be from 0 to 360 degrees \(0 north, 90 east\), got 365"),
        ({"direction": -10.0}, "from 0 to 360 degrees"),
        ({"inverse_length": np.nan}, "1/L must be a finite number"),
    ],
)
def test_impossible_winds_are_refused(conditions, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_site(boxes_to_mesh([Box(0, 20, 0, 20, 20)]), **conditions)
