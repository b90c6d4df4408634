"""What physics says about the wind around buildings in milliseconds: inputs that a network corrects.

All on the lattice of columns (:mod:`farfield.problems.urban_wind.lattice`), wind along +x, u0(z) the inflow:

- *nearness of walls*: m_i = s_i + (1 - s_i) m_{i-1} exp(-h / l) along +-x and +-y, with s the share of solid; behind a
  wall at distance r it is exp(-r / l);
- *wake deficit* D: carried downwind by the inflow and spread by its eddy viscosity, 1 in solids:
  u0 dD/dx = f d/dz (nu dD/dz) + f nu d2D/dy2,  nu = kappa u* (z + z0), no flux at the ground, 0 at the top;
- *mass-consistent wind*: the velocity nearest to u0 (1 - D) whose divergence is zero and that crosses no wall;
  with D = 0 it is potential flow;
- *pressure*: whose gradient holds that wind on its curved paths,  div(a grad p) = div(a f),
  f = -(u . grad) u + the stress that lets the wake recover; 0 at the outlets.

The last two are one projection (:mod:`farfield.problems.urban_wind.projection`). Fields are (Z, Y, X) or
(3, Z, Y, X); faces along an axis lie between a cell and the next, so there is one fewer of them than of cells.
"""

from __future__ import annotations

import numba
import numpy as np
from scipy.linalg import expm

from farfield.problems.urban_wind.inflow_profiles import KAPPA, friction_velocity, inflow_profile
from farfield.problems.urban_wind.lattice import Lattice
from farfield.problems.urban_wind.projection import Faces, Field, Openings, cosines, pair

WALL_MEMORY = 15.0  # m: l above
SLOWEST = 1.0  # m/s: the air near the ground carries wakes no slower than this


def nearness_of_walls(lattice: Lattice, memory: float = WALL_MEMORY) -> Field:
    """(4, Z, Y, X): looking along -x, +x, -y, +y, near 1 beside a wall and exp(-r / memory) at r metres from it."""
    out = np.empty((4, *lattice.shape), dtype=np.float32)
    _look_around(lattice.solid, np.float32(np.exp(-lattice.spacing / memory)), out)
    return out


def wake_deficits(lattice: Lattice, roughness: float, factors: tuple[float, ...]) -> Field:
    """(len(factors), Z, Y, X): the wake deficit D, spread ``factors`` times as fast as the inflow's turbulence does."""
    levels, across, along = lattice.shape
    h, ends, heights = lattice.spacing, lattice.levels, lattice.heights
    u_star = friction_velocity(roughness)
    speed = np.maximum(inflow_profile(roughness, heights=heights)[:, 0], SLOWEST)
    exchange = KAPPA * u_star * (ends[1:-1] + roughness) / np.diff(heights)
    vertical = np.diag(exchange, 1) + np.diag(exchange, -1)
    vertical -= np.diag(vertical.sum(1))
    vertical[-1, -1] -= KAPPA * u_star * ends[-1] / (ends[-1] - heights[-1])
    vertical *= (h / (np.diff(ends) * speed))[:, None]
    lateral = np.interp(15.0, heights, KAPPA * u_star * (heights + roughness) / speed) / h
    waves, eigenvalues = cosines(across)
    up = np.stack([expm(f * vertical) for f in factors]).astype(np.float32)
    aside = np.stack([(waves * np.exp(-f * lateral * eigenvalues)) @ waves.T for f in factors]).astype(np.float32)
    solid, kept = lattice.solid.transpose(2, 0, 1), lattice.air.T[:, None].astype(np.float32)
    filled, left = np.ascontiguousarray(solid * kept), np.ascontiguousarray((1 - solid) * kept)
    out = np.zeros((along, len(factors), levels, across), dtype=np.float32)
    first = int(np.argmax(filled.any(axis=(1, 2))))  # nothing is in the lee of what lies before the first building
    for i in range(first, along):
        spread = (up @ out[max(i - 1, 0)]) @ aside
        np.add(filled[i], left[i] * spread, out=out[i])
    return np.ascontiguousarray(out.transpose(1, 2, 3, 0))


def mass_consistent_wind(openings: Openings, roughness: float, deficit: Field | None = None) -> Faces:
    """The nearest wind to u0 (1 - deficit) without divergence; potential flow if there is no deficit."""
    return openings.project(_start(openings, roughness, deficit))


