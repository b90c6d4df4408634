"""The nearest wind without divergence: the projection of face velocities on a lattice with solids in it.

Given face velocities w and open shares a of the faces, find phi with

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
from scipy.linalg import eigh

from farfield.problems.urban_wind.lattice import Lattice

Field = NDArray[np.float32]
Faces = tuple[Field, Field, Field]  # along x, y, z

SMALLEST_OPENING = 0.05  # a face that is less open than this counts as closed: slivers slow the solver down
TOLERANCE = 5e-2  # of the divergence left over, relative: more accuracy does not help a network


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
            a, b = pair(fluid, axis)
            some = np.logical_or(*pair(inside, axis))
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
            (a, b), (beyond_a, beyond_b) = pair(inside, axis), pair(outflow, axis)
            free = (a & b) | (a & beyond_b) | (beyond_a & b)
            weights.append(np.ascontiguousarray(share * free * factor))
        return weights[0], weights[1], weights[2]

    @cached_property
    def active(self) -> Field:
        """1 where a cell is in the air and has a free face."""
        total = np.zeros(self.lattice.shape, dtype=np.float32)
        for axis, weight in zip((2, 1, 0), self.weights, strict=True):
            a, b = pair(total, axis)
            a += weight
            b += weight
        return ((total > 0) & self.lattice.air).astype(np.float32)

    @cached_property
    def empty_box(self) -> EmptyBox:
        """What the balance would be without buildings."""
        return EmptyBox(self.lattice)

    def divergence(self, velocity: Faces) -> Field:
        """What leaves each cell through its faces, per horizontal area, m/s; 0 outside the air."""
        out = np.empty(self.lattice.shape, dtype=np.float32)
        sides = self.thickness[:, 0, 0] / np.float32(self.lattice.spacing)
        _count_leaving(*self.share, *velocity, sides, self.active, out)
        return out

    def potential(self, velocity: Faces, tolerance: float = TOLERANCE, limit: int = 200) -> tuple[Field, int]:
        """The potential phi that takes the divergence from face velocities, and the iterations that it took."""
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
        return phi, iterations

    def project(self, velocity: Faces, tolerance: float = TOLERANCE) -> Faces:
        """The nearest face velocities without divergence."""
        return self.corrected(velocity, self.potential(velocity, tolerance)[0])

    def corrected(self, velocity: Faces, phi: Field) -> Faces:
        """Face velocities and, where a face is free, the gradient of a potential."""
        along, across, up = (np.empty_like(normal) for normal in velocity)
        wide = np.full(len(phi), self.lattice.spacing, dtype=np.float32)
        distances = (wide, wide, self.between[:, 0, 0])
        for axis, weight, normal, distance, out in zip(
            (2, 1, 0), self.weights, velocity, distances, (along, across, up), strict=True
        ):
            _correct(phi, weight, normal, distance, axis, out)
        return along, across, up

    def between_cells(self, field: Field) -> Faces:
        """Components of a field (3, Z, Y, X) at the faces across them, means of two cells; 0 where one is not free."""
        along, across, up = (np.empty_like(weight) for weight in self.weights)
        for axis, weight, values, out in zip((2, 1, 0), self.weights, field, (along, across, up), strict=True):
            _average(values, weight, axis, out)
        return along, across, up

    def at_cells(self, velocity: Faces) -> Field:
        """(3, Z, Y, X): what passes through the cells, m/s, the mean of their two faces along each axis."""
        out = np.empty((3, *self.lattice.shape), dtype=np.float32)
        _pass_through(*self.share, *velocity, self.lattice.air, out)
        return out


def pair(field: NDArray, axis: int) -> tuple[NDArray, NDArray]:
    """The cells on both sides of every face along an axis: views of ``field``."""
    before: list[slice] = [slice(None)] * field.ndim
    after: list[slice] = [slice(None)] * field.ndim
    before[axis], after[axis] = slice(None, -1), slice(1, None)
    return field[tuple(before)], field[tuple(after)]


@lru_cache(maxsize=64)
def cosines(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
        waves, y_values = cosines(across)
        self.waves = waves.astype(np.float32)
        self.modes, z_values = _vertical_modes(tuple(lattice.levels.tolist()))
        self.coupling = np.float32(1 / lattice.spacing**2)
        own = z_values[:, None] + self.coupling * y_values.astype(np.float32)
        self.pivots = np.empty((levels, along, across), dtype=np.float32)
        _eliminate(own, self.coupling, self.pivots)

    def __call__(self, residual: Field) -> Field:
        levels = self.shape[0]
        field = (self.modes.T @ residual.reshape(levels, -1)).reshape(self.shape)
        chains: Field = np.matmul(field.transpose(0, 2, 1), self.waves)  # (Z, X, Y): chains lie side by side
        _solve_along(chains, self.pivots, self.coupling)
        field = self.waves @ chains.transpose(0, 2, 1)
        return np.asarray((self.modes @ field.reshape(levels, -1)).reshape(self.shape))


@numba.njit(cache=True, fastmath=True)
def _eliminate(own: Field, coupling: np.float32, pivots: Field) -> None:  # pragma: no cover - compiled
    """One over the pivots (Z, X, Y) of the chains with ``own`` (Z, Y) beside the couplings on their diagonals."""
    levels, count, modes = pivots.shape
    for level in range(levels):
        for mode in range(modes):
            pivots[level, 0, mode] = 1 / (own[level, mode] + coupling)
        for i in range(1, count):
            for mode in range(modes):
                last = pivots[level, i - 1, mode]
                pivots[level, i, mode] = 1 / (own[level, mode] + 2 * coupling - coupling * coupling * last)


@numba.njit(cache=True, fastmath=True)
def _solve_along(field: Field, pivots: Field, coupling: np.float32) -> None:  # pragma: no cover - compiled
    """Solve the chains (Z, X, Y) along X in place."""
    levels, count, modes = field.shape
    for level in range(levels):
        for mode in range(modes):
            field[level, 0, mode] *= pivots[level, 0, mode]
        for i in range(1, count):
            for mode in range(modes):
                field[level, i, mode] += coupling * field[level, i - 1, mode]
                field[level, i, mode] *= pivots[level, i, mode]
        for i in range(count - 2, -1, -1):
            for mode in range(modes):
                field[level, i, mode] += coupling * pivots[level, i, mode] * field[level, i + 1, mode]


@numba.njit(cache=True)
def _count_leaving(
    open_x: Field, open_y: Field, open_z: Field, u: Field, v: Field, w: Field, sides: Field, active: Field, out: Field
) -> None:  # pragma: no cover - compiled
    """out = active * what leaves a cell through its faces; ``sides`` (Z): height of the upright ones over a column."""
    levels, rows, columns = out.shape
    for k in range(levels):
        for j in range(rows):
            for i in range(columns):
                aside, upward = np.float32(0.0), np.float32(0.0)
                if i < columns - 1:
                    aside += open_x[k, j, i] * u[k, j, i]
                if i > 0:
                    aside -= open_x[k, j, i - 1] * u[k, j, i - 1]
                if j < rows - 1:
                    aside += open_y[k, j, i] * v[k, j, i]
                if j > 0:
                    aside -= open_y[k, j - 1, i] * v[k, j - 1, i]
                if k < levels - 1:
                    upward += open_z[k, j, i] * w[k, j, i]
                if k > 0:
                    upward -= open_z[k - 1, j, i] * w[k - 1, j, i]
                out[k, j, i] = (aside * sides[k] + upward) * active[k, j, i]


@numba.njit(cache=True)
def _pass_through(
    open_x: Field, open_y: Field, open_z: Field, u: Field, v: Field, w: Field, air: NDArray[np.bool_], out: Field
) -> None:  # pragma: no cover - compiled
    """out = air * the mean over a cell's two faces along each axis of what passes through them."""
    _, levels, rows, columns = out.shape
    for k in range(levels):
        for j in range(rows):
            for i in range(columns):
                along, across, up = np.float32(0.0), np.float32(0.0), np.float32(0.0)
                if i < columns - 1:
                    along += open_x[k, j, i] * u[k, j, i]
                if i > 0:
                    along += open_x[k, j, i - 1] * u[k, j, i - 1]
                if j < rows - 1:
                    across += open_y[k, j, i] * v[k, j, i]
                if j > 0:
                    across += open_y[k, j - 1, i] * v[k, j - 1, i]
                if k < levels - 1:
                    up += open_z[k, j, i] * w[k, j, i]
                if k > 0:
                    up += open_z[k - 1, j, i] * w[k - 1, j, i]
                half = np.float32(0.5) * air[j, i]
                out[0, k, j, i], out[1, k, j, i], out[2, k, j, i] = half * along, half * across, half * up


