"""A run is a typed value: everything that decides the trained weights, documented field by field.

    RunConfig                 a run of any problem
      problem, dataset, seed  what is learned, from which data, from which random numbers
      training                optimiser, schedule, batches
    SteppingRun               a transformer operator learns one step
      encoding, model         how positions act on attention, and the size of the network
      sampling                which part of each state a training item shows

A problem with other settings has a type of its own, beside its other things. Unknown keys are refused with the nearest
valid name; a configuration goes to YAML and back unchanged.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from farfield.files import atomic_write_text, modern, read_mapping
from farfield.models.config import EncodingConfig, ModelConfig, NamedEncoding, SizeConfig, Strict


class SamplingConfig(Strict):
    """Which part of each state a training item shows; the whole of it unless said otherwise."""

    crop: list[int] | None = None
    """Cells per axis of a random window."""
    rim: int = Field(0, ge=0)
    """Cells along a window's cut sides that the loss leaves out: their targets depend on what was cut away."""
    candidates: int = Field(1, ge=1)
    """Windows drawn per item, of which the one is kept where most happens."""
    points: int | None = Field(None, ge=1)
    """Points drawn at random from the window; null for all."""
    symmetries: bool = False
    """Show each item as one of the mirror images and turns of its domain, drawn at random; for scalar fields."""


