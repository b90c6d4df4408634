"""Gray-Scott reaction and diffusion in two dimensions.

    ∂U/∂t = D_u ∇²U - U V² + F (1 - U),      ∂V/∂t = D_v ∇²V + U V² - (F + k) V

with D_u = ``diffusion_u``, D_v = ``diffusion_v``, F = ``feed_rate``, k = ``kill_rate``; zero-gradient sides,
the five-point stencil, explicit Euler steps of ``time_step``, all in float64 (in float32 a pattern drifts by
up to 0.02 within 5000 steps).

Speed: a step reads and writes each value once, and a piece of a domain that fits into a core's cache takes
many steps before it is written back. A domain of up to ``TILE`` cells along both axes is one such piece. A
larger one is cut into tiles, each loaded with a rim of ``RIM`` cells and advanced ``RIM`` steps, during which
what enters from outside spoils the rim only. So one loop over (simulation, tile) serves many small domains
and one large one, and the result is the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import ArrayLike, NDArray

from farfield.data.domain import Domain, rollout
from farfield.problems.gray_scott import DIFFUSION_U, DIFFUSION_V, FEED_RATE, KILL_RATE

# Cells along each axis of a tile: its four arrays (4 MB) stay in the cache.
TILE = 320
# Cells a tile is widened by on each side, and the steps it takes before it is written back: with fewer,
# loading and storing dominate; with more, the work on the rim.
RIM = 16


def stable_time_step(
    domain: Domain,
    diffusion_u: float = DIFFUSION_U,
    diffusion_v: float = DIFFUSION_V,
    feed_rate: float = FEED_RATE,
    kill_rate: float = KILL_RATE,
) -> float:
    """The largest step at which diffusion, feed and kill are stable: 2 / their fastest rate."""
    stiffness = 4 * sum(1 / dx**2 for dx in domain.spacing)
    fastest = max(diffusion_u * stiffness + feed_rate, diffusion_v * stiffness + feed_rate + kill_rate)
    return 2 / fastest if fastest > 0 else np.inf


def solve(
    initial: ArrayLike,
    domain: Domain,
    save_every: int,
    states: int,
    *,
    time_step: float = 1.0,
    diffusion_u: float = DIFFUSION_U,
    diffusion_v: float = DIFFUSION_V,
    feed_rate: float = FEED_RATE,
    kill_rate: float = KILL_RATE,
) -> NDArray[np.float64]:
    """Solve from ``initial`` and return ``states`` saved states, the first of which is ``initial`` itself.

    ``initial`` is (2, nx, ny) or (simulations, 2, nx, ny), in the order U, V; a state is saved every
    ``save_every`` time steps. Returns (states, 2, nx, ny) or (simulations, states, 2, nx, ny). Simulations
    and the tiles of large domains run in parallel.
    """
    first = np.asarray(initial, dtype=np.float64)
    if domain.space_dim != 2 or first.shape[-3:] != (2, *domain.cells) or first.ndim not in (3, 4):
        raise ValueError(
            f"expected an initial state of shape (2, nx, ny) or (simulations, 2, nx, ny) on a domain of two "
            f"axes, got {first.shape} on a domain of {domain.cells} cells"
        )
    if save_every < 1 or states < 1:
        raise ValueError(f"expected save_every and states of at least 1, got {save_every} and {states}")
    rates = (diffusion_u, diffusion_v, feed_rate, kill_rate)
    if min(rates) < 0 or not time_step > 0:
        raise ValueError(
            f"expected a positive time_step and non-negative diffusion_u, diffusion_v, feed_rate, kill_rate, "
            f"got {time_step} and {rates}"
        )
    limit = stable_time_step(domain, *rates)
    if time_step > limit:
        raise ValueError(f"the time step {time_step:g} is above the stability limit of {limit:.4g}: use at most that")
    _check_finite(first)
    coefficients = step_coefficients(domain, *rates, time_step=time_step)

    def step(state: NDArray[np.float64]) -> NDArray[np.float64]:
        advanced = advance(state, save_every, coefficients)
        _check_finite(advanced)
        return advanced

    batch = first if first.ndim == 4 else first[None]
    saved = list(rollout(step, batch, states - 1))
    trajectory = np.stack(saved, axis=1)
    return trajectory if first.ndim == 4 else trajectory[0]


def step_coefficients(
    domain: Domain,
    diffusion_u: float = DIFFUSION_U,
    diffusion_v: float = DIFFUSION_V,
    feed_rate: float = FEED_RATE,
    kill_rate: float = KILL_RATE,
    *,
    time_step: float = 1.0,
) -> NDArray[np.float64]:
    """What a step multiplies by: diffusion of U along x, y, of V along x, y, reaction, feed, loss of V."""
    dx, dy = domain.spacing
    diffusion = [d / spacing**2 for d in (diffusion_u, diffusion_v) for spacing in (dx, dy)]
    return time_step * np.array([*diffusion, 1.0, feed_rate, feed_rate + kill_rate])


def reference_step(state: NDArray[np.float64], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    """One time step of (2, nx, ny) in plain NumPy: what the compiled steps are checked and timed against."""
    ux, uy, vx, vy, dt, feed, loss = coefficients
    u, v = state
    padded = np.pad(state, ((0, 0), (1, 1), (1, 1)), mode="edge")
    along_x = padded[:, :-2, 1:-1] + padded[:, 2:, 1:-1] - 2 * state
    along_y = padded[:, 1:-1, :-2] + padded[:, 1:-1, 2:] - 2 * state
    reaction = dt * u * v * v
    return np.stack(
        [
            u + (ux * along_x[0] + uy * along_y[0] + (feed * (1 - u) - reaction)),
            v + (vx * along_x[1] + vy * along_y[1] + (reaction - loss * v)),
        ]
    )


def _check_finite(state: NDArray[np.float64]) -> None:
    if not np.isfinite(state).all():
        raise ValueError("the state is not finite: check the initial state and reduce the time step")


def advance(
    state: NDArray[np.float64],
    steps: int,
    coefficients: NDArray[np.float64],
    tile: int = TILE,
    rim: int = RIM,
) -> NDArray[np.float64]:
    """Advance (simulations, 2, nx, ny) by ``steps`` time steps."""
    simulations, _, nx, ny = state.shape
    tiles_x, tiles_y = -(-nx // tile), -(-ny // tile)
    if tiles_x * tiles_y == 1:
        rim = steps  # nothing enters from outside
    tasks = np.array(
        [
            (s, nx * i // tiles_x, nx * (i + 1) // tiles_x, ny * j // tiles_y, ny * (j + 1) // tiles_y)
            for s in range(simulations)
            for i in range(tiles_x)
            for j in range(tiles_y)
        ]
    )
    buffers = np.empty((2, *state.shape))
    # Each thread's old and new fields of a tile, allocated once: fresh pages would cost as much as the steps.
    widened = [min(-(-cells // tiles) + 2 * rim, cells) + 2 for cells, tiles in ((nx, tiles_x), (ny, tiles_y))]
    work = np.ones((numba.get_num_threads(), 2, 2 * widened[0] * widened[1]))
    turns = -(-steps // rim)
    for turn in range(turns):
        taken = steps * (turn + 1) // turns - steps * turn // turns  # evenly: a short last turn would be dear
        _advance_tiles(state, buffers[turn % 2], tasks, taken, coefficients, work)
        state = buffers[turn % 2]
    return state


@numba.njit(parallel=True, cache=True)
def _advance_tiles(source: Any, result: Any, tasks: Any, steps: int, coefficients: Any, work: Any) -> None:
    for task in numba.prange(len(tasks)):
        s, x0, x1, y0, y1 = tasks[task]
        _advance_tile(source[s], result[s], x0, x1, y0, y1, steps, coefficients, work[numba.get_thread_id()])


@numba.njit(cache=True)
def _advance_tile(
    source: Any, result: Any, x0: int, x1: int, y0: int, y1: int, steps: int, coefficients: Any, work: Any
) -> None:
    """Advance the cells [x0, x1) x [y0, y1) of one simulation, from ``source`` to ``result``."""
    _, nx, ny = source.shape
    # What is loaded, in cells of the domain; it ends at the domain's sides.
    a0, a1, b0, b1 = max(x0 - steps, 0), min(x1 + steps, nx), max(y0 - steps, 0), min(y1 + steps, ny)
    rows, row = a1 - a0, b1 - b0 + 2  # a ghost cell on every side
    size = 2 * (rows + 2) * row
    old = work[0, :size].reshape(2, rows + 2, row)
    new = work[1, :size].reshape(2, rows + 2, row)
    for field in range(2):
        for i in range(rows):
            target, loaded = old[field, i + 1, 1 : row - 1], source[field, a0 + i, b0:b1]
            for j in range(row - 2):
                target[j] = loaded[j]
    for k in range(1, steps + 1):
        for field in range(2):
            _fill_ghosts(old[field], a0 == 0, a1 == nx, b0 == 0, b1 == ny)
        # The rows that are still right after k steps: k fewer on a side that is cut out of the domain.
        first, last = (1 if a0 == 0 else 1 + k), (rows if a1 == nx else rows - k)
        _step(old.reshape(2, -1), new.reshape(2, -1), row, first * row + 1, (last + 1) * row - 1, coefficients)
        old, new = new, old
    for field in range(2):
        for i in range(x1 - x0):
            saved, target = (
                old[field, x0 - a0 + 1 + i, y0 - b0 + 1 : y1 - b0 + 1],
                result[field, x0 + i, y0:y1],
            )
            for j in range(y1 - y0):
                target[j] = saved[j]


@numba.njit(cache=True)
def _fill_ghosts(field: Any, low_x: bool, high_x: bool, low_y: bool, high_y: bool) -> None:
    """Zero gradient: repeat the outermost cells, on those sides that are the domain's."""
    rows, columns = field.shape
    for j in range(columns):
        if low_x:
            field[0, j] = field[1, j]
        if high_x:
            field[rows - 1, j] = field[rows - 2, j]
    for i in range(rows):
        if low_y:
            field[i, 0] = field[i, 1]
        if high_y:
            field[i, columns - 1] = field[i, columns - 2]


