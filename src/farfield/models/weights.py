"""Reading trained weights: what is damaged or belongs to another model is refused with what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn


def load_weights(path: str | Path, model: nn.Module) -> None:
    """Read weights into a model of the same shape."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no weights at {path}: has the run reached its first validation?")
    try:
        weights = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error})") from None
    fill(model, weights, path)


def fill(model: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """``load_state_dict`` that says what differs: expected against received."""
    expected = model.state_dict()
    wrong = [
        f"{name} should be {_shape(expected.get(name))}, is {_shape(weights.get(name))}"
        for name in [*expected, *(name for name in weights if name not in expected)]
        if _shape(expected.get(name)) != _shape(weights.get(name))
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"{path} holds the weights of another model: {'; '.join(wrong[:3])}{more}")
    model.load_state_dict(dict(weights))


def _shape(tensor: Tensor | None) -> str:
    return "absent" if tensor is None else str(tuple(tensor.shape))
