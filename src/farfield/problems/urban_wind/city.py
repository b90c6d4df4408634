"""A city as the column network sees it: physics on the lattice, points to ask for, and what is learned about them.

The network corrects physics: with u0, k0, eps0 the inflow at the point's height, u and p the mass-consistent wind and
its pressure (:mod:`farfield.problems.urban_wind.physics`),

    velocity = (u0, 0, 0) + (u - u0) + correction,   pressure = p + correction,
    ln k = ln k0 + correction,   ln epsilon = ln eps0 + correction,

each correction over its own spread among the training cities. Neutral wind scales with its speed, so that the network
only knows 6 m/s at 80 m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor

from farfield.denormals import denormals_as_zero
from farfield.problems.urban_wind.buildings import SIDE_MARGIN, UrbanDomain
from farfield.problems.urban_wind.files import UrbanCase
from farfield.problems.urban_wind.inflow_profiles import AIR_DENSITY, inflow_profile
from farfield.problems.urban_wind.lattice import HEIGHTS, LEVELS, Lattice, levels_up_to
from farfield.problems.urban_wind.physics import (
    mass_consistent_wind,
    nearness_of_walls,
    pressure_of,
    wake_deficits,
)
from farfield.problems.urban_wind.projection import Openings

Array = NDArray[np.floating]

SPEED_SCALE, PRESSURE_SCALE = 1.5, 5.0  # m/s, Pa: inputs of the network are of order 1
DEFICIT_FACTORS = (0.5, 1.0, 2.5)  # the middle one makes the mass-consistent wind
CHANNELS = (
    "solid", "wall_upwind", "wall_downwind", "wall_right", "wall_left", "narrow_wake", "wide_wake",
    "potential_x", "potential_y", "potential_z", "wind_x", "wind_y", "wind_z", "pressure", "solid_x", "solid_y",
)  # fmt: skip
WIND, PRESSURE = CHANNELS.index("wind_x"), CHANNELS.index("pressure")
FLOW = CHANNELS.index("narrow_wake")  # from here on: fields that are 0 outside the air
SIDEWAYS = [CHANNELS.index(name) for name in ("potential_y", "wind_y", "solid_y")]
OUTPUTS = ("velocity_x", "velocity_y", "velocity_z", "pressure", "ln_k", "ln_epsilon")
PROFILE = 3 * len(HEIGHTS) + 1
POINT_FEATURES = 5
LOWEST_TURBULENCE = 1e-10


class Query(NamedTuple):
    """Points of the air, ready to be asked for."""

    cells: Tensor  # (N, K) around each point
    weights: Tensor  # (N, K)
    features: Tensor  # (N, 5) height and inflow
    inflow: Tensor  # (N, 3) speed, ln k, ln epsilon


@dataclass(frozen=True)
class City:
    """Physics of a city's wind on its lattice, in wind axes, for a wind of 6 m/s at 80 m."""

    lattice: Lattice  # without what only physics asks for
    roughness: float
    channels: NDArray[np.float32]  # (Y, X, Z, C)

    @classmethod
    def of(cls, lattice: Lattice, roughness: float) -> City:
        """Compute everything that the network is told."""
        return cls(lattice.bare(), roughness, _by_cell(_told(lattice, roughness)))

    @classmethod
    def in_the_open(cls, lattice: Lattice, triangles: Array, domain: UrbanDomain, roughness: float) -> City:
        """The same for buildings (T, 3, 3) of any extent, whose physics knows of more air than the network is told of.

        ``lattice`` is theirs in ``domain``. See :meth:`UrbanDomain.in_the_open`: the wind gives way to a large city as
        to a small one. For a city of the training size nothing differs.
        """
        around = domain.in_the_open()
        levels = levels_up_to(around.height)
        if around.further == domain.further and len(levels) == len(lattice.levels):
            return cls.of(lattice, roughness)
        wide = Lattice.around(triangles, around, levels=levels, spacing=lattice.spacing)
        x, y = np.round((np.array(lattice.origin) - wide.origin) / lattice.spacing).astype(int)
        known, across, along = lattice.shape
        channels = _by_cell([field[:known, y : y + across, x : x + along] for field in _told(wide, roughness)])
        channels[~lattice.air, :, FLOW:] = 0  # as in training, where nothing is known beyond the air
        return cls(lattice.bare(), roughness, channels)

    @classmethod
    def around(cls, case: UrbanCase, phase: tuple[float, float] = (0.0, 0.0)) -> City:
        """The city of a simulation, in the air that was simulated."""
        return cls.of(Lattice.around(case.obstacles, case.box, phase), case.roughness)

    def profile(self) -> Tensor:
        """(p,): the inflow at the levels, and ln z0."""
        speed, _, k, epsilon = inflow_profile(self.roughness, heights=HEIGHTS).T
        parts = [speed / 6, np.log(k), np.log(epsilon) / 3, [np.log(self.roughness)]]
        return torch.from_numpy(np.concatenate(parts).astype(np.float32))

    def cells(self) -> Tensor:
        """(Y, X, Z, C)."""
        return torch.from_numpy(self.channels)

    def air(self) -> Tensor:
        """(Y, X): 1 where a column is in the air."""
        return torch.from_numpy(self.lattice.air.astype(np.float32))

    @cached_property
    def _inflow(self) -> tuple[Array, Array]:
        """Heights (L,), and speed, ln k and ln epsilon there (3, L): the profile is smooth, a table is as good."""
        levels = np.geomspace(0.1, 2 * LEVELS[-1], 400)
        table = inflow_profile(self.roughness, heights=levels)
        return levels, np.stack([table[:, 0], *np.log(table[:, 2:]).T])

    def query(self, points: Array) -> Query:
        """Points (N, 3) in wind axes, m."""
        index, weight = self.lattice.corners(points)
        height = np.maximum(points[:, 2].astype(np.float64), 0.1)
        levels, columns = self._inflow
        speed, k, epsilon = (np.interp(height, levels, column) for column in columns)
        features = np.stack(
            [
                height / 30 - 1,
                np.log(height) / 2 - 1,
                speed / 6,
                epsilon / 3,
                np.full_like(height, np.log(self.roughness)),
            ],
            axis=1,
        )
        numbers = (features, np.stack([speed, k, epsilon], axis=1))
        return Query(
            torch.from_numpy(index),
            torch.from_numpy(weight),
            *(torch.from_numpy(a.astype(np.float32)) for a in numbers),
        )

    def mirrored(self) -> City:
        """The city in a mirror along the wind."""
        channels = self.channels[::-1].copy()
        channels[..., SIDEWAYS] *= -1
        channels[..., [3, 4]] = channels[..., [4, 3]]
        lattice = self.lattice
        top = lattice.origin[1] + lattice.spacing * lattice.shape[1]
        turned = replace(
            lattice,
            origin=(lattice.origin[0], -top),
            solid=np.ascontiguousarray(lattice.solid[:, ::-1]),
            air=np.ascontiguousarray(lattice.air[::-1]),
        )
        return City(turned, self.roughness, channels)

    def rows(self, first: int, last: int) -> City:
        """The rows of columns from ``first`` to ``last`` alone."""
        lattice = self.lattice
        part = replace(
            lattice,
            origin=(lattice.origin[0], lattice.origin[1] + first * lattice.spacing),
            solid=lattice.solid[:, first:last],
            air=lattice.air[first:last],
        )
        return City(part, self.roughness, np.ascontiguousarray(self.channels[first:last]))

    def near_buildings(self, margin: float = SIDE_MARGIN) -> City:
        """Without what lies further aside of the buildings than ``margin`` metres.

        A box of CFD that is not turned with the wind is wider than what a network needs to learn from.
        """
        built = np.flatnonzero(self.lattice.solid.any(axis=(0, 2)))
        if not len(built):
            return self
        aside = int(np.ceil(margin / self.lattice.spacing)) + 1
        return self.rows(max(0, built[0] - aside), min(self.lattice.shape[1], built[-1] + 1 + aside))


