"""A user's city is not in a duct: the air that its physics knows of grows with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.city import CHANNELS, FLOW, City
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.lattice import HEIGHTS, LEVELS, SPACING, Lattice, levels_up_to
from farfield.problems.urban_wind.physics import mass_consistent_wind, wake_deficits
from farfield.problems.urban_wind.projection import Openings

ROUGHNESS = 0.5
LEVEL = 2  # about 5 m high


def boxes_of(scale: float, seed: int = 0) -> list[Box]:
    return random_buildings(np.random.default_rng(seed), scale, SPACING)


def blockage(boxes: list[Box], domain: UrbanDomain) -> float:
    """Share of the air's cross-section that the buildings fill, seen along the wind."""
    across = np.arange(domain.y_min, domain.y_max, 1.0) + 0.5
    tops = [max((b.height for b in boxes if b.y_min <= y <= b.y_max), default=0.0) for y in across]
    (south, north), (_, height) = domain.bounds[1:]
    return float(sum(tops) / ((north - south) * height))


def test_no_city_is_more_confined_than_those_of_training() -> None:
    training = [blockage(boxes_of(1, seed), UrbanDomain.square(1)) for seed in range(40)]
    for scale in (2, 4, 6):
        boxes, domain = boxes_of(scale), UrbanDomain.square(scale)
        assert blockage(boxes, domain.in_the_open()) < np.median(training)
        assert blockage(boxes, domain) > max(training), "the data's own boxes of large cities are narrower"


def test_the_box_of_a_training_city_stays_as_it_is() -> None:
    triangles, domain = np.asarray(boxes_to_mesh(boxes_of(1)).triangles), UrbanDomain.square(1)
    lattice = Lattice.around(triangles, domain)
    assert domain.in_the_open() == domain and np.array_equal(levels_up_to(domain.height), LEVELS)
    opened = City.in_the_open(lattice, triangles, domain, ROUGHNESS)
    assert np.array_equal(opened.channels, City.of(lattice, ROUGHNESS).channels)


def among_buildings(triangles: np.ndarray, domain: UrbanDomain) -> tuple[np.ndarray, float]:
    """The mass-consistent wind between the buildings up to 15 m, and its speed beside the city over the inflow's."""
    lattice = Lattice.around(triangles, domain, levels=levels_up_to(domain.height))
    openings = Openings(lattice)
    deficit = wake_deficits(lattice, ROUGHNESS, (1.0,))[0]
    wind = openings.at_cells(mass_consistent_wind(openings, ROUGHNESS, deficit))
    x, y = (lattice.origin[a] + SPACING * (np.arange(lattice.shape[2 - a]) + 0.5) for a in (0, 1))
    city = np.ix_(range(6), np.abs(y) < domain.y_max, np.abs(x) < domain.x_max)
    air = lattice.solid[city] < 0.05
    beside = np.ix_((np.abs(y) > domain.y_max + 10) & (np.abs(y) < domain.y_max + 50), np.abs(x) < domain.x_max)
    inflow = inflow_profile(ROUGHNESS, heights=HEIGHTS)[LEVEL, 0]
    return np.stack([component[city][air] for component in wind]), float(wind[0, LEVEL][beside].mean() / inflow)


def test_the_wind_of_a_city_of_600_m_no_longer_depends_on_the_box() -> None:
    triangles, domain = np.asarray(boxes_to_mesh(boxes_of(6)).triangles), UrbanDomain.square(6)
    opened = domain.in_the_open()
    wider = replace(opened, further=1.4 * opened.further, height=1.4 * opened.height)
    (narrow, duct), (wind, beside), (reference, _) = (among_buildings(triangles, d) for d in (domain, opened, wider))
    assert duct > 1.5, "in the data's box the air beside the city is squeezed"
    assert beside == pytest.approx(1.0, abs=0.05), "with room it is the inflow"
    change = np.abs(reference - wind).sum() / np.abs(wind).sum()
    squeezed = np.abs(narrow - wind).sum() / np.abs(wind).sum()
    assert change < 0.12 < 1 < squeezed, (change, squeezed)


def test_a_city_in_the_open_has_the_lattice_that_the_network_knows() -> None:
    boxes = [*boxes_of(2), Box(110, 122, 0, 12, 70.0)]  # and a tower that is higher than the data's air
    triangles = np.asarray(boxes_to_mesh(boxes).triangles)
    domain = UrbanDomain.around(boxes_to_mesh(boxes))
    assert levels_up_to(domain.in_the_open().height)[-1] >= 1.4 * 70
    lattice = Lattice.around(triangles, domain)
    opened = City.in_the_open(lattice, triangles, domain, ROUGHNESS)
    assert opened.lattice.origin == lattice.origin and opened.lattice.shape == lattice.shape
    assert opened.channels.shape == (*lattice.shape[1:], len(HEIGHTS), len(CHANNELS))
    assert np.array_equal(opened.channels[..., 0], lattice.solid.transpose(1, 2, 0)), "the same solids at their places"
    assert not opened.channels[~lattice.air, :, FLOW:].any()
    tower = opened.channels[..., CHANNELS.index("wind_z")]
    assert np.isfinite(opened.channels).all() and np.abs(tower[..., -1]).max() > 0.05, "the air rises through 55 m"
