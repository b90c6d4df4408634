"""How many steps fit into some minutes: measured on this machine, with this model and data."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import nn

from farfield.runs.config import RunConfig, TrainingConfig
from farfield.training.loop import Task, computing_dtype
from farfield.training.optimisers import build_optimisers

_TIMED = 4  # steps that are timed, after one that warms up
_FEWEST = 20
_FOR_VALIDATION = 0.1  # of the time


def within(minutes: float, task: Task, config: RunConfig) -> RunConfig:
    """The run with the number of training steps that ``minutes`` are enough for, with their validations."""
    if not minutes > 0:
        raise ValueError(f"expected a positive number of minutes, got {minutes}")
    seconds = seconds_per_step(task, config.training)
    steps = max(_FEWEST, int(60 * minutes * (1 - _FOR_VALIDATION) / seconds))
    return config.changed({"training.steps": steps, "training.validate_every": max(1, steps // 10)})


def seconds_per_step(task: Task, config: TrainingConfig, clock: Callable[[], float] = time.perf_counter) -> float:
    """What a training step takes: a copy of the model takes some on real batches, the task is left as it is."""
    model = copy.deepcopy(task.model)
    device = next(model.parameters()).device
    dtype = computing_dtype(config, device)
    optimisers = build_optimisers(model, config, dtype)
    items = len(task.training_data)  # type: ignore[arg-type]
    size = min(config.batch_size, items)
    drawn = torch.randperm(items, generator=torch.Generator().manual_seed(0)).repeat(_TIMED + 1)
    began = 0.0
    for step in range(_TIMED + 1):
        if step == 1:
            began = clock()
        chosen = [task.training_data[int(i)] for i in drawn[step * size : (step + 1) * size]]
        batch = task.collate(chosen) if task.collate else torch.utils.data.default_collate(chosen)
        with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
            loss = task.loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
    return (clock() - began) / _TIMED
