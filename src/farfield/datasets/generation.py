"""Making datasets: presets, initial states, and a loop over splits that can be killed and continued at any
moment.

Each simulation draws from its own generator, seeded by (seed, split, index): the bytes do not depend on the
number of workers.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numba
import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from farfield.datasets.card import write_card
from farfield.datasets.sample import SampleSpec
from farfield.datasets.storage import compute_statistics, open_split, split_path, write_split
from farfield.files import atomic_write_text
from farfield.geometry.domain import Domain
from farfield.solvers import gray_scott, shallow_water
from farfield.version import __version__

Preset = Literal["quick", "cpu", "paper"]
BATCH_CELLS = 1 << 20  # cells solved at a time: fills the cores, and bounds memory to about 300 MB

CRENEL_WIDTH = (4.0, 15.0)  # m
CRENEL_HEIGHT = (0.02, 0.08)  # m
SOURCE_CELLS = 5  # a source is a square of this many cells
SOURCE_U, SOURCE_V = 0.5, 0.25


class SplitConfig(BaseModel):
    """How many simulations, on how many times the training domain along each axis."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    simulations: PositiveInt
    scale: tuple[PositiveFloat, ...]


class DatasetConfig(BaseModel):
    """A dataset, completely: two equal configurations give the same bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    case: Literal["swe", "gray-scott"]
    preset: Preset
    seed: int = Field(ge=0)
    cells: tuple[PositiveInt, ...]  # of the training domain
    extent: tuple[PositiveFloat, ...]
    # crenels or squares in the training domain; a domain of s times the size has s times as many
    sources: PositiveInt
    time_step: PositiveFloat
    save_every: PositiveInt  # time steps
    states: int = Field(ge=2)  # per simulation, the initial one included
    constants: dict[str, float]  # of the equations, by the solver's argument names
    splits: dict[str, SplitConfig]

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

    def spec(self) -> SampleSpec:
        case = CASES[self.case]
        return SampleSpec(
            case=self.case,
            fields=case.fields,
            field_units=case.field_units,
            axes=("x", "y", "z")[: len(self.cells)],
            length_unit=case.length_unit,
            training_extent=self.extent,
            spacing=self.domain().spacing,
            boundary=case.boundary,
            time_step=round(self.save_every * self.time_step, 9),
            time_unit=case.time_unit,
        )

    def file_bytes(self, split: SplitConfig) -> int:
        cells = int(np.prod(self.domain(split).cells))
        return 4 * len(CASES[self.case].fields) * split.simulations * self.states * cells

    def work(self, split: SplitConfig) -> int:
        """Cell updates."""
        return split.simulations * int(np.prod(self.domain(split).cells)) * self.save_every * (self.states - 1)


def draw_crenels(rng: np.random.Generator, domain: Domain, count: int) -> NDArray[np.float64]:
    """Water at rest, 1 m high, with ``count`` crenels: (2, cells), v and h.

    Centres are uniform over the domain, so that a crenel may reach across an end; it raises every cell it
    touches, and where two overlap their heights add. Of the set-ups tried, this one comes nearest to the
    published statistics.
    """
    (x,), (dx,), (extent,) = domain.centres(), domain.spacing, domain.extent
    state = np.stack([np.zeros_like(x), np.ones_like(x)])
    for _ in range(count):
        centre, width, height = (
            rng.uniform(0, extent),
            rng.uniform(*CRENEL_WIDTH),
            rng.uniform(*CRENEL_HEIGHT),
        )
        state[1, np.abs(x - centre) < (width + dx) / 2] += height
    return state


def draw_sources(rng: np.random.Generator, domain: Domain, count: int) -> NDArray[np.float64]:
    """U = 1, V = 0 with ``count`` squares of U = 0.5, V = 0.25, anywhere inside the domain: (2, nx, ny)."""
    if min(domain.cells) < SOURCE_CELLS:
        raise ValueError(f"expected at least {SOURCE_CELLS} cells along each axis to hold a source, got {domain.cells}")
    state = np.stack([np.ones(domain.cells), np.zeros(domain.cells)])
    for _ in range(count):
        i, j = (int(rng.integers(0, cells - SOURCE_CELLS + 1)) for cells in domain.cells)
        square = (slice(i, i + SOURCE_CELLS), slice(j, j + SOURCE_CELLS))
        state[0, *square], state[1, *square] = SOURCE_U, SOURCE_V
    return state


@dataclass(frozen=True)
class Case:
    fields: tuple[str, ...]
    field_units: tuple[str, ...]
    length_unit: str
    time_unit: str
    boundary: Literal["open", "wall"]
    draw: Callable[[np.random.Generator, Domain, int], NDArray[np.float64]]
    solve: Callable[..., NDArray[np.float64]]


CASES = {
    "swe": Case(shallow_water.FIELDS, ("m/s", "m"), "m", "s", "open", draw_crenels, shallow_water.solve),
    "gray-scott": Case(gray_scott.FIELDS, ("1", "1"), "cell", "1", "wall", draw_sources, gray_scott.solve),
}


def _splits(dim: int, train: int, held_out: int, larger: dict[int, int]) -> dict[str, SplitConfig]:
    splits = {"train": train, "validation": held_out, "test": held_out}
    return {
        **{name: SplitConfig(simulations=count, scale=(1,) * dim) for name, count in splits.items()},
        **{f"s{s}": SplitConfig(simulations=count, scale=(s,) * dim) for s, count in larger.items()},
    }


def shallow_water_config(preset: Preset = "cpu", seed: int = 0) -> DatasetConfig:
    """The paper's set takes seconds, so ``cpu`` is the whole of it; ``quick`` has fewer simulations."""
    published = _splits(1, 800, 100, {2: 50, 3: 50, 7: 50, 10: 50})
    quick = _splits(1, 200, 20, {2: 10, 3: 10, 7: 10, 10: 10})
    return DatasetConfig(
        case="swe",
        preset=preset,
        seed=seed,
        cells=(128,),
        extent=(100.0,),
        sources=3,
        time_step=0.01,
        save_every=30,
        states=51,
        constants={"gravity": shallow_water.GRAVITY},
        splits=quick if preset == "quick" else published,
    )


