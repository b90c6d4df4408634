"""A run is a typed value: everything that decides the trained weights, documented field by field.

    RunConfig                 a run of any case; read from YAML, it is one of the two below, by its case
      case, dataset, seed     what is learned, from which data, from which random numbers
      training                optimiser, schedule, batches
    AcademicRun               shallow water, Gray-Scott: a transformer operator learns one step
      encoding, model         how positions act on attention, and the size of the network
      sampling                which part of each state a training item shows
    UrbanRun                  urban wind: AB-SWIFT learns the steady flow from the geometry
      encoding, model         how positions act on attention, and the network
      points                  how many points stand for surfaces and air

Unknown keys are refused with the nearest valid name; a configuration goes to YAML and back unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from farfield.files import atomic_write_text
from farfield.models.ab_swift import AbSwift
from farfield.models.config import (
    AbSwiftConfig,
    AbSwiftEncodingConfig,
    EncodingConfig,
    EncodingName,
    ModelConfig,
    NamedEncoding,
    SizeConfig,
    Strict,
)

__all__ = [
    "AbSwiftConfig",
    "AbSwiftEncodingConfig",
    "AcademicRun",
    "EncodingConfig",
    "EncodingName",
    "ModelConfig",
    "PointsConfig",
    "RunConfig",
    "SamplingConfig",
    "TrainingConfig",
    "UrbanRun",
]


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


class TrainingConfig(Strict):
    """Optimiser, schedule and batches. The defaults are the paper's for the academic cases."""

    loss: Literal["mse", "relative"] = "mse"
    """mse: the mean squared error of the standardised targets. relative: per item and field, over the targets' mean
    square, so that a nearly steady state counts as much as a violent one."""
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


class PointsConfig(Strict):
    """How many points stand for a training city; a larger one gets more, at the same density. Defaults: the paper's."""

    obstacles: int = Field(4096, ge=1)
    """Points on walls and roofs."""
    terrain: int = Field(4096, ge=1)
    """Points on the ground."""
    obstacle_supernodes: int = Field(1024, ge=1)
    """Of these points, those that the obstacles are pooled into."""
    terrain_supernodes: int = Field(1024, ge=1)
    """The same for the ground."""
    anchors: int = Field(8192, ge=1)
    """Points of the air that offer keys and values."""
    queries: int = Field(0, ge=0)
    """Further points of the air, which only read; the loss counts them like anchors."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for surface, points, chosen in (
            ("obstacle", self.obstacles, self.obstacle_supernodes),
            ("terrain", self.terrain, self.terrain_supernodes),
        ):
            if chosen > points:
                raise ValueError(f"{surface}_supernodes are chosen among {points} points, got {chosen}")
        return self


class RunConfig(Strict):
    """One training run. ``farfield train --config FILE`` repeats it."""

    case: str
    """What is learned; it decides which other settings a run has."""
    dataset: str
    """The folder that ``farfield generate`` wrote."""
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
        kind = CASES.get(values.get("case", ""))
        if kind is None or not issubclass(kind, cls):
            known = ", ".join(case for case, kind in CASES.items() if issubclass(kind, cls))
            raise ValueError(f"{source}: expected as case one of {known}, got {values.get('case')!r}")
        try:
            return kind.model_validate(values)
        except ValidationError as error:
            by_setting = {e["loc"][:2]: _one_line(e) for e in error.errors()}  # a union reports every alternative
            raise ValueError(f"{source}: " + "; ".join(by_setting.values())) from None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a YAML file."""
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not valid YAML: {error}") from None
        return cls.parse(values, str(path))

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


class AcademicRun(RunConfig):
    """A transformer operator that learns one step of shallow water (1D) or Gray-Scott (2D)."""

    case: Literal["swe", "gray-scott"]
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


class UrbanRun(RunConfig):
    """AB-SWIFT, which learns the steady wind around buildings."""

    case: Literal["urban-wind"]
    encoding: AbSwiftEncodingConfig = AbSwiftEncodingConfig()
    model: AbSwiftConfig = AbSwiftConfig()
    points: PointsConfig = PointsConfig()
    """How many points stand for surfaces and air."""
    mirrored: bool = False
    """Show half of the training items mirrored across the wind: twice as many cities, with exact flows."""
    training: TrainingConfig = TrainingConfig(epochs=500, batch_size=1)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.encoding.build()  # refuses what it cannot be
        if self.training.loss != "mse":
            raise ValueError(f"urban-wind is trained with the loss mse, got {self.training.loss}")
        return self

    def build(self) -> AbSwift:
        """The network, with fresh weights."""
        return self.model.build(self.encoding)


CASES: dict[str, type[RunConfig]] = {"swe": AcademicRun, "gray-scott": AcademicRun, "urban-wind": UrbanRun}


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
