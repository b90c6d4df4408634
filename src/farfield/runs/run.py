"""The run folder: everything about a run, each file written in one step.

config.yaml           the configuration: ``farfield train --config config.yaml`` repeats the run
provenance.json       versions, hardware, seed, command lines
dataset.json          what the data is and how it was standardised: all that a predictor needs beside the weights
best.safetensors      the weights with the lowest validation loss
last.safetensors      the weights of the last checkpoint
state.pt              what continues the run: weights, optimisers, step (opens with ``weights_only=True``)
losses.csv            one row per step
validation.csv        one row per validation
tensorboard/          the same scalars, for TensorBoard
evaluation.csv        one row per number (see :mod:`farfield.evaluation.rows`)
evaluation.json       which weights were evaluated, on which data and how many samples, by which commands
samples.npz           the few arrays that pictures need

The folders of older versions are read, too (they say ``case`` for ``problem``, see :func:`farfield.files.modern`).
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from farfield.files import (
    atomic_write_text,
    fingerprint,
    locked,
    read_arrays,
    read_description,
    remove_partials,
    this_command,
)
from farfield.runs.config import RunConfig, read_settings
from farfield.runs.hub import fetch
from farfield.runs.weights import load_weights, naming

SHIPPED = Path(__file__).parents[1] / "shipped"
LOSS_COLUMNS = ("step", "epoch", "loss", "learning_rate", "points_per_second", "seconds")
VALIDATION_COLUMNS = ("step", "epoch", "loss", "seconds")


class Run:
    """A run's folder: paths, and reading and writing what they hold."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.config_path = self.folder / "config.yaml"
        self.dataset_path = self.folder / "dataset.json"
        self.provenance_path = self.folder / "provenance.json"
        self.best_path = self.folder / "best.safetensors"
        self.last_path = self.folder / "last.safetensors"
        self.state_path = self.folder / "state.pt"
        self.losses_path = self.folder / "losses.csv"
        self.validation_path = self.folder / "validation.csv"
        self.finetune_path = self.folder / "finetune.csv"
        self.tensorboard_path = self.folder / "tensorboard"
        self.rows_path = self.folder / "evaluation.csv"
        self.evaluation_path = self.folder / "evaluation.json"
        self.samples_path = self.folder / "samples.npz"

    @classmethod
    def find(cls, name_or_folder: str | Path) -> Run:
        """A shipped model by name, the run in a folder, or one on a hub (``hf://owner/name``)."""
        if str(name_or_folder) in shipped_models():
            return cls(SHIPPED / str(name_or_folder))
        if str(name_or_folder).startswith("hf:"):
            return cls(fetch(str(name_or_folder)))
        if not Path(name_or_folder).is_dir():
            known = ", ".join(shipped_models()) or "none in this installation"
            raise ValueError(
                f"no model {str(name_or_folder)!r}: expected a run's folder, hf://owner/name or "
                f"a shipped model ({known})"
            )
        return cls(name_or_folder)

    def __str__(self) -> str:
        return str(self.folder)

    def check_new(self) -> None:
        """A run that has begun already, or trained weights, are never overwritten."""
        if self.state_path.exists():
            raise ValueError(f"{self} already holds a run: continue it with --resume {self}, or choose another --out")
        if self.best_path.exists():
            raise ValueError(f"{self} already holds trained weights ({self.best_path.name}): choose another --out")

    def writing(self) -> AbstractContextManager[None]:
        """Be the only process that trains into this folder, or refuse; evaluations may go on."""
        busy = f"another process is training into {self}: wait for it, or choose another --out"
        return locked(self.folder / ".lock", busy)

    @contextmanager
    def begun(self, config: RunConfig, dataset: Mapping[str, Any], resume: bool) -> Iterator[None]:
        """Begin a run, or continue it, :meth:`writing` it as long as this lasts."""
        with self.writing():
            if resume:
                self.reopen(dataset)
            else:
                self.check_new()
            remove_partials(  # of whoever was killed here, at its beginning or later
                self.config_path, self.dataset_path, self.provenance_path, self.best_path, self.last_path,
                self.state_path, self.losses_path, self.validation_path, self.finetune_path,
            )  # fmt: skip
            if not resume:
                self.create(config, dataset)
            yield

    def create(self, config: RunConfig, dataset: Mapping[str, Any]) -> None:
        """Start a new run."""
        self.check_new()
        config.save(self.config_path)
        atomic_write_text(self.dataset_path, json.dumps(dataset, indent=1))

    def reopen(self, dataset: Mapping[str, Any]) -> None:
        """Continue a run: the data must be what it was trained on so far."""
        before = self.dataset()
        for name in sorted({*before, *dataset}):
            if before.get(name) != json.loads(json.dumps(dataset.get(name))):
                raise ValueError(
                    f"{self} was trained on other data: its {name} is {before.get(name)}, the dataset's is "
                    f"{dataset.get(name)}; give the dataset it began with by --data, or start a new run"
                )

    def settings(self) -> dict[str, Any]:
        """The configuration as plain values; a :class:`farfield.problems.Problem` gives them their type."""
        if not self.config_path.is_file():
            raise ValueError(f"{self} is not a run: it has no {self.config_path.name}")
        return read_settings(self.config_path)

    def dataset(self) -> dict[str, Any]:
        """What the data is and how it was standardised."""
        return read_description(self.dataset_path)

    def provenance(self) -> dict[str, Any]:
        """Versions, hardware, seed, command lines; empty where nothing is noted."""
        return _mapping(self.provenance_path)

    def evaluation(self) -> dict[str, Any]:
        """What has been evaluated; empty where nothing is noted."""
        found = _mapping(self.evaluation_path)
        for name, kind in {"weights": str, "scales": dict, "data": dict, "commands": list}.items():
            if not isinstance(found.get(name, kind()), kind):
                raise ValueError(f"{self.evaluation_path} is damaged at {name!r}: delete it and evaluate again")
        return found

    def losses(self) -> list[dict[str, float]]:
        """One row per step."""
        return _numbers(self.losses_path)

    def validations(self) -> list[dict[str, float]]:
        """One row per validation."""
        return _numbers(self.validation_path)

    def samples(self) -> dict[str, NDArray]:
        """The arrays that pictures need."""
        return read_arrays(self.samples_path) if self.samples_path.is_file() else {}

    def weights_path(self) -> Path:
        """The best weights; the last ones of a run that was stopped before its first validation, which is said."""
        if self.best_path.is_file() or not self.last_path.is_file():
            return self.best_path
        warnings.warn(f"{self} has no validation behind it yet: its last weights are used", stacklevel=2)
        return self.last_path

    def trained_with(self) -> str:
        """Tells what a prediction depends on beside the weights: the data's description, and the encoding."""
        depends = {"dataset": self.dataset(), "encoding": self.settings().get("encoding")}
        return fingerprint(json.dumps(depends, sort_keys=True).encode())

    def load_weights(self, model: nn.Module) -> None:
        """Read the weights to predict with into a model; what belongs to them must be as it was."""
        load_weights(self.weights_path(), model, self.trained_with())

    def weights_fingerprint(self) -> str | None:
        """Tells the weights that are used from all others; None where there are none."""
        found = next((path for path in (self.best_path, self.last_path) if path.is_file()), None)
        return None if found is None else fingerprint(found.read_bytes())

    def note_command(self, seed: int, precision: str, processes: int) -> None:
        """Add this command to the provenance, and what it computes with."""
        record = {
            "commands": [*self.provenance().get("commands", []), this_command()],
            "seed": seed,
            "precision": precision,
            "processes": processes,
            "versions": {name: _version(name) for name in ("farfield", "torch", "numpy", "lightning-fabric")}
            | {"python": platform.python_version()},
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        }
        atomic_write_text(self.provenance_path, json.dumps(record, indent=1))


