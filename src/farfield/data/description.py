"""``dataset.yaml``: what a user says about data beside the numbers, and what is written down of what was understood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError

from farfield.data.hints import Hints
from farfield.data.spec import SampleSpec
from farfield.files import atomic_write_text
from farfield.settings import Strict

DESCRIPTION = "dataset.yaml"


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
    """NPZ and plain HDF5 of grids: the cells' width along each axis, where the file has none."""
    fields: dict[str, FieldDescription] = Field(default_factory=dict)
    """By name; fields that are not named are used as guessed."""
    ignore: list[str] = Field(default_factory=list)
    """Fields and scalars to leave out."""
    splits: dict[str, list[int]] | None = None
    """Simulations of train, validation and test by number; 80 / 10 / 10 unless given."""

    def hints(self) -> Hints:
        """The same, as the readers take it."""
        return Hints(
            problem=self.problem, kind=self.kind, boundary=self.boundary, time_step=self.time_step,
            time_unit=self.time_unit, length_unit=self.length_unit,
            units={name: f.unit for name, f in self.fields.items() if f.unit},
            log=[name for name, f in self.fields.items() if f.log],
            roles={name: f.role for name, f in self.fields.items() if f.role}, ignore=self.ignore,
        )  # fmt: skip

    @classmethod
    def beside(cls, folder: Path) -> Self:
        """What is said in a folder; nothing where there is no such file."""
        path = folder / DESCRIPTION
        if not path.is_file():
            return cls()
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


def write_description(path: str | Path, spec: SampleSpec, splits: Mapping[str, Sequence[int]] | None = None) -> None:
    """Write what was understood of a dataset."""
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
