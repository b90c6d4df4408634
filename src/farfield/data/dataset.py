"""A user's own data as a dataset: opened, understood, checked, split and saved.

    data = Dataset.from_arrays({"T": T}, spacing=(0.01, 0.01), time_step=0.1, boundary="periodic")
    data = open_dataset("folder")          # The Well's files, VTK, NPZ, or what ``save`` wrote
    print(data)                            # what was understood of it
    data.save("data/mine")                 # 80 / 10 / 10 by simulation unless told otherwise

``dataset.yaml`` in a folder says what cannot be guessed from the files (see :class:`Description`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, ValidationError

from farfield.data.arrays import (
    GridArrays,
    Hints,
    PointClouds,
    Simulation,
    cloud_simulation,
    cloud_spec,
    grid_arrays,
    point_clouds,
    read_npz,
)
from farfield.data.source import Cloud, Moments, Selection, Source, each_state
from farfield.data.spec import SampleSpec, grouped
from farfield.data.vtk_names import ENDINGS
from farfield.data.well_files import WellFiles
from farfield.extras import naming_extras
from farfield.files import atomic_path, atomic_write_text
from farfield.settings import Strict

SPLITS = ("train", "validation", "test")
_ALIASES = {"valid": "validation", "val": "validation"}  # The Well says valid
DESCRIPTION = "dataset.yaml"
STATISTICS = ("states", "changes", "inputs", "parameters")


class FieldDescription(Strict):
    """What is said of one field."""

    role: Literal["state", "input", "output"] | None = None
    """state (changes in time), input (given), output (to be predicted, steady); guessed unless given."""
    unit: str = ""
    """As shown."""
    log: bool = False
    """Learn its logarithm: for fields that span orders of magnitude."""


class Description(Strict):
    """``dataset.yaml``: what cannot be guessed from the files beside it. Everything is optional."""

    problem: str = "own-data"
    """A name for what is learned; runs and reports carry it."""
    kind: Literal["stepping", "steady"] | None = None
    """stepping: a state and the one after it. steady: inputs and outputs."""
    boundary: str | list[str] | None = None
    """wall, open or periodic; one for all axes or one each."""
    time_step: float | None = Field(None, gt=0)
    """Between two states."""
    time_unit: str = ""
    """As shown."""
    length_unit: str = ""
    """As shown."""
    spacing: list[float] | None = None
    """NPZ of grids: the cells' width along each axis, where the file has none."""
    fields: dict[str, FieldDescription] = Field(default_factory=dict)
    """By name; fields that are not named are used as guessed."""
    ignore: list[str] = Field(default_factory=list)
    """Fields and scalars to leave out."""
    splits: dict[str, list[int]] | None = None
    """Simulations of train, validation and test by number; 80 / 10 / 10 unless given."""

    def hints(self) -> Hints:
        return Hints(
            problem=self.problem, kind=self.kind, boundary=self.boundary, time_step=self.time_step,
            time_unit=self.time_unit, length_unit=self.length_unit,
            units={name: f.unit for name, f in self.fields.items() if f.unit},
            log=[name for name, f in self.fields.items() if f.log],
            roles={name: f.role for name, f in self.fields.items() if f.role}, ignore=self.ignore,
        )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            if isinstance(values, dict) and {"cells", "states", "splits"} <= set(values):
                return cls()  # how one of our generators made it: its files say all that is needed
            return cls.model_validate(values)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not valid YAML: {error}") from None
        except ValidationError as error:
            told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ValueError(f"{path}: {told}") from None


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
        self.splits = _checked_splits(splits, len(source)) if splits else default_splits(len(source))
        self._statistics: dict[str, dict[str, dict[str, list[float]]]] = {}

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
            Others as in :meth:`from_arrays`.
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
        spec, source = self.spec, self.source
        if len(source) < 3 and not whole:
            raise ValueError(
                f"expected at least three simulations, one each to train on, to validate and to test, got {len(source)}"
            )
        logged = [spec.fields.index(name) for name in spec.log if name in spec.fields]
        for simulation, state, values in each_state(source):
            _check_finite(values, spec.fields, f"{source.name(simulation)}, state {state}")
            for index in logged:
                _check_positive(values[:, index], spec.fields[index], f"{source.name(simulation)}, state {state}")
        logged = [spec.inputs.index(name) for name in spec.log if name in spec.inputs]
        for simulation in range(len(source)):
            where = source.name(simulation)
            values = source.inputs(simulation)
            _check_finite(values, spec.inputs, where)
            for index in logged:
                _check_positive(values[:, index], spec.inputs[index], where)
            _check_finite(source.parameters(simulation)[None], spec.parameters, where)
            if spec.kind == "stepping" and source.states(simulation) < 2:
                raise ValueError(f"{where} has one state only: expected at least two")
        if not whole:
            self.statistics()

    def statistics(self, split: str = "train") -> dict[str, dict[str, list[float]]]:
        """Mean and spread of what a network sees, over a split: fields, their changes, inputs, parameters.

        Fields on a logarithmic scale are counted there.
        """
        if split in self._statistics:  # they take a pass over all data
            return self._statistics[split]
        spec, source = self.spec, self.split(split)
        fields, changes, inputs, parameters = Moments(), Moments(), Moments(), Moments()
        before: tuple[int, NDArray] | None = None
        for simulation, _, values in each_state(source):
            scaled = to_scale(values, spec.fields, spec).astype(np.float64)
            fields.add(scaled)
            if before is not None and before[0] == simulation:
                changes.add(scaled - before[1])
            before = (simulation, scaled)
        for simulation in range(len(source)):
            inputs.add(to_scale(source.inputs(simulation), spec.inputs, spec))
            parameters.add(source.parameters(simulation)[None])
        found = {"states": fields, "inputs": inputs, "parameters": parameters}
        if spec.kind == "stepping":
            found["changes"] = changes
        # a vector may have a component that is always zero, and an input may be the same everywhere: nothing is lost
        harmless = {part for parts in spec.vectors.values() for part in parts} | set(spec.inputs)
        for kind, moments in found.items():
            names = {"inputs": spec.inputs, "parameters": spec.parameters}.get(kind, spec.fields)
            for name, spread, mean in zip(names, moments.std, moments.mean, strict=True):
                if not spread > 1e-9 * abs(mean) and name not in harmless:
                    what = {"changes": "never changes from one state to the next", "parameters": "is the same in all"}
                    raise ValueError(
                        f"{name} {what.get(kind, 'is constant')} in the training simulations: nothing can be learned "
                        f"{'of' if kind in ('states', 'changes') else 'from'} it; leave it out"
                    )
        self._statistics[split] = {
            k: {"mean": m.mean.tolist(), "std": np.where(m.std > 1e-9 * np.abs(m.mean), m.std, 1.0).tolist()}
            for k, m in found.items()
        }
        return self._statistics[split]

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
        """Proposed along each axis, in the data's unit of length: a quarter of the largest displacement in training.

        That is the domain's width, the paper's quarter rule; of a periodic axis half the period, for keys are seen at
        their nearest image.
        """
        bounded = self.spec.bounded
        return tuple(e / (4 if i in bounded else 8) for i, e in enumerate(self.spec.training_extent))

    # --- where it goes -----------------------------------------------------------------------------------------------
    def save(self, folder: str | Path, splits: Mapping[str, Sequence[int]] | None = None) -> Path:
        """Write one NPZ per simulation and ``dataset.yaml``, each in one step; returns the folder.

        Readable by :func:`open_dataset`, by NumPy, and by anyone: names are those of the fields.
        """
        folder = Path(folder)
        if (folder / DESCRIPTION).exists():
            raise ValueError(f"{folder} already holds a dataset: choose another folder")
        chosen = _checked_splits(splits, len(self)) if splits else self.splits
        digits = len(str(len(self) - 1))
        for simulation in range(len(self)):
            path = folder / f"simulation_{simulation:0{digits}d}.npz"
            with atomic_path(path) as partial, partial.open("wb") as file:
                np.savez(file, **dict(self._arrays(simulation)))  # type: ignore[arg-type]
        self.describe(folder / DESCRIPTION, chosen)
        return folder

    def describe(self, path: str | Path, splits: Mapping[str, Sequence[int]] | None = None) -> None:
        """Write what was understood as ``dataset.yaml``."""
        spec = self.spec
        roles = dict.fromkeys(spec.fields, "state" if spec.kind == "stepping" else "output")
        units = dict(zip((*spec.fields, *spec.inputs), (*spec.field_units, *spec.input_units), strict=True))
        owner = {part: name for name, parts in spec.vectors.items() for part in parts}
        fields: dict[str, Any] = {}
        for channel, role in (roles | dict.fromkeys(spec.inputs, "input")).items():
            entry: dict[str, Any] = {"role": role, "unit": units[channel]}
            fields[owner.get(channel, channel)] = entry | ({"log": True} if channel in spec.log else {})
        written = {
            "problem": spec.problem, "kind": spec.kind, "boundary": list(spec.boundaries),
            "time_step": spec.time_step or None, "time_unit": spec.time_unit, "length_unit": spec.length_unit,
            "fields": fields,
        }  # fmt: skip
        if splits:
            written["splits"] = {name: list(map(int, numbers)) for name, numbers in splits.items()}
        atomic_write_text(path, yaml.safe_dump(written, sort_keys=False))

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


