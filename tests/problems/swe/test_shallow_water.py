"""Shallow water against Stoker's exact solution and the laws it must keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from farfield.data.domain import Domain
from farfield.problems.swe import solver as shallow_water

G = shallow_water.GRAVITY


def stoker(x, t, left, right):
    """The exact wet dam break (Stoker 1957), dam at 0: v, h; speeds of the fan's head, tail, of the shock."""
    c_left = np.sqrt(G * left)

    def mismatch(h):  # velocity behind the rarefaction - velocity behind the shock
        return 2 * (c_left - np.sqrt(G * h)) - (h - right) * np.sqrt(G * (h + right) / (2 * h * right))

    middle = brentq(mismatch, right, left)
    v_middle = 2 * (c_left - np.sqrt(G * middle))
    head, tail = -c_left, v_middle - np.sqrt(G * middle)
    shock = middle * v_middle / (middle - right)
    xi = x / t
    fan_v, fan_h = 2 / 3 * (xi + c_left), (2 * c_left - xi) ** 2 / (9 * G)
    regions = [xi < head, xi < tail, xi < shock]
    v = np.select(regions, [0.0 * xi, fan_v, 0 * xi + v_middle], 0.0)
    h = np.select(regions, [0 * xi + left, fan_h, 0 * xi + middle], right)
    return v, h, (head, tail, shock)


def dam_break(cells, left=2.0, right=1.0, time=4.0):
    domain = Domain((cells,), (100.0,))
    x = domain.centres()[0] - 50
    steps = int(np.ceil(time / (0.7 * domain.spacing[0] / (2 * np.sqrt(G * left)))))
    initial = np.stack([np.zeros(cells), np.where(x < 0, left, right)])
    v, h = shallow_water.solve(initial, domain, steps, 2, time_step=time / steps)[-1]
    return x, v, h, stoker(x, time, left, right)


def test_the_error_against_stokers_dam_break_falls_with_refinement():
    cells = [100, 200, 400, 800, 1600]
    errors = []
    for count in cells:
        _, v, h, (exact_v, exact_h, _) = dam_break(count)
        errors.append([np.abs(h - exact_h).mean(), np.abs(v - exact_v).mean()])
    orders = -np.polyfit(np.log(cells), np.log(errors), 1)[0]
    assert (orders >= 0.7).all(), orders
    assert errors[-1][0] < 0.005


def test_shock_and_rarefaction_stand_where_stoker_has_them():
    time, cells = 4.0, 1600
    x, _, h, (_, exact_h, (head, tail, shock)) = dam_break(cells, time=time)
    steepest = x[np.argmin(np.gradient(h, x))]
    assert abs(steepest - shock * time) < 2 * 100 / cells
    middle_of_fan = (head + tail) / 2 * time
    assert abs(np.interp(middle_of_fan, x, h) - np.interp(middle_of_fan, x, exact_h)) < 0.005
    plateau = (x > (tail + 0.2 * (shock - tail)) * time) & (x < (tail + 0.8 * (shock - tail)) * time)
    np.testing.assert_allclose(h[plateau], exact_h[plateau], rtol=1e-3)


crenel_states = st.lists(st.tuples(st.floats(30, 65), st.floats(1, 8), st.floats(0.01, 0.5)), min_size=1, max_size=4)


def crenels(domain, bumps):
    (x,) = domain.centres()
    height = np.ones_like(x)
    for start, width, rise in bumps:
        height[(x >= start) & (x < start + width)] += rise
    return np.stack([np.zeros_like(x), height])


@given(crenel_states)
@settings(max_examples=20, deadline=None)
def test_mass_is_conserved_while_no_wave_has_reached_an_end(bumps):
    domain = Domain((130,), (100.0,))
    states = shallow_water.solve(crenels(domain, bumps), domain, 10, 11, time_step=0.02)
    mass = states[:, 1].sum(axis=-1)
    np.testing.assert_allclose(mass, mass[0], rtol=1e-14)


@given(st.floats(0.01, 50), st.integers(1, 200))
@settings(max_examples=20, deadline=None)
def test_a_lake_at_rest_stays_at_rest(height, cells):
    initial = np.stack([np.zeros(cells), np.full(cells, height)])
    domain = Domain((cells,), (10.0 * cells,))
    states = shallow_water.solve(initial, domain, 20, 3, time_step=0.03)
    assert (states == initial).all()


@given(crenel_states)
@settings(max_examples=20, deadline=None)
def test_mirrored_states_give_mirrored_solutions(bumps):
    domain = Domain((127,), (100.0,))
    initial = crenels(domain, bumps)
    mirrored = initial[:, ::-1] * [[-1], [1]]
    states = shallow_water.solve(np.stack([initial, mirrored]), domain, 10, 8)
    assert (states[1] == states[0][:, :, ::-1] * [[-1], [1]]).all()


def test_enlarging_the_domain_leaves_the_interior_unchanged_until_a_wave_has_crossed():
    small, large = Domain((128,), (100.0,)), Domain((384,), (300.0,))
    initial = crenels(small, [(40, 8, 0.05), (55, 6, 0.08)])
    wide = np.stack([np.zeros(384), np.ones(384)])
    wide[:, 128:256] = initial
    inner = shallow_water.solve(initial, small, 30, 26)
    cut_out = shallow_water.solve(wide, large, 30, 26)[..., 128:256]
    # The front of a wave needs about 11 s to the nearest end; after 7.5 s only numerical diffusion's tail is
    # there.
    np.testing.assert_allclose(cut_out, inner, atol=1e-9)
    assert np.abs(inner[-1, 1] - 1).max() > 1e-3


def test_many_simulations_at_once_are_each_solved_as_alone():
    domain = Domain((64,), (50.0,))
    initial = np.stack([crenels(domain, [(30 + i, 4 + i, 0.1 * (i + 1))]) for i in range(5)])
    together = shallow_water.solve(initial, domain, 7, 4)
    for one, alone in zip(initial, together, strict=True):
        assert (shallow_water.solve(one, domain, 7, 4) == alone).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"height": -0.1}, "height of -0.1 m"),
        ({"height": 0.0}, "dry bed"),
        ({"height": np.nan}, "not finite"),
        ({"time_step": 1.0}, r"1 s is above the stability limit of 0\.24\d* s"),
        ({"time_step": -0.1}, "positive time_step"),
        ({"time_step": np.nan}, "positive time_step"),
        ({"save_every": 0}, "at least 1"),
        ({"states": 0}, "at least 1"),
        ({"cells": 63}, "expected an initial state of shape"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(change, message):
    initial = np.stack([np.zeros(64), np.ones(64)])
    initial[1, 10] = change.get("height", 1.0)
    domain = Domain((change.get("cells", 64),), (50.0,))
    with pytest.raises(ValueError, match=message):
        shallow_water.solve(
            initial,
            domain,
            change.get("save_every", 5),
            change.get("states", 3),
            time_step=change.get("time_step", 0.03),
        )
