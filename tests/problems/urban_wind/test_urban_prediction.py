"""The wind around a user's city: symmetries, draws, where it is wanted."""

import numpy as np
import pytest
import pyvista as pv

import farfield as ff
from farfield.problems.urban_wind import prediction as urban_prediction
from farfield.problems.urban_wind.buildings import Box, boxes_to_mesh, inside_buildings, write_stl
from farfield.problems.urban_wind.inflow_profiles import REFERENCE_HEIGHT, REFERENCE_SPEED
from farfield.problems.urban_wind.prediction import UrbanPredictor

WIND = {"roughness": 0.3, "wind_direction": 250.0}


@pytest.fixture(scope="module")
def predictor(urban_run) -> UrbanPredictor:
    loaded = ff.load(urban_run, device="cpu")
    assert isinstance(loaded, UrbanPredictor)
    return loaded


@pytest.fixture(scope="module")
def points(city):
    """In the air above and between the buildings."""
    drawn = np.random.default_rng(0).uniform([-60, -60, 1], [60, 60, 40], (80, 3))
    return drawn[~inside_buildings(city, drawn)][:50]


def close(a, b, tolerance=1e-3) -> bool:
    """Equal, measured by how much the field differs from point to point."""
    return bool(np.abs(a - b).max() < tolerance * np.std(b, axis=0).mean())


def test_what_is_loaded_says_what_it_is(predictor) -> None:
    assert repr(predictor) == "UrbanPredictor(laape: velocity, pressure, k, epsilon of the wind around buildings)"
    assert predictor.problem == "urban-wind"


def test_translating_the_city_changes_nothing(predictor, city, points) -> None:
    here = predictor.predict(city, points=points, **WIND)
    shift = np.array([4096.0, -65_536.0, 0.0])
    there = predictor.predict(city.copy().apply_translation(shift), points=points + shift, **WIND)
    for name in predictor.fields:
        assert close(there[name], here[name])


@pytest.mark.parametrize("degrees", [90, 37])
def test_turning_city_and_wind_turns_the_velocity(predictor, city, points, degrees) -> None:
    angle = np.deg2rad(degrees)
    turn = np.round([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]], 15)
    turned_city = city.copy()
    turned_city.vertices = city.vertices @ turn.T
    before = predictor.predict(city, points=points, **WIND)
    turned_wind = {**WIND, "wind_direction": WIND["wind_direction"] - degrees}  # clockwise, as on a compass
    after = predictor.predict(turned_city, points=points @ turn.T, **turned_wind)
    assert close(after["velocity"], before["velocity"] @ turn.T)
    for name in ("pressure", "k", "epsilon"):
        assert close(after[name], before[name])
    unturned = predictor.predict(turned_city, points=points @ turn.T, **WIND)
    assert not close(unturned["pressure"], before["pressure"], 0.1)


def test_the_mesh_of_a_turned_city_is_the_turned_mesh(predictor, city) -> None:
    turned_city = city.copy()
    turned_city.vertices = city.vertices @ np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1]]).T
    before, after = predictor.predict(city, **WIND), predictor.predict(turned_city, **{**WIND, "wind_direction": 160.0})
    x, y, z = np.asarray(before.points).T
    np.testing.assert_allclose(after.points, np.stack([-y, x, z], axis=1), atol=1e-6)
    u, v, w = before["velocity"].T
    assert close(after["velocity"], np.stack([-v, u, w], axis=1))


def test_the_order_of_points_and_the_size_of_chunks_do_not_matter(predictor, city, points, monkeypatch) -> None:
    whole = predictor.predict(city, points=points, **WIND)
    order = np.random.default_rng(1).permutation(len(points))
    shuffled = predictor.predict(city, points=points[order], **WIND)
    monkeypatch.setattr(urban_prediction, "_CHUNK", 7)
    pieces = predictor.predict(city, points=points, **WIND)
    alone = predictor.predict(city, points=points[:1], **WIND)
    for name in predictor.fields:
        assert close(shuffled[name], whole[name][order])
        assert close(pieces[name], whole[name])
        np.testing.assert_allclose(alone[name], whole[name][:1], rtol=1e-3, atol=1e-3)


def test_seeds_decide_and_draws_are_averaged(predictor, city, points) -> None:
    site = predictor.site(city, **WIND)
    draws = [predictor.from_case(site.case, site.to_wind(points), np.random.default_rng([5, n])) for n in range(3)]
    assert not np.allclose(draws[0], draws[1], rtol=1e-2)
    mean = predictor.at(site, points, seed=5, draws=3)
    assert close(mean["pressure"], np.mean(draws, axis=0)[:, 3])
    assert close(mean["velocity"], np.mean(draws, axis=0)[:, :3] @ site.basis)
    again, other = predictor.at(site, points, seed=5, draws=3), predictor.at(site, points, seed=6, draws=3)
    np.testing.assert_array_equal(again["k"], mean["k"])
    assert not close(other["k"], mean["k"], 1e-2)


def test_progress_adds_up(predictor, city, points, monkeypatch) -> None:
    monkeypatch.setattr(urban_prediction, "_CHUNK", 16)
    shares: list[float] = []
    predictor.at(predictor.site(city, **WIND), points, draws=2, advance=shares.append)
    assert len(shares) > 4 and sum(shares) == pytest.approx(2)


