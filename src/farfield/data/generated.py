"""What ``farfield generate`` makes: splits in The Well's HDF5 layout, and the statistics beside them.

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
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from farfield.data.domain import Domain
from farfield.data.source import Cloud
from farfield.data.spec import SampleSpec
from farfield.data.the_well import WellFiles
from farfield.data.well_layout import Damaged, Layout

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


class Split(WellFiles):
    """One split's file: The Well's layout, with its contract, scale and provenance beside it."""

    remedy = ": delete it and run the same `farfield generate` again, which makes only what is missing"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no dataset file at {self.path}: make it with `farfield generate`")
        try:
            super().__init__([self.path])
            with h5py.File(self.path, "r") as file:
                header = json.loads(file.attrs["farfield"])
            self.spec = SampleSpec.model_validate(header["spec"])
            self.scale = tuple(float(factor) for factor in header["scale"])
            self.provenance: dict[str, Any] = header["provenance"]
            by_name = {field.name: field for field in self.predicted}
            self.predicted = [by_name[name] for name in self.spec.fields]
            self.domain = Domain(self._shape(0), tuple(header["extent"]))
            self._check_extent()
            self._clouds = {0: Cloud(self.domain.points(), self.domain.extent, self.domain.cells)}
        except Damaged:
            raise
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not a dataset file of farfield: expected The Well's layout with an attribute "
                f"'farfield' ({error}). Make it with `farfield generate`"
            ) from error

    @staticmethod
    def _check_grid(layout: Layout) -> None:
        """Below, against what the header says."""

    def _check_extent(self) -> None:
        """The domain is told three times: by its extent, by scale and spacing, and by the coordinates of its cells."""
        spec, extent = self.spec, self.domain.extent
        scaled = [factor * length for factor, length in zip(self.scale, spec.training_extent, strict=True)]
        cells = [n * dx for n, dx in zip(self.domain.cells, spec.spacing, strict=True)]
        for what, length in (("scale times the training domain", scaled), ("cells times their spacing", cells)):
            if not np.allclose(extent, length, rtol=1e-5):
                raise ValueError(f"its extent {extent} was altered, its {what} is {tuple(length)}")
        for axis, told, centres in zip(spec.axes, self.coordinates, self.domain.centres(), strict=True):
            if not np.allclose(told, centres, rtol=1e-5):
                raise ValueError(f"its dimensions/{axis} was altered, they are not the centres of its cells")

    def name(self, simulation: int) -> str:
        return f"{self.path}, simulation {simulation}"

    def grids(self, simulation: int, states: slice = slice(None)) -> NDArray[np.float32]:
        """Fields in physical units, (T, F, cells...)."""
        values = self.read(simulation, states)
        return np.ascontiguousarray(values.swapaxes(1, 2)).reshape(len(values), -1, *self.domain.cells)


def open_split(folder: str | Path, split: str) -> Split:
    """Open one split of a dataset folder by name."""
    found = {path.parent.name: path for path in sorted(Path(folder).glob("data/*/*.hdf5"))}
    if not found:
        raise FileNotFoundError(f"no dataset in {folder}: make one with `farfield generate ... --out {folder}`")
    if split not in found:
        raise ValueError(f"unknown split {split!r}: {folder} holds {', '.join(found)}")
    return Split(found[split])