# "contract" allows fused multiply-add and nothing else: the order of the sums is kept, so mirrored states
# give mirrored solutions. Written as changes, U = 1 and V = 0 stay exactly.
@numba.njit(cache=True, fastmath={"contract"})
def _step(old: Any, new: Any, row: int, start: int, stop: int, coefficients: Any) -> None:
    """One time step of the flattened cells [start, stop), ``row`` of which make a row.

    One long loop, through the ghost cells between two rows as well (they are filled again before they are
    read), over views that start at 0: so the compiler sees no negative index, and vectorises.
    """
    ux, uy, vx, vy, dt, feed, loss = coefficients
    u, u_below, u_above = (
        old[0, start - 1 : stop + 1],
        old[0, start - row : stop],
        old[0, start + row : stop + row],
    )
    v, v_below, v_above = (
        old[1, start - 1 : stop + 1],
        old[1, start - row : stop],
        old[1, start + row : stop + row],
    )
    new_u, new_v = new[0, start:stop], new[1, start:stop]
    for j in range(stop - start):
        uc, vc = u[j + 1], v[j + 1]
        reaction = dt * uc * (vc * vc)
        diffusion_u = ux * (u_below[j] + u_above[j] - 2 * uc) + uy * (u[j] + u[j + 2] - 2 * uc)
        diffusion_v = vx * (v_below[j] + v_above[j] - 2 * vc) + vy * (v[j] + v[j + 2] - 2 * vc)
        new_u[j] = uc + (diffusion_u + (feed * (1 - uc) - reaction))
        new_v[j] = vc + (diffusion_v + (reaction - loss * vc))