def test_points_inside_buildings_are_marked(predictor, city, points) -> None:
    wrong = np.array([[-35.0, -30, 5], [0, 0, -1]])
    with pytest.warns(UserWarning, match=r"2 of 52 points lie inside buildings or below the ground.*NaN"):
        wind = predictor.predict(city, points=np.concatenate([wrong, points]), **WIND)
    assert np.isnan(wind["velocity"][:2]).all() and np.isnan(wind["k"][:2]).all()
    assert close(wind["velocity"][2:], predictor.predict(city, points=points, **WIND)["velocity"])
    with pytest.warns(UserWarning, match="2 of 2 points lie inside"):
        assert np.isnan(predictor.predict(city, points=wrong, **WIND)["pressure"]).all()


def test_points_far_away_are_extrapolated_with_a_warning(predictor, city) -> None:
    with pytest.warns(UserWarning, match=r"1 of 1 points lie outside the \d+ x \d+ x 55 m of air"):
        wind = predictor.predict(city, points=[[0.0, 0, 300]], **WIND)
    assert np.isfinite(wind["velocity"]).all()


def test_a_volume_mesh_gets_cell_data_and_points_get_point_data(predictor, city, points) -> None:
    box = pv.ImageData(dimensions=(4, 3, 2), spacing=(5, 5, 5), origin=(-20, -10, 50))
    box["before"] = np.arange(box.n_cells)
    wind = predictor.predict(city, points=box, **WIND)
    assert wind.cell_data["velocity"].shape == (6, 3) and "velocity" not in wind.point_data
    np.testing.assert_array_equal(wind["before"], box["before"])
    assert "velocity" not in box.array_names, "what was given is not touched"
    at_centres = predictor.predict(city, points=box.cell_centers().points, **WIND)
    assert close(wind["velocity"], at_centres.point_data["velocity"])
    surface = pv.Plane(center=(0, 0, 50), i_resolution=2, j_resolution=2)
    assert predictor.predict(city, points=surface, **WIND).point_data["k"].shape == (9,)


def test_fields_can_be_chosen_and_strangers_are_refused(predictor, city, points) -> None:
    wind = predictor.predict(city, points=points, fields=["k"], **WIND)
    assert wind.point_data.keys() == ["k"]
    with pytest.raises(ValueError, match="does not predict pottemp; it has velocity, pressure, k, epsilon"):
        predictor.predict(city, points=points, fields=["k", "pottemp"], **WIND)


def test_strange_cities_are_warned_about(predictor, city, points) -> None:
    tall = city.copy().apply_scale([1, 1, 10])
    with pytest.warns(UserWarning, match="outside the training data, expect larger errors: the tallest building"):
        predictor.predict(tall, points=[[0.0, 0, 400]], **WIND)
    with pytest.warns(UserWarning, match="1/L is 0.05, in training it was always 0"):
        predictor.predict(city, points=points, inverse_length=0.05, **WIND)


def test_an_stl_is_read_like_a_mesh(predictor, city, points, tmp_path) -> None:
    write_stl(tmp_path / "city.stl", city)
    from_file = predictor.predict(tmp_path / "city.stl", points=points, **WIND)
    assert np.isfinite(from_file["velocity"]).all()
    with pytest.raises(FileNotFoundError, match=r"no such file: .*nowhere\.stl"):
        predictor.predict(tmp_path / "nowhere.stl", points=points, **WIND)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (np.zeros((4, 2)), r"points must have the shape \(points, 3\).*got \(4, 2\)"),
        (np.zeros((0, 3)), r"got \(0, 3\)"),
        (np.full((2, 3), np.nan), "points must be finite"),
        (pv.UnstructuredGrid(), r"got \(0, 3\)"),
    ],
)
def test_wrong_points_are_named(predictor, city, points, message) -> None:
    with pytest.raises(ValueError, match=message):
        predictor.predict(city, points=points, **WIND)


def test_wrong_options_are_named(predictor, city, points) -> None:
    with pytest.raises(ValueError, match="at least one draw"):
        predictor.predict(city, points=points, draws=0, **WIND)
    with pytest.raises(ValueError, match="give it, or points, not both"):
        predictor.predict(city, points=points, spacing=3.0, **WIND)


@pytest.mark.filterwarnings("ignore:outside the training data")  # one building covers all of its rectangle
def test_the_shipped_model_knows_inflow_wake_and_recirculation() -> None:
    shipped = ff.load("urban-wind-laape")
    heights = np.array([5.0, 10.0, 20.0, 40.0])

    def along_wind(x: float) -> np.ndarray:
        points = np.stack([np.full(4, x), np.zeros(4), heights], axis=1)
        wind = shipped.predict(boxes_to_mesh([Box(-10, 10, -10, 10, 20)]), roughness=0.3, points=points, draws=3)
        return np.asarray(wind["velocity"])[:, 0]

    inflow = REFERENCE_SPEED * np.log(heights / 0.3) / np.log(REFERENCE_HEIGHT / 0.3)
    assert along_wind(-60.0) == pytest.approx(inflow, rel=0.15)
    assert (along_wind(20.0)[:2] < 0).all()  # behind the building, below its roof, air flows back
    assert along_wind(20.0)[3] > 0.9 * inflow[3]  # above the roof it does not
    assert (0.3 * inflow < along_wind(140.0)).all() and along_wind(140.0)[1] < 0.95 * inflow[1]  # the wake recovers
