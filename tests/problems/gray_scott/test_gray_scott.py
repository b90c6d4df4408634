"""Gray-Scott against an independent integrator, analytic modes and its own slow reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from farfield.data.domain import Domain
from farfield.problems.gray_scott import solver as gray_scott


def squares(cells, corners):
    state = np.stack([np.ones(cells), np.zeros(cells)])
    for i, j in corners:
        state[0, i : i + 5, j : j + 5], state[1, i : i + 5, j : j + 5] = 0.5, 0.25
    return state


def time_derivative(flat, cells):
    """The semi-discrete equations, written once more and without the solver's code."""
    u, v = flat.reshape(2, *cells)

    def laplacian(field):
        ghost = np.pad(field, 1, mode="edge")
        return ghost[2:, 1:-1] + ghost[:-2, 1:-1] + ghost[1:-1, 2:] + ghost[1:-1, :-2] - 4 * field

    du = 0.2 * laplacian(u) - u * v**2 + 0.035 * (1 - u)
    dv = 0.1 * laplacian(v) + u * v**2 - (0.035 + 0.06) * v
    return np.concatenate([du.ravel(), dv.ravel()])


def test_the_error_against_an_independent_integrator_falls_in_first_order_with_the_time_step():
    cells, time = (24, 20), 100
    domain = Domain(cells, cells)
    initial = squares(cells, [(3, 4), (12, 9)])
    exact = solve_ivp(
        lambda t, y: time_derivative(y, cells),
        (0, time),
        initial.ravel(),
        method="DOP853",
        rtol=1e-10,
        atol=1e-12,
    ).y[:, -1]
    time_steps = np.array([1.0, 0.5, 0.25, 0.125])
    errors = [
        np.abs(gray_scott.solve(initial, domain, round(time / dt), 2, time_step=dt)[-1].ravel() - exact).max()
        for dt in time_steps
    ]
    orders = np.diff(np.log(errors)) / np.diff(np.log(time_steps))
    assert ((orders > 0.9) & (orders < 1.1)).all(), (errors, orders)
    assert errors[-1] < 2e-3


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_without_reaction_mass_is_conserved(seed, nx, ny):
    state = np.random.default_rng(seed).random((2, nx, ny))
    state[1] = 0  # no V: U only diffuses
    final = gray_scott.solve(state, Domain((nx, ny), (nx, ny)), 50, 2, feed_rate=0, kill_rate=0)[-1]
    np.testing.assert_allclose(final[0].sum(), state[0].sum(), rtol=1e-13)
    state = state[::-1]  # no U: V only diffuses
    final = gray_scott.solve(state, Domain((nx, ny), (nx, ny)), 50, 2, feed_rate=0, kill_rate=0)[-1]
    np.testing.assert_allclose(final[1].sum(), state[1].sum(), rtol=1e-13)


@pytest.mark.parametrize(("field", "diffusion"), [(0, 0.2), (1, 0.1)])
@pytest.mark.parametrize("mode", [(1, 0), (0, 2), (3, 1)])
def test_a_cosine_mode_decays_at_its_analytic_rate(field, diffusion, mode):
    domain = Domain((48, 32), (60.0, 32.0))  # cells need not be square
    (x, y), extent = domain.centres(), domain.extent
    wave = np.cos(np.pi * mode[0] * x / extent[0])[:, None] * np.cos(np.pi * mode[1] * y / extent[1])
    state = np.zeros((2, *domain.cells))
    state[field] = wave
    steps, dt = 400, 0.25
    final = gray_scott.solve(state, domain, steps, 2, time_step=dt, feed_rate=0, kill_rate=0)[-1][field]
    decay = np.sum(final * wave) / np.sum(wave * wave)
    rate = -np.log(decay) / (steps * dt)
    analytic = diffusion * sum((np.pi * m / length) ** 2 for m, length in zip(mode, extent, strict=True))
    assert rate == pytest.approx(analytic, rel=0.02)
    np.testing.assert_allclose(final, decay * wave, atol=1e-12)  # a mode stays that mode


def test_u_of_one_and_v_of_zero_stay():
    cells = (300, 37)
    state = squares(cells, [])
    assert (gray_scott.solve(state, Domain(cells, cells), 100, 3) == state).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.integers(1, 50), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_the_compiled_steps_equal_the_reference(seed, nx, ny, steps):
    state = np.random.default_rng(seed).random((1, 2, nx, ny)) * 0.5
    coefficients = gray_scott.step_coefficients(Domain((nx, ny), (1.1 * nx, ny)))
    expected = state[0]
    for _ in range(steps):
        expected = gray_scott.reference_step(expected, coefficients)
    np.testing.assert_allclose(gray_scott.advance(state, steps, coefficients)[0], expected, rtol=1e-11)


@given(st.integers(0, 2**32 - 1), st.integers(1, 90), st.integers(1, 90), st.integers(7, 60), st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_cutting_a_domain_into_tiles_changes_no_bit(seed, nx, ny, tile, rim):
    state = np.random.default_rng(seed).random((2, 2, nx, ny)) * 0.5
    coefficients = gray_scott.step_coefficients(Domain((nx, ny), (nx, ny)))
    whole = gray_scott.advance(state, 23, coefficients, tile=100)
    assert (gray_scott.advance(state, 23, coefficients, tile=tile, rim=rim) == whole).all()


@pytest.mark.parametrize("axis", [-1, -2])
def test_mirrored_states_give_mirrored_solutions(axis):
    cells = (61, 50)
    state = squares(cells, [(3, 4), (30, 31), (50, 12)])
    states = gray_scott.solve(np.stack([state, np.flip(state, axis)]), Domain(cells, cells), 200, 3)
    assert (states[1] == np.flip(states[0], axis)).all()


def test_enlarging_the_domain_leaves_the_interior_unchanged_until_a_front_has_crossed():
    small, large = (96, 80), (3 * 96, 3 * 80)
    inner = squares(small, [(40, 34), (48, 40)])
    wide = squares(large, [])
    wide[:, 96:192, 80:160] = inner
    alone = gray_scott.solve(inner, Domain(small, small), 30, 5)
    cut_out = gray_scott.solve(wide, Domain(large, large), 30, 5)[..., 96:192, 80:160]
    assert np.abs(alone[-1] - inner).max() > 0.5
    # A step reaches one cell further: 30 steps cannot cross the 34 cells to the nearest side, after that only
    # diffusion's faint tails have.
    assert (cut_out[1] == alone[1]).all()
    np.testing.assert_allclose(cut_out[-1], alone[-1], atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time_step": 2.0}, r"2 is above the stability limit of 1\.223"),
        ({"time_step": 0.0}, "positive time_step"),
        ({"diffusion_u": -0.1}, "non-negative"),
        ({"save_every": 0}, "at least 1"),
        ({"states": -1}, "at least 1"),
        ({"cells": (20, 16)}, "expected an initial state of shape"),
        ({"value": np.inf}, "not finite"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(change, message):
    state = squares((16, 20), [(4, 4)])
    state[0, 3, 3] = change.pop("value", 1.0)
    cells = change.pop("cells", (16, 20))
    arguments = {"save_every": 5, "states": 2, **change}
    with pytest.raises(ValueError, match=message):
        gray_scott.solve(state, Domain(cells, cells), **arguments)
