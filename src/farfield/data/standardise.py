"""Statistics of training data, and the maps between physical and standardised values that follow from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray
from torch import Tensor

from farfield.data.generated import Split, open_split
from farfield.data.source import Source, each_state
from farfield.data.spec import SampleSpec
from farfield.files import atomic_write_text, fingerprint, read_mapping

Statistics = dict[str, dict[str, float]]
"""As ``stats.yaml`` has them: by statistic and field."""
Described = dict[str, dict[str, list[float]]]
"""As a run has them: mean and std of states, changes, inputs and parameters, channel by channel."""
STATISTICS = ("states", "changes", "inputs", "parameters")


def compute_statistics(split: Split) -> Statistics:
    """Mean, std, rms of each field over all states, and (``*_delta``) of its change over a saved step."""
    axes = (0, *range(2, 2 + split.domain.space_dim))
    moments = np.zeros((2, 2, len(split.spec.fields)))  # (state, change), (mean, mean of squares), field
    for simulation in range(len(split)):
        states = split.grids(simulation).astype(np.float64)
        for kind, values in enumerate((states, states[1:] - states[:-1])):
            moments[kind] += values.mean(axis=axes), (values**2).mean(axis=axes)
    moments /= len(split)
    statistics: Statistics = {}
    for suffix, (mean, square) in zip(("", "_delta"), moments, strict=True):
        numbers = {"mean": mean, "std": np.sqrt(np.maximum(square - mean**2, 0)), "rms": np.sqrt(square)}
        for name, values in numbers.items():
            statistics[name + suffix] = dict(zip(split.spec.fields, values.tolist(), strict=True))
    return statistics


def read_statistics(folder: str | Path) -> Statistics:
    """The training split's statistics, as they are stored with it."""
    path = Path(folder) / "stats.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"no statistics at {path}: run `farfield generate` again, it makes only what is missing"
        )
    remedy = "run the same `farfield generate` again, which makes it anew"
    statistics, split = read_mapping(path, remedy), open_split(folder, "train")
    checksum = statistics.pop("checksum", None)
    for name in (kind + suffix for suffix in ("", "_delta") for kind in ("mean", "std", "rms")):
        numbers = statistics.get(name)
        for field in split.spec.fields:
            if not isinstance(numbers, dict) or not isinstance(numbers.get(field), float):
                raise ValueError(f"{path} is damaged, it has no {name} of {field}: {remedy}")
    if checksum is None:  # written before there were checksums: the data itself tells
        computed = compute_statistics(split)
        same = all(
            np.isclose(statistics[name][field], number, rtol=1e-4, atol=1e-9)
            for name, numbers in computed.items()
            for field, number in numbers.items()
        )
    else:
        same = checksum == statistics_checksum(statistics, split)
    if not same:
        raise ValueError(f"{path} does not belong to the data beside it, one of them was altered: {remedy}")
    return statistics


def described_statistics(statistics: Statistics, fields: Sequence[str]) -> Described:
    """Those of ``stats.yaml`` as a run has them."""
    return {
        kind: {moment: [statistics[moment + suffix][field] for field in fields] for moment in ("mean", "std")}
        for kind, suffix in (("states", ""), ("changes", "_delta"))
    }


def measured_statistics(source: Source) -> Described:
    """Mean and spread of what a network sees of a source: fields, their changes, inputs, parameters.

    Fields on a logarithmic scale are counted there. What never changes is refused: nothing can be learned of it.
    """
    spec = source.spec
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
    return {
        kind: {"mean": m.mean.tolist(), "std": np.where(m.std > 1e-9 * np.abs(m.mean), m.std, 1.0).tolist()}
        for kind, m in found.items()
    }


class Moments:
    """Mean and spread of channels, gathered piece by piece in float64 around the first piece's mean."""

    def __init__(self) -> None:
        self.count = 0
        self.shift = self.total = self.squares = np.zeros(0)

    def add(self, values: NDArray) -> None:
        """Values (..., C)."""
        rows = np.asarray(values, dtype=np.float64).reshape(int(np.prod(values.shape[:-1])), values.shape[-1])
        if self.count == 0:
            self.shift = rows.mean(0) if len(rows) else np.zeros(rows.shape[-1])
            self.total, self.squares = np.zeros_like(self.shift), np.zeros_like(self.shift)
        moved = rows - self.shift
        self.count += len(rows)
        self.total += moved.sum(0)
        self.squares += np.square(moved).sum(0)

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.shift + self.total / max(self.count, 1)

    @property
    def std(self) -> NDArray[np.float64]:
        mean = self.total / max(self.count, 1)
        return np.sqrt(np.maximum(self.squares / max(self.count, 1) - mean**2, 0))


def to_scale(values: NDArray, names: Sequence[str], spec: SampleSpec) -> NDArray:
    """Channels (..., C) as a network sees them before standardisation: the logarithm of those that ask for it."""
    logged = [i for i, name in enumerate(names) if name in spec.log]
    if not logged:
        return values
    scaled = np.array(values, dtype=np.float64)
    scaled[..., logged] = np.log(scaled[..., logged])
    return scaled


def write_statistics(folder: Path, statistics: Statistics, split: Split) -> None:
    """Store the training split's statistics, tied to it by a checksum."""
    written = {**statistics, "checksum": statistics_checksum(statistics, split)}
    atomic_write_text(folder / "stats.yaml", yaml.safe_dump(written, sort_keys=False))


def statistics_checksum(statistics: Statistics, split: Split) -> str:
    """Of the numbers and of what they are about: the split's description, shape, first and last simulation."""
    about = [statistics, split.spec.as_json(), split.provenance, len(split), split.states(0), split.domain.cells]
    ends = (split.grids(simulation).tobytes() for simulation in (0, len(split) - 1))
    return fingerprint(json.dumps(about, sort_keys=True).encode(), *ends)


@dataclass(frozen=True)
class Standardiser:
    """z = (x - mean) / std over the last axis, and its inverse x = mean + std z."""

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(0 < deviation < float("inf") for deviation in self.std):
            raise ValueError(
                f"expected one mean and one positive standard deviation per field, got {self.mean} and {self.std}: "
                "a field that never changes cannot be standardised"
            )

    def __call__(self, physical: Tensor) -> Tensor:
        return (physical - physical.new_tensor(self.mean)) / physical.new_tensor(self.std)

    def zero(self) -> tuple[float, ...]:
        """What zero becomes, per field."""
        return tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))

    def inverse(self, standardised: Tensor) -> Tensor:
        return standardised * standardised.new_tensor(self.std) + standardised.new_tensor(self.mean)