@naming_extras()
def open_dataset(path: str | Path) -> Dataset:
    """Open a folder, or one file: The Well's HDF5, VTK of any family, NPZ, or what :meth:`Dataset.save` wrote.

    Files in folders named train, validation (or valid) and test, as The Well has them, are split so; ``dataset.yaml``
    beside the files says what they do not.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")
    folder = path if path.is_dir() else path.parent
    described = folder / DESCRIPTION
    description = Description.read(described) if described.is_file() else Description()
    files = (
        [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    )
    kinds = {
        "The Well's HDF5": [p for p in files if p.suffix in (".hdf5", ".h5")],
        "VTK": [p for p in files if p.suffix in ENDINGS],
        "NPZ": [p for p in files if p.suffix == ".npz"],
    }
    found = {kind: paths for kind, paths in kinds.items() if paths}
    if len(found) != 1:
        told = " and ".join(f"{len(paths)} files of {kind}" for kind, paths in found.items())
        raise ValueError(
            f"{path} holds {told or 'no data that can be read'}: expected one of The Well's HDF5 (.hdf5, .h5), VTK "
            f"({', '.join(ENDINGS)}) or NPZ"
        )
    ((kind, paths),) = found.items()
    hints = description.hints()
    source: GridArrays | PointClouds | WellFiles
    if kind == "NPZ":
        source = _npz_source(paths, hints, description.spacing)
    elif kind == "VTK":
        from farfield.data.vtk_files import vtk_files

        source = vtk_files(paths, hints)
    else:
        source = WellFiles(paths, hints)
    splits: Mapping[str, Sequence[int]] | None = description.splits if path.is_dir() else None
    if splits is None and path.is_dir():
        splits = _splits_by_folder(source.paths)
    return Dataset(source, splits, folder if path.is_dir() else None)


def default_splits(simulations: int) -> dict[str, list[int]]:
    """80 / 10 / 10, drawn once and for all; at least one each where there are three."""
    order = np.random.default_rng(0).permutation(simulations).tolist()
    few = max(1, round(simulations / 10)) if simulations >= 3 else 0
    cuts = {"validation": order[:few], "test": order[few : 2 * few], "train": order[2 * few :]}
    return {name: sorted(cuts[name]) for name in SPLITS}


def to_scale(values: NDArray, names: Sequence[str], spec: SampleSpec) -> NDArray:
    """Channels (..., C) as a network sees them before standardisation: the logarithm of those that ask for it."""
    logged = [i for i, name in enumerate(names) if name in spec.log]
    if not logged:
        return values
    scaled = np.array(values, dtype=np.float64)
    scaled[..., logged] = np.log(scaled[..., logged])
    return scaled


def _npz_source(paths: Sequence[Path], hints: Hints, spacing: Sequence[float] | None) -> GridArrays | PointClouds:
    """NPZ files: of points or grids, one simulation each, or one file with all simulations of a grid."""
    first = read_npz(paths[0])
    if "positions" in first:
        return _npz_clouds(paths, hints)
    widths = first.get("spacing", spacing)
    if widths is None:
        raise ValueError(f"{paths[0]} has neither positions nor spacing: add one, or `spacing: [...]` to dataset.yaml")
    if "states" in first or "outputs" in first:
        return _npz_grids(paths, hints)
    if len(paths) > 1:
        raise ValueError(
            f"expected one NPZ with all simulations of a grid, or one for each as `save` writes, got {len(paths)}"
        )
    inputs, parameters = first.pop("inputs", {}), first.pop("parameters", {})
    told = {name: first.pop(name).item() for name in ("time_step",) if name in first}
    if "boundary" in first:
        told["boundary"] = [str(b) for b in np.atleast_1d(first.pop("boundary"))]
        told["boundary"] = told["boundary"][0] if len(told["boundary"]) == 1 else told["boundary"]
    first.pop("spacing", None)
    merged = Hints(**{**hints.__dict__, **{k: v for k, v in told.items() if getattr(hints, k) is None}})
    fields = {name: array for name, array in first.items() if name not in hints.ignore}
    return grid_arrays(
        fields, spacing=np.atleast_1d(widths).tolist(), inputs=inputs, parameters=parameters, hints=merged
    )


def _npz_clouds(paths: Sequence[Path], hints: Hints) -> PointClouds:
    some = [read_npz(path) for path in paths[:8]]
    spec = cloud_spec(some[0], hints, some)

    def reader(path: Path) -> Any:
        return lambda: cloud_simulation(read_npz(path), spec, path.name)

    return PointClouds(spec, [reader(path) for path in paths], paths=paths)


def _npz_grids(paths: Sequence[Path], hints: Hints) -> PointClouds:
    """One grid per file, as :meth:`Dataset.save` writes them: read as clouds whose points are the cells."""
    first = read_npz(paths[0])
    sample = grid_arrays(**_grid_of_one(first), hints=hints)

    def reader(path: Path) -> Any:
        def read() -> Any:
            one = grid_arrays(**_grid_of_one(read_npz(path)), hints=hints)
            if (one.spec.fields, one.spec.inputs, one.spec.parameters) != (
                sample.spec.fields, sample.spec.inputs, sample.spec.parameters,
            ):  # fmt: skip
                raise ValueError(
                    f"{path} has other fields than {paths[0].name}: {one.spec.fields}, {sample.spec.fields}"
                )
            if not np.allclose(one.spec.spacing, sample.spec.spacing, rtol=1e-3):
                raise ValueError(
                    f"cells are {one.spec.spacing} wide in {path}, {sample.spec.spacing} in {paths[0].name}"
                )
            return Simulation(one.cloud(0), one.read(0), one.inputs(0), one.parameters(0))

        return read

    return PointClouds(sample.spec, [reader(path) for path in paths], paths=paths)


def _grid_of_one(item: Mapping[str, Any]) -> dict[str, Any]:
    fields = item.get("states", item.get("outputs", {}))
    return {
        "fields": {name: array[None] for name, array in fields.items()},
        "spacing": np.atleast_1d(item["spacing"]).tolist(),
        "inputs": {name: array[None] for name, array in item.get("inputs", {}).items()},
        "parameters": {name: [number] for name, number in item.get("parameters", {}).items()},
    }


def _splits_by_folder(paths: Sequence[Path]) -> dict[str, list[int]] | None:
    """Where every simulation's file lies in a folder named after a split, that split."""
    parents = [_ALIASES.get(path.parent.name, path.parent.name) for path in paths]
    if not {"train"} <= set(parents) <= set(SPLITS):
        return None
    return {name: [i for i, parent in enumerate(parents) if parent == name] for name in SPLITS}