# Matrices are small: BLAS with several threads takes twice the processor's time here, and no less of the user's.
@ThreadpoolController().wrap(limits=1, user_api="blas")
@denormals_as_zero()
def _told(lattice: Lattice, roughness: float) -> list[Array]:
    """Fields (Z, Y, X) in the order of :data:`CHANNELS`."""
    assert lattice.moments is not None, "a city's bare lattice has none"
    openings = Openings(lattice)
    narrow, middle, wide = wake_deficits(lattice, roughness, DEFICIT_FACTORS)
    wind = mass_consistent_wind(openings, roughness, middle)
    pressure = pressure_of(openings, wind, roughness, middle, AIR_DENSITY)
    in_air = ((lattice.solid < 1) & lattice.air).astype(np.float32)
    u0 = inflow_profile(roughness, heights=lattice.heights)[:, :1, None].astype(np.float32)
    fields = [lattice.solid, *nearness_of_walls(lattice), narrow, wide]
    for faces in (mass_consistent_wind(openings, roughness), wind):
        velocity = openings.at_cells(faces)
        velocity[0] -= u0
        fields += list(velocity * (in_air / SPEED_SCALE))
    return [*fields, pressure * (in_air / PRESSURE_SCALE), *lattice.moments]


def _by_cell(fields: Sequence[Array]) -> NDArray[np.float32]:
    """Fields (Z, Y, X) -> (Y, X, Z, C), in this order also in memory: it is read cell by cell, again and again."""
    levels, across, along = fields[0].shape
    out = np.empty((across, along, levels, len(fields)), dtype=np.float32)
    _interleave(tuple(np.ascontiguousarray(field, dtype=np.float32) for field in fields), out)
    return out


