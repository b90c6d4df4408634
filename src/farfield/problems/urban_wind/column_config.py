"""The settings of a run of the column network."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from farfield.attention import LAAPE, LASPE, Encoding
from farfield.models.config import NamedEncoding, RotaryConfig, SizeConfig, Strict
from farfield.problems.urban_wind.city import CHANNELS, OUTPUTS, POINT_FEATURES, PROFILE
from farfield.problems.urban_wind.columns import ColumnNetwork
from farfield.problems.urban_wind.lattice import LEVELS, SPACING
from farfield.runs.config import RunConfig, TrainingConfig


class ColumnEncodingConfig(NamedEncoding):
    """How positions (metres) act on the attention between tokens."""

    name: Literal["rope", "laspe", "laape", "none"] = "laape"
    """rope (no bias), laspe or laape; none for tokens that do not see one another: then only convolutions carry
    anything from column to column, which shows what attention is worth."""
    upstream: float = Field(52.0, gt=0)
    """m: how far a token sees against the wind's course, towards what lies downwind of it (LAAPE's plus)."""
    downstream: float = Field(106.0, gt=0)
    """m: how far it sees towards what lies upwind of it (LAAPE's minus). LASPE takes the mean of both."""
    across: float = Field(60.0, gt=0)
    """m: how far it sees to either side."""
    smallest: float = Field(0.3, gt=0, le=1)
    """The last head's lengths over the first one's; those between are spaced geometrically."""
    rotary: RotaryConfig = RotaryConfig(max_wavelength=400.0, min_wavelength=32.0)
    """The rotary embedding: from two tokens to the training domain."""

    def build(self, heads: int) -> Encoding | None:
        """The encoding itself; None for no attention."""
        if self.name == "none":
            return None
        rotary = self.rotary.build()
        factors = [self.smallest ** (head / max(1, heads - 1)) for head in range(heads)]
        if self.name == "rope":
            return rotary
        if self.name == "laspe":
            along = (self.upstream + self.downstream) / 2
            return LASPE([[f * along, f * self.across] for f in factors], rotary=rotary)
        return LAAPE(
            decay_length_plus=[[f * self.upstream, f * self.across] for f in factors],
            decay_length_minus=[[f * self.downstream, f * self.across] for f in factors],
            rotary=rotary,
        )


class ColumnsConfig(SizeConfig):
    """The size of the column network."""

    width: int = Field(128, ge=1)
    """Channels per token."""
    heads: int = Field(4, ge=1)
    """Attention heads; width must be a multiple of it."""
    expansion: int = Field(3, ge=1)
    """Inner width of the blocks' point-wise networks over width."""
    depth: int = Field(3, ge=1)
    """Blocks between tokens."""
    patch: int = Field(4, ge=1)
    """Columns along each side of a token."""
    columns: int = Field(96, ge=1)
    """Channels of a column: of the ConvNeXt blocks."""
    stem_depth: int = Field(1, ge=0)
    """ConvNeXt blocks before the tokens."""
    decoder_depth: int = Field(3, ge=1)
    """ConvNeXt blocks after them."""
    coarser_depth: int = Field(0, ge=0)
    """ConvNeXt blocks between those, on 2 x 2 columns at a time; needs an even patch."""
    coarser_width: int = Field(192, ge=1)
    """Channels of these."""
    level_features: int = Field(16, ge=1)
    """Features of a cell that points read."""
    query_width: int = Field(64, ge=1)
    """Inner width of the network that points have."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.checkpointing:
            raise ValueError("the column network is small: it has no checkpointing, got checkpointing true")
        if self.coarser_depth and self.patch % 2:
            raise ValueError(f"blocks on 2 x 2 columns need tokens of an even number of them, got patch {self.patch}")
        return self

    def build(self, encoding: ColumnEncodingConfig, channels: int = len(CHANNELS)) -> ColumnNetwork:
        """The network, with fresh weights."""
        return ColumnNetwork(
            channels=channels,
            levels=len(LEVELS) - 1,
            profile=PROFILE,
            point_features=POINT_FEATURES,
            outputs=len(OUTPUTS),
            encoding=encoding.build(self.heads),
            spacing=SPACING,
            **self.model_dump(exclude={"checkpointing"}),
        )


class LossConfig(Strict):
    """The error that is made small: Huber's, of corrections over their spread."""

    delta: float = Field(0.1, gt=0)
    """Errors above it count linearly, those below by their square."""
    pressure: float = Field(0.5, ge=0)
    """Weight of the pressure. The velocity along the wind has 1, the others as much as they vary beside it."""
    turbulence: float = Field(0.25, ge=0)
    """Weight of ln k and of ln epsilon."""


class ColumnRun(RunConfig):
    """The column network, which learns what physics on a lattice leaves out of the wind around buildings."""

    problem: Literal["urban-columns"] = "urban-columns"
    also: list[str] = Field(default_factory=list)
    """Further folders of cities of the training size, whose training and validation cities are added."""
    wide: list[str] = Field(default_factory=list)
    """Folders whose cities of twice the training size (the layout's ``ls``) are learned from as well: their streets lie
    deeper in the lee of others."""
    starts_from: str | None = None
    """A run, or a shipped model, whose weights and spread of corrections this one begins with."""
    encoding: ColumnEncodingConfig = ColumnEncodingConfig()
    model: ColumnsConfig = ColumnsConfig()
    loss: LossConfig = LossConfig()
    """What is made small."""
    points: int = Field(12_000, ge=1)
    """Cells of a city that a step learns from."""
    training: TrainingConfig = TrainingConfig(steps=50_000, batch_size=1)

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, values: Any) -> Any:
        """Earlier runs say at how many places the lattice lay over a city; now it lies anywhere."""
        return {key: value for key, value in values.items() if key != "phases"} if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.training.loss != "mse":
            raise ValueError(f"the columns' loss is set by loss, training.loss must stay mse, got {self.training.loss}")
        return self

    def build(self, channels: int = len(CHANNELS)) -> ColumnNetwork:
        """The network, with fresh weights; told fewer channels, it is one of an earlier version."""
        return self.model.build(self.encoding, channels)
