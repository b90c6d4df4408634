"""Making the data of problems on a grid: first states drawn at random, solved, and written split by split.

The loop over splits can be killed and continued at any moment.
Each simulation draws from its own generator, seeded by (seed, split, index): the bytes do not depend on the
number of workers.
"""

from __future__ import annotations

import json
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator
from rich.console import Console

from farfield.data.domain import Domain
from farfield.data.generated import open_split, scale_text, split_path
from farfield.data.spec import SampleSpec
from farfield.data.standardise import Statistics, compute_statistics, read_statistics, write_statistics
from farfield.data.write import write_split
from farfield.files import atomic_path, atomic_write_text, locked, modern, read_mapping
from farfield.problems.share import PARTS, WHOLE, Share
from farfield.progress import Progress
from farfield.version import __version__

BATCH_CELLS = 1 << 20  # cells solved at a time: fills the cores, and bounds memory to about 300 MB


class SplitConfig(BaseModel):
    """How many simulations, on how many times the training domain along each axis."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    simulations: PositiveInt
    scale: tuple[PositiveFloat, ...]


class DatasetConfig(BaseModel):
    """A dataset, completely: two equal configurations give the same bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    problem: str
    preset: str
    seed: int = Field(ge=0)
    cells: tuple[PositiveInt, ...]  # of the training domain
    extent: tuple[PositiveFloat, ...]
    # crenels, squares, ... in the training domain; a domain of s times the size has s times as many
    sources: PositiveInt
    time_step: PositiveFloat
    save_every: PositiveInt  # time steps
    states: int = Field(ge=2)  # per simulation, the initial one included
    constants: dict[str, float]  # of the equations, by the solver's argument names
    splits: dict[str, SplitConfig]

    @model_validator(mode="before")
    @classmethod
    def _modern(cls, values: Any) -> Any:
        return modern(values)

    @model_validator(mode="after")
    def _consistent(self) -> DatasetConfig:
        if "train" not in self.splits:
            raise ValueError(f"expected a split 'train', which the statistics come from, got {list(self.splits)}")
        for name, split in self.splits.items():
            self.domain(split)  # raises where the scale does not fit
            if not name.isidentifier():
                raise ValueError(f"expected a split's name to be a plain word, got {name!r}")
        return self

    def replace(self, **changes: Any) -> DatasetConfig:
        """A copy with some fields changed, checked like any other."""
        return DatasetConfig.model_validate({**self.model_dump(), **changes})

    def domain(self, split: SplitConfig | None = None) -> Domain:
        domain = Domain(self.cells, self.extent)
        return domain if split is None else domain.scaled(split.scale)

    def work(self, split: SplitConfig) -> int:
        """Cell updates."""
        return split.simulations * int(np.prod(self.domain(split).cells)) * self.save_every * (self.states - 1)


def published_splits(dim: int, train: int, held_out: int, larger: dict[int, int]) -> dict[str, SplitConfig]:
    splits = {"train": train, "validation": held_out, "test": held_out}
    return {
        **{name: SplitConfig(simulations=count, scale=(1,) * dim) for name, count in splits.items()},
        **{f"s{s}": SplitConfig(simulations=count, scale=(s,) * dim) for s, count in larger.items()},
    }


def with_scales(config: DatasetConfig, scales: Sequence[tuple[float, ...]]) -> DatasetConfig:
    """The same dataset on these larger domains; one the preset lacks gets its fewest simulations."""
    counts = {split.scale: split.simulations for split in config.splits.values()}
    splits = {name: split for name, split in config.splits.items() if set(split.scale) == {1.0}}
    for scale in scales:
        name = "s" + scale_text(scale).replace(".", "_")
        splits[name] = SplitConfig(simulations=counts.get(scale, min(counts.values())), scale=scale)
    return config.replace(splits=splits)


Advance = Callable[[str, int], None]


