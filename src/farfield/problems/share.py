"""A dataset made by several jobs: which simulations are whose, and where they wait until all are there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PARTS = ".parts"  # the folder, within a dataset's, of what jobs have made of it


@dataclass(frozen=True)
class Share:
    """Part ``part`` of ``parts`` (1 to parts), or all of it; ``merge`` only joins what the parts have made."""

    part: int | None = None
    parts: int = 1
    merge: bool = False

    @classmethod
    def parse(cls, part: str | None, merge: bool) -> Share:
        """From what a user types: ``--part 2/8``, ``--merge``."""
        if part is None:
            return cls(merge=merge)
        numbers = part.split("/")
        if merge or len(numbers) != 2 or not all(n.strip().isdigit() for n in numbers):
            raise ValueError(f"expected --part i/n, e.g. 2/8 for the second of eight jobs, or --merge; got {part!r}")
        number, parts = map(int, numbers)
        if not 1 <= number <= parts:
            raise ValueError(f"expected a part from 1/{parts} to {parts}/{parts}, got {part}")
        return cls(number, parts)

    def __str__(self) -> str:
        return "all of it" if self.part is None else f"part {self.part} of {self.parts} is there"

    def merging(self) -> Share:
        """What joins all parts."""
        return replace(self, part=None, merge=True)

    def of(self, count: int) -> range:
        """This part's of so many simulations."""
        part = self.part or 1
        return range((part - 1) * count // self.parts, part * count // self.parts)

    def path(self, out: Path, name: str, part: int | None = None) -> Path:
        """Where a part of a split waits."""
        return out / PARTS / str(self.parts) / f"{part or self.part}-{name}.npy"

    def complete(self, out: Path, name: str) -> bool:
        return all(self.path(out, name, part).exists() for part in range(1, self.parts + 1))

    def solved(self, out: Path, name: str) -> Iterator[NDArray[np.float32]]:
        """A split's simulations, part by part; refuses while parts are missing."""
        begun = sorted((out / PARTS).glob(f"*/*-{name}.npy"))
        numbers = [self.parts] if self.parts > 1 else sorted({int(path.parent.name) for path in begun})
        whole = [n for n in numbers if replace(self, parts=n).complete(out, name)]
        if not whole:
            of = max(numbers, default=self.parts)
            missing = [p for p in range(1, of + 1) if not replace(self, parts=of).path(out, name, p).exists()]
            listed = ", ".join(f"--part {p}/{of}" for p in missing)
            raise ValueError(f"{out} is not complete: split {name} still needs {listed if begun else 'all its parts'}")
        chosen = replace(self, parts=whole[0])
        return (np.load(chosen.path(out, name, part), mmap_mode="r") for part in range(1, chosen.parts + 1))


WHOLE = Share()
