"""The settings of a run of urban wind."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from farfield.models.ab_swift import FIELDS, AbSwift, AbSwiftEncodings, ab_swift_encodings
from farfield.models.config import NamedEncoding, RotaryConfig, SizeConfig, Strict
from farfield.runs.config import RunConfig, TrainingConfig


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


class AbSwiftEncodingConfig(NamedEncoding):
    """How positions act on AB-SWIFT's attention: the paper's decay lengths for each part of it, times a factor."""

    name: Literal["rope", "laspe", "laape"] = "laape"
    """rope (no bias), laspe or laape."""
    decay_factor: float = Field(1.0, gt=0)
    """Multiplies all decay lengths."""
    rotary: RotaryConfig = RotaryConfig()
    """The rotary embedding."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.name == "rope" and self.decay_factor != 1:
            raise ValueError(f"rope has no decay length, got decay_factor {self.decay_factor}")
        return self

    def build(self) -> AbSwiftEncodings:
        """The encodings themselves."""
        return ab_swift_encodings(self.name, factor=self.decay_factor, rotary=self.rotary.build())


class AbSwiftConfig(SizeConfig):
    """AB-SWIFT: what it predicts, its size and how its attention is computed. The defaults are the paper's."""

    fields: dict[str, int] = FIELDS
    """Names and numbers of components of what it predicts."""
    geometry_depth: int = Field(1, ge=1)
    """Pairs of blocks (self-attention, cross-attention) for obstacles and terrain."""
    processor_depth: int = Field(3, ge=1)
    """Pairs of blocks between geometry and volume."""
    decoder_depth: int = Field(4, ge=1)
    """Blocks on the volume alone."""
    obstacle_radius: float = Field(1.0, gt=0)
    """Metres around a supernode of the obstacles within which points send it messages."""
    terrain_radius: float = Field(5.0, gt=0)
    """The same for the terrain."""
    max_neighbours: int = Field(32, ge=1)
    """So many points at most send messages to a supernode: the nearest."""

    def build(self, encoding: AbSwiftEncodingConfig) -> AbSwift:
        """The network, with fresh weights."""
        return AbSwift(encoding.build(), **self.model_dump())


class UrbanRun(RunConfig):
    """AB-SWIFT, which learns the steady wind around buildings."""

    problem: Literal["urban-wind"] = "urban-wind"
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
            raise ValueError(f"urban wind is trained with the loss mse, got {self.training.loss}")
        return self

    def build(self) -> AbSwift:
        """The network, with fresh weights."""
        return self.model.build(self.encoding)
