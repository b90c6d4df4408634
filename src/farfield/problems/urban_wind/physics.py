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

The last two are one projection: given face velocities w and open shares a of the faces, find phi with

    div(a (w + grad phi)) = 0,    phi = 0 beyond outlets,    no correction at walls, inlets and sides,

by conjugate gradients, preconditioned with the exact inverse for an empty box. Fields are (Z, Y, X) or (3, Z, Y, X);
faces along an axis lie between a cell and the next, so there is one fewer of them than of cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numba
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, expm

from farfield.problems.urban_wind.inflow_profiles import KAPPA, friction_velocity, inflow_profile
from farfield.problems.urban_wind.lattice import Lattice

Field = NDArray[np.float32]
Faces = tuple[Field, Field, Field]  # along x, y, z

WALL_MEMORY = 15.0  # m: l above
SMALLEST_OPENING = 0.05  # a face that is less open than this counts as closed: slivers slow the solver down
SLOWEST = 1.0  # m/s: the air near the ground carries wakes no slower than this
TOLERANCE = 5e-2  # of the divergence left over, relative: more accuracy does not help a network


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
    waves, eigenvalues = _cosines(across)
    up = np.stack([expm(f * vertical) for f in factors]).astype(np.float32)
    aside = np.stack([(waves * np.exp(-f * lateral * eigenvalues)) @ waves.T for f in factors]).astype(np.float32)
    solid = np.ascontiguousarray(lattice.solid.transpose(2, 0, 1))
    kept = lattice.air.T.astype(np.float32)
    out = np.empty((along, len(factors), levels, across), dtype=np.float32)
    deficit = np.zeros((len(factors), levels, across), dtype=np.float32)
    for i in range(along):
        spread = (up @ deficit) @ aside
        out[i] = (solid[i] + (1 - solid[i]) * spread) * kept[i]
        deficit = out[i]
    return np.ascontiguousarray(out.transpose(1, 2, 3, 0))


