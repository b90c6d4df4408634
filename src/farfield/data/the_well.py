"""Splits on disk, in The Well's HDF5 layout, and the statistics beside them.

    FOLDER/dataset.yaml                  how it was made: the configuration, all of it
    FOLDER/stats.yaml                    mean, std, rms of the training split's fields and of their changes
    FOLDER/data/<split>/<problem>.hdf5   t0_fields/<field> (simulations, states, cells...), dimensions, scalars, ...
    FOLDER/README.md, pictures/          the dataset card

Every file carries its contract (:class:`SampleSpec`), its scale and its provenance as JSON in the attribute
``farfield``. A file is chunked by state (and by tiles of it), with a checksum per chunk, so reading touches
only what is asked for and damage is found.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.domain import Domain
from farfield.data.source import Cloud
from farfield.data.spec import SampleSpec

SEEN = ("train", "validation")  # splits that a model has learned from, or was chosen by


def split_path(folder: str | Path, problem: str, split: str) -> Path:
    return Path(folder) / "data" / split / f"{problem}.hdf5"


def scale_text(scale: tuple[float, ...]) -> str:
    """(2, 2) is "2", (2, 1) is "2x1"."""
    return "x".join(f"{factor:g}" for factor in (scale[:1] if len(set(scale)) == 1 else scale))


def held_out_splits(folder: str | Path) -> dict[str, Split]:
    """The splits to test on, by their scale."""
    splits = [Split(path) for path in sorted(Path(folder).glob("data/*/*.hdf5")) if path.parent.name not in SEEN]
    return {scale_text(split.scale): split for split in splits}


class Split:
    """One split's file, read lazily; any number of processes may read at once, each opens it for itself."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no dataset file at {self.path}: make it with `farfield generate`")
        self._file: h5py.File | None = None
        self._owner = 0
        self._in_memory: dict[str, NDArray[np.float32]] = {}
        try:
            header = json.loads(self._open().attrs["farfield"])
            self.spec = SampleSpec.model_validate(header["spec"])
            self.scale = tuple(float(factor) for factor in header["scale"])
            self.provenance: dict[str, Any] = header["provenance"]
            shapes = {self._open()["t0_fields"][name].shape for name in self.spec.fields}
            (shape,) = shapes
            self.simulations, self.states = int(shape[0]), int(shape[1])
            self.domain = Domain(shape[2:], tuple(header["extent"]))
            self._check_extent()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a dataset file of farfield: expected The Well's layout with an "
                f"attribute "
                f"'farfield' ({error}). Make it with `farfield generate`"
            ) from error

    def _check_extent(self) -> None:
        """The domain is told three times: by its extent, by scale and spacing, and by the coordinates of its cells."""
        spec, extent = self.spec, self.domain.extent
        scaled = [factor * length for factor, length in zip(self.scale, spec.training_extent, strict=True)]
        cells = [n * dx for n, dx in zip(self.domain.cells, spec.spacing, strict=True)]
        for what, length in (("scale times the training domain", scaled), ("cells times their spacing", cells)):
            if not np.allclose(extent, length, rtol=1e-5):
                raise ValueError(f"its extent {extent} was altered, its {what} is {tuple(length)}")
        for axis, centres in zip(spec.axes, self.domain.centres(), strict=True):
            if not np.allclose(self._open()["dimensions"][axis], centres, rtol=1e-5):
                raise ValueError(f"its dimensions/{axis} was altered, they are not the centres of its cells")

    def _open(self) -> h5py.File:
        """The file, opened by this process: HDF5 handles must not be shared across a fork."""
        if self._file is None or self._owner != os.getpid():
            try:
                self._file, self._owner = h5py.File(self.path, "r"), os.getpid()
            except OSError as error:
                raise self._damaged(error) from error
        return self._file

    def _damaged(self, error: Exception) -> ValueError:
        return ValueError(
            f"{self.path} is truncated, damaged or not HDF5 ({error}): delete it and run the same `farfield "
            f"generate` "
            f"again, which makes only what is missing"
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}

    def read(self, simulations: int | slice, states: int | slice) -> NDArray[np.float32]:
        """Fields in physical units, (..., fields, cells...); an integer drops its axis."""
        try:
            stored = self._in_memory or self._open()["t0_fields"]
            fields = [stored[name][simulations, states] for name in self.spec.fields]
        except OSError as error:
            raise self._damaged(error) from error
        return np.stack(fields, axis=-1 - self.domain.space_dim)

    def preload(self, at_most: int = 2**31) -> None:
        """Keep the split in memory if it has at most so many bytes: a random read then costs much less."""
        cells = int(np.prod(self.domain.cells))
        if 4 * len(self.spec.fields) * self.simulations * self.states * cells <= at_most:
            try:
                self._in_memory = {name: self._open()["t0_fields"][name][...] for name in self.spec.fields}
            except OSError as error:
                raise self._damaged(error) from error


class SplitSource:
    """A split as every other kind of data (:class:`farfield.data.source.Source`)."""

    def __init__(self, split: Split):
        self.split, self.spec = split, split.spec
        self._cloud = Cloud(split.domain.points(), split.domain.extent, split.domain.cells)

    def __len__(self) -> int:
        return self.split.simulations

    def name(self, simulation: int) -> str:
        return f"{self.split.path}, simulation {simulation}"

    def states(self, simulation: int) -> int:
        return self.split.states

    def cloud(self, simulation: int) -> Cloud:
        return self._cloud

    def read(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        values = self.split.read(simulation, states)
        return values.reshape(*values.shape[:2], -1).swapaxes(1, 2)

    def inputs(self, simulation: int) -> NDArray[np.float32]:
        return np.zeros((len(self._cloud), 0), np.float32)

    def parameters(self, simulation: int) -> NDArray[np.float64]:
        return np.zeros(0)


def open_split(folder: str | Path, split: str) -> Split:
    """Open one split of a dataset folder by name."""
    found = {path.parent.name: path for path in sorted(Path(folder).glob("data/*/*.hdf5"))}
    if not found:
        raise FileNotFoundError(f"no dataset in {folder}: make one with `farfield generate ... --out {folder}`")
    if split not in found:
        raise ValueError(f"unknown split {split!r}: {folder} holds {', '.join(found)}")
    return Split(found[split])
