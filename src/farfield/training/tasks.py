"""What a problem is to the loop: the transformer operator, its items from any data, and their loss."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from farfield.data.check import check_source
from farfield.data.dataset import Dataset
from farfield.data.generated import open_split
from farfield.data.opening import open_dataset
from farfield.data.samples import Group, Samples, collate
from farfield.data.source import Selection, Source
from farfield.data.spec import SampleSpec
from farfield.data.standardise import STATISTICS, Described, described_statistics, read_statistics
from farfield.data.the_well import WellFiles
from farfield.models.for_data import build_network
from farfield.runs.config import OwnRun, SteppingRun
from farfield.runs.run import Run
from farfield.training.loop import Task

# Changes below this fraction of the usual one count as if they were this large: nothing moves there.
STILL = 1e-2


def generated_task(config: SteppingRun) -> Task:
    """Model, data and loss of a run on what ``farfield generate`` made."""
    train, validation = (open_split(config.dataset, name) for name in ("train", "validation"))
    if train.spec.problem != config.problem:  # before anything that such data cannot have, like windows of two axes
        raise ValueError(f"{config.dataset} is a dataset of {train.spec.problem}, the run is for {config.problem}")
    for split in (train, validation):
        split.preload()
        check_source(split, {})
    statistics = described_statistics(read_statistics(config.dataset), train.spec.fields)
    described = {"spec": train.spec.model_dump(mode="json"), **statistics, "cells": list(train.domain.cells)}
    return _task(config, train, validation, train.spec, statistics, described)


def own_task(config: OwnRun, data: Dataset | None = None) -> Task:
    """Model, data and loss of a run on a user's own data, which is opened and checked unless it is given."""
    data = data or open_dataset(config.dataset)
    data.check(whole=config.starts_from is not None)
    if isinstance(data.source, WellFiles):
        data.source.preload()  # what fits into memory: items come in any order
    if config.starts_from is None:
        statistics, spec = data.statistics(), data.spec
        train, validation = data.split("train"), data.split("validation")
    else:
        base = Run.find(config.starts_from)
        found = base.dataset()
        spec = SampleSpec.model_validate(found["spec"])
        statistics = {kind: numbers for kind, numbers in found.items() if kind in STATISTICS}
        spec.require_same(data.spec, str(base))
        train, validation = _mixed(open_dataset(base.settings()["dataset"]), data, config.old_share)
    check_decay_lengths(config, spec)
    if spec.kind == "steady" and (config.noise or config.pushforward):
        raise ValueError("noise and pushforward are for steps, this problem is steady")
    spoiling = Spoiling(config.noise, config.pushforward, statistics) if config.noise or config.pushforward else None
    described = {"spec": spec.as_json(), **statistics}
    task = _task(config, train, validation, spec, statistics, described, spoiling)
    if config.starts_from is not None:
        Run.find(config.starts_from).load_weights(task.model)
    return task


def _mixed(old: Dataset, new: Dataset, old_share: float) -> tuple[Source, Source]:
    """Old and new data together, to train on and to validate on: the new simulations as often as the share asks for."""
    whole = range(len(new))
    items, shown = sum(map(new.source.states, whole)), sum(map(old.source.states, old.splits["train"]))
    repeats = max(1, round(shown * (1 - old_share) / max(old_share, 1e-9) / items)) if old_share else 1
    kept = old.splits["train"] if old_share else []
    train = Selection((old.source, kept), *[(new.source, whole)] * repeats)
    return train, Selection((old.source, old.splits["validation"]), (new.source, whole))


def check_decay_lengths(config: SteppingRun, spec: SampleSpec) -> None:
    """Refuse an encoding that sees further than any pair of points in training lies apart."""
    lengths = config.encoding.lengths()
    widths = [extent * scale for extent, scale in zip(spec.training_extent, spec.position_scale, strict=True)]
    if lengths is not None and max(lengths) > max(widths):
        raise ValueError(
            f"encoding.decay_length {max(lengths):g} is longer than the domain, which is {max(widths):g} wide in units "
            f"of position: nothing keeps attention local; a quarter of the width, {max(widths) / 4:g}, is usual"
        )