@dataclass(frozen=True)
class Openings:
    """Where air can pass between the cells of a lattice, and where a projection may change how much."""

    lattice: Lattice

    @cached_property
    def thickness(self) -> Field:
        """(Z, 1, 1): of the levels, m."""
        return np.diff(self.lattice.levels).astype(np.float32)[:, None, None]

    @cached_property
    def between(self) -> Field:
        """(Z - 1, 1, 1): from the middle of each level to that of the next, m."""
        return np.diff(self.lattice.heights).astype(np.float32)[:, None, None]

    @cached_property
    def share(self) -> Faces:
        """Open share of each face; 0 between two cells outside the air."""
        fluid, inside = self.lattice.fluid, np.broadcast_to(self.lattice.air, self.lattice.shape)
        opened = []
        for axis in (2, 1, 0):
            a, b = _pair(fluid, axis)
            some = np.logical_or(*_pair(inside, axis))
            opened.append(
                np.where((np.minimum(a, b) >= SMALLEST_OPENING) & some, np.minimum(a, b), 0).astype(np.float32)
            )
        return opened[0], opened[1], opened[2]

    @cached_property
    def weights(self) -> Faces:
        """What a difference of phi across each face does to the balance of its two cells; 0 where it is not free."""
        inside = np.broadcast_to(self.lattice.air, self.lattice.shape)
        assert self.lattice.outflow is not None, "a city's bare lattice has none"
        outflow = np.broadcast_to(self.lattice.outflow, self.lattice.shape)
        weights = []
        h = self.lattice.spacing
        for axis, share, factor in zip(
            (2, 1, 0), self.share, (self.thickness / h**2, self.thickness / h**2, 1 / self.between), strict=True
        ):
            (a, b), (beyond_a, beyond_b) = _pair(inside, axis), _pair(outflow, axis)
            free = (a & b) | (a & beyond_b) | (beyond_a & b)
            weights.append(np.ascontiguousarray(share * free * factor))
        return weights[0], weights[1], weights[2]

    @cached_property
    def active(self) -> Field:
        """1 where a cell is in the air and has a free face."""
        total = np.zeros(self.lattice.shape, dtype=np.float32)
        for axis, weight in zip((2, 1, 0), self.weights, strict=True):
            a, b = _pair(total, axis)
            a += weight
            b += weight
        return ((total > 0) & self.lattice.air).astype(np.float32)

    @cached_property
    def empty_box(self) -> EmptyBox:
        """What the balance would be without buildings."""
        return EmptyBox(self.lattice)

    def divergence(self, velocity: Faces) -> Field:
        """What leaves each cell through its faces, per horizontal area, m/s; 0 outside the air."""
        out = np.zeros(self.lattice.shape, dtype=np.float32)
        h = self.lattice.spacing
        sizes: tuple[Field, Field, Field] = (
            self.thickness / h,
            self.thickness / h,
            np.ones((1, 1, 1), dtype=np.float32),
        )
        for axis, share, normal, size in zip((2, 1, 0), self.share, velocity, sizes, strict=True):
            flux = share * normal * size
            a, b = _pair(out, axis)
            a += flux
            b -= flux
        return out * self.active

    def project(self, velocity: Faces, tolerance: float = TOLERANCE, limit: int = 200) -> tuple[Faces, Field, int]:
        """The nearest face velocities without divergence, the potential phi that corrects them, and the iterations."""
        weights, active = self.weights, self.active
        inverse = self.empty_box
        residual = self.divergence(velocity)
        phi, direction, image = np.zeros_like(residual), np.zeros_like(residual), np.zeros_like(residual)
        left, product, iterations = float(np.vdot(residual, residual)), np.inf, 0
        target = tolerance**2 * left
        while left > target and iterations < limit:
            better = inverse(residual) * active
            before, product = product, float(np.vdot(residual, better))
            _turn(better, np.float32(product / before), direction)
            _balance(direction, *weights, active, image)
            step = product / float(np.vdot(direction, image))
            left = _descend(np.float32(step), direction, image, phi, residual)
            iterations += 1
        corrected = []
        for axis, weight, normal, distance in zip(
            (2, 1, 0), weights, velocity, (self.lattice.spacing, self.lattice.spacing, self.between), strict=True
        ):
            a, b = _pair(phi, axis)
            change = (b - a) / np.asarray(distance, dtype=np.float32)
            change *= weight > 0
            corrected.append(change + normal)
        return (corrected[0], corrected[1], corrected[2]), phi, iterations

    def at_cells(self, velocity: Faces) -> Field:
        """(3, Z, Y, X): what passes through the cells, m/s, the mean of their two faces along each axis."""
        out = np.zeros((3, *self.lattice.shape), dtype=np.float32)
        for number, (axis, share, normal) in enumerate(zip((2, 1, 0), self.share, velocity, strict=True)):
            a, b = _pair(out[number], axis)
            half = share * normal * np.float32(0.5)
            a += half
            b += half
        return out * self.lattice.air


def mass_consistent_wind(openings: Openings, roughness: float, deficit: Field | None = None) -> Faces:
    """The nearest wind to u0 (1 - deficit) without divergence; potential flow if there is no deficit."""
    return openings.project(_start(openings, roughness, deficit))[0]


def pressure_of(openings: Openings, wind: Faces, roughness: float, deficit: Field, density: float) -> Field:
    """(Z, Y, X), Pa: the pressure that goes with a wind and its wake deficit, 0 at the outlets."""
    lattice = openings.lattice
    u0 = _inflow(lattice, roughness)
    thickness = openings.thickness
    cells = openings.at_cells(wind)
    cells[0] += np.where(lattice.air, 0, u0)  # what enters
    force = np.zeros((3, *lattice.shape), dtype=np.float32)
    h = lattice.spacing
    for axis, share, normal in zip((2, 1, 0), openings.share, wind, strict=True):
        sizes = thickness[:, 0, 0] if axis == 0 else np.full(len(thickness), h, dtype=np.float32)
        _take_momentum(cells, share * normal, lattice.air, sizes, axis, force)
    # Behind solids the deficit shrinks without any pressure: the stress of the turbulence gives the momentum back.
    force[0, :, :, 1:] -= u0 * u0 * (deficit[:, :, 1:] - deficit[:, :, :-1]) / h
    force *= openings.active
    faces = []
    for component, axis in enumerate((2, 1, 0)):
        a, b = _pair(force[component], axis)
        faces.append(np.where(openings.weights[component] > 0, (a + b) / 2, 0).astype(np.float32))
    _, phi, _ = openings.project((faces[0], faces[1], faces[2]))
    return -density * phi


