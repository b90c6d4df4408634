"""One-dimensional shallow water, first-order finite volumes.

    ∂h/∂t + ∂(hv)/∂x = 0,      ∂(hv)/∂t + ∂(hv² + g h²/2)/∂x = 0

with the water height h, the velocity v and g = ``gravity``; zero-gradient ends. With w = (h, hv) and its flux
f(w), a cell changes by the difference of Rusanov's fluxes through its two faces,

    F = [f(w_left) + f(w_right)] / 2 - a (w_right - w_left) / 2,     a = max(|v| + √(g h)) of the two cells,

and an explicit Euler step of ``time_step``. The scheme is deliberately first order: the published dataset's
statistics show its diffusion. The time step is deliberately fixed: one that followed the fastest wave of the
domain would make the solution at a point depend on how large the domain is.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from farfield.data.domain import Domain, rollout
from farfield.problems.swe import GRAVITY


def stable_time_step(state: NDArray[np.float64], domain: Domain, gravity: float = GRAVITY) -> float:
    """The largest stable step: no wave, at speed |v| + √(g h), may cross more than one cell."""
    velocity, height = state[..., 0, :], state[..., 1, :]
    return float(domain.spacing[0] / np.max(np.abs(velocity) + np.sqrt(gravity * height)))


def solve(
    initial: ArrayLike,
    domain: Domain,
    save_every: int,
    states: int,
    *,
    time_step: float = 0.01,
    gravity: float = GRAVITY,
) -> NDArray[np.float64]:
    """Solve from ``initial`` and return ``states`` saved states, the first of which is ``initial`` itself.

    ``initial`` is (2, cells) or (simulations, 2, cells), in the order v [m/s], h [m]; a state is saved every
    ``save_every`` steps of ``time_step`` [s]. Returns (states, 2, cells) or (simulations, states, 2, cells).
    Simulations run in parallel; one simulation does not: even 100 km of water take well under a second.
    """
    first = np.asarray(initial, dtype=np.float64)
    if domain.space_dim != 1 or first.shape[-2:] != (2, *domain.cells) or first.ndim not in (2, 3):
        raise ValueError(
            f"expected an initial state of shape (2, cells) or (simulations, 2, cells) on a domain of one "
            f"axis, got {first.shape} on a domain of {domain.cells} cells"
        )
    if save_every < 1 or states < 1:
        raise ValueError(f"expected save_every and states of at least 1, got {save_every} and {states}")
    if not (time_step > 0 and gravity > 0):
        raise ValueError(f"expected a positive time_step and gravity, got {time_step} and {gravity}")
    _check(first, domain, time_step, gravity)

    def step(state: NDArray[np.float64]) -> NDArray[np.float64]:
        advanced = _advance(state, save_every, time_step / domain.spacing[0], gravity)
        _check(advanced, domain, time_step, gravity)
        return advanced

    batch = first if first.ndim == 3 else first[None]
    saved = list(rollout(step, batch, states - 1))
    trajectory = np.stack(saved, axis=1)
    return trajectory if first.ndim == 3 else trajectory[0]


def _check(state: NDArray[np.float64], domain: Domain, time_step: float, gravity: float) -> None:
    if not np.isfinite(state).all():
        raise ValueError("the state is not finite: check the initial state and reduce the time step")
    lowest = state[..., 1, :].min()
    if not lowest > 0:
        raise ValueError(f"expected water everywhere (a dry bed is not supported), got a height of {lowest:g} m")
    limit = stable_time_step(state, domain, gravity)
    if time_step > limit:
        raise ValueError(
            f"the time step {time_step:g} s is above the stability limit of {limit:.4g} s "
            f"(cell size / fastest wave): use at most that"
        )


# No fast maths: mirrored states then give mirrored solutions to the last bit.
@numba.njit(parallel=True, cache=True, error_model="numpy")
def _advance(state: Any, steps: int, dt_over_dx: float, gravity: float) -> Any:
    simulations, _, cells = state.shape
    result = np.empty_like(state)
    for s in numba.prange(simulations):
        h = np.empty(cells + 2)  # one ghost cell at each end
        q = np.empty(cells + 2)  # the discharge h v
        work = np.empty((4, cells + 2))
        h[1:-1] = state[s, 1]
        q[1:-1] = state[s, 0] * state[s, 1]
        for _ in range(steps):
            h[0], q[0], h[-1], q[-1] = h[1], q[1], h[-2], q[-2]
            _step(h, q, work[0], work[1], work[2], work[3], dt_over_dx, gravity)
        result[s, 0] = q[1:-1] / h[1:-1]
        result[s, 1] = h[1:-1]
    return result


@numba.njit(cache=True, error_model="numpy")
def _step(
    h: Any, q: Any, speed: Any, momentum: Any, flux_h: Any, flux_q: Any, dt_over_dx: float, gravity: float
) -> None:
    """One time step in place, in loops that the compiler vectorises; face i is between cells i and i + 1."""
    for i in range(h.size):
        v = q[i] / h[i]
        speed[i] = np.abs(v) + np.sqrt(gravity * h[i])
        momentum[i] = q[i] * v + 0.5 * gravity * h[i] * h[i]
    for i in range(h.size - 1):
        a = speed[i] if speed[i] > speed[i + 1] else speed[i + 1]
        flux_h[i] = 0.5 * (q[i] + q[i + 1]) - 0.5 * a * (h[i + 1] - h[i])
        flux_q[i] = 0.5 * (momentum[i] + momentum[i + 1]) - 0.5 * a * (q[i + 1] - q[i])
    for i in range(h.size - 2):
        h[i + 1] -= dt_over_dx * (flux_h[i + 1] - flux_h[i])
        q[i + 1] -= dt_over_dx * (flux_q[i + 1] - flux_q[i])
