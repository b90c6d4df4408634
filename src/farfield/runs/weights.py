"""Weights on disk, and what continues a run: written in one step, read as data only.

What is damaged or belongs to another model is refused with what was expected.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from farfield.files import atomic_path

Device = str | torch.device | None


def chosen_device(device: Device) -> torch.device:
    """CUDA where there is one, unless given."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {chosen} was asked for, but torch {torch.__version__} sees no CUDA here: take cpu")
    return chosen


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


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights as safetensors."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _write(path, safetensors.torch.save(weights))


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what continues a run."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    _write(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read what ``save_state`` wrote, as data only: nothing in the file is executed."""
    if not path.is_file():
        raise ValueError(f"{path.parent} has no checkpoint to resume from ({path.name} is missing): start it anew")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is truncated or damaged ({reason}): the run cannot be continued from it") from None


def _write(path: Path, content: bytes) -> None:
    with naming(path), atomic_path(path) as partial:
        partial.write_bytes(content)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """A full disk or another failure to write says which file, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not write {path} ({error.strerror}); the checkpoint before it is whole: make room and --resume",
        ) from None