def gray_scott_config(preset: Preset = "cpu", seed: int = 0) -> DatasetConfig:
    """``paper`` and ``cpu``: the published set, 5.6 GB. ``quick``: fewer simulations, of a quarter of the area."""
    paper = DatasetConfig(
        case="gray-scott",
        preset=preset,
        seed=seed,
        cells=(128, 128),
        extent=(128.0, 128.0),
        sources=3,
        time_step=1.0,
        save_every=500,
        states=11,
        constants={
            "diffusion_u": gray_scott.DIFFUSION_U,
            "diffusion_v": gray_scott.DIFFUSION_V,
            "feed_rate": gray_scott.FEED_RATE,
            "kill_rate": gray_scott.KILL_RATE,
        },
        splits=_splits(2, 800, 100, {2: 50, 3: 50, 7: 25, 10: 10}),
    )
    if preset != "quick":
        return paper
    fewest = _splits(2, 64, 8, {2: 4, 3: 4, 7: 2, 10: 1})
    return paper.replace(cells=(64, 64), extent=(64.0, 64.0), sources=1, splits=fewest)


def scale_text(scale: tuple[float, ...]) -> str:
    """(2, 2) is "2", (2, 1) is "2x1"."""
    return "x".join(f"{factor:g}" for factor in (scale[:1] if len(set(scale)) == 1 else scale))


def with_scales(config: DatasetConfig, scales: Sequence[tuple[float, ...]]) -> DatasetConfig:
    """The same dataset on these larger domains; one the preset lacks gets its fewest simulations."""
    counts = {split.scale: split.simulations for split in config.splits.values()}
    splits = {name: split for name, split in config.splits.items() if set(split.scale) == {1.0}}
    for scale in scales:
        name = "s" + scale_text(scale).replace(".", "_")
        splits[name] = SplitConfig(simulations=counts.get(scale, min(counts.values())), scale=scale)
    return config.replace(splits=splits)


PRESETS: dict[str, Callable[[Preset, int], DatasetConfig]] = {
    "swe": shallow_water_config,
    "gray-scott": gray_scott_config,
}


def configure(
    case: str, preset: str, seed: int = 0, scales: str | None = None, changes: Sequence[str] = ()
) -> DatasetConfig:
    """A preset with changes given as text: ``scales`` like "2,10x5", ``changes`` like "cells=[64,64]"."""
    if case not in PRESETS or preset not in get_args(Preset):
        raise ValueError(
            f"expected a case of {', '.join(PRESETS)} and a preset of {', '.join(get_args(Preset))}, "
            f"got {case!r} and {preset!r}"
        )
    try:
        config = PRESETS[case](cast(Preset, preset), seed)
        settings = dict(change.split("=", 1) for change in changes)
        config = config.replace(**{key: yaml.safe_load(value) for key, value in settings.items()})
        if scales is None:
            return config
        dim = len(config.cells)
        factors = [tuple(float(factor) for factor in scale.split("x")) for scale in scales.split(",")]
        return with_scales(config, [scale * dim if len(scale) == 1 else scale for scale in factors])
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'dataset'}: {e['msg']}" for e in error.errors())
        raise ValueError(f"these settings make no dataset: {problems}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(
            f"expected changes like cells=[64,64] and scales like 2,10 or 2x1, got {list(changes)} and "
            f"{scales!r}: {error}"
        ) from error