def _start(openings: Openings, roughness: float, deficit: Field | None) -> Faces:
    """u0 (1 - deficit) on the faces; what enters is never slowed down."""
    levels, across, along = openings.lattice.shape
    u0 = np.broadcast_to(_inflow(openings.lattice, roughness), (levels, across, along - 1))
    if deficit is not None:
        a, b = _pair(deficit, 2)
        entering = ~_pair(np.broadcast_to(openings.lattice.air, openings.lattice.shape), 2)[0]
        u0 = u0 * np.where(entering, 1, 1 - (a + b) / 2)
    still = np.zeros((levels, across - 1, along), dtype=np.float32), np.zeros((levels - 1, across, along), np.float32)
    return u0.astype(np.float32), *still


def _inflow(lattice: Lattice, roughness: float) -> Field:
    return inflow_profile(roughness, heights=lattice.heights)[:, :1, None].astype(np.float32)


def _pair(field: NDArray, axis: int) -> tuple[NDArray, NDArray]:
    """The cells on both sides of every face along an axis: views of ``field``."""
    before: list[slice] = [slice(None)] * field.ndim
    after: list[slice] = [slice(None)] * field.ndim
    before[axis], after[axis] = slice(None, -1), slice(1, None)
    return field[tuple(before)], field[tuple(after)]


