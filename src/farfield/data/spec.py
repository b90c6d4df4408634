"""What a sample is: the one contract between data, models, metrics and pictures.

A sample is a set of N points with ``in_features`` inputs (the standardised fields, those that are given beside them,
then one boundary flag per axis that is not periodic), P = ``space_dim`` normalised positions and ``out_features``
targets: the standardised change of each field over a saved step, or the fields themselves where the problem is steady.
Numbers that belong to a whole simulation (``parameters``) condition the network. This type says which fields, in which
order and unit, on which domain; it is stored with a dataset, and travels with a trained model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, model_validator

from farfield.data.domain import NORMALISED_WIDTH
from farfield.files import modern

Boundary = Literal["open", "wall", "periodic"]  # open and wall are told apart for people: both are ends, with a flag


class SampleSpec(BaseModel):
    """Names, units, domain and time step of a problem; the order of ``fields`` is the order of the channels."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    problem: str
    kind: Literal["stepping", "steady"] = "stepping"
    fields: tuple[str, ...]
    """Predicted channels: of a stepping problem its state, of a steady one its outputs."""
    field_units: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    """Channels that are given at every point and do not change: a conductivity, the distance to a wall."""
    input_units: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    """Numbers of a whole simulation: a Reynolds number."""
    vectors: dict[str, tuple[str, ...]] = {}
    """Fields and inputs of several components, and the channels that these are."""
    log: tuple[str, ...] = ()
    """Channels that are learned on a logarithmic scale."""
    axes: tuple[str, ...]
    length_unit: str
    training_extent: tuple[float, ...]  # of the training domain, one per axis; larger domains keep the spacing
    spacing: tuple[float, ...]  # of the cells, or the usual distance of a point from the next
    boundary: Boundary | tuple[Boundary, ...]  # of all axes, or one per axis
    isotropic: bool = False
    """Positions of all axes are scaled alike: the widest axis becomes 1000 wide, not every one."""
    time_step: float = 0.0  # between two saved states; 0 where the problem is steady
    time_unit: str

    @model_validator(mode="before")
    @classmethod
    def _modern(cls, values: Any) -> Any:
        return modern(values)

    @model_validator(mode="after")
    def _lengths_agree(self) -> SampleSpec:
        if len(self.fields) != len(self.field_units) or not self.fields:
            raise ValueError(
                f"expected at least one field, and one unit each, got {self.fields} and {self.field_units}"
            )
        if self.input_units and len(self.inputs) != len(self.input_units):
            raise ValueError(f"expected one unit per input, got {self.inputs} and {self.input_units}")
        if not len(self.axes) == len(self.training_extent) == len(self.spacing) == len(self.boundaries) > 0:
            raise ValueError(
                "expected one extent, one spacing and one boundary per axis, got "
                f"{self.axes}, {self.training_extent}, {self.spacing}, {self.boundary}"
            )
        if not all(number > 0 for number in (*self.training_extent, *self.spacing)):
            raise ValueError(f"expected positive extents and spacings, got {self.training_extent} and {self.spacing}")
        if (self.kind == "stepping") != (self.time_step > 0):
            raise ValueError(f"a {self.kind} problem cannot have the time step {self.time_step}")
        channels = (*self.fields, *self.inputs)
        if twice := sorted({name for name in channels if channels.count(name) > 1}):
            raise ValueError(f"expected every name once, got {', '.join(twice)} more than once")
        if unknown := set(self.log) - set(channels):
            raise ValueError(f"log names {', '.join(sorted(unknown))}, which is none of {', '.join(channels)}")
        return self

    @property
    def space_dim(self) -> int:
        return len(self.axes)

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """One per axis."""
        return (self.boundary,) * len(self.axes) if isinstance(self.boundary, str) else self.boundary

    @property
    def bounded(self) -> tuple[int, ...]:
        """The axes that end, by number: those that are not periodic."""
        return tuple(i for i, boundary in enumerate(self.boundaries) if boundary != "periodic")

    @property
    def flags(self) -> tuple[str, ...]:
        """One boundary flag per axis that ends: 1 at the first and last cell along it, else 0."""
        return tuple(f"boundary_{self.axes[i]}" for i in self.bounded)

    @property
    def features(self) -> tuple[str, ...]:
        return (*(self.fields if self.kind == "stepping" else ()), *self.inputs, *self.flags)

    @property
    def in_features(self) -> int:
        return len(self.features)

    @property
    def out_features(self) -> int:
        return len(self.fields)

    @property
    def position_scale(self) -> tuple[float, ...]:
        """What physical positions are multiplied by, per axis: the training domain becomes 1000 wide."""
        if self.isotropic:
            return (NORMALISED_WIDTH / max(self.training_extent),) * self.space_dim
        return tuple(NORMALISED_WIDTH / extent for extent in self.training_extent)

    @property
    def normalised_spacing(self) -> tuple[float, ...]:
        """Of the points, in units of a model's positions."""
        return tuple(dx * factor for dx, factor in zip(self.spacing, self.position_scale, strict=True))

    def normalise_positions(self, points: NDArray[np.floating]) -> NDArray[np.float32]:
        """Physical (N, P) -> normalised (N, P), the same factor for every domain of the problem."""
        return (points * np.asarray(self.position_scale)).astype(np.float32)

    def period(self, extent: tuple[float, ...]) -> tuple[float | None, ...] | None:
        """Of a domain of this extent, in normalised positions: one number per axis, None along those that end."""
        if len(self.bounded) == self.space_dim:
            return None
        return tuple(
            None if i in self.bounded else length * scale
            for i, (length, scale) in enumerate(zip(extent, self.position_scale, strict=True))
        )

    def require_same(self, other: SampleSpec, whose: str) -> None:
        """Refuse data that a network of this contract cannot take; the size of the domain may differ."""
        for name in ("kind", "fields", "inputs", "parameters", "vectors", "log", "axes", "boundaries", "time_step"):
            ours, theirs = getattr(self, name), getattr(other, name)
            same = math.isclose(ours, theirs, rel_tol=1e-4) if name == "time_step" else ours == theirs
            if not same:
                raise ValueError(
                    f"{whose} was trained on data of another kind: its {name} is {ours}, here it is {theirs}"
                )

    def as_json(self) -> dict[str, Any]:
        """Plain values; what is as usual is left out, so that older records stay comparable."""
        return self.model_dump(mode="json", exclude_defaults=True)


def grouped(channels: Sequence[str], spec: SampleSpec) -> dict[str, tuple[str, ...]]:
    """Names as a user knows them, and the channels that each is."""
    owner = {part: name for name, parts in spec.vectors.items() for part in parts}
    return {owner.get(channel, channel): spec.vectors.get(owner.get(channel, ""), (channel,)) for channel in channels}
