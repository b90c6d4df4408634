"""Weights on disk, and what continues a run: written in one step, read as data only.

What is damaged or belongs to another model is refused with what was expected.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from farfield.files import atomic_path

Device = str | torch.device | None
_TRAINED_WITH = "trained_with"


def chosen_device(device: Device) -> torch.device:
    """CUDA where there is one, unless given."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {chosen} was asked for, but torch {torch.__version__} sees no CUDA here: take cpu")
    return chosen


def load_weights(path: str | Path, model: nn.Module, trained_with: str = "") -> None:
    """Read weights into a model of the same shape, made ``trained_with`` the same (see :func:`save_weights`)."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no weights at {path}: has the run reached its first validation?")
    try:
        weights = safetensors.torch.load_file(path)
        with safe_open(path, "pt") as file:
            noted = (file.metadata() or {}).get(_TRAINED_WITH, trained_with)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or damaged ({error})") from None
    if trained_with and noted != trained_with:
        raise ValueError(
            f"{Path(path).parent}: dataset.json, or the encoding in config.yaml, was altered since {Path(path).name} "
            "was trained with them: restore them from a copy, or train anew"
        )
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
    if lost := [name for name, tensor in weights.items() if not bool(tensor.isfinite().all())]:
        raise ValueError(f"{path} is damaged: {lost[0]} holds values that are not finite; restore it from a copy")
    model.load_state_dict(dict(weights))


def _shape(tensor: Any) -> str:
    return str(tuple(tensor.shape)) if isinstance(tensor, Tensor) else "absent"


def save_weights(path: Path, model: nn.Module, trained_with: str = "") -> None:
    """Write a model's weights as safetensors; ``trained_with`` tells what else a prediction depends on."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _write(path, safetensors.torch.save(weights, {_TRAINED_WITH: trained_with} if trained_with else None))


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
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile, LookupError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is truncated or damaged ({reason}): the run cannot be continued from it") from None
    parts = {"model": dict, "optimisers": list, "step": int, "best": float, "seconds": float}
    held = state if isinstance(state, dict) else {}
    if wrong := [name for name, kind in parts.items() if not isinstance(held.get(name), kind)]:
        raise ValueError(
            f"{path} is no checkpoint of a run, it lacks {', '.join(wrong)}: restore it from a copy, or start anew"
        )
    if not state["seconds"] >= 0:
        raise ValueError(f"{path} is damaged, it says that the run took {state['seconds']} s: restore it from a copy")
    return state


def restore_optimisers(optimisers: Sequence[Any], saved: Sequence[Any], path: Path) -> None:
    """``load_state_dict`` of all, refusing the state of other optimisers or of other weights."""
    remedy = "restore it from a copy, or start anew"
    if len(saved) != len(optimisers):
        raise ValueError(f"{path} holds {len(saved)} optimisers, the run has {len(optimisers)}: {remedy}")
    for optimiser, state in zip(optimisers, saved, strict=True):
        settings = [dict(group) for group in optimiser.optimizer.param_groups]
        try:
            optimiser.load_state_dict(state)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} holds the state of another optimiser ({error}): {remedy}") from None
        for before, group in zip(settings, optimiser.optimizer.param_groups, strict=True):
            for name in before.keys() & group.keys() - {"params", "lr", "initial_lr"}:  # rates follow the step
                if before[name] != group[name]:
                    raise ValueError(
                        f"{path} holds the state of another optimiser, its {name} is {group[name]}, the run's "
                        f"{before[name]}: {remedy}"
                    )
        for weight, values in optimiser.optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.numel() not in (1, weight.numel()):
                    raise ValueError(
                        f"{path}: the optimiser's {name} of a weight {_shape(weight)} is {_shape(value)}: {remedy}"
                    )
                if isinstance(value, Tensor) and not bool(value.isfinite().all()):
                    raise ValueError(f"{path}: the optimiser's {name} holds values that are not finite: {remedy}")


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