@numba.njit(cache=True)
def _correct(
    phi: Field, weight: Field, normal: Field, distance: Field, axis: int, out: Field
) -> None:  # pragma: no cover - compiled
    """out = normal + the gradient of phi across the free faces along an axis."""
    up, across, along = int(axis == 0), int(axis == 1), int(axis == 2)
    levels, rows, columns = out.shape
    for k in range(levels):
        steep = np.float32(1) / distance[k]
        for j in range(rows):
            here, there = phi[k, j], phi[k + up, j + across, along:]
            for i in range(columns):
                change = (there[i] - here[i]) * steep
                out[k, j, i] = normal[k, j, i] + (change if weight[k, j, i] > 0 else np.float32(0))


@numba.njit(cache=True)
def _average(values: Field, weight: Field, axis: int, out: Field) -> None:  # pragma: no cover - compiled
    """out = the mean of the two cells beside each free face along an axis, 0 elsewhere."""
    up, across, along = int(axis == 0), int(axis == 1), int(axis == 2)
    levels, rows, columns = out.shape
    for k in range(levels):
        for j in range(rows):
            here, there = values[k, j], values[k + up, j + across, along:]
            for i in range(columns):
                mean = (here[i] + there[i]) * np.float32(0.5)
                out[k, j, i] = mean if weight[k, j, i] > 0 else np.float32(0)


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
    for n in range(len(rest)):
        moved[n] += step * towards[n]
        rest[n] -= step * change[n]
    left = np.float32(0.0)
    for n in range(len(rest)):
        left += rest[n] * rest[n]
    return float(left)