@dataclass(frozen=True)
class GridGeneration:
    """How the data of a problem on a grid are made: first states drawn at random, then a solver.

    Args:
        settings: the dataset of a preset, from its name and a seed.
        fields, field_units, length_unit, time_unit, boundary: as in :class:`farfield.data.spec.SampleSpec`.
        draw: a first state (fields, cells...) on a domain, with so many sources.
        solve: first states (simulations, fields, cells...), the domain, time steps between two saved states, their
            number, and the settings' time step and constants by name -> (simulations, states, fields, cells...).
        about: what is solved, for the dataset's card.
        published: statistics of the training split to compare with, if any.
    """

    settings: Callable[[str, int], DatasetConfig]
    fields: tuple[str, ...]
    field_units: tuple[str, ...]
    length_unit: str
    time_unit: str
    boundary: Literal["open", "wall"]
    draw: Callable[[np.random.Generator, Domain, int], NDArray[np.float64]]
    solve: Callable[..., NDArray[np.float64]]
    about: str
    published: Statistics = field(default_factory=dict)
    presets: tuple[str, ...] = ("quick", "cpu", "paper")
    default_preset: str = "cpu"

    def configure(
        self, preset: str, seed: int = 0, scales: str | None = None, changes: Sequence[str] = ()
    ) -> DatasetConfig:
        """A preset with changes given as text: ``scales`` like "2,10x5", ``changes`` like "cells=[64,64]"."""
        if preset not in self.presets:
            raise ValueError(f"expected a preset of {', '.join(self.presets)}, got {preset!r}")
        try:
            config = self.settings(preset, seed)
            settings = dict(change.split("=", 1) for change in changes)
            config = config.replace(**{key: yaml.safe_load(value) for key, value in settings.items()})
            if scales is None:
                return config
            dim = len(config.cells)
            factors = [tuple(float(factor) for factor in scale.split("x")) for scale in scales.split(",")]
            return with_scales(config, [scale * dim if len(scale) == 1 else scale for scale in factors])
        except ValidationError as error:
            raise ValueError(f"these settings make no dataset: {_told(error)}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ValueError(
                f"expected changes like cells=[64,64] and scales like 2,10 or 2x1, got {list(changes)} and "
                f"{scales!r}: {error}"
            ) from error

    def spec(self, config: DatasetConfig) -> SampleSpec:
        """The contract of a dataset."""
        return SampleSpec(
            problem=config.problem,
            fields=self.fields,
            field_units=self.field_units,
            axes=("x", "y", "z")[: len(config.cells)],
            length_unit=self.length_unit,
            training_extent=config.extent,
            spacing=config.domain().spacing,
            boundary=self.boundary,
            time_step=round(config.save_every * config.time_step, 9),
            time_unit=self.time_unit,
        )

    def solve_split(self, config: DatasetConfig, name: str, first: int, count: int) -> NDArray[np.float64]:
        """Simulations ``first`` to ``first + count`` of a split: (count, states, fields, cells...)."""
        if name not in config.splits:
            raise ValueError(f"unknown split {name!r}: expected one of {', '.join(config.splits)}")
        split = config.splits[name]
        domain = config.domain(split)
        sources = max(1, round(config.sources * float(np.prod(split.scale))))
        initial = [
            self.draw(np.random.default_rng([config.seed, zlib.crc32(name.encode()), index]), domain, sources)
            for index in range(first, first + count)
        ]
        return self.solve(
            np.stack(initial),
            domain,
            config.save_every,
            config.states,
            time_step=config.time_step,
            **config.constants,
        )

    def make(
        self,
        config: DatasetConfig,
        out: str | Path,
        workers: int | None = None,
        console: Console | None = None,
        share: Share = WHOLE,
    ) -> str:
        """:meth:`generate` with a bar per split on a terminal; returns what was done, in words."""
        console = console or Console(stderr=True)
        with Progress(console) as bars:
            tasks = {
                name: bars.add_task(f"{name:>10}", total=config.work(split)) for name, split in config.splits.items()
            }
            made = self.generate(config, out, workers, lambda name, work: bars.advance(tasks[name], work), share)
            for name in config.splits.keys() - made:
                bars.update(tasks[name], completed=config.work(config.splits[name]))
        if not (Path(out) / "README.md").exists():
            return f"{out}: {share}; the last part to finish, or `--merge`, makes the dataset of all parts"
        return f"{out}: {'made ' + ', '.join(made) if made else 'already complete'}; see {Path(out) / 'README.md'}"

    def is_whole(self, out: str | Path) -> bool:
        """Never taken for granted: :meth:`generate` itself looks at what is there, which takes no time."""
        return False

    def generate(
        self,
        config: DatasetConfig,
        out: str | Path,
        workers: int | None = None,
        advance: Advance = lambda split, work: None,
        share: Share = WHOLE,
    ) -> list[str]:
        """Make what is missing of a dataset in folder ``out`` and return the names of the splits that were made.

        A split's file appears under its name only when it is complete, so that a killed run is continued by
        running it again. ``workers`` threads solve at once (all cores by default); ``advance`` is called with a
        split's name and the cell updates just done. Of a ``share`` only that part of the simulations is solved, into a
        file of its own; the files of all parts make the same dataset, byte for byte.
        """
        if workers is not None and workers < 1:
            raise ValueError(f"expected at least one worker, got {workers}")
        out = Path(out)
        missing = [name for name in config.splits if not split_path(out, config.problem, name).exists()]
        _check_room(out, sum(self.file_bytes(config, name) for name in missing))
        if share.part is not None:
            with _claimed(out, config, share), _threads(workers):
                for name in missing:
                    self._solve_share(config, out, name, share, advance)
            if not all(share.complete(out, name) for name in missing):
                return []
            try:
                return self.generate(config, out, workers, share=share.merging())
            except RuntimeError:  # another part has seen at the same time that all are there
                return []
        with _claimed(out, config) as whole:
            missing = [name for name in missing if not split_path(out, config.problem, name).exists()]
            with _threads(workers):
                for name in missing:
                    split = config.splits[name]
                    solved = share.solved(out, name) if share.merge else self._batches(config, name, advance)
                    write_split(
                        split_path(out, config.problem, name),
                        self.spec(config),
                        config.domain(split),
                        split.scale,
                        config.states,
                        split.simulations,
                        solved,
                        config.constants,
                        self.provenance(config, name),
                    )
            # A kill may have hit between a file and what is derived from it, so that is made anew whenever in
            # doubt.
            if missing or not (out / "README.md").exists() or not _has_statistics(out):
                from farfield.data.card import write_card  # matplotlib, which nothing else here needs

                splits = {name: open_split(out, name) for name in whole.splits}
                statistics = compute_statistics(splits["train"])
                write_statistics(out, statistics, splits["train"])
                write_card(out, splits, statistics, self.about, self.published)
            if share.merge:
                shutil.rmtree(out / PARTS, ignore_errors=True)
        return missing

    def _solve_share(self, config: DatasetConfig, out: Path, name: str, share: Share, advance: Advance) -> None:
        """One part's simulations of a split, into a file that appears when it is whole."""
        path, split = share.path(out, name), config.splits[name]
        if path.exists():
            return
        mine = share.of(split.simulations)
        shape = (len(mine), config.states, len(self.fields), *config.domain(split).cells)
        with atomic_path(path) as partial:
            kept = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
            done = 0
            for batch in self._batches(config, name, advance, mine):
                kept[done : done + len(batch)] = batch
                done += len(batch)
            kept.flush()

    def file_bytes(self, config: DatasetConfig, name: str) -> int:
        split = config.splits[name]
        cells = int(np.prod(config.domain(split).cells))
        return 4 * len(self.fields) * split.simulations * config.states * cells

    def provenance(self, config: DatasetConfig, name: str) -> dict[str, Any]:
        """What a file says about its making: no times and no paths, which would differ between equal runs."""
        preset = self.settings(config.preset, config.seed)
        command = f"farfield generate {config.problem} --preset {config.preset} --seed {config.seed}"
        for key, value in config.model_dump(mode="json", exclude={"splits"}).items():
            if value != preset.model_dump(mode="json")[key]:
                command += f" --set {key}={json.dumps(value, separators=(',', ':'))}"
        if name not in preset.splits:
            command += f" --scales {scale_text(config.splits[name].scale)}"
        return {
            "version": __version__,
            "command": command,
            "split": name,
            "settings": config.model_dump(mode="json", exclude={"splits"}),
        }

    def _batches(
        self, config: DatasetConfig, name: str, advance: Advance, some: range | None = None
    ) -> Iterator[NDArray[np.float64]]:
        split = config.splits[name]
        some = range(split.simulations) if some is None else some
        size = max(1, BATCH_CELLS // int(np.prod(config.domain(split).cells)))
        for first in range(some.start, some.stop, size):
            count = min(size, some.stop - first)
            yield self.solve_split(config, name, first, count)
            advance(name, config.work(split) * count // split.simulations)


@contextmanager
def _threads(workers: int | None) -> Iterator[None]:
    import numba  # half a second, and only where something is solved

    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    before = numba.get_num_threads()
    numba.set_num_threads(min(workers or before, before))  # more threads than cores would not help
    try:
        yield
    finally:
        numba.set_num_threads(before)
        if torch:  # numba's start gives OpenMP a thread per core, whatever torch was told
            torch.set_num_threads(threads)


@contextmanager
def _claimed(out: Path, config: DatasetConfig, share: Share = WHOLE) -> Iterator[DatasetConfig]:
    """Make ``out`` this dataset's folder, alone, or refuse; yield the configuration of all it will hold."""
    manifest = out / "dataset.yaml"
    if out.exists() and not manifest.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise FileExistsError(f"{out} holds other files and no dataset: choose a new or empty folder with --out")
    busy = f"another process is generating into {out}: wait for it, or choose another --out"
    with locked(out / ".lock" if share.part is None else out / PARTS / f".lock{share.part}", busy):
        whole = config
        if manifest.exists():
            held = read_config(manifest)
            shared = held.splits.keys() & config.splits.keys()
            differing = [
                f"{key} is {old!r} there and {new!r} here"
                for key, old, new in (
                    *((k, getattr(held, k), getattr(config, k)) for k in DatasetConfig.model_fields if k != "splits"),
                    *((k, held.splits[k], config.splits[k]) for k in sorted(shared)),
                )
                if old != new
            ]
            if differing:
                raise FileExistsError(
                    f"{out} holds another dataset ({'; '.join(differing)}): choose another folder with --out, or "
                    "delete that one first"
                )
            whole = held.replace(splits={**held.splits, **config.splits})
        atomic_write_text(manifest, yaml.safe_dump(whole.model_dump(mode="json"), sort_keys=False))
        left = out.rglob(".*.partial") if share.part is None else share.path(out, "*").parent.glob(f".{share.part}-*")
        for partial in left:  # what a killed run left behind
            partial.unlink()
        yield whole


def read_config(path: Path) -> DatasetConfig:
    """Read and check a ``dataset.yaml``."""
    remedy = "restore it, or choose another folder"
    try:
        return DatasetConfig.model_validate(read_mapping(path, remedy))
    except ValidationError as error:
        raise ValueError(f"{path} is not a dataset's description ({_told(error)}): {remedy}") from None


def _told(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc'])) or 'dataset'}: {e['msg']}" for e in error.errors())


def _has_statistics(out: Path) -> bool:
    try:
        read_statistics(out)
    except (ValueError, FileNotFoundError):
        return False
    return True


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(next(folder for folder in (out, *out.resolve().parents) if folder.exists())).free
    if needed > free:
        raise OSError(
            f"the dataset needs {needed / 1e9:.1f} GB and {out} has {free / 1e9:.1f} GB free: make room, choose "
            "another folder with --out, or a smaller --preset"
        )
