"""From a wind case to what a network receives: normalisation, and the points that stand for surfaces and air.

Letters: N points, F channels of the targets, T triangles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.problems.urban_wind.buildings import sample_surface
from farfield.problems.urban_wind.files import FIELD_WIDTHS, SPLIT_INDEX, UrbanCase, UrbanWindFiles, channel_names
from farfield.problems.urban_wind.inflow_profiles import inflow_profile

Array = NDArray[np.floating]

LOG_FIELDS = ("k", "epsilon")  # learned on a logarithmic scale
LOG_FLOOR = 1e-10  # below it, log fields are cut off
POSITION_BOUNDS: Array = np.array([[-150.0, 320.0], [-120.0, 120.0], [0.0, 60.0]])  # m
POSITION_WIDTH = 1000.0  # the bounds become 0 .. 1000; larger cities keep the factor and reach beyond


@dataclass(frozen=True)
class UrbanNormalisation:
    """Scales of everything that a network sees, from the training cases; every map has its exact inverse.

    Positions use fixed bounds per axis, so that a larger city has the same scale. Targets are standardised,
    k and epsilon after a logarithm. The inflow's columns, ln z0 and 1/L are standardised. The last four
    entries say what the training cities were like: point counts grow relative to them, and a prediction for
    a city outside them deserves a warning.
    """

    fields: tuple[str, ...]
    target_mean: tuple[float, ...]
    target_std: tuple[float, ...]
    profile_mean: tuple[float, ...]
    profile_std: tuple[float, ...]
    terrain_mean: tuple[float, float]  # of ln z0 and 1/L
    terrain_std: tuple[float, float]
    cells: float  # mean number of cells of a training case
    ground_area: float  # mean, m²
    building_height: tuple[float, float]  # lowest and highest of the tallest buildings, m
    plan_density: tuple[float, float]  # lowest and highest share of roofs

    @classmethod
    def fit(cls, files: UrbanWindFiles, split: str = "train") -> UrbanNormalisation:
        """Measure a split, one case at a time."""
        ids = files.ids(split)
        if not ids:
            raise ValueError(f"{files.folder} has no cases in split {split!r}")
        total = np.zeros(len(channel_names(files.fields)))
        squares, count = total.copy(), 0
        profiles, terrain, cells, areas, heights, densities = [], [], [], [], [], []
        for number in ids:
            case = files.load(split, number)
            values = _stack_targets(case, files.fields).astype(np.float64)
            total += values.sum(0)
            squares += (values**2).sum(0)
            count += len(values)
            profiles.append(inflow_profile(case.roughness, case.inverse_length))
            terrain.append((np.log(case.roughness), case.inverse_length))
            cells.append(len(values))
            areas.append(case.ground_area)
            heights.append(case.building_height)
            densities.append(case.plan_density)
        mean = total / count
        std = np.sqrt(np.maximum(squares / count - mean**2, 0))
        profile, air = np.concatenate(profiles), np.array(terrain)
        return cls(
            fields=files.fields,
            target_mean=_floats(mean),
            target_std=_spread(mean, std),
            profile_mean=_floats(profile.mean(0)),
            profile_std=_spread(profile.mean(0), profile.std(0)),
            terrain_mean=_floats(air.mean(0)),  # type: ignore[arg-type]
            terrain_std=_spread(air.mean(0), air.std(0)),  # type: ignore[arg-type]
            cells=float(np.mean(cells)),
            ground_area=float(np.mean(areas)),
            building_height=(min(heights), max(heights)),
            plan_density=(min(densities), max(densities)),
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, entries: dict[str, Any]) -> UrbanNormalisation:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entries.items()}
        return cls(**values)

    @property
    def channels(self) -> tuple[str, ...]:
        return channel_names(self.fields)

    def encode_positions(self, metres: Tensor) -> Tensor:
        """(..., 3) in metres to normalised units."""
        low, high = torch.as_tensor(POSITION_BOUNDS, dtype=metres.dtype, device=metres.device).T
        return (metres - low) * (POSITION_WIDTH / (high - low))

    def decode_positions(self, positions: Tensor) -> Tensor:
        low, high = torch.as_tensor(POSITION_BOUNDS, dtype=positions.dtype, device=positions.device).T
        return positions * ((high - low) / POSITION_WIDTH) + low

    def encode_targets(self, physical: Tensor) -> Tensor:
        """(..., F) in physical units to standardised targets."""
        logs = self._log_channels(physical)
        values = torch.where(logs, physical.clamp(min=LOG_FLOOR).log(), physical)
        return (values - _like(self.target_mean, values)) / _like(self.target_std, values)

    def decode_targets(self, targets: Tensor) -> Tensor:
        """Standardised targets (..., F) back to physical units."""
        values = targets * _like(self.target_std, targets) + _like(self.target_mean, targets)
        return torch.where(self._log_channels(values), values.exp(), values)

    def encode_profile(self, profile: Tensor) -> Tensor:
        """(64, 4) from :func:`inflow_profile`."""
        return (profile - _like(self.profile_mean, profile)) / _like(self.profile_std, profile)

    def encode_terrain(self, roughness: float, inverse_length: float) -> Tensor:
        """(2,): the features of the terrain, ln z0 and 1/L."""
        air = torch.tensor([np.log(roughness), inverse_length], dtype=torch.float64)
        return ((air - _like(self.terrain_mean, air)) / _like(self.terrain_std, air)).float()

    def _log_channels(self, like: Tensor) -> Tensor:
        logs = [name in LOG_FIELDS for name in self.channels]
        return torch.tensor(logs, device=like.device).expand(like.shape)


def _floats(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _spread(mean: Array, std: Array) -> tuple[float, ...]:
    """Standard deviations; 1 for a quantity that never changes, so that it becomes exactly 0."""
    return _floats(np.where(std > 1e-6 * np.maximum(1e-6, np.abs(mean)), std, 1.0))


def _like(values: tuple[float, ...], tensor: Tensor) -> Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)


def _stack_targets(case: UrbanCase, fields: tuple[str, ...]) -> Array:
    """(N, F), k and epsilon as logarithms."""
    columns = []
    for name in fields:
        values = case.fields[name].reshape(len(case.positions), -1)
        columns.append(np.log(np.maximum(values, LOG_FLOOR)) if name in LOG_FIELDS else values)
    return np.concatenate(columns, axis=1)


@dataclass(frozen=True)
class PointCounts:
    """How many points stand for a training city; larger ones get more, at the same density."""

    obstacles: int = 4096
    terrain: int = 4096
    obstacle_supernodes: int = 1024
    terrain_supernodes: int = 1024
    anchors: int = 8192
    queries: int | None = 0  # None: every cell

    def grown(self, square: float, ground: float, cells: float) -> PointCounts:
        """Counts for a city whose building square, ground and cells are so many times those of training."""

        def at_least_one(count: float) -> int:
            return max(1, round(count))

        return PointCounts(
            obstacles=at_least_one(self.obstacles * square),
            terrain=at_least_one(self.terrain * ground),
            obstacle_supernodes=at_least_one(self.obstacle_supernodes * square),
            terrain_supernodes=at_least_one(self.terrain_supernodes * ground),
            anchors=at_least_one(self.anchors * cells),
            queries=None if self.queries is None else round(self.queries * cells),
        )


@dataclass(frozen=True)
class UrbanSample:
    """What a network receives and should return for one draw of points; positions and values normalised.

    The surfaces are given as points; supernodes are indices into them. Anchors are the volume's points that
    attend to each other, queries only read. ``terrain_features`` holds ln z0 and 1/L. Masks say which points
    are above the building square. :meth:`UrbanNormalisation.decode_targets` gives targets in physical units;
    they have no columns (F = 0) for a case without fields, such as a city whose wind is to be predicted.
    A batch has one more dimension in front (:meth:`stack`).
    """

    name: str
    scale: float
    obstacle_points: Tensor  # (No, 3)
    obstacle_supernodes: Tensor  # (So,) int64
    terrain_points: Tensor  # (Nt, 3)
    terrain_supernodes: Tensor  # (St,) int64
    terrain_features: Tensor  # (2,)
    profile: Tensor  # (64, 4)
    anchors: Tensor  # (Na, 3)
    anchor_targets: Tensor  # (Na, F)
    anchor_in_square: Tensor  # (Na,) bool
    queries: Tensor  # (Nq, 3)
    query_targets: Tensor  # (Nq, F)
    query_in_square: Tensor  # (Nq,) bool

    @classmethod
    def stack(cls, samples: Sequence[UrbanSample]) -> UrbanSample:
        """A batch: every tensor gets a leading dimension. The samples must have equal counts and scale."""
        if len({sample.scale for sample in samples}) != 1:
            raise ValueError(f"cannot stack cities of scales {[sample.scale for sample in samples]}")
        batch: dict[str, Any] = {
            key: torch.stack([getattr(sample, key) for sample in samples])
            for key, value in samples[0].__dict__.items()
            if isinstance(value, Tensor)
        }
        return cls(name=", ".join(sample.name for sample in samples), scale=samples[0].scale, **batch)

    def city(self) -> dict[str, Any]:
        """What a network receives, by the names of its arguments; of a batch, or of one sample."""
        return {name: getattr(self, name) for name in _CITY}

    def to(self, device: torch.device | str) -> UrbanSample:
        moved: dict[str, Any] = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in self.__dict__.items()}
        return UrbanSample(**moved)


_CITY = (
    "obstacle_points",
    "obstacle_supernodes",
    "terrain_points",
    "terrain_supernodes",
    "terrain_features",
    "profile",
    "anchors",
)


@dataclass
class UrbanWindDataset(torch.utils.data.Dataset[UrbanSample]):
    """Cases of a split with points drawn anew for every ``draw`` (an epoch, or one of ten evaluation draws).

        files = UrbanWindFiles("data/urban-wind", keep_in_memory=True)
        normalisation = UrbanNormalisation.fit(files)
        train = UrbanWindDataset(files, "train", normalisation, PointCounts(queries=4096))
        train.draw = epoch
        sample = train[0]

    The same seed, draw and case give the same points; with ``draw=None``, new ones are drawn at every access, from
    PyTorch's generator. ``neutral_only`` leaves out cases with 1/L != 0; with ``mirrored``, half of the draws show the
    city's mirror image.
    """

    files: UrbanWindFiles
    split: str
    normalisation: UrbanNormalisation
    counts: PointCounts = field(default_factory=PointCounts)
    seed: int = 0
    neutral_only: bool = False
    draw: int | None = 0
    mirrored: bool = False

    def __post_init__(self) -> None:
        if self.files.fields != self.normalisation.fields:
            raise ValueError(f"files give {self.files.fields}, normalisation expects {self.normalisation.fields}")
        self.ids = [
            number
            for number in self.files.ids(self.split)
            if not self.neutral_only or self.files.conditions(self.split, number)[1] == 0
        ]
        if not self.ids:
            raise ValueError(f"{self.files.folder} has no cases in split {self.split!r}")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> UrbanSample:
        number = self.ids[index]
        draw = int(torch.randint(1 << 62, ())) if self.draw is None else self.draw
        rng = np.random.default_rng([self.seed, draw, SPLIT_INDEX[self.split], number])
        case = self.files.load(self.split, number)
        if self.mirrored and rng.random() < 0.5:
            case = mirror_image(case)
        return draw_sample(case, self.normalisation, self.counts, rng)


def mirror_image(case: UrbanCase) -> UrbanCase:
    """The case with y reversed, across the wind: its flow is the mirror image of the city's."""
    flip = np.array([1, -1, 1], dtype=np.float32)
    fields = {name: values * flip if name == "velocity" else values for name, values in case.fields.items()}
    return replace(
        case,
        positions=case.positions * flip,
        fields=fields,
        obstacles=case.obstacles * flip,
        terrain=case.terrain * flip,
    )


