"""Training of AB-SWIFT on urban wind: the steady flow at points of the air, from points of the surfaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farfield.datasets.urban_sampling import PointCounts, UrbanNormalisation, UrbanSample, UrbanWindDataset
from farfield.datasets.urban_wind import UrbanWindFiles
from farfield.models.ab_swift import AbSwift
from farfield.models.predictor import chosen_device, model_folder
from farfield.models.weights import load_weights
from farfield.training.config import UrbanRun
from farfield.training.loop import Task
from farfield.training.runs import Run


def urban_task(config: UrbanRun) -> Task:
    """Model, data and loss of a run."""
    files = UrbanWindFiles(config.dataset, tuple(config.model.fields), keep_in_memory=True)
    normalisation = UrbanNormalisation.fit(files)
    counts = PointCounts(**config.points.model_dump())
    training_data = UrbanWindDataset(
        files, "train", normalisation, counts, seed=config.seed, draw=None, mirrored=config.mirrored
    )
    validation_data = UrbanWindDataset(files, "val", normalisation, counts)  # the same points at every validation
    torch.manual_seed(config.seed)
    return Task(
        model=config.build(),
        training_data=training_data,
        validation_data=validation_data,
        loss=urban_loss,
        points=lambda batch: batch.anchor_in_square.numel() + batch.query_in_square.numel(),
        dataset=_description(training_data, validation_data),
        collate=UrbanSample.stack,
    )


def urban_loss(model: nn.Module, batch: UrbanSample) -> Tensor:
    """The mean squared error of the standardised fields, over anchors and queries alike."""
    predicted = model(**batch.city(), queries=batch.queries)
    return (predicted.float() - torch.cat([batch.anchor_targets, batch.query_targets], dim=1)).square().mean()


def _description(training_data: UrbanWindDataset, validation_data: UrbanWindDataset) -> dict[str, Any]:
    """All that a prediction needs beside the weights; the statistics also tell one dataset from another."""
    return {
        "case": "urban-wind",
        "normalisation": training_data.normalisation.to_dict(),
        "items": {"train": len(training_data), "validation": len(validation_data)},
    }


class TrainedUrban(NamedTuple):
    """A trained AB-SWIFT with all that is needed to use it."""

    config: UrbanRun
    model: AbSwift
    normalisation: UrbanNormalisation


def load_urban(name_or_run: str | Path, device: str | torch.device | None = None) -> TrainedUrban:
    """Load a shipped urban-wind model by name, or the best weights of a run's folder."""
    run = Run(model_folder(name_or_run))
    config = run.config()
    if not isinstance(config, UrbanRun):
        raise ValueError(f"{run} is a model of {config.case}, one of urban-wind is needed")
    model = config.build()
    load_weights(run.best_path, model)
    normalisation = UrbanNormalisation.from_dict(run.dataset()["normalisation"])
    return TrainedUrban(config, model.to(chosen_device(device)).eval().requires_grad_(False), normalisation)
