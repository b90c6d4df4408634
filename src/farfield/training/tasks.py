"""What a problem of steps is to the loop: the transformer operator, pairs of successive states, and their loss."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from farfield.data.samples import Sample, StepPairs
from farfield.data.spec import SampleSpec
from farfield.data.the_well import open_split
from farfield.models import TransformerOperator
from farfield.runs.config import SteppingRun
from farfield.training.loop import Task

# Changes below this fraction of the usual one count as if they were this large: nothing moves there.
STILL = 1e-2


def step_pair_task(config: SteppingRun) -> Task:
    """Model, data and loss of a run."""
    sampling = config.sampling
    problem = open_split(config.dataset, "train").spec.problem
    if problem != config.problem:  # before anything that such data cannot have, like windows of two axes
        raise ValueError(f"{config.dataset} is a dataset of {problem}, the run is for {config.problem}")
    training_data = StepPairs(
        config.dataset,
        "train",
        crop=None if sampling.crop is None else tuple(sampling.crop),
        rim=sampling.rim,
        candidates=sampling.candidates,
        points=sampling.points,
    )
    validation_data = StepPairs(config.dataset, "validation")
    spec = training_data.spec
    for data in (training_data, validation_data):
        data.split.preload()
    torch.manual_seed(config.seed)
    return Task(
        model=build_model(config, spec),
        training_data=training_data,
        validation_data=validation_data,
        loss=functools.partial(step_pair_loss, kind=config.training.loss),
        points=lambda batch: batch.weights.numel(),
        dataset=_description(training_data, validation_data),
    )


def build_model(config: SteppingRun, spec: SampleSpec) -> TransformerOperator:
    """The network of a run, with fresh weights."""
    return config.model.build(config.encoding, spec.in_features, spec.out_features, spec.space_dim)


def step_pair_loss(model: nn.Module, batch: Sample, kind: str = "mse") -> Tensor:
    """The error of the standardised changes over the points that count, as one number (see ``TrainingConfig.loss``)."""
    positions = batch.positions
    if bool((positions == positions[:1]).all()):  # whole domains: one set of points, whose rotations are shared
        positions = positions[0]
    error = model(batch.features, positions).float() - batch.targets
    weights = batch.weights[..., None]
    if kind == "mse":  # per item first: windows at a wall count more points, and parts of a batch must add up to it
        return ((error.square() * weights).sum((1, 2)) / (weights.sum((1, 2)) * error.shape[-1])).mean()
    size = (batch.targets.square() * weights).sum(1)
    floor = STILL**2 * weights.sum(1)
    return ((error.square() * weights).sum(1) / size.clamp(min=floor)).mean()


def _description(training_data: StepPairs, validation_data: StepPairs) -> dict[str, Any]:
    """All that a predictor needs beside the weights; the statistics also tell one dataset from another."""
    states, changes = training_data.standardise_state, training_data.standardise_change
    return {
        "spec": training_data.spec.model_dump(mode="json"),
        "states": {"mean": list(states.mean), "std": list(states.std)},
        "changes": {"mean": list(changes.mean), "std": list(changes.std)},
        "cells": list(training_data.domain.cells),
        "items": {"train": len(training_data), "validation": len(validation_data)},
    }
