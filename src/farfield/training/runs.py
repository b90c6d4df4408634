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
"""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import platform
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from farfield.files import atomic_path, atomic_write_text, read_description, this_command
from farfield.training.config import RunConfig

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
        self.tensorboard_path = self.folder / "tensorboard"

    def __str__(self) -> str:
        return str(self.folder)

    def create(self, config: RunConfig, dataset: Mapping[str, Any]) -> None:
        """Start a new run; one that has begun already, or trained weights, are never overwritten."""
        if self.state_path.exists():
            raise ValueError(f"{self} already holds a run: continue it with --resume {self}, or choose another --out")
        if self.best_path.exists():
            raise ValueError(f"{self} already holds trained weights ({self.best_path.name}): choose another --out")
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
        for left_behind in self.folder.glob(".*.partial"):  # by a process that was killed while it wrote
            left_behind.unlink()

    def config(self) -> RunConfig:
        """The configuration."""
        if not self.config_path.is_file():
            raise ValueError(f"{self} is not a run: it has no {self.config_path.name}")
        return RunConfig.load(self.config_path)

    def dataset(self) -> dict[str, Any]:
        """What the data is and how it was standardised."""
        return read_description(self.dataset_path)

    def note_command(self, seed: int, precision: str, processes: int) -> None:
        """Add this command to the provenance, and what it computes with."""
        earlier = []
        if self.provenance_path.exists():
            earlier = read_description(self.provenance_path).get("commands", [])
        record = {
            "commands": [*earlier, this_command()],
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


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed (run from its source)"


def save_weights(path: Path, model: nn.Module) -> None:
    """Write a model's weights as safetensors."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    _write(path, safetensors.torch.save(weights))


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what continues a run."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    _write(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read what ``save_state`` wrote, as data only: nothing in the file is executed."""
    if not path.is_file():
        raise ValueError(f"{path.parent} has no checkpoint to resume from ({path.name} is missing): start it anew")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is truncated or damaged ({reason}): the run cannot be continued from it") from None


def _write(path: Path, content: bytes) -> None:
    with _naming(path), atomic_path(path) as partial:
        partial.write_bytes(content)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """A full disk or another failure to write says which file, and what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"could not write {path} ({error.strerror}); the checkpoint before it is whole: make room and --resume",
        ) from None


class Table:
    """A CSV file that grows row by row. Opened at a step, it first forgets the rows after it: they will be repeated."""

    def __init__(self, path: Path, columns: tuple[str, ...], step: int):
        kept = io.StringIO()
        writer = csv.DictWriter(kept, columns, lineterminator="\n")
        writer.writeheader()
        if path.exists() and step > 0:
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    if (row["step"] or "").isdigit() and int(row["step"]) <= step and row[columns[-1]]:
                        writer.writerow(row)
        with _naming(path):
            atomic_write_text(path, kept.getvalue())
        self._path = path
        self._file = path.open("a", buffering=1, newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")

    def add(self, **row: float) -> None:
        """Append one row; it is in the file when this returns."""
        with _naming(self._path):
            self._writer.writerow(row)

    def close(self) -> None:
        """Write it to disk."""
        with _naming(self._path):
            self._file.close()
