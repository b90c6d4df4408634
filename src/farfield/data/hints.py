"""What a user says about data beside the numbers, and the contract that follows from it and the numbers' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from farfield.data.spec import Boundary, SampleSpec, grouped

AXES = ("x", "y", "z")
BOUNDARIES = ("wall", "open", "periodic")


@dataclass(frozen=True)
class Hints:
    """What a user says about data beside the numbers: all optional, all by name."""

    problem: str = "own-data"
    kind: str | None = None
    boundary: str | Sequence[str] | None = None
    time_step: float | None = None
    time_unit: str = ""
    length_unit: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()
    roles: Mapping[str, str] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    contract: SampleSpec | None = None
    """Of the model that the data is for: what is not told follows it, and fields that it has no use for are ignored."""
    to_predict: bool = False
    """The data is what a prediction starts from: one state is enough, and outputs need not be there."""

    def like(self, contract: SampleSpec, to_predict: bool) -> Hints:
        """The same about data for a model: its fields, in its order, whatever else a file holds."""
        role = "state" if contract.kind == "stepping" else "output"
        roles = dict.fromkeys(grouped(contract.fields, contract), role)
        roles |= dict.fromkeys(grouped(contract.inputs, contract), "input")
        log = list(grouped(contract.log, contract))
        told = {"problem": contract.problem, "kind": contract.kind, "log": log, "roles": roles}
        return replace(self, **told, contract=contract, to_predict=to_predict)  # type: ignore[arg-type]

    def chosen(self, arrays: Mapping[str, Any], *roles: str) -> dict[str, Any]:
        """Arrays by name, for a model those that it needs in these roles, in its order; without roles, parameters."""
        if self.contract is None:
            return {name: array for name, array in arrays.items() if name not in self.ignore}
        wanted = [name for name, role in self.roles.items() if role in roles] if roles else self.contract.parameters
        for name in wanted:
            if name not in arrays and not (self.to_predict and self.roles.get(name) == "output"):
                raise ValueError(
                    f"the model was trained with {', '.join(wanted)}: here is no {name}, "
                    f"{'only ' + ', '.join(arrays) if arrays else 'nor anything in its place'}"
                )
        return {name: arrays[name] for name in wanted if name in arrays}

    @property
    def step(self) -> float | None:
        """The time between two states; a model's, where nothing else tells it."""
        known = self.contract is not None and self.contract.time_step
        return self.time_step if self.time_step is not None or not known else known


def make_spec(
    hints: Hints,
    steady: bool,
    fields: tuple[str, ...],
    units: tuple[str, ...],
    inputs: tuple[str, ...],
    input_units: tuple[str, ...],
    parameters: tuple[str, ...],
    vectors: dict[str, tuple[str, ...]],
    axes: tuple[str, ...],
    extent: tuple[float, ...],
    spacing: tuple[float, ...],
) -> SampleSpec:
    """The contract of a user's data; the same scale along all axes, for physics has no preferred one."""
    log = tuple(channel for name in hints.log for channel in vectors.get(name, (name,)))
    boundary = hints.boundary or ("open" if hints.contract is None else hints.contract.boundaries)
    boundaries = (boundary,) * len(axes) if isinstance(boundary, str) else tuple(boundary)
    for name in boundaries:
        if name not in BOUNDARIES:
            raise ValueError(
                f"boundary must be one of {', '.join(BOUNDARIES)}, or one of them per axis, got {boundary!r}"
            )
    if len(boundaries) != len(axes):
        raise ValueError(f"expected one boundary, or one per axis {', '.join(axes)}, got {boundary!r}")
    return SampleSpec(
        problem=hints.problem, kind="steady" if steady else "stepping", fields=fields, field_units=units, inputs=inputs,
        input_units=input_units, parameters=parameters, vectors=vectors, log=log, axes=axes,
        length_unit=hints.length_unit, training_extent=extent, spacing=spacing, boundary=_simple(boundaries),
        isotropic=True, time_step=0.0 if steady else float(hints.step or 0), time_unit=hints.time_unit,
    )  # fmt: skip


def component_names(name: str, components: int, axes: Sequence[str]) -> tuple[str, ...]:
    """The channels of a vector: velocity_x, velocity_y; by number where they are not one per axis."""
    return tuple(f"{name}_{axes[i] if components == len(axes) else i}" for i in range(components))


def channels_of(
    arrays: Mapping[str, NDArray], scalar_axes: int, hints: Hints, axes: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Channel names and units in order, and which belong to a vector."""
    names: list[str] = []
    units: list[str] = []
    vectors = {}
    for name, array in arrays.items():
        channels: tuple[str, ...] = (name,)
        if array.ndim > scalar_axes:
            channels = vectors[name] = component_names(name, array.shape[-1], axes)
        names.extend(channels)
        units.extend([hints.units.get(name, "")] * len(channels))
    return tuple(names), tuple(units), vectors


def _simple(boundaries: tuple[str, ...]) -> Boundary | tuple[Boundary, ...]:
    checked = cast(tuple[Boundary, ...], boundaries)
    return checked[0] if len(set(checked)) == 1 else checked


def check_time_step(hints: Hints, steady: bool) -> None:
    if steady and hints.time_step is not None:
        raise ValueError(f"a steady problem has no time step, got {hints.time_step}")
    if not steady and not (hints.step and np.isfinite(hints.step) and hints.step > 0):
        raise ValueError(f"a problem in time needs time_step, the time between two states, got {hints.step}")


def check_numbers(name: str, array: NDArray) -> None:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{name} must hold real numbers, got {array.dtype}")
