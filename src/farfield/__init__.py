"""farfield: transformer neural operators, trained on small domains, used on much larger ones.

Names are imported when they are asked for: ``import farfield`` costs nothing, and nobody waits for what is not used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farfield.version import __version__

if TYPE_CHECKING:
    from farfield.api import evaluate, finetune, load, push, train
    from farfield.attention import (
        LAAPE,
        LASPE,
        ALiBi,
        AttentionPlan,
        Encoding,
        FlashBias,
        RoPE,
        Window,
        explain_backend,
        local_attention,
        plan_attention,
        propose_decay_lengths,
    )
    from farfield.data.dataset import Dataset
    from farfield.data.opening import open_dataset
    from farfield.models import PatchTokens, TransformerOperator
    from farfield.prediction.stepping import Predictor

__all__ = [
    "LAAPE",
    "LASPE",
    "ALiBi",
    "AttentionPlan",
    "Dataset",
    "Encoding",
    "FlashBias",
    "PatchTokens",
    "Predictor",
    "RoPE",
    "TransformerOperator",
    "Window",
    "__version__",
    "evaluate",
    "explain_backend",
    "finetune",
    "load",
    "local_attention",
    "open_dataset",
    "plan_attention",
    "propose_decay_lengths",
    "push",
    "train",
]

_ELSEWHERE = {
    "PatchTokens": "models",
    "Dataset": "data.dataset",
    "open_dataset": "data.opening",
    "finetune": "api",
    "train": "api",
    "Predictor": "prediction.stepping",
    "TransformerOperator": "models",
    "evaluate": "api",
    "load": "api",
    "push": "api",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'farfield' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"farfield.{_ELSEWHERE.get(name, 'attention')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
