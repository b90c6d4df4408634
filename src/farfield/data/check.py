"""What cannot be learned from, found before any training: which simulation, where, and what to do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from farfield.data.clouds import usual_distance
from farfield.data.source import Source

_SPACINGS = 2.0  # points may lie so many times closer or further apart than usual


def check_source(source: Source, splits: Mapping[str, Sequence[int]]) -> None:
    """Read everything once; raise at the first thing that is wrong."""
    seen: dict[bytes, int] = {}
    owner = {number: name for name, numbers in splits.items() for number in numbers}
    for simulation in range(len(source)):
        _check_simulation(source, simulation)
        if simulation not in owner:
            continue
        first = hashlib.sha256(source.read(simulation, slice(0, 2)).tobytes() + source.inputs(simulation).tobytes())
        first.update(source.parameters(simulation).tobytes())
        other = seen.setdefault(first.digest(), simulation)
        if owner[other] != owner[simulation]:
            raise ValueError(
                f"{source.name(other)} ({owner[other]}) and {source.name(simulation)} ({owner[simulation]}) are the "
                "same simulation: a model must not be judged on what it has seen; leave one of them out"
            )


def _check_simulation(source: Source, simulation: int) -> None:
    spec, where = source.spec, source.name(simulation)
    states = source.states(simulation)
    if spec.kind == "stepping" and states < 2:
        raise ValueError(f"{where} has one state only: expected at least two")
    for start in range(0, states, 8):
        for offset, values in enumerate(source.read(simulation, slice(start, start + 8))):
            place = f"{where}, state {start + offset}" if spec.kind == "stepping" else where
            _check_values(values, spec.fields, spec.log, place)
    _check_values(source.inputs(simulation), spec.inputs, spec.log, where)
    _check_values(source.parameters(simulation)[None], spec.parameters, (), where)
    cloud = source.cloud(simulation)
    if cloud.cells is None:
        usual = usual_distance(cloud.points)
        if not spec.spacing[0] / _SPACINGS <= usual <= spec.spacing[0] * _SPACINGS:
            raise ValueError(
                f"{where}: its points lie {usual:.3g} apart, in other simulations {spec.spacing[0]:.3g}: all "
                "simulations of a dataset share one spacing, and one unit of length"
            )


def _check_values(values: NDArray, names: Sequence[str], log: Sequence[str], where: str) -> None:
    """Values (N, C) of the channels ``names``, of which those in ``log`` must be positive."""
    bad = ~np.isfinite(values)
    if bad.any():
        point, channel = np.argwhere(bad)[0]
        raise ValueError(
            f"{where}: {names[channel]} holds {int(bad[:, channel].sum())} values that are NaN or infinite, the first "
            f"at point {point}: mend or leave out this simulation"
        )
    for index, name in enumerate(names):
        if name in log and not (values[:, index] > 0).all():
            lowest = float(values[:, index].min())
            raise ValueError(f"{where}: {name} is to be learned on a logarithmic scale but holds {lowest:g}")