def shipped_models() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/best.safetensors"))


def _mapping(path: Path) -> dict[str, Any]:
    return read_description(path) if path.is_file() else {}


def _numbers(path: Path) -> list[dict[str, float]]:
    """Rows of numbers; one that a killed process left incomplete is passed over."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.DictReader(file) if all(row.values())]
    try:
        return [{name: float(value) for name, value in row.items()} for row in rows]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): restore it from a copy, or delete it") from None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed (run from its source)"


class Table:
    """A CSV file that grows row by row. Opened at a step, it first forgets the rows after it: they will be repeated.

    A file that lacks rows up to there is damaged: of all steps, or, where there is not a row for each, of its header.
    """

    def __init__(self, path: Path, columns: tuple[str, ...], step: int, every_step: bool = False):
        kept, count = io.StringIO(), 0
        writer = csv.DictWriter(kept, columns, lineterminator="\n")
        writer.writeheader()
        if path.exists() and step > 0:
            with path.open(newline="", encoding="utf-8", errors="replace") as file:
                reader = csv.DictReader(file)
                for row in reader:
                    if (row.get("step") or "").isdigit() and int(row["step"]) <= step and row.get(columns[-1]):
                        writer.writerow({name: row.get(name) for name in columns})
                        count += 1
            if not set(columns) <= set(reader.fieldnames or ()) or (every_step and count < step):
                raise ValueError(
                    f"{path} is damaged, it holds {count} rows of {', '.join(columns)} up to step {step}, where the "
                    "run continues: restore it from a copy, or delete it to go on without them"
                )
        with naming(path):
            atomic_write_text(path, kept.getvalue())
        self._path = path
        self._file = path.open("a", buffering=1, newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")

    def add(self, **row: float) -> None:
        """Append one row; it is in the file when this returns."""
        with naming(self._path):
            self._writer.writerow(row)

    def sync(self) -> None:
        """Write to disk what was added so far."""
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write it to disk."""
        with naming(self._path):
            self._file.close()
