"""A transformer operator in one file: its weights as safetensors, and what builds it as JSON in the file's header."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from farfield.attention import LAAPE, LASPE, ALiBi, Encoding, FlashBias, RoPE, Rotary, Window
from farfield.attention.encoding import LengthParameter
from farfield.files import atomic_path

_KINDS: dict[str, type[Encoding]] = {kind.__name__: kind for kind in (RoPE, LASPE, LAAPE, FlashBias, ALiBi, Window)}
_HEADER = "farfield.TransformerOperator"


def write_model(path: str | Path, arguments: dict[str, Any], encoding: Encoding, weights: dict[str, Tensor]) -> None:
    """Write a model, in one step."""
    header = json.dumps({**arguments, "encoding": describe_encoding(encoding)})
    with atomic_path(path) as partial:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        partial.write_bytes(safetensors.torch.save(tensors, {_HEADER: header}))


def read_model(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments that build a model, its encoding among them, and its weights."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"no model at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
        weights = safetensors.torch.load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated, damaged or not a file of TransformerOperator.save ({error})") from None
    if header is None:
        raise ValueError(
            f"{path} holds weights, but not what builds their model: expected a file of TransformerOperator.save; "
            "a run's folder is loaded by farfield.load"
        )
    arguments = json.loads(header)
    return arguments | {"encoding": build_encoding(arguments["encoding"])}, weights


def describe_encoding(encoding: Encoding) -> dict[str, Any]:
    """An encoding as plain values, from which :func:`build_encoding` makes it again; learned numbers are weights."""
    kind = type(encoding).__name__
    if _KINDS.get(kind) is not type(encoding):
        raise ValueError(f"cannot save the encoding {kind}: only {', '.join(_KINDS)} are known when it is loaded")
    rotary = None if encoding.rotary is None else asdict(encoding.rotary)
    if isinstance(encoding, RoPE):
        return {"kind": kind, **(rotary or {})}
    lengths = {name: part for name, part in encoding.named_children() if isinstance(part, LengthParameter)}
    described: dict[str, Any] = {name: part.maximum.tolist() for name, part in lengths.items()}
    if isinstance(encoding, LASPE | LAAPE):
        learned = encoding.learns_lengths()
        bound = min((part.maximum for part in lengths.values()), key=lambda maximum: maximum.ndim)  # it serves all
        described |= {"learned": learned, "max_decay_length": bound.tolist() if learned else None}
        described["basis"] = None if encoding.basis is None else encoding.basis.tolist()
    elif isinstance(encoding, FlashBias):
        described |= {"heads": encoding.weight.shape[0], "head_dim": encoding.weight.shape[1]}
    else:
        described |= {name: getattr(encoding, name) for name in ("slope", "radius") if hasattr(encoding, name)}
    return {"kind": kind, **described, "rotary": rotary}


def build_encoding(described: dict[str, Any]) -> Encoding:
    """The encoding that :func:`describe_encoding` described."""
    arguments = dict(described)
    kind = _KINDS[arguments.pop("kind")]
    if arguments.get("rotary") is not None:
        arguments["rotary"] = Rotary(**arguments["rotary"])
    return kind(**arguments)
