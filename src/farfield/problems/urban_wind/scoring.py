"""Errors of predictions on cities of rising size, with the paper's metric: per city and draw of points,

    sum |prediction - truth| / sum |truth|

over all cells of a region (or a random share of them) and the components of the velocity, in physical units; then the
mean over cities and draws. The regions are the square of buildings (``buildings``) and the rest (``wake``), whose share
of the domain depends on the scale. Neutral air only, as in the paper: the larger cities are neutral.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.evaluation.evaluate import Advance, Amount, Numbers, Pictures
from farfield.evaluation.metrics import mean_error, relative_errors
from farfield.files import fingerprint
from farfield.problems.urban_wind.files import SPLIT_INDEX, SPLIT_SCALES, UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.pictures import wind_pictures
from farfield.problems.urban_wind.prediction import WindPredictor

SPLITS = {f"{scale:g}": split for split, scale in SPLIT_SCALES.items() if split not in ("train", "val")}


def split_of(scale: str) -> str:
    """The split of the test cities of a size, which is as many times the training size as ``scale`` says."""
    if scale not in SPLITS:
        raise ValueError(f"urban-wind has cities at s = {', '.join(SPLITS)}, got {scale}")
    return SPLITS[scale]


class UrbanSubject:
    """A trained network, on the test cities in ``folder``."""

    default_scales: tuple[str, ...] = tuple(SPLITS)
    shown: tuple[str, ...] = ("l1_buildings", "l1_wake")

    def __init__(self, predictor: WindPredictor, folder: str | Path):
        self.predictor = predictor
        self.files = UrbanWindFiles(folder, self.predictor.fields, keep_in_memory=True)
        self.cities: dict[str, list[int]] = {}

    def open(self, scales: list[str]) -> None:
        for scale in scales:
            split = split_of(scale)
            self.cities[scale] = self.files.neutral_ids(split)
            if not self.cities[scale]:
                raise ValueError(f"{self.files.folder} has no neutral cities at s = {scale} (split {split!r})")

    def data(self, scale: str) -> str:
        return fingerprint(json.dumps([self.cities[scale], self.files.index], sort_keys=True).encode())

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        there = len(self.cities[scale])
        cities = there if amount.samples is None else min(amount.samples, there)
        share = {} if amount.cells is None else {"cells": amount.cells}
        return {"cities": cities, "draws": amount.draws, **share}

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        return wanted["cities"] * wanted["draws"]

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        split = SPLITS[scale]
        errors: dict[tuple[str, str], list[Tensor]] = {}
        first: list[NDArray] = []  # the wind of the first city
        for number in self.cities[scale][: wanted["cities"]]:
            case = self.files.load(split, number)
            for draw in range(wanted["draws"]):
                rng = np.random.default_rng([0, draw, SPLIT_INDEX[split], number])
                shown = not first and "velocity" in self.predictor.fields  # a picture takes all cells
                count = None if shown else wanted.get("cells")
                fields, found = errors_of_draw(self.predictor, case, rng, count, advance)
                for about, values in found.items():
                    errors.setdefault(about, []).append(values)
                if shown:
                    first.append(fields["velocity"])
        numbers: list[Numbers] = []
        for (name, metric), parts in errors.items():
            value, samples = mean_error(torch.cat(parts))
            numbers.append((name, metric, 1, float(f"{value:.6g}"), samples))
        pictured = self.cities[scale][0]
        return numbers, lambda: wind_pictures(self.files, split, pictured, *first) if first else {}


def errors_of_draw(
    predictor: WindPredictor,
    case: UrbanCase,
    rng: np.random.Generator,
    cells: int | None = None,
    advance: Advance = lambda share: None,
) -> tuple[dict[str, NDArray], dict[tuple[str, str], Tensor]]:
    """One draw of the whole city's points -> the fields at all cells, or at so many of them, and their errors."""
    where = case if cells is None or cells >= len(case.positions) else _some_cells(case, cells, rng)
    fields = predictor.columns(predictor.from_case(case, where.positions, rng, advance))
    return fields, region_errors(fields, where)


def _some_cells(case: UrbanCase, count: int, rng: np.random.Generator) -> UrbanCase:
    """The case with the air of so many cells, drawn evenly."""
    chosen = rng.choice(len(case.positions), count, replace=False)
    fields = {name: values[chosen] for name, values in case.fields.items()}
    return replace(case, positions=case.positions[chosen], fields=fields)


def region_errors(fields: dict[str, NDArray], case: UrbanCase) -> dict[tuple[str, str], Tensor]:
    """Predicted fields at a case's cells -> their errors (1,) by field and metric, such as ("velocity", "l1_wake")."""
    errors = {}
    for region, cells in (("buildings", case.in_square), ("wake", ~case.in_square)):
        for name, predicted in fields.items():
            # a vector's components are summed over like points
            both = (torch.from_numpy(v[cells]).double().reshape(1, -1, 1) for v in (predicted, case.fields[name]))
            for norm, values in relative_errors(*both).items():
                errors[name, f"{norm}_{region}"] = values[:, 0]
    return errors