def pressure_of(openings: Openings, wind: Faces, roughness: float, deficit: Field, density: float) -> Field:
    """(Z, Y, X), Pa: the pressure that goes with a wind and its wake deficit, 0 at the outlets."""
    lattice = openings.lattice
    u0 = _inflow(lattice, roughness)
    thickness = openings.thickness
    cells = openings.at_cells(wind)
    cells[0] += np.where(lattice.air, 0, u0)  # what enters
    force = np.zeros((3, *lattice.shape), dtype=np.float32)
    h = lattice.spacing
    inside = lattice.air.astype(np.float32)
    for axis, share, normal in zip((2, 1, 0), openings.share, wind, strict=True):
        sizes = thickness[:, 0, 0] if axis == 0 else np.full(len(thickness), h, dtype=np.float32)
        _take_momentum(cells, share * normal, inside, sizes, axis, force)
    # Behind solids the deficit shrinks without any pressure: the stress of the turbulence gives the momentum back.
    force[0, :, :, 1:] -= u0 * u0 * (deficit[:, :, 1:] - deficit[:, :, :-1]) / h
    force *= openings.active
    phi, _ = openings.potential(openings.between_cells(force))
    return -density * phi


def _start(openings: Openings, roughness: float, deficit: Field | None) -> Faces:
    """u0 (1 - deficit) on the faces; what enters is never slowed down."""
    levels, across, along = openings.lattice.shape
    u0 = np.broadcast_to(_inflow(openings.lattice, roughness), (levels, across, along - 1))
    if deficit is not None:
        a, b = pair(deficit, 2)
        entering = ~pair(np.broadcast_to(openings.lattice.air, openings.lattice.shape), 2)[0]
        u0 = u0 * np.where(entering, 1, 1 - (a + b) / 2)
    still = np.zeros((levels, across - 1, along), dtype=np.float32), np.zeros((levels - 1, across, along), np.float32)
    return u0.astype(np.float32), *still


def _inflow(lattice: Lattice, roughness: float) -> Field:
    return inflow_profile(roughness, heights=lattice.heights)[:, :1, None].astype(np.float32)


@numba.njit(cache=True)
def _look_around(solid: Field, fade: np.float32, out: Field) -> None:  # pragma: no cover - compiled
    """m_i = s_i + (1 - s_i) m_{i-1} fade  along +x, -x, +y and -y."""
    levels, rows, columns = solid.shape
    for k in range(levels):
        for j in range(rows):
            behind, ahead = np.float32(0.0), np.float32(0.0)
            for i in range(columns):
                s, t = solid[k, j, i], solid[k, j, columns - 1 - i]
                behind, ahead = s + (1 - s) * fade * behind, t + (1 - t) * fade * ahead
                out[0, k, j, i], out[1, k, j, columns - 1 - i] = behind, ahead
        for j in range(rows):
            for i in range(columns):
                last = rows - 1 - j
                right = out[2, k, j - 1, i] if j else np.float32(0.0)
                left = out[3, k, last + 1, i] if j else np.float32(0.0)
                s, t = solid[k, j, i], solid[k, last, i]
                out[2, k, j, i], out[3, k, last, i] = s + (1 - s) * fade * right, t + (1 - t) * fade * left


@numba.njit(cache=True, fastmath=True)
def _take_momentum(
    cells: Field, flux: Field, inside: Field, sizes: Field, axis: int, force: Field
) -> None:  # pragma: no cover - compiled
    """force -= div(flux velocity)  through the faces along an axis: central, but upwind where air enters or leaves."""
    up, across, along = int(axis == 0), int(axis == 1), int(axis == 2)
    levels, rows, columns = flux.shape
    carried = np.empty(columns, dtype=np.float32)
    for component in range(3):
        for k in range(levels):
            k2 = k + up
            given_share, taken_share = np.float32(1) / sizes[k], np.float32(1) / sizes[k2]
            for j in range(rows):
                j2 = j + across
                through, here, there = flux[k, j], cells[component, k, j], cells[component, k2, j2, along:]
                before, behind = inside[j], inside[j2, along:]
                for i in range(columns):
                    within = before[i] * behind[i]
                    upwind = here[i] if through[i] > 0 else there[i]
                    mean = (here[i] + there[i]) * np.float32(0.5)
                    carried[i] = through[i] * (upwind + within * (mean - upwind))
                given, taken = force[component, k, j], force[component, k2, j2, along:]
                for i in range(columns):
                    given[i] -= carried[i] * given_share
                for i in range(columns):
                    taken[i] += carried[i] * taken_share
