"""Training of the column network: corrections to the physics of cities, at random cells of one city at a time."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from farfield.problems.urban_wind.city import (
    CHANNELS,
    City,
    CorrectionScale,
    Query,
    base_fields,
    told_channels,
    true_fields,
)
from farfield.problems.urban_wind.column_config import ColumnRun, LossConfig
from farfield.problems.urban_wind.columns import ColumnNetwork
from farfield.problems.urban_wind.files import DEFAULT_FIELDS, UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.lattice import SPACING
from farfield.problems.urban_wind.sampling import UrbanNormalisation
from farfield.runs.run import Run
from farfield.runs.weights import fill
from farfield.training.loop import Task

FITTED_CELLS = 5000  # of each city, for the spread of the corrections
# One draw of so many of a turned city has all of its air. What lies far aside is half of the columns: the other draws
# leave it out, and learn most of what there is to learn for half of the time.
WHOLE_AIR = 3


class Item(NamedTuple):
    """A city and some of its cells."""

    cells: Tensor  # (Y, X, Z, C)
    air: Tensor  # (Y, X)
    profile: Tensor  # (p,)
    phase: tuple[int, int]
    query: Query
    truth: Tensor  # (N, 6)


class Cities(Dataset):
    """Simulated cities; each time one is drawn, its lattice lies elsewhere and others of its cells are taken.

    The physics of a city is computed when it is drawn: that takes a tenth of a step, and kept for all of them, at
    several places of the lattice, it would fill the memory.
    """

    def __init__(self, cases: list[UrbanCase], points: int, patch: int, drawn: bool):
        self.points, self.patch, self.drawn = points, patch, drawn
        self.cases = [replace(case, fields={}) for case in cases]
        self.truth = [true_fields(case) for case in cases]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, number: int) -> Item:
        generator = None if self.drawn else torch.Generator().manual_seed(number)

        def below(count: int) -> int:
            return int(torch.randint(count, (), generator=generator))

        case, place = self.cases[number], (0.0, 0.0)
        # The lattice lies on the walls of half of the cities that are not turned; no wall of the others is along it.
        if self.drawn and (case.wind_angle or below(2)):
            across, along = torch.rand(2).tolist()
            place = (across, along)
        city = City.around(case, place)
        if self.drawn and case.wind_angle and below(WHOLE_AIR):
            city = city.near_buildings()
        usable = _usable(city, case.positions)
        cells = usable[torch.randint(len(usable), (min(self.points, len(usable)),), generator=generator).numpy()]
        positions, truth = case.positions[cells], self.truth[number][torch.from_numpy(cells)]
        phase = (0, 0)
        if self.drawn:
            phase = (below(self.patch), below(self.patch))
            if below(2):
                city, positions, truth = city.mirrored(), positions * _MIRROR_POINTS, truth * _MIRROR_FIELDS
        return Item(city.cells(), city.air(), city.profile(), phase, city.query(positions), truth)


_MIRROR_POINTS = np.array([1, -1, 1], dtype=np.float32)
_MIRROR_FIELDS = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0])


def _usable(city: City, positions: NDArray[np.floating]) -> NDArray[np.intp]:
    """Cells whose surroundings were not cut away with the sides of the lattice."""
    rim = 4 * SPACING
    low = city.lattice.origin[1]
    high = low + SPACING * city.lattice.shape[1]
    lowest, highest = positions[:, 1].min(), positions[:, 1].max()
    y = positions[:, 1]
    return np.flatnonzero(((y > low + rim) | (lowest > low)) & ((y < high - rim) | (highest < high)))


def column_task(config: ColumnRun) -> Task:
    """Model, data and loss of a run."""
    folders = [UrbanWindFiles(folder, DEFAULT_FIELDS) for folder in (config.dataset, *config.also)]
    normalisation = UrbanNormalisation.fit(folders[0])
    parts = {
        split: [files.load(split, number) for files in folders for number in files.neutral_ids(split)]
        for split in ("train", "val")
    }
    for split, cases in parts.items():
        if not cases:
            raise ValueError(
                f"{config.dataset} has no cities in neutral air in its split {split!r}: the columns know no other"
            )
    parts["train"] += _wide_cities(config.wide)
    training_data = Cities(parts["train"], config.points, config.model.patch, drawn=True)
    validation_data = Cities(parts["val"], config.points, config.model.patch, drawn=False)
    torch.manual_seed(config.seed)
    model = config.build()
    if config.starts_from is None:
        scale = CorrectionScale.fit([correction(training_data, number) for number in range(len(training_data))])
    else:  # the weights answer in units of the spread that they were trained with
        base = Run.find(config.starts_from)
        _begin_with(base, model)
        scale = CorrectionScale.from_dict(base.dataset()["corrections"])
    return Task(
        model=model,
        training_data=training_data,
        validation_data=validation_data,
        loss=functools.partial(column_loss, scale=scale, weights=loss_weights(scale, config.loss), kind=config.loss),
        points=lambda batch: sum(len(item.truth) for item in batch),
        dataset={
            "problem": config.problem,
            "corrections": scale.to_dict(),
            "normalisation": normalisation.to_dict(),
            "channels": list(CHANNELS),
            "turned": any(case.wind_angle for case in parts["train"]),
            "items": {"train": len(training_data), "validation": len(validation_data)},
        },
        collate=list,
    )


def _begin_with(base: Run, model: ColumnNetwork) -> None:
    """Give a network the weights of a run, whose network may have fewer ConvNeXt blocks (or none on 2 x 2 columns)
    and may have been told fewer of the channels, the last ones missing: nothing that is new has a say at first."""
    trained = ColumnRun.parse(base.settings(), str(base.config_path))
    told = told_channels(base.dataset())
    smaller = trained.build(channels=told)
    base.load_weights(smaller)
    weights = smaller.state_dict()
    missing = model.channels - told
    if missing > 0:
        first = weights["first.weight"].unflatten(1, (model.levels, told))
        weights["first.weight"] = functional.pad(first, (0, missing)).flatten(1)
        for name in ("hidden.weight", "direct.weight"):
            known = trained.model.level_features + told
            read, points = weights[name].split([known, weights[name].shape[1] - known], dim=1)
            weights[name] = torch.cat([functional.pad(read, (0, missing)), points], dim=1)
    fresh = model.state_dict()
    if smaller.coarser is None:
        weights |= {name: w for name, w in fresh.items() if name.startswith("coarser.")}
    elif model.coarser is not None:
        weights = _deepened(weights, fresh, "coarser.blocks", smaller.coarser.blocks, model.coarser.blocks)
    weights = _deepened(weights, fresh, "stem", smaller.stem, model.stem)
    weights = _deepened(weights, fresh, "decoder", smaller.decoder, model.decoder)
    fill(model, weights, base.folder)


def _deepened(
    weights: dict[str, Tensor], fresh: dict[str, Tensor], chain: str, known: nn.Sequential, wanted: nn.Sequential
) -> dict[str, Tensor]:
    """Weights of a chain of ConvNeXt blocks and a norm, as weights of a longer one: between its last block and its norm
    come fresh blocks that add nothing at first."""
    had, has = len(known) - 1, len(wanted) - 1
    if had >= has:
        return weights
    norm = f"{chain}.{had}."
    longer = {name.replace(norm, f"{chain}.{has}."): weight for name, weight in weights.items()}
    for number in range(had, has):
        block = f"{chain}.{number}."
        for name in (name for name in fresh if name.startswith(block)):
            adds = name.startswith(f"{block}mlp.2.")
            longer[name] = torch.zeros_like(fresh[name]) if adds else fresh[name]
    return longer


def _wide_cities(folders: list[str]) -> list[UrbanCase]:
    """All cities of twice the training size in these folders."""
    cases = []
    for folder in folders:
        files = UrbanWindFiles(folder, DEFAULT_FIELDS)
        numbers = files.ids("ls")
        if not numbers:
            raise ValueError(f"{folder} has no cities of s = 2 (volume_ls_*.vtk), which `wide` asks for")
        cases += [files.load("ls", number) for number in numbers]
    return cases


def correction(cities: Cities, number: int) -> Tensor:
    """What physics leaves to learn at some cells of a city: (N, 6)."""
    city, positions = City.around(cities.cases[number]), cities.cases[number].positions
    usable = _usable(city, positions)
    some = usable[np.linspace(0, len(usable) - 1, min(FITTED_CELLS, len(usable))).astype(int)]
    query = city.query(positions[some])
    flat = city.cells().reshape(-1, len(CHANNELS))
    local = functional.embedding_bag(query.cells, flat, per_sample_weights=query.weights, mode="sum")
    return cities.truth[number][torch.from_numpy(some)] - base_fields(local, query)


def loss_weights(scale: CorrectionScale, loss: LossConfig) -> Tensor:
    """(6,): of each output. Velocities are judged in m/s: a component counts as much as it varies."""
    spread = torch.tensor(scale.spread)
    others = torch.tensor([loss.pressure, loss.turbulence, loss.turbulence])
    return torch.cat([spread[:3] / spread[0], others])


def column_loss(
    model: nn.Module, batch: list[Item], *, scale: CorrectionScale, weights: Tensor, kind: LossConfig
) -> Tensor:
    """Huber's error of the standardised corrections, weighted, as one number."""
    losses = []
    for item in batch:
        query = item.query
        out, local = model(
            item.cells, item.air, item.profile, query.cells, query.weights, query.features, phase=item.phase
        )
        target = scale.encode(item.truth - base_fields(local.detach(), query))
        error = functional.huber_loss(out.float(), target, reduction="none", delta=kind.delta) / kind.delta
        losses.append((error * weights.to(error)).mean())
    return torch.stack(losses).mean()
