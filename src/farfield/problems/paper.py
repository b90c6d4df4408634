"""The paper's set-up, which the presets of several problems begin with."""

from __future__ import annotations

from typing import Any

from farfield.models.config import EncodingConfig, EncodingName, ModelConfig
from farfield.runs.config import SteppingRun, TrainingConfig

# The paper's appendix "Training setup", the same for all problems but for epochs and batches.
PAPER_TRAINING: dict[str, Any] = {
    "optimiser": "lion",
    "learning_rate": 5e-5,
    "final_learning_rate": 1e-6,
    "warmup": 0.05,
    "weight_decay": 0.05,
    "gradient_clip": 0.25,
    "precision": "auto",
}


def paper_run(problem: str, encoding: EncodingName, dataset: str, seed: int = 0) -> SteppingRun:
    """The paper's academic set-up (appendix "Training setup"), the same for both problems."""
    return SteppingRun(
        problem=problem,
        dataset=dataset,
        seed=seed,
        encoding=EncodingConfig(name=encoding, decay_length=None if encoding == "rope" else 250.0),
        model=ModelConfig(width=192, depth=6, heads=3, expansion=4),
        training=TrainingConfig(**PAPER_TRAINING, batch_size=32, epochs=100),
    )