def _task(
    config: SteppingRun,
    train: Source,
    validation: Source,
    spec: SampleSpec,
    statistics: Described,
    described: dict[str, Any],
    spoiling: Spoiling | None = None,
) -> Task:
    history = spoiling is not None and spoiling.pushforward > 0
    training_data = Samples(train, statistics, history=history, **config.sampling.model_dump())
    validation_data = Samples(validation, statistics)
    changes = training_data.standardise["changes" if spec.kind == "stepping" else "states"]
    torch.manual_seed(config.seed)
    return Task(
        model=build_network(spec, config.encoding, config.model),
        training_data=training_data,
        validation_data=validation_data,
        loss=functools.partial(batch_loss, kind=config.training.loss, still=changes.zero(), spoiling=spoiling),
        points=lambda batch: sum(group.weights.numel() for group in batch),
        dataset={**described, "items": {"train": len(training_data), "validation": len(validation_data)}},
        collate=collate,
    )


class Spoiling(NamedTuple):
    """States that are spoiled in training, so that rollouts drift less (see :meth:`spoil`)."""

    noise: float
    """Of that many times the change's spread."""
    pushforward: float
    """The share of batches that start from the network's own prediction."""
    statistics: Described

    def spoil(self, model: nn.Module, group: Group, options: dict[str, Any], push: bool) -> tuple[Tensor, Tensor]:
        """Features with a spoiled state, and the targets: the change from the spoiled state to the true next one.

        A state is spoiled by noise, or by the network's own prediction of it from the state before. With z the
        standardised state, y the standardised change, r = change spread / state spread, m = mean change / its spread:
        a state spoiled by e (in z) has the target y - e / r; the prediction from z' is z' + r (y(z') + m).
        """
        spread = {kind: group.targets.new_tensor(self.statistics[kind]["std"]) for kind in ("states", "changes")}
        ratio = spread["changes"] / spread["states"]
        mean = group.targets.new_tensor(self.statistics["changes"]["mean"]) / spread["changes"]
        state, rest = group.features.tensor_split([group.targets.shape[-1]], dim=-1)
        spoiled = state + self.noise * ratio * torch.randn_like(state)
        if push and group.before is not None:
            known = ~group.before.isnan().flatten(1).any(1)[:, None, None]
            before = torch.where(known, group.before, state)
            with torch.no_grad():
                step = model(torch.cat([before, rest], dim=-1), group.positions, **options).float()
            spoiled = torch.where(known, before + ratio * (step + mean), spoiled)
        return torch.cat([spoiled, rest], dim=-1), group.targets - (spoiled - state) / ratio


def batch_loss(
    model: nn.Module,
    batch: list[Group],
    kind: str = "mse",
    still: Sequence[float] = (0.0,),
    spoiling: Spoiling | None = None,
) -> Tensor:
    """The error of the standardised targets over the points that count, every item counting alike.

    ``kind`` is ``TrainingConfig.loss``. ``still`` is no change, standardised: what the physical size of a change is
    measured from. States are spoiled in training only.
    """
    total = torch.zeros((), device=batch[0].targets.device)
    spoiling = spoiling if torch.is_grad_enabled() else None
    push = spoiling is not None and spoiling.pushforward > 0 and float(torch.rand(())) < spoiling.pushforward
    for group in batch:
        features, targets = group.features, group.targets
        options: dict[str, Any] = {"period": group.period} if group.period is not None else {}
        if group.conditions is not None:
            options["conditions"] = group.conditions
        if spoiling is not None:
            features, targets = spoiling.spoil(model, group, options, push)
        error = model(features, group.positions, **options).float() - targets
        total = total + _item_errors(error, targets, group.weights[..., None], kind, still).sum()
    return total / sum(len(group.targets) for group in batch)


def _item_errors(error: Tensor, targets: Tensor, weights: Tensor, kind: str, still: Sequence[float]) -> Tensor:
    """Errors (B, N, F) of targets with weights (B, N, 1), one number per item: (B,).

    Per item, for windows at a wall count more points, and parts of a batch must add up to it.
    """
    if kind == "mse":
        return (error.square() * weights).sum((1, 2)) / (weights.sum((1, 2)) * error.shape[-1])
    if kind == "l1":
        change = (targets - targets.new_tensor(still)) * weights
        return ((error * weights).abs().sum(1) / change.abs().sum(1).clamp(min=STILL * weights.sum(1))).mean(-1)
    size = (targets.square() * weights).sum(1)
    return ((error.square() * weights).sum(1) / size.clamp(min=STILL**2 * weights.sum(1))).mean(-1)