class TrainingConfig(Strict):
    """Optimiser, schedule and batches. The defaults are the paper's for problems on a grid."""

    loss: Literal["mse", "relative", "l1"] = "mse"
    """mse: the mean squared error of the standardised targets. relative: per item and field, over the targets' mean
    square, so that a nearly steady state counts as much as a violent one. l1: the relative L1 error of the tables."""
    optimiser: Literal["lion", "adamw", "muon"] = "lion"
    """lion (the paper's), adamw, or muon for the blocks' matrices with adamw for the rest."""
    learning_rate: float = Field(5e-5, gt=0)
    """The highest rate, reached after the warm-up."""
    final_learning_rate: float = Field(1e-6, ge=0)
    """Where the cosine ends."""
    warmup: float = Field(0.05, ge=0, le=1)
    """The fraction of all steps over which the rate rises linearly."""
    weight_decay: float = Field(0.05, ge=0)
    """Decoupled weight decay, on matrices only."""
    gradient_clip: float | None = Field(0.25, gt=0)
    """The gradient's norm is cut to this; null for never."""
    batch_size: int = Field(32, ge=1)
    """Items per step, over all processes and accumulated parts together."""
    accumulation: int = Field(1, ge=1)
    """Parts that each batch is computed in: less memory, the same step (processes draw windows of their own)."""
    epochs: int | None = Field(None, ge=1)
    """Passes over the training data; give either this or steps."""
    steps: int | None = Field(None, ge=1)
    """Optimiser steps; give either this or epochs."""
    average: float = Field(0.0, ge=0, lt=1)
    """Decay of the exponential moving average of the weights, which is then what is validated and kept; 0 for none."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Of the matrix products (autocast): float32, bfloat16, float16 (with scaled losses), or auto: bfloat16 where the
    hardware computes in it, else float32. Positions, the first and the last layer are float32 in any case."""
    validate_every: int = Field(1000, ge=1)
    """Steps between validations; the last step is always validated."""
    validation_items: int | None = Field(None, ge=1)
    """Items of the validation split to validate on, drawn at random once; null for all."""
    checkpoint_every: int = Field(500, ge=1)
    """Steps between checkpoints, from which a run can be resumed."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"give either epochs or steps, got epochs {self.epochs} and steps {self.steps}")
        if self.batch_size % self.accumulation:
            raise ValueError(
                f"batch_size must be a multiple of accumulation, got {self.batch_size} in {self.accumulation} parts"
            )
        return self

    def total_steps(self, items: int) -> int:
        """Optimiser steps of a run on so many training items; an epoch's incomplete last batch is left out."""
        return self.steps or (self.epochs or 0) * (items // self.batch_size)


class RunConfig(Strict):
    """One training run. ``farfield train --config FILE`` repeats it."""

    problem: str
    """What is learned; it decides which other settings a run has."""
    dataset: str
    """The folder of the data."""
    seed: int = Field(0, ge=0)
    """Decides the initial weights, and the order and drawing of the data."""
    encoding: NamedEncoding
    """How positions act on attention."""
    model: SizeConfig
    """The network."""
    training: TrainingConfig
    """Optimiser, schedule and batches."""

    @model_validator(mode="after")
    def _width_suits_heads(self) -> Self:
        if self.model.width % self.model.heads:
            raise ValueError(f"model.width must be a multiple of heads, got {self.model.width} and {self.model.heads}")
        return self

    @classmethod
    def parse(cls, values: Any, source: str = "configuration") -> Self:
        """Validate plain values; a mistake becomes one line per setting instead of pydantic's report."""
        if not isinstance(values, Mapping):
            raise ValueError(f"{source}: expected settings as key: value, got {values!r}")
        try:
            return cls.model_validate(modern(values))
        except ValidationError as error:
            by_setting = {e["loc"][:2]: _one_line(e) for e in error.errors()}  # a union reports every alternative
            raise ValueError(f"{source}: " + "; ".join(by_setting.values())) from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a YAML file."""
        return cls.parse(read_settings(path), str(path))

    def save(self, path: str | Path) -> None:
        """Write every setting to a YAML file, in one step."""
        atomic_write_text(path, yaml.safe_dump(self.model_dump(), sort_keys=False))

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same run with some settings replaced: ``config.changed({"model.width": 96, "training.steps": 4000})``.

        Setting one of ``training.steps`` and ``training.epochs`` clears the other.
        """
        values: dict[str, Any] = self.model_dump()
        for name, value in changes.items():
            *groups, last = name.split(".")
            group = values
            for key in groups:
                if group.get(key) is None:
                    group[key] = {}
                group = group[key]
                if not isinstance(group, dict):
                    raise ValueError(f"cannot set {name}: {key} is not a group of settings")
            group[last] = value
            other = {"training.steps": "epochs", "training.epochs": "steps"}.get(name)
            if other is not None and value is not None:
                group[other] = None
        return self.parse(values)


class SteppingRun(RunConfig):
    """A transformer operator that learns the change of a state over one saved step."""

    encoding: EncodingConfig = EncodingConfig()
    model: ModelConfig = ModelConfig()
    sampling: SamplingConfig = SamplingConfig()
    """Which part of each state a training item shows."""
    training: TrainingConfig = TrainingConfig(epochs=100)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        built = self.encoding.build(self.model.heads, self.model.width // self.model.heads)  # refuses what it cannot be
        if (heads := built.heads()) not in (None, self.model.heads):
            raise ValueError(f"encoding.decay_length is given for {heads} heads, model.heads is {self.model.heads}")
        return self


class OwnRun(SteppingRun):
    """A transformer operator that learns a user's own data: steps, or steady fields."""

    noise: float = Field(0.0, ge=0)
    """Of a state in training, over the spread of its change: rollouts then drift less. Steps only."""
    pushforward: float = Field(0.0, ge=0, le=1)
    """The share of batches that start from the network's own prediction instead of the true state. Steps only."""
    starts_from: str | None = None
    """A run whose weights and standardisation this one begins with (``farfield finetune``)."""
    old_share: float = Field(0.5, ge=0, lt=1)
    """With starts_from: the share of items from that run's own training data, so that it is not forgotten."""


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings in a run's YAML file, before it is known of which problem they are."""
    values = modern(read_mapping(Path(path), "restore it from a copy, or write it anew"))
    if not isinstance(values.get("problem"), str):
        raise ValueError(f"{path}: expected settings, among them problem: NAME, got {reprlib.repr(values)}")
    return values


def parse_settings(settings: Iterable[str]) -> dict[str, Any]:
    """``["model.width=96", "encoding.rotary=null"]`` as a mapping; values are read as YAML."""
    parsed = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise ValueError(f"--set expects name=value, e.g. model.width=96, got {setting!r}")
        try:
            parsed[name.strip()] = _number(yaml.safe_load(value))
        except yaml.YAMLError:
            raise ValueError(f"--set {setting}: the value is not a number, a text or a list like [1, 2]") from None
    return parsed


def _number(value: Any) -> Any:
    """YAML reads 1e-3 (no dot) as text; a user means the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _one_line(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if not str(part).startswith(("list[", "float")))
    message = error["msg"].removeprefix("Value error, ")
    got = "" if error["type"] == "value_error" else f", got {error['input']!r}"
    return f"{where}: {message}{got}" if where else f"{message}{got}"