def draw_sample(
    case: UrbanCase, normalisation: UrbanNormalisation, counts: PointCounts, rng: np.random.Generator
) -> UrbanSample:
    """Draw the points of one sample: surfaces evenly by area, volume points evenly over the cells."""
    if case.scale != 1:  # cities of the training size all get the same counts, so that they can be stacked
        counts = counts.grown(
            square=case.scale**2,
            ground=case.ground_area / normalisation.ground_area,
            cells=len(case.positions) / normalisation.cells,
        )

    def surface(triangles: Array, points: int, supernodes: int) -> tuple[Tensor, Tensor]:
        drawn = torch.from_numpy(sample_surface(triangles, points, rng)).float()
        chosen = rng.choice(points, min(supernodes, points), replace=False)
        return normalisation.encode_positions(drawn), torch.from_numpy(chosen)

    obstacle_points, obstacle_supernodes = surface(case.obstacles, counts.obstacles, counts.obstacle_supernodes)
    terrain_points, terrain_supernodes = surface(case.terrain, counts.terrain, counts.terrain_supernodes)

    def volume(cells: NDArray[np.integer] | slice) -> tuple[Tensor, Tensor, Tensor]:
        metres = torch.from_numpy(case.positions[cells]).float()
        targets = torch.zeros(len(metres), 0)
        if case.fields:
            columns = [
                case.fields[name][cells].reshape(len(metres), FIELD_WIDTHS[name]) for name in normalisation.fields
            ]
            targets = normalisation.encode_targets(torch.from_numpy(np.concatenate(columns, axis=1)).float())
        return normalisation.encode_positions(metres), targets, torch.from_numpy(case.in_square[cells])

    cells = len(case.positions)
    wanted = counts.anchors + (counts.queries or 0)
    order = rng.choice(cells, min(wanted, cells), replace=False)
    anchors, anchor_targets, anchor_in_square = volume(order[: counts.anchors])
    everywhere = counts.queries is None
    queries, query_targets, query_in_square = volume(slice(None) if everywhere else order[counts.anchors :])

    profile = torch.from_numpy(inflow_profile(case.roughness, case.inverse_length))
    return UrbanSample(
        name=case.name,
        scale=case.scale,
        obstacle_points=obstacle_points,
        obstacle_supernodes=obstacle_supernodes,
        terrain_points=terrain_points,
        terrain_supernodes=terrain_supernodes,
        terrain_features=normalisation.encode_terrain(case.roughness, case.inverse_length),
        profile=normalisation.encode_profile(profile).float(),
        anchors=anchors,
        anchor_targets=anchor_targets,
        anchor_in_square=anchor_in_square,
        queries=queries,
        query_targets=query_targets,
        query_in_square=query_in_square,
    )
