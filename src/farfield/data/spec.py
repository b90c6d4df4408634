"""What a sample is: the one contract between data, models, metrics and pictures.

A sample is a set of N points with ``in_features`` inputs (the standardised fields, then one boundary flag per
axis), P = ``space_dim`` normalised positions and ``out_features`` targets (the standardised change of each
field). This type says which fields, in which order and unit, on which domain; it is stored in every file of a
dataset, and travels with a trained model.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from farfield.data.domain import NORMALISED_WIDTH
from farfield.files import modern


class SampleSpec(BaseModel):
    """Names, units, domain and time step of a problem; the order of ``fields`` is the order of the channels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem: str
    fields: tuple[str, ...]
    field_units: tuple[str, ...]
    axes: tuple[str, ...]
    length_unit: str
    training_extent: tuple[float, ...]  # of the training domain, one per axis; larger domains keep the spacing
    spacing: tuple[float, ...]
    boundary: Literal["open", "wall"]  # both zero-gradient: open lets waves out, wall lets nothing through
    time_step: float  # between two saved states
    time_unit: str

    @model_validator(mode="before")
    @classmethod
    def _modern(cls, values: Any) -> Any:
        return modern(values)

    @model_validator(mode="after")
    def _lengths_agree(self) -> SampleSpec:
        if len(self.fields) != len(self.field_units):
            raise ValueError(f"expected one unit per field, got {self.fields} and {self.field_units}")
        if not len(self.axes) == len(self.training_extent) == len(self.spacing) > 0:
            raise ValueError(
                f"expected one extent and one spacing per axis, got {self.axes}, {self.training_extent}, {self.spacing}"
            )
        if not all(number > 0 for number in (*self.training_extent, *self.spacing, self.time_step)):
            raise ValueError("expected positive extents, spacings and time step")
        return self

    @property
    def space_dim(self) -> int:
        return len(self.axes)

    @property
    def flags(self) -> tuple[str, ...]:
        """One boundary flag per axis: 1 at the first and last cell along it, else 0."""
        return tuple(f"boundary_{axis}" for axis in self.axes)

    @property
    def features(self) -> tuple[str, ...]:
        return (*self.fields, *self.flags)

    @property
    def in_features(self) -> int:
        return len(self.features)

    @property
    def out_features(self) -> int:
        return len(self.fields)

    @property
    def position_scale(self) -> tuple[float, ...]:
        """What physical positions are multiplied by, per axis: the training domain becomes 1000 wide."""
        return tuple(NORMALISED_WIDTH / extent for extent in self.training_extent)

    def normalise_positions(self, points: NDArray[np.floating]) -> NDArray[np.float32]:
        """Physical (N, P) -> normalised (N, P), the same factor for every domain of the problem."""
        return (points * np.asarray(self.position_scale)).astype(np.float32)