def solve_split(config: DatasetConfig, name: str, first: int, count: int) -> NDArray[np.float64]:
    """Simulations ``first`` to ``first + count`` of a split: (count, states, fields, cells...)."""
    if name not in config.splits:
        raise ValueError(f"unknown split {name!r}: expected one of {', '.join(config.splits)}")
    case, split = CASES[config.case], config.splits[name]
    domain = config.domain(split)
    sources = max(1, round(config.sources * float(np.prod(split.scale))))
    initial = [
        case.draw(np.random.default_rng([config.seed, zlib.crc32(name.encode()), index]), domain, sources)
        for index in range(first, first + count)
    ]
    return case.solve(
        np.stack(initial),
        domain,
        config.save_every,
        config.states,
        time_step=config.time_step,
        **config.constants,
    )


def generate(
    config: DatasetConfig,
    out: str | Path,
    workers: int | None = None,
    report: Callable[[str, int], None] = lambda split, work: None,
) -> list[str]:
    """Make what is missing of a dataset in folder ``out`` and return the names of the splits that were made.

    A split's file appears under its name only when it is complete, so that a killed run is continued by
    running it again. ``workers`` threads solve at once (all cores by default); ``report`` is called with a
    split's name and the cell updates just done.
    """
    if workers is not None and workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    out = Path(out)
    with _claimed(out, config) as whole:
        missing = [name for name in config.splits if not split_path(out, config.case, name).exists()]
        _check_room(out, sum(config.file_bytes(config.splits[name]) for name in missing))
        with _threads(workers):
            for name in missing:
                split = config.splits[name]
                write_split(
                    split_path(out, config.case, name),
                    config.spec(),
                    config.domain(split),
                    split.scale,
                    config.states,
                    split.simulations,
                    _batches(config, name, report),
                    config.constants,
                    provenance(config, name),
                )
        # A kill may have hit between a file and what is derived from it, so that is made anew whenever in
        # doubt.
        if missing or not (out / "README.md").exists():
            splits = {name: open_split(out, name) for name in whole.splits}
            statistics = compute_statistics(splits["train"])
            atomic_write_text(out / "stats.yaml", yaml.safe_dump(statistics, sort_keys=False))
            write_card(out, splits, statistics)
    return missing


def provenance(config: DatasetConfig, name: str) -> dict[str, Any]:
    """What a file says about its making: no times and no paths, which would differ between equal runs."""
    preset = PRESETS[config.case](config.preset, config.seed)
    command = f"farfield generate {config.case} --preset {config.preset} --seed {config.seed}"
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


def _batches(config: DatasetConfig, name: str, report: Callable[[str, int], None]) -> Iterator[NDArray[np.float64]]:
    split = config.splits[name]
    size = max(1, BATCH_CELLS // int(np.prod(config.domain(split).cells)))
    for first in range(0, split.simulations, size):
        count = min(size, split.simulations - first)
        yield solve_split(config, name, first, count)
        report(name, config.work(split) * count // split.simulations)


@contextmanager
def _threads(workers: int | None) -> Iterator[None]:
    before = numba.get_num_threads()
    numba.set_num_threads(min(workers or before, before))  # more threads than cores would not help
    try:
        yield
    finally:
        numba.set_num_threads(before)


@contextmanager
def _claimed(out: Path, config: DatasetConfig) -> Iterator[DatasetConfig]:
    """Make ``out`` this dataset's folder, alone, or refuse; yield the configuration of all it will hold."""
    manifest = out / "dataset.yaml"
    if out.exists() and not manifest.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise FileExistsError(f"{out} holds other files and no dataset: choose a new or empty folder with --out")
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel releases it however this process ends
        except BlockingIOError as error:
            raise RuntimeError(
                f"another process is generating into {out}: wait for it, or choose another --out"
            ) from error
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
                    f"{out} holds another dataset ({'; '.join(differing)}): choose another folder with "
                    f"--out, "
                    f"or delete that one first"
                )
            whole = held.replace(splits={**held.splits, **config.splits})
        atomic_write_text(manifest, yaml.safe_dump(whole.model_dump(mode="json"), sort_keys=False))
        for partial in out.rglob(".*.partial"):  # what a killed run left behind
            partial.unlink()
        yield whole


def read_config(path: Path) -> DatasetConfig:
    """Read and check a ``dataset.yaml``."""
    try:
        return DatasetConfig.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, ValidationError) as error:
        raise ValueError(
            f"{path} is not a dataset's description: {error}. Restore it, or choose another folder"
        ) from error


def _check_room(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        raise OSError(
            f"the dataset needs {needed / 1e9:.1f} GB and {out} has {free / 1e9:.1f} GB free: make room, "
            f"choose another "
            f"folder with --out, or a smaller --preset"
        )
