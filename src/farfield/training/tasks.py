"""What a problem is to the loop: the transformer operator, pairs of successive states or steady fields, their loss."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from farfield.data.batches import Group, Samples, collate
from farfield.data.dataset import STATISTICS, open_dataset
from farfield.data.samples import Sample, StepPairs
from farfield.data.source import Selection
from farfield.data.spec import SampleSpec
from farfield.data.the_well import open_split
from farfield.models.for_data import build_network
from farfield.runs.config import OwnRun, SteppingRun
from farfield.runs.run import Run
from farfield.runs.weights import load_weights
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
        symmetries=sampling.symmetries,
    )
    validation_data = StepPairs(config.dataset, "validation")
    spec = training_data.spec
    for data in (training_data, validation_data):
        data.split.preload()
    torch.manual_seed(config.seed)
    return Task(
        model=build_network(spec, config.encoding, config.model),
        training_data=training_data,
        validation_data=validation_data,
        loss=functools.partial(
            step_pair_loss, kind=config.training.loss, still=training_data.standardise_change.zero()
        ),
        points=lambda batch: batch.weights.numel(),
        dataset=_description(training_data, validation_data),
    )


def own_task(config: OwnRun) -> Task:
    """Model, data and loss of a run on a user's own data."""
    data = open_dataset(config.dataset)
    data.check(whole=config.starts_from is not None)
    if config.starts_from is None:
        statistics, spec = data.statistics(), data.spec
        train, validation = data.split("train"), data.split("validation")
    else:
        base = Run.find(config.starts_from)
        described = base.dataset()
        spec = SampleSpec.model_validate(described["spec"])
        statistics = {kind: found for kind, found in described.items() if kind in STATISTICS}
        spec.require_same(data.spec, str(base))
        old = open_dataset(base.settings()["dataset"])
        whole = range(len(data))
        items, shown = sum(map(data.source.states, whole)), sum(map(old.source.states, old.splits["train"]))
        # as many old items as the share asks for: all of them, and the new ones as often as that takes
        repeats = max(1, round(shown * (1 - config.old_share) / max(config.old_share, 1e-9) / items))
        kept = old.splits["train"] if config.old_share else []
        train = Selection((old.source, kept), *[(data.source, whole)] * repeats)
        validation = Selection((old.source, old.splits["validation"]), (data.source, whole))
    if spec.kind == "steady" and (config.noise or config.pushforward):
        raise ValueError("noise and pushforward are for steps, this problem is steady")
    training_data = Samples(train, statistics, history=config.pushforward > 0)
    validation_data = Samples(validation, statistics)
    torch.manual_seed(config.seed)
    model = build_network(spec, config.encoding, config.model)
    if config.starts_from is not None:
        load_weights(Run.find(config.starts_from).weights_path(), model)
    scales = None
    if spec.kind == "stepping":
        scales = (
            torch.tensor(statistics["changes"]["std"]) / torch.tensor(statistics["states"]["std"]),
            torch.tensor(statistics["changes"]["mean"]) / torch.tensor(statistics["changes"]["std"]),
        )
    return Task(
        model=model,
        training_data=training_data,
        validation_data=validation_data,
        loss=functools.partial(own_loss, noise=config.noise, pushforward=config.pushforward, scales=scales),
        points=lambda batch: sum(group.targets.shape[0] * group.targets.shape[1] for group in batch),
        dataset={
            "spec": spec.as_json(),
            **statistics,
            "items": {"train": len(training_data), "validation": len(validation_data)},
        },
        collate=collate,
    )


def own_loss(
    model: nn.Module,
    batch: list[Group],
    noise: float = 0.0,
    pushforward: float = 0.0,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """The mean squared error of the standardised targets, every item counting alike.

    In training a state may be spoiled, and the target is then the change from the spoiled state to the true next one:
    by noise of that many times the change's spread, or by the network's own prediction of it from the state before.
    With z the standardised state, y the standardised change, r = change spread / state spread, m = mean change / its
    spread: a state spoiled by e (in z) has the target y - e / r; the prediction from z' is z' + r (y(z') + m).
    """
    total = torch.zeros((), device=batch[0].targets.device)
    spoiling = torch.is_grad_enabled() and scales is not None
    push = spoiling and pushforward > 0 and float(torch.rand(())) < pushforward
    for group in batch:
        features, targets = group.features, group.targets
        options: dict[str, Any] = {"period": group.period} if group.period is not None else {}
        if group.conditions is not None:
            options["conditions"] = group.conditions
        if spoiling and (noise > 0 or push):
            assert scales is not None
            ratio, mean = (s.to(features) for s in scales)
            state = features[..., : targets.shape[-1]]
            spoiled = state + noise * ratio * torch.randn_like(state)
            if push and group.before is not None:
                known = ~group.before.isnan().flatten(1).any(1)
                before = torch.where(known[:, None, None], group.before, state)
                with torch.no_grad():
                    rest = features[..., targets.shape[-1] :]
                    step = model(torch.cat([before, rest], dim=-1), group.positions, **options).float()
                spoiled = torch.where(known[:, None, None], before + ratio * (step + mean), spoiled)
            targets = targets - (spoiled - state) / ratio
            features = torch.cat([spoiled, features[..., targets.shape[-1] :]], dim=-1)
        error = model(features, group.positions, **options).float() - targets
        total = total + error.square().mean((1, 2)).sum()
    return total / sum(len(group.targets) for group in batch)


def step_pair_loss(model: nn.Module, batch: Sample, kind: str = "mse", still: Sequence[float] = (0.0,)) -> Tensor:
    """The error of the standardised changes over the points that count, as one number (see ``TrainingConfig.loss``).

    ``still`` is no change, standardised: what the physical size of a change is measured from.
    """
    positions = batch.positions
    if bool((positions == positions[:1]).all()):  # whole domains: one set of points, whose rotations are shared
        positions = positions[0]
    error = model(batch.features, positions).float() - batch.targets
    weights = batch.weights[..., None]
    if kind == "mse":  # per item first: windows at a wall count more points, and parts of a batch must add up to it
        return ((error.square() * weights).sum((1, 2)) / (weights.sum((1, 2)) * error.shape[-1])).mean()
    if kind == "l1":
        change = (batch.targets - batch.targets.new_tensor(still)) * weights
        return ((error * weights).abs().sum(1) / change.abs().sum(1).clamp(min=STILL * weights.sum(1))).mean()
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
