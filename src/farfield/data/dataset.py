"""A user's own data as a dataset: understood, checked, split and saved.

data = Dataset.from_arrays({"T": T}, spacing=(0.01, 0.01), time_step=0.1, boundary="periodic")
data = open_dataset("folder")          # The Well's files, plain HDF5, VTK, NPZ, or what ``save`` wrote
print(data)                            # what was understood of it
data.save("data/mine")                 # 80 / 10 / 10 by simulation unless told otherwise
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from farfield.attention.decay_lengths import propose_decay_lengths
from farfield.data.check import check_source
from farfield.data.clouds import point_clouds
from farfield.data.description import DESCRIPTION, write_description
from farfield.data.grids import grid_arrays
from farfield.data.hints import Hints
from farfield.data.source import Selection, Source
from farfield.data.spec import SampleSpec, grouped
from farfield.data.splits import checked_splits, default_splits
from farfield.data.standardise import Described, measured_statistics
from farfield.files import atomic_path


class Dataset:
    """Simulations of one kind, and how they are split; read when they are asked for."""

    def __init__(
        self,
        source: Source,
        splits: Mapping[str, Sequence[int]] | None = None,
        folder: Path | None = None,
        notes: Sequence[str] = (),
    ):
        self.source, self.folder = source, folder
        self.notes = [*notes, *getattr(source, "notes", ())]
        self.splits = checked_splits(splits, len(source)) if splits else default_splits(len(source))
        self._statistics: Described | None = None
        self._checked: set[bool] = set()  # as a whole, with its splits

    # --- where it comes from ---------------------------------------------------------------------------------------
    @classmethod
    def from_arrays(
        cls,
        fields: Mapping[str, ArrayLike],
        *,
        spacing: float | Sequence[float],
        time_step: float | None = None,
        boundary: str | Sequence[str] = "open",
        inputs: Mapping[str, ArrayLike] | None = None,
        parameters: Mapping[str, ArrayLike] | None = None,
        units: Mapping[str, str] | None = None,
        log: Sequence[str] = (),
        name: str = "own-data",
        length_unit: str = "",
        time_unit: str = "",
        splits: Mapping[str, Sequence[int]] | None = None,
    ) -> Self:
        """Grids: a problem in time, or, without ``time_step``, a steady one from ``inputs`` to ``fields``.

        Args:
            fields: arrays (simulations, times, nx, ny), of steady problems without times; vectors have their
                components last.
            spacing: the cells' width along each axis.
            time_step: between two saved states; None for a steady problem.
            boundary: "wall", "open" or "periodic", one for all axes or one each.
            inputs: arrays (simulations, nx, ny): what is given and does not change in time.
            parameters: one number per simulation each: a Reynolds number.
            units: of fields and inputs, as shown.
            log: fields and inputs to learn on a logarithmic scale.
            name: of the problem, carried by runs and reports.
            splits: simulations of train, validation and test by number; 80 / 10 / 10 unless given.
        """
        hints = Hints(
            problem=name, boundary=boundary, time_step=time_step, units=units or {}, log=log, time_unit=time_unit,
            length_unit=length_unit,
        )  # fmt: skip
        return cls(grid_arrays(fields, spacing=spacing, inputs=inputs, parameters=parameters, hints=hints), splits)

    @classmethod
    def from_points(
        cls,
        simulations: Sequence[Mapping[str, Any]],
        *,
        time_step: float | None = None,
        boundary: str | Sequence[str] = "open",
        units: Mapping[str, str] | None = None,
        log: Sequence[str] = (),
        name: str = "own-data",
        length_unit: str = "",
        time_unit: str = "",
        splits: Mapping[str, Sequence[int]] | None = None,
    ) -> Self:
        """Unstructured points, each simulation with its own number of them.

        Args:
            simulations: mappings with ``positions`` (N, P), ``outputs`` {name: (N,) or (N, components)}, optionally
                ``inputs`` likewise, ``parameters`` {name: number}, ``boundary`` flags (N, axes) and ``extent`` (of a
                periodic domain). For a problem in time ``states`` {name: (times, N)} instead of ``outputs``, with
                ``time_step``.

        The others are as in :meth:`from_arrays`.
        """
        hints = Hints(
            problem=name, boundary=boundary, time_step=time_step, units=units or {}, log=log, time_unit=time_unit,
            length_unit=length_unit,
        )  # fmt: skip
        return cls(point_clouds(list(simulations), hints), splits)

    # --- what it is --------------------------------------------------------------------------------------------------
    @property
    def spec(self) -> SampleSpec:
        return self.source.spec

    def __len__(self) -> int:
        return len(self.source)

    def split(self, name: str) -> Source:
        """The simulations of one split."""
        if name not in self.splits:
            raise ValueError(f"unknown split {name!r}: expected one of {', '.join(self.splits)}")
        return Selection((self.source, self.splits[name]))

    def check(self, *, whole: bool = False) -> None:
        """Refuse what cannot be learned from, naming the simulation and the place; reads everything once.

        ``whole``: the data is used as it is beside other data, so it need not suffice for splits and statistics.
        """
        if len(self) < 3 and not whole:
            raise ValueError(
                f"expected at least three simulations, one each to train on, to validate and to test, got {len(self)}"
            )
        if not {whole, False} & self._checked:  # what has passed with its splits passes as a whole
            check_source(self.source, {} if whole else self.splits)
            self._checked.add(whole)
        if not whole:
            self.statistics()

    def statistics(self) -> Described:
        """Mean and spread of what a network sees of the training simulations; they take a pass over these, once."""
        if self._statistics is None:
            self._statistics = measured_statistics(self.split("train"))
        return self._statistics

    def __str__(self) -> str:
        spec, first = self.spec, self.source.cloud(0)
        grid = "x".join(map(str, first.cells)) + " cells" if first.cells else f"{len(first)} points"
        times = f", {self.source.states(0)} states {spec.time_step:g} {spec.time_unit} apart" if spec.time_step else ""
        lines = [
            f"{spec.problem}: a {spec.kind} problem, {len(self)} simulations of {grid}{times}",
            "  split       " + ", ".join(f"{len(chosen)} {name}" for name, chosen in self.splits.items()),
        ]
        statistics = self.statistics()
        for title, names, units, kind in (
            ("states" if spec.kind == "stepping" else "outputs", spec.fields, spec.field_units, "states"),
            ("inputs", spec.inputs, spec.input_units, "inputs"),
            ("parameters", spec.parameters, ("",) * len(spec.parameters), "parameters"),
        ):
            for number, (name, unit) in enumerate(zip(names, units or ("",) * len(names), strict=True)):
                mean, std = (statistics[kind][m][number] for m in ("mean", "std"))
                line = f"  {title if number == 0 else '':<11} {name}{f' [{unit}]' if unit else ''}: "
                line += f"{'ln ' if name in spec.log else ''}{mean:.4g} +- {std:.4g}"
                if kind == "states" and "changes" in statistics:
                    line += f", change over a step +- {statistics['changes']['std'][number]:.4g}"
                lines.append(line)
        for number, (axis, boundary) in enumerate(zip(spec.axes, spec.boundaries, strict=True)):
            spacing = f"{spec.spacing[number]:.4g} {'wide cells' if first.cells else 'between points'}"
            lines.append(
                f"  {'axes' if number == 0 else '':<11} {axis}: {spec.training_extent[number]:.4g} {spec.length_unit}, "
                f"{spacing}, {boundary}"
            )
        lengths = ", ".join(f"{length:.3g}" for length in self.decay_lengths())
        lines.append(f"  {'proposed':<11} decay lengths {lengths} {spec.length_unit}".rstrip())
        lines += [f"  {'note':<11} {note}" for note in self.notes]
        return "\n".join(line.replace("  apart", " apart").replace(" , ", ", ") for line in lines)

    def decay_lengths(self) -> tuple[float, ...]:
        """Proposed along each axis, in the data's unit of length, for the domain that is trained on."""
        extent, bounded = self.spec.training_extent, self.spec.bounded
        period = [None if axis in bounded else length for axis, length in enumerate(extent)]
        corners = torch.tensor([[0.0] * len(extent), extent], dtype=torch.float64)
        return tuple(propose_decay_lengths(corners, period=period).symmetric.tolist())

    # --- where it goes -----------------------------------------------------------------------------------------------
    def save(self, folder: str | Path, splits: Mapping[str, Sequence[int]] | None = None) -> Path:
        """Write one NPZ per simulation and ``dataset.yaml``, each in one step; returns the folder.

        Readable by :func:`open_dataset`, by NumPy, and by anyone: names are those of the fields.
        """
        folder = Path(folder)
        if (folder / DESCRIPTION).exists():
            raise ValueError(f"{folder} already holds a dataset: choose another folder")
        chosen = checked_splits(splits, len(self)) if splits else self.splits
        digits = len(str(len(self) - 1))
        for simulation in range(len(self)):
            path = folder / f"simulation_{simulation:0{digits}d}.npz"
            with atomic_path(path) as partial, partial.open("wb") as file:
                np.savez(file, **dict(self._arrays(simulation)))  # type: ignore[arg-type]
        # one or two simulations, as to fine-tune on, make no splits: they are used whole
        write_description(folder / DESCRIPTION, self.spec, chosen if chosen["validation"] else None)
        return folder

    def _arrays(self, simulation: int) -> Iterator[tuple[str, NDArray]]:
        spec, cloud = self.spec, self.source.cloud(simulation)
        values, inputs = self.source.read(simulation), self.source.inputs(simulation)
        shape = cloud.cells or (len(cloud),)
        if cloud.cells:
            yield "spacing", np.asarray(spec.spacing)
            yield "origin", cloud.points[0]
        else:
            yield "positions", cloud.points
            yield "extent", np.asarray(cloud.extent)
            if cloud.flags is not None:
                yield "boundary", cloud.flags
        if spec.kind == "steady":
            values = values[0]
        for name, parts in grouped(spec.fields, spec).items():
            columns = [spec.fields.index(part) for part in parts]
            group = "states" if spec.kind == "stepping" else "outputs"
            yield f"{group}/{name}", _shaped(values[..., columns], shape, name in spec.vectors)
        for name, parts in grouped(spec.inputs, spec).items():
            columns = [spec.inputs.index(part) for part in parts]
            yield f"inputs/{name}", _shaped(inputs[..., columns], shape, name in spec.vectors)
        for name, number in zip(spec.parameters, self.source.parameters(simulation), strict=True):
            yield f"parameters/{name}", np.asarray(number)


def _shaped(values: NDArray, shape: tuple[int, ...], vector: bool) -> NDArray:
    """(..., N, C) -> (..., cells, C), without C where it is no vector."""
    whole = values.reshape(*values.shape[:-2], *shape, values.shape[-1])
    return whole if vector else whole[..., 0]