def _checked_splits(splits: Mapping[str, Sequence[int]], simulations: int) -> dict[str, list[int]]:
    unknown = set(splits) - set(SPLITS)
    if unknown or not splits.get("train") or not splits.get("validation"):
        raise ValueError(
            f"splits must name train, validation and test, with simulations in the first two, got {dict(splits)}"
        )
    chosen = {name: [int(i) for i in splits.get(name, ())] for name in SPLITS}
    owner: dict[int, str] = {}
    for name, numbers in chosen.items():
        for number in numbers:
            if not 0 <= number < simulations:
                raise ValueError(f"split {name} names simulation {number}, there are {simulations}, counted from 0")
            if number in owner:
                raise ValueError(
                    f"simulation {number} is in {owner[number]} and in {name}: a model must not be judged on what it "
                    "has seen"
                )
            owner[number] = name
    return chosen


def _check_finite(values: NDArray, names: Sequence[str], where: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        point, channel = np.argwhere(bad)[0]
        raise ValueError(
            f"{where}: {names[channel]} holds {int(bad[:, channel].sum())} values that are NaN or infinite, the first "
            f"at point {point}: mend or leave out this simulation"
        )


def _check_positive(values: NDArray, name: str, where: str) -> None:
    if not (values > 0).all():
        raise ValueError(f"{where}: {name} is to be learned on a logarithmic scale but holds {float(values.min()):g}")


def _shaped(values: NDArray, shape: tuple[int, ...], vector: bool) -> NDArray:
    """(..., N, C) -> (..., cells, C), without C where it is no vector."""
    whole = values.reshape(*values.shape[:-2], *shape, values.shape[-1])
    return whole if vector else whole[..., 0]


__all__ = ["Cloud", "Dataset", "GridArrays", "open_dataset"]
