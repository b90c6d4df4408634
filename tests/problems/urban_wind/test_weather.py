"""Weather files, and what they make of local winds."""

from pathlib import Path

import numpy as np
import pytest

from farfield.problems.urban_wind.comfort import SCALES, SPEEDS
from farfield.problems.urban_wind.comfort_files import Comfort
from farfield.problems.urban_wind.weather import Weather, read_weather


def epw(path: Path, hours: list[tuple[float, float]]) -> Path:
    """Eight lines about the place, then 35 columns an hour: direction and speed are the 21st and 22nd."""
    head = ["LOCATION,Nowhere,-,-,test,0,52.5,13.4,1,40", *[f"HEADER {i}" for i in range(7)]]
    rows = [",".join(["2020,1,1,1,60,?", *["0"] * 14, f"{d:g}", f"{s:g}", *["0"] * 13]) for d, s in hours]
    path.write_text("\n".join([*head, *rows]) + "\n")
    return path


def table(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def steady(direction: float, speed: float) -> Weather:
    return Weather("steady", np.array([direction]), np.array([speed]), np.ones(1), 0.0)


def test_hours_of_an_epw_are_counted(tmp_path) -> None:
    weather = read_weather(epw(tmp_path / "a.epw", [(10, 2.0), (10, 4.0), (360, 4.0), (200, 8.0)]))
    assert weather.directions.tolist() == [10, 10, 0, 200] and weather.speeds.tolist() == [2, 4, 4, 8]
    assert weather.shares.tolist() == [0.25] * 4 and weather.calm == 0


def test_calm_hours_and_gaps_are_said(tmp_path) -> None:
    """Calm hours count among all hours, gaps do not."""
    hours = [(0, 0.0), (250, 5.0), (250, 5.0), (999, 999.0), (999, 999.0)]
    with pytest.warns(UserWarning) as said:  # noqa: PT030
        weather = read_weather(epw(tmp_path / "a.epw", hours))
    texts = [str(warning.message) for warning in said]
    assert any("40.0% of the hours have no measured wind and are left out" in text for text in texts)
    assert any("33.3% of the hours are calm" in text for text in texts)
    assert weather.calm == pytest.approx(1 / 3) and weather.shares.sum() == pytest.approx(2 / 3)


@pytest.mark.parametrize("unit", [1.0, 100.0, 8760.0])
def test_frequencies_are_shares_whatever_their_unit(tmp_path, unit) -> None:
    rows = [(0, 3, 0.25), (90, 5, 0.5), (180, 7, 0.25)]
    text = "Direction;Speed;Frequency\n" + "\n".join(f"{d};{s};{f * unit}" for d, s, f in rows)
    weather = read_weather(table(tmp_path / "a.csv", text))
    assert weather.shares.tolist() == pytest.approx([0.25, 0.5, 0.25])
    hourly = read_weather(table(tmp_path / "b.csv", "direction,speed\n0,3\n90,5\n\n90,5\n180,7\n"))
    assert hourly.shares.tolist() == [0.25] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("direction,speed\n370,4\n10,4\n", r"line 2: expected a direction from 0 to 360 degrees, got 370"),
        ("direction,speed\n10,4\n-5,4\n-5,4\n", r"line 3: .* got -5 \(and in 1 more lines\)"),
        ("direction,speed\n10,-4\n", r"line 2: expected a speed from 0 to 60 m/s, got -4|in none of its hours"),
        ("direction,speed\n10,200\n", "expected a speed from 0 to 60 m/s, got 200"),
        ("direction,speed\n10,fast\n", "line 2: expected a number, got 'fast'"),
        ("direction,speed,frequency\n10,4,-1\n", "line 2: a frequency must be zero or more"),
        ("direction,speed,frequency\n10,4,0\n", "frequencies sum to zero"),
        ("direction,speed\n,\n10,4\n,5\n,6\n", "67% of the hours have no measured wind"),
        ("direction,speed\n0,0\n0,0\n", "in none of its hours does a wind blow"),
        ("wind,hours\n1,2\n", "expected columns direction, speed .* got wind, hours"),
        ("", "expected columns .* got nothing"),
        ("direction,speed\n", "no records of wind"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_bad_tables_are_refused_by_line(tmp_path, text, message) -> None:
    with pytest.raises(ValueError, match=message):
        read_weather(table(tmp_path / "bad.csv", text))


def test_other_files_are_refused(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_weather(tmp_path / "none.epw")
    with pytest.raises(ValueError, match=r"ends in .epw or .csv"):
        read_weather(table(tmp_path / "a.txt", "x"))
    with pytest.raises(ValueError, match="first line does not begin with LOCATION"):
        read_weather(table(tmp_path / "a.epw", "direction,speed\n"))
    short = table(tmp_path / "b.epw", "LOCATION\n" * 8 + "1,2,3\n")
    with pytest.raises(ValueError, match="line 9: expected at least 22 columns, got 3"):
        read_weather(short)


def test_every_hour_belongs_to_the_directions_around_it() -> None:
    rng = np.random.default_rng(0)
    directions = rng.uniform(0, 360, 50)
    weather = Weather("random", directions, np.ones(50), np.full(50, 1 / 50), 0.0)
    every = (np.arange(16) * 22.5).tolist()
    shares = weather.towards(every)
    assert shares.sum(0) == pytest.approx(np.full(50, 1 / 50))
    on_ring = np.exp(1j * np.deg2rad(every)) @ shares
    turned = np.rad2deg(np.angle(on_ring * np.exp(-1j * np.deg2rad(directions))))
    assert np.abs(turned).max() < 0.5, "the mean direction stays"
    assert steady(359.0, 5.0).towards([0.0, 180.0, 90.0, 270.0])[:, 0] == pytest.approx([89 / 90, 0, 0, 1 / 90])


def test_the_wind_of_a_grass_station_is_slower_over_a_city() -> None:
    weather = steady(0.0, 5.0)
    over = weather.at_site(0.03)
    assert over == pytest.approx(np.log(80.03 / 0.03) / np.log(10.03 / 0.03)), "the same ground: the logarithmic law"
    assert weather.at_site(1.0) > over, "at 80 m; nearer to the ground it is the other way round"
    near = [weather.at_site(z) * np.log((2 + z) / z) / np.log((80 + z) / z) for z in (0.03, 1.0)]
    assert near[1] < 0.7 * near[0]
    with pytest.raises(ValueError, match="height of the wind must be positive"):
        Weather("bad", np.zeros(1), np.ones(1), np.ones(1), 0.0, height=0.0).at_site(0.3)


def test_exceedance_counts_hours() -> None:
    """Against the plain definition, on hours whose speeds are drawn as finely as a year has them."""
    rng = np.random.default_rng(1)
    directions = rng.choice(np.arange(8) * 45.0, 20_000)
    speeds = rng.weibull(2, 20_000) * 5
    weather = Weather("random", directions, speeds, np.full(20_000, 0.9 / 20_000), 0.1)
    factors = rng.uniform(0.2, 1.5, (8, 3))
    local = factors[(directions / 45).astype(int)] * speeds[:, None]
    found = weather.exceedance(factors, (np.arange(8) * 45.0).tolist(), [4.0, 8.0])
    expected = [0.9 * (local > threshold).mean(0) for threshold in (4.0, 8.0)]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    mean = weather.mean_speed(factors, (np.arange(8) * 45.0).tolist())
    np.testing.assert_allclose(mean, 0.9 * local.mean(0), rtol=1e-6)


def test_rounded_speeds_stand_for_what_lies_around_them() -> None:
    weather = Weather("bins", np.zeros(3), np.array([2.0, 4.0, 6.0]), np.full(3, 1 / 3), 0.0)
    above = weather.exceedance(np.ones((1, 1)), [0.0], [0.5, 2.0, 3.0, 4.0, 6.0, 7.5])[:, 0]
    assert above == pytest.approx([1, 5 / 6, 2 / 3, 1 / 2, 1 / 6, 0])


@pytest.mark.parametrize(
    ("scale", "often", "expected"),
    [
        ("lawson_comfort", {4: 0.04}, "sitting"),
        ("lawson_comfort", {4: 0.2, 6: 0.06, 8: 0.01}, "strolling"),
        ("lawson_comfort", {4: 0.9, 6: 0.8, 8: 0.7, 10: 0.06}, "uncomfortable"),
        ("lawson_safety", {15: 0.0001}, "safe"),
        ("lawson_safety", {15: 0.001, 20: 0.0001}, "unsafe for the frail"),
        ("lawson_safety", {15: 0.001, 20: 0.0005}, "unsafe"),
        ("nen_comfort", {5: 0.02}, "A"),
        ("nen_comfort", {5: 0.025}, "B"),
        ("nen_comfort", {5: 0.19}, "D"),
        ("nen_comfort", {5: 0.2}, "E"),
        ("nen_safety", {15: 0.0004}, "no danger"),
        ("nen_safety", {15: 0.002}, "limited risk"),
        ("nen_safety", {15: 0.004}, "dangerous"),
    ],
)
def test_classes_of_the_criteria(scale, often, expected) -> None:
    (chosen,) = (one for one in SCALES if one.name == scale)
    exceeded = {speed: np.array([often.get(int(speed), 0.0)]) for speed in SPEEDS}
    assert chosen.levels[int(chosen.classes(exceeded)[0])].name == expected


def test_classes_of_a_year_counted_by_hand(tmp_path) -> None:
    """1000 hours: 100 not measured, 90 calm, 45 of 8 m/s, 9 of 16 m/s, the rest of 2 m/s; 900 hours count.

    Speeds are rounded: 8 m/s stands for 5 to 12 m/s, 16 m/s for 12 to 20 m/s. Where the local wind is the station's,
    54 / 900 = 6 % of the hours are above 5 m/s (5.4 % with the gaps among the hours, 6.7 % without the calm ones).
    """
    counts = {(999, 999.0): 100, (0, 0.0): 90, (0, 8.0): 45, (0, 16.0): 9, (0, 2.0): 756}
    with pytest.warns(UserWarning, match="no measured wind|are calm"):
        weather = read_weather(epw(tmp_path / "a.epw", [hour for hour, n in counts.items() for _ in range(n)]))
    factors = np.array([[1.0, 0.5]])
    shares = dict(zip(SPEEDS, weather.exceedance(factors, [0.0], SPEEDS), strict=True))
    assert shares[5.0] == pytest.approx([54 / 900, (45 * 2 / 7 + 9) / 900])
    assert shares[15.0] == pytest.approx([9 * 5 / 8 / 900, 0])
    classes = {scale.name: [scale.levels[n].name for n in scale.classes(shares)] for scale in SCALES}
    assert classes["nen_comfort"] == ["C", "A"]
    assert classes["nen_safety"] == ["dangerous", "no danger"]
    assert classes["lawson_comfort"] == ["strolling", "sitting"]
    assert classes["lawson_safety"] == ["unsafe for the frail", "safe"]


def test_more_wind_is_never_a_better_class() -> None:
    weather = Weather("west", np.full(40, 270.0), np.linspace(0.5, 20, 40), np.full(40, 1 / 40), 0.0)
    speeds = np.tile(np.linspace(0.05, 8, 60), (8, 1))
    comfort = Comfort.of(weather, speeds, (np.arange(8) * 45.0).tolist(), 0.3)
    for name, classes in comfort.classes.items():
        assert (np.diff(classes) >= 0).all() and classes[0] == 0 and classes[-1] > 0, name
