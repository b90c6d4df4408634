"""A user's own arrays on grids as data: one to three axes, all simulations of one shape.

A grid's file holds, by these names:

    <field>                (simulations, times, cells...), components of vectors last; a steady one without times
    spacing                (P,) the cells' widths
    time_step              one number; a steady problem has none
    boundary               "wall", "open" or "periodic", one or one per axis
    inputs/<name>          (simulations, cells...), what is given and does not change
    parameters/<name>      (simulations,)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from farfield.data.domain import Domain
from farfield.data.hints import AXES, Hints, channels_of, check_numbers, check_time_step, make_spec
from farfield.data.source import Cloud
from farfield.data.spec import SampleSpec, grouped


class GridArrays:
    """Grids in memory, memory-mapped or in an HDF5 file: all simulations of one shape.

    ``fields`` and ``inputs`` hold arrays (simulations, times, cells..., components), without times where the problem is
    steady, and (simulations, cells..., components); see :meth:`Dataset.from_arrays` for what a user gives.
    """

    def __init__(
        self,
        spec: SampleSpec,
        fields: Sequence[NDArray],
        inputs: Sequence[NDArray],
        parameters: NDArray,
        domain: Domain,
    ):
        self.spec, self.domain = spec, domain
        self._fields, self._inputs, self._parameters = list(fields), list(inputs), parameters
        self._cloud = Cloud(domain.points(), domain.extent, domain.cells)
        self.paths: list[Path] = []

    def __len__(self) -> int:
        return len(self._fields[0])

    def name(self, simulation: int) -> str:
        return f"simulation {simulation}"

    def states(self, simulation: int) -> int:
        return 1 if self.spec.kind == "steady" else self._fields[0].shape[1]

    def cloud(self, simulation: int) -> Cloud:
        return self._cloud

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        steady = self.spec.kind == "steady"
        read = [array[simulation][None] if steady else array[simulation, states] for array in self._fields]
        parts = [np.asarray(array, dtype=np.float32) for array in read]
        return np.concatenate([part.reshape(len(part), len(self._cloud), -1) for part in parts], axis=-1)

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        parts = [np.asarray(array[simulation], dtype=np.float32) for array in self._inputs]
        flat = [part.reshape(len(self._cloud), -1) for part in parts]
        return np.concatenate(flat, axis=-1) if flat else np.zeros((len(self._cloud), 0), np.float32)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return self._parameters[simulation]


def grid_arrays(
    fields: Mapping[str, ArrayLike],
    *,
    spacing: float | Sequence[float],
    inputs: Mapping[str, ArrayLike] | None = None,
    parameters: Mapping[str, ArrayLike] | None = None,
    hints: Hints = Hints(),
) -> GridArrays:
    """Check a user's arrays against one another and name what they are."""
    arrays = {name: _array(array) for name, array in hints.chosen(fields, "state", "output").items()}
    given = {name: _array(array) for name, array in hints.chosen(inputs or {}, "input").items()}
    parameters = hints.chosen(parameters or {})
    widths = tuple(np.atleast_1d(np.asarray(spacing, dtype=np.float64)).tolist())
    axes = len(widths)
    if not 1 <= axes <= len(AXES):
        raise ValueError(f"expected a spacing for each of 1 to 3 axes, got {spacing}")
    steady = (hints.kind or ("stepping" if hints.time_step is not None else "steady")) == "steady"
    check_time_step(hints, steady)
    leading = 1 if steady else 2
    if not arrays and hints.to_predict and given:
        arrays = _unknown_outputs(next(iter(given.values())).shape[: 1 + axes], hints)
    if not arrays:
        raise ValueError("expected at least one field, as {name: array}, got none")
    first, shape = next(iter(arrays)), next(iter(arrays.values())).shape[: leading + axes]
    form = "(simulations, " + ("" if steady else "times, ") + ", ".join(f"n{axis}" for axis in AXES[:axes]) + ")"
    if len(shape) != leading + axes:
        raise ValueError(
            f"field {first} must have the shape {form}, with components last if it is a vector, as there "
            f"{'is' if axes == 1 else 'are'} {axes} spacing{'s' * (axes > 1)}; got {arrays[first].shape}"
        )
    if twice := sorted(set(arrays) & set(given)):
        raise ValueError(f"expected every name once, got {', '.join(twice)} as a field and as an input")
    for name, array in {**arrays, **given}.items():
        expected = shape if name in arrays else (shape[0], *shape[leading:])
        check_numbers(name, array)
        if array.shape[: len(expected)] != expected or array.ndim > len(expected) + 1:
            raise ValueError(
                f"{'field' if name in arrays else 'input'} {name} must have the shape {expected}, as {first} has, with "
                f"components last if it is a vector; got {array.shape}"
            )
    if not steady and shape[1] < 2 and not hints.to_predict:
        raise ValueError(f"expected at least two times, to learn the change from one to the next, got {shape[1]}")
    cells = shape[leading:]
    if min(cells) < 2:
        raise ValueError(
            f"expected at least two cells along every axis, got {cells}: leave out an axis of one cell "
            "(array.squeeze) and its spacing"
        )
    domain = Domain(cells, tuple(n * float(w) for n, w in zip(cells, widths, strict=True)))
    numbers = _parameters(parameters, shape[0])
    fields_, units, vectors = channels_of(arrays, len(shape), hints, AXES[:axes])
    inputs_, input_units, more = channels_of(given, len(shape) - leading + 1, hints, AXES[:axes])
    spec = make_spec(
        hints, steady, fields_, units, inputs_, input_units, tuple(parameters), {**vectors, **more},
        AXES[:axes], domain.extent, domain.spacing,
    )  # fmt: skip
    return GridArrays(spec, list(arrays.values()), list(given.values()), numbers, domain)


def _unknown_outputs(shape: tuple[int, ...], hints: Hints) -> dict[str, NDArray]:
    """What a steady prediction is asked for: no numbers yet, of the right shape."""
    assert hints.contract is not None
    names, vectors = grouped(hints.contract.fields, hints.contract), hints.contract.vectors
    parts = {name: (len(vectors[name]),) if name in vectors else () for name in names}
    return {name: np.full((*shape, *components), np.nan, np.float32) for name, components in parts.items()}


def _array(values: Any) -> NDArray:
    """An array, or what is sliced like one and read only then: a dataset of an HDF5 file."""
    return values if all(hasattr(values, name) for name in ("shape", "ndim", "dtype")) else np.asarray(values)


def _parameters(given: Mapping[str, ArrayLike], simulations: int) -> NDArray[np.float64]:
    columns = []
    for name, values in given.items():
        column = np.asarray(values, dtype=np.float64)
        if column.shape != (simulations,):
            raise ValueError(
                f"parameter {name} must hold one number per simulation ({simulations},), got {column.shape}"
            )
        columns.append(column)
    return np.stack(columns, axis=-1) if columns else np.zeros((simulations, 0))