@lru_cache(maxsize=64)
def _cosines(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Orthonormal eigenvectors (count, count) and eigenvalues of minus the second difference, no flux at the ends."""
    number = np.arange(count)
    angle = number / count * np.pi
    waves = np.cos((number[:, None] + 0.5) * angle)
    return waves / np.linalg.norm(waves, axis=0), 2 - 2 * np.cos(angle)


@lru_cache(maxsize=8)
def _vertical_modes(levels: tuple[float, ...]) -> tuple[Field, Field]:
    """Modes V and eigenvalues of the second difference over the levels: V^T diag(thickness) V = 1."""
    thickness = np.diff(levels)
    exchange = 2 / (thickness[1:] + thickness[:-1])
    matrix = -np.diag(exchange, 1) - np.diag(exchange, -1)
    matrix -= np.diag(matrix.sum(1))
    eigenvalues, modes = eigh(matrix, np.diag(thickness))
    return modes.astype(np.float32), eigenvalues.astype(np.float32)


class EmptyBox:
    """The exact inverse of the balance in a box without buildings that is as large as the lattice.

    Modes up and across the wind; along it each of them is a chain of cells, -a f_{i-1} + d_i f_i - a f_{i+1} = r_i,
    without flux at the inlet and 0 beyond the outlet, which is solved by elimination.
    """

    def __init__(self, lattice: Lattice):
        self.shape = levels, across, along = lattice.shape
        waves, y_values = _cosines(across)
        self.waves = waves.astype(np.float32)
        self.turned = np.ascontiguousarray(self.waves.T)  # faster than a turned view
        self.modes, z_values = _vertical_modes(tuple(lattice.levels.tolist()))
        self.coupling = np.float32(1 / lattice.spacing**2)
        own = (z_values[:, None] + self.coupling * y_values).reshape(-1).astype(np.float64)
        self.pivots = np.empty((levels * across, along), dtype=np.float32)
        _eliminate(own, float(self.coupling), self.pivots)

    def __call__(self, residual: Field) -> Field:
        levels, across, along = self.shape
        field = (self.modes.T @ residual.reshape(levels, -1)).reshape(levels, across, along)
        field = self.turned @ field
        _solve_along(field.reshape(levels * across, along), self.pivots, self.coupling)
        field = self.waves @ field
        return np.asarray((self.modes @ field.reshape(levels, -1)).reshape(self.shape))


@numba.njit(cache=True)
def _eliminate(own: NDArray[np.float64], coupling: float, pivots: Field) -> None:  # pragma: no cover - compiled
    """One over the pivots of the chains (modes, cells) with ``own`` beside the couplings on their diagonals."""
    count = pivots.shape[1]
    for mode in range(len(own)):
        last = 0.0
        for i in range(count):
            last = 1 / (own[mode] + (coupling if i == 0 else 2 * coupling) - coupling * coupling * last)
            pivots[mode, i] = last


@numba.njit(cache=True, fastmath=True)
def _solve_along(field: Field, pivots: Field, coupling: np.float32) -> None:  # pragma: no cover - compiled
    """Solve the chains (modes, cells) in place, sixteen beside one another: each step waits for the one before it."""
    modes, count = field.shape
    for first in range(0, modes, 16):
        last = min(first + 16, modes)
        for mode in range(first, last):
            field[mode, 0] *= pivots[mode, 0]
        for i in range(1, count):
            for mode in range(first, last):
                field[mode, i] = (field[mode, i] + coupling * field[mode, i - 1]) * pivots[mode, i]
        for i in range(count - 2, -1, -1):
            for mode in range(first, last):
                field[mode, i] += coupling * pivots[mode, i] * field[mode, i + 1]


@numba.njit(cache=True)
def _balance(
    phi: Field, along: Field, across: Field, up: Field, active: Field, out: Field
) -> None:  # pragma: no cover - compiled
    """out = active * sum over the faces of a cell of weight * (phi here - phi there)."""
    levels, rows, columns = phi.shape
    for k in range(levels):
        for j in range(rows):
            for i in range(columns):
                here = phi[k, j, i]
                total = np.float32(0.0)
                if i > 0:
                    total += along[k, j, i - 1] * (here - phi[k, j, i - 1])
                if i < columns - 1:
                    total += along[k, j, i] * (here - phi[k, j, i + 1])
                if j > 0:
                    total += across[k, j - 1, i] * (here - phi[k, j - 1, i])
                if j < rows - 1:
                    total += across[k, j, i] * (here - phi[k, j + 1, i])
                if k > 0:
                    total += up[k - 1, j, i] * (here - phi[k - 1, j, i])
                if k < levels - 1:
                    total += up[k, j, i] * (here - phi[k + 1, j, i])
                out[k, j, i] = total * active[k, j, i]


@numba.njit(cache=True, fastmath=True)
def _turn(better: Field, share: np.float32, direction: Field) -> None:  # pragma: no cover - compiled
    """direction = better + share * direction."""
    there, here = direction.ravel(), better.ravel()
    for n in range(len(there)):
        there[n] = here[n] + share * there[n]


@numba.njit(cache=True, fastmath=True)
def _descend(
    step: np.float32, direction: Field, image: Field, phi: Field, residual: Field
) -> float:  # pragma: no cover - compiled
    """phi += step * direction, residual -= step * image; returns the residual's square."""
    towards, change, moved, rest = direction.ravel(), image.ravel(), phi.ravel(), residual.ravel()
    left = 0.0
    for n in range(len(rest)):
        moved[n] += step * towards[n]
        rest[n] -= step * change[n]
        left += rest[n] * rest[n]
    return left


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


@numba.njit(cache=True)
def _take_momentum(
    cells: Field, flux: Field, inside: NDArray[np.bool_], sizes: Field, axis: int, force: Field
) -> None:  # pragma: no cover - compiled
    """force -= div(flux velocity)  through the faces along an axis: central, but upwind where air enters or leaves."""
    up, across, along = int(axis == 0), int(axis == 1), int(axis == 2)
    levels, rows, columns = flux.shape
    carried = np.empty(columns, dtype=np.float32)
    for component in range(3):
        for k in range(levels):
            for j in range(rows):
                through, k2, j2 = flux[k, j], k + up, j + across
                here, there = cells[component, k, j], cells[component, k2, j2]
                for i in range(columns):
                    a, b = here[i], there[i + along]
                    within = inside[j, i] and inside[j2, i + along]
                    carried[i] = through[i] * ((a + b) * np.float32(0.5) if within else (a if through[i] > 0 else b))
                given, taken = force[component, k, j], force[component, k2, j2]
                for i in range(columns):
                    given[i] -= carried[i] / sizes[k]
                for i in range(columns):
                    taken[i + along] += carried[i] / sizes[k2]
