"""Training of AB-SWIFT on urban wind: the steady flow at points of the air, from points of the surfaces."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farfield.problems.urban_wind.config import UrbanRun
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.sampling import PointCounts, UrbanNormalisation, UrbanSample, UrbanWindDataset
from farfield.training.loop import Task


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
        "problem": "urban-wind",
        "normalisation": training_data.normalisation.to_dict(),
        "items": {"train": len(training_data), "validation": len(validation_data)},
    }
