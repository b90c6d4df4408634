"""Errors of AB-SWIFT on cities of rising size, with the paper's metric: per city and draw of points,

    sum |prediction - truth| / sum |truth|

over all cells of a region and the components of the velocity, in physical units; then the mean over cities and draws.
The regions are the square of buildings (``buildings``) and the rest (``wake``), whose share of the domain depends on
the scale. Neutral air only, as in the paper: the larger cities are neutral.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyvista as pv
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.datasets.urban_card import PEDESTRIAN_HEIGHT
from farfield.datasets.urban_sampling import PointCounts, UrbanNormalisation, UrbanSample, UrbanWindDataset
from farfield.datasets.urban_wind import SPLIT_SCALES
from farfield.evaluation.metrics import mean_error, relative_errors
from farfield.evaluation.subject import Advance, Amount, Numbers, Pictures
from farfield.models.ab_swift import AbSwift
from farfield.training.config import UrbanRun
from farfield.training.runs import Run
from farfield.training.urban import load_urban, open_files

SPLITS = {f"{scale:g}": split for split, scale in SPLIT_SCALES.items() if split not in ("train", "val")}
PICTURED_POINTS = 400  # along a picture's longer side
_QUERIES = 1 << 14  # at a time


class UrbanSubject:
    """A run of urban wind, on the test cities of its dataset or of the one in ``data``."""

    default_scales: tuple[str, ...] = tuple(SPLITS)
    shown: tuple[str, ...] = ("l1_buildings", "l1_wake")

    def __init__(self, run: Run, config: UrbanRun, data: str | Path | None, device: str | None):
        _, self.model, self.normalisation = load_urban(run.folder, device)
        self.files = open_files(config, data, keep_in_memory=True)
        self.counts = replace(PointCounts(**config.points.model_dump()), queries=None)
        self.cities: dict[str, UrbanWindDataset] = {}

    def open(self, scales: list[str]) -> None:
        for scale in scales:
            if scale not in SPLITS:
                raise ValueError(f"urban-wind has cities at s = {', '.join(SPLITS)}, got {scale}")
            self.cities[scale] = UrbanWindDataset(
                self.files, SPLITS[scale], self.normalisation, self.counts, neutral_only=True
            )

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        there = len(self.cities[scale])
        return {"cities": there if amount.cities is None else min(amount.cities, there), "draws": amount.draws}

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        return wanted["cities"] * wanted["draws"]

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        cities = self.cities[scale]
        errors: dict[tuple[str, str], list[Tensor]] = {}
        first: list[Tensor] = []  # the fields of the first city
        for index in range(wanted["cities"]):
            for cities.draw in range(wanted["draws"]):
                sample = cities[index]
                predicted = predict_queries(self.model, self.normalisation, sample, advance)
                truth = self.normalisation.decode_targets(sample.query_targets)
                first = first or [truth, predicted]
                for about, values in self._errors(predicted, truth, sample.query_in_square).items():
                    errors.setdefault(about, []).append(values)
        numbers: list[Numbers] = []
        for (name, metric), parts in errors.items():
            value, samples = mean_error(torch.cat(parts))
            numbers.append((name, metric, 1, float(f"{value:.6g}"), samples))
        return numbers, lambda: self._pictures(cities, *first)

    def _errors(self, predicted: Tensor, truth: Tensor, in_square: Tensor) -> dict[tuple[str, str], Tensor]:
        """Fields (N, F) and which cells lie in the square -> errors (1,) by field and metric."""
        errors = {}
        for region, cells in (("buildings", in_square), ("wake", ~in_square)):
            for name, columns in self._columns().items():
                # a vector's components are summed over like points
                both = (fields[cells, columns].reshape(1, -1, 1).double() for fields in (predicted, truth))
                for norm, values in relative_errors(*both).items():
                    errors[name, f"{norm}_{region}"] = values[:, 0]
        return errors

    def _columns(self) -> dict[str, slice]:
        """Where each field stands among the channels."""
        ends = np.cumsum(list(self.model.fields.values())).tolist()
        starts = [0, *ends[:-1]]
        return {name: slice(*ends) for name, *ends in zip(self.model.fields, starts, ends, strict=True)}

    def _pictures(self, cities: UrbanWindDataset, truth: Tensor, predicted: Tensor) -> dict[str, NDArray]:
        """The wind speed of the first city, at pedestrian height and in a cut along the wind; NaN inside buildings."""
        if "velocity" not in self.model.fields:
            return {}
        number = cities.ids[0]
        roof = cities.files.load(cities.split, number).obstacles
        tallest = roof[roof[..., 2].mean(1).argmax(), :, 1]
        volume = cities.files.volume(cities.split, number)
        volume.clear_data()
        for name, fields in (("truth", truth), ("prediction", predicted)):
            volume.cell_data[name] = fields[:, self._columns()["velocity"]].norm(dim=1).numpy()
        volume = volume.cell_data_to_point_data()
        x0, x1, y0, y1, z0, z1 = volume.bounds
        through = float(tallest.mean())
        pictures: dict[str, NDArray] = {}
        for kind, plane in (
            ("map", (x0, x1, y0, y1, PEDESTRIAN_HEIGHT, PEDESTRIAN_HEIGHT)),
            ("cut", (x0, x1, through, through, z0, z1)),
        ):
            pictures[f"{kind}_bounds"] = np.array(plane)
            pictures |= {f"{kind}_{name}": values for name, values in _on_plane(volume, plane).items()}
        return pictures


@torch.no_grad()
def predict_queries(
    model: AbSwift,
    normalisation: UrbanNormalisation,
    sample: UrbanSample,
    advance: Callable[[float], None] = lambda share: None,
    chunk: int = _QUERIES,
) -> Tensor:
    """The fields (N, F) at the queries of one sample, in physical units; ``advance`` hears of every share that is done.

    The geometry and the anchors are computed once, the queries read from them ``chunk`` at a time.
    """
    device = next(model.parameters()).device
    batch = UrbanSample.stack([sample]).to(device)
    encoded = model.encode(**batch.city())
    parts = []
    for queries in batch.queries.split(chunk, dim=1):
        parts.append(normalisation.decode_targets(model.decode(encoded, queries, chunk)[0].float()).cpu())
        advance(queries.shape[1] / batch.queries.shape[1])
    return torch.cat(parts)


def _on_plane(volume: pv.DataSet, bounds: tuple[float, ...]) -> dict[str, NDArray[np.float32]]:
    """Point data on a regular grid over a plane along two axes: arrays (n, m), NaN where there is no air."""
    low, high = np.array(bounds[::2]), np.array(bounds[1::2])
    counts = np.where(high > low, np.maximum(2, PICTURED_POINTS * (high - low) / (high - low).max()), 1).astype(int)
    if counts.min() == 1 and bounds[5] > bounds[4]:
        counts[2] = PICTURED_POINTS // 4  # the air is flat: a cut shows it stretched
    spacing = np.where(counts > 1, (high - low) / np.maximum(counts - 1, 1), 1.0)
    inset = 1e-6 * (high - low)  # the outermost points belong to the mesh
    grid = pv.ImageData(dimensions=counts, spacing=spacing * (1 - 2e-6), origin=low + inset).sample(volume)
    air = grid["vtkValidPointMask"].astype(bool)
    shape = tuple(int(n) for n in counts if n > 1)
    return {
        name: np.where(air, grid[name], np.nan).astype(np.float32).reshape(shape, order="F")
        for name in ("truth", "prediction")
    }
