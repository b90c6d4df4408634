"""Optimisers, the schedule of their rate, and the moving average of the weights."""

from __future__ import annotations

import math

import torch
from lion_pytorch import Lion
from torch import nn
from torch.optim import AdamW, Optimizer

from farfield.runs.config import TrainingConfig
from farfield.training.muon import Muon

# Muon makes a matrix' update orthogonal; an embedding of three features or a projection to two fields is no such map.
_THINNEST = 16


def build_optimisers(model: nn.Module, config: TrainingConfig, dtype: torch.dtype = torch.float32) -> list[Optimizer]:
    """One optimiser, or two for Muon: matrices and convolutions between hidden features, and AdamW for all else.

    ``dtype`` is what the hardware multiplies fast; Muon iterates in it, if that is not float16, which has no range.
    Weight decay acts on matrices only: biases and norms have nothing to shrink towards.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in weights if p.ndim >= 2]
    others = [p for p in weights if p.ndim < 2]
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimiser == "muon":
        hidden = [p for p in matrices if min(p.shape[:2]) >= _THINNEST]
        kept = {id(p) for p in hidden}
        matrices = [p for p in matrices if id(p) not in kept]
        iterated = torch.float32 if dtype == torch.float16 else dtype
        muon = Muon(hidden, lr=rate, weight_decay=decay, dtype=iterated)
        return [muon, AdamW(_groups(matrices, others, decay), lr=rate, betas=(0.9, 0.98))]
    if config.optimiser == "adamw":
        return [AdamW(_groups(matrices, others, decay), lr=rate)]
    return [Lion(_groups(matrices, others, decay), lr=rate)]


def _groups(matrices: list[nn.Parameter], others: list[nn.Parameter], decay: float) -> list[dict]:
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def learning_rate(step: int, steps: int, config: TrainingConfig) -> float:
    """The rate of one step: linear over the warm-up, then half a cosine that ends at ``final_learning_rate``."""
    warmup = round(config.warmup * steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    span = config.learning_rate - config.final_learning_rate
    return config.final_learning_rate + span * (1 + math.cos(math.pi * progress)) / 2


@torch.no_grad()
def update_average(average: nn.Module, model: nn.Module, decay: float, step: int) -> None:
    """average <- decay average + (1 - decay) model; early on the decay is less, so that the start is forgotten."""
    share = 1 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), share)