@numba.njit(cache=True)
def _interleave(fields: tuple[Array, ...], out: NDArray[np.float32]) -> None:  # pragma: no cover - compiled
    """A row of cells, written again for every field, stays in the processor's cache."""
    rows, columns, levels, channels = out.shape
    for j in range(rows):
        for c in range(channels):
            field = fields[c]
            for k in range(levels):
                for i in range(columns):
                    out[j, i, k, c] = field[k, j, i]


def told_channels(dataset: dict[str, Any]) -> int:
    """How many of :data:`CHANNELS` a run's network is told of; runs of earlier versions knew no moments of solids."""
    known = dataset.get("channels", CHANNELS[: CHANNELS.index("solid_x")])
    if list(known) != list(CHANNELS[: len(known)]):
        raise ValueError(f"the run's network is told {', '.join(known)}, this version computes {', '.join(CHANNELS)}")
    return len(known)


def base_fields(local: Tensor, query: Query) -> Tensor:
    """What physics says at the points: (N, 6) as :data:`OUTPUTS`."""
    wind = SPEED_SCALE * local[:, WIND : WIND + 3]
    along = wind[:, :1] + query.inflow[:, :1]
    pressure = PRESSURE_SCALE * local[:, PRESSURE : PRESSURE + 1]
    return torch.cat([along, wind[:, 1:], pressure, query.inflow[:, 1:]], dim=1)


def true_fields(case: UrbanCase, cells: NDArray[np.integer] | slice = slice(None)) -> Tensor:
    """A simulation's fields at its cells: (N, 6) as :data:`OUTPUTS`."""
    turbulence = [np.log(np.maximum(case.fields[name][cells], LOWEST_TURBULENCE)) for name in ("k", "epsilon")]
    columns = [case.fields["velocity"][cells], case.fields["pressure"][cells], *turbulence]
    return torch.from_numpy(np.concatenate([c.reshape(len(c), -1) for c in columns], axis=1).astype(np.float32))


@dataclass(frozen=True)
class CorrectionScale:
    """Mean and spread of the corrections, from the training cities: (6,) each."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @classmethod
    def fit(cls, corrections: list[Tensor]) -> CorrectionScale:
        """From corrections (N, 6) of several cities. Velocities have no mean: still air has no side."""
        together = torch.cat(corrections).double()
        mean = together.mean(0)
        mean[:3] = 0
        return cls(tuple(mean.tolist()), tuple(together.std(0).tolist()))

    def encode(self, correction: Tensor) -> Tensor:
        return (correction - correction.new_tensor(self.mean)) / correction.new_tensor(self.spread)

    def decode(self, output: Tensor) -> Tensor:
        return output * output.new_tensor(self.spread) + output.new_tensor(self.mean)

    def to_dict(self) -> dict[str, Any]:
        return {"mean": list(self.mean), "spread": list(self.spread)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> CorrectionScale:
        return cls(tuple(values["mean"]), tuple(values["spread"]))
