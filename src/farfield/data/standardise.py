"""Statistics of a training split, and the maps between physical and standardised values that follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from torch import Tensor

from farfield.data.the_well import Split, open_split

Statistics = dict[str, dict[str, float]]


def compute_statistics(split: Split, stride: int = 1) -> Statistics:
    """Mean, std, rms of each field over all states, and (``*_delta``) of its change over ``stride`` steps."""
    check_stride(split, stride)
    axes = (0, *range(2, 2 + split.domain.space_dim))
    moments = np.zeros((2, 2, len(split.spec.fields)))  # (state, change), (mean, mean of squares), field
    for simulation in range(split.simulations):
        states = split.read(simulation, slice(None)).astype(np.float64)
        for kind, values in enumerate((states, states[stride:] - states[:-stride])):
            moments[kind] += values.mean(axis=axes), (values**2).mean(axis=axes)
    moments /= split.simulations
    statistics: Statistics = {}
    for suffix, (mean, square) in zip(("", "_delta"), moments, strict=True):
        numbers = {"mean": mean, "std": np.sqrt(np.maximum(square - mean**2, 0)), "rms": np.sqrt(square)}
        for name, values in numbers.items():
            statistics[name + suffix] = dict(zip(split.spec.fields, values.tolist(), strict=True))
    return statistics


def check_stride(split: Split, stride: int) -> None:
    if not 1 <= stride < split.states:
        raise ValueError(f"expected a stride of 1 to {split.states - 1} saved steps in {split.path}, got {stride}")


def read_statistics(folder: str | Path, stride: int = 1) -> Statistics:
    """The training split's statistics: those of one saved step are stored, others are computed anew."""
    if stride != 1:
        return compute_statistics(open_split(folder, "train"), stride)
    path = Path(folder) / "stats.yaml"
    if not path.is_file():
        raise FileNotFoundError(
            f"no statistics at {path}: run `farfield generate` again, it makes only what is missing"
        )
    statistics: Statistics = yaml.safe_load(path.read_text(encoding="utf-8"))
    return statistics


@dataclass(frozen=True)
class Standardiser:
    """z = (x - mean) / std over the last axis, and its inverse x = mean + std z."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(0 < deviation < float("inf") for deviation in self.std):
            raise ValueError(
                f"expected one mean and one positive standard deviation per field, got {self.mean} and "
                f"{self.std}: "
                f"a field that never changes cannot be standardised"
            )

    @classmethod
    def of_states(cls, statistics: Statistics, fields: tuple[str, ...]) -> Standardiser:
        return cls(*(tuple(statistics[name][field] for field in fields) for name in ("mean", "std")))

    @classmethod
    def of_changes(cls, statistics: Statistics, fields: tuple[str, ...]) -> Standardiser:
        return cls(*(tuple(statistics[name][field] for field in fields) for name in ("mean_delta", "std_delta")))

    def __call__(self, physical: Tensor) -> Tensor:
        return (physical - physical.new_tensor(self.mean)) / physical.new_tensor(self.std)

    def zero(self) -> tuple[float, ...]:
        """What zero becomes, per field."""
        return tuple(-mean / std for mean, std in zip(self.mean, self.std, strict=True))

    def inverse(self, standardised: Tensor) -> Tensor:
        return standardised * standardised.new_tensor(self.std) + standardised.new_tensor(self.mean)
