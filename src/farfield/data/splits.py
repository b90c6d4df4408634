"""Which simulations are learned from, which choose the weights, and which judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

SPLITS = ("train", "validation", "test")
_ALIASES = {"valid": "validation", "val": "validation"}  # The Well says valid


def default_splits(simulations: int) -> dict[str, list[int]]:
    """80 / 10 / 10, drawn once and for all; at least one each where there are three."""
    order = np.random.default_rng(0).permutation(simulations).tolist()
    few = max(1, round(simulations / 10)) if simulations >= 3 else 0
    cuts = {"validation": order[:few], "test": order[few : 2 * few], "train": order[2 * few :]}
    return {name: sorted(cuts[name]) for name in SPLITS}


def splits_by_folder(paths: Sequence[Path]) -> dict[str, list[int]] | None:
    """Where every simulation's file lies in a folder named after a split, that split."""
    parents = [_ALIASES.get(path.parent.name, path.parent.name) for path in paths]
    if not {"train"} <= set(parents) <= set(SPLITS):
        return None
    return {name: [i for i, parent in enumerate(parents) if parent == name] for name in SPLITS}


def checked_splits(splits: Mapping[str, Sequence[int]], simulations: int) -> dict[str, list[int]]:
    """A user's splits: known names, simulations that are there, none in two of them."""
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
