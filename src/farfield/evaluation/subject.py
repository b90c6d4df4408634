"""What evaluation asks of a case: a trained model with its test data, measured scale by scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from numpy.typing import NDArray

from farfield.evaluation.rows import scale_order

Numbers = tuple[str, str, int, float, int]  # field, metric, horizon, value, samples: the end of a row
Pictures = Callable[[], dict[str, NDArray]]  # made when the clock has stopped
Advance = Callable[[float], None]  # is told how many predictions have been made since the last call


@dataclass(frozen=True)
class Amount:
    """How much is evaluated at a scale; None for all there is. A case takes from it what concerns it."""

    pairs: int | None = None
    """Pairs of successive states, drawn at random once."""
    rollouts: int | None = None
    """Simulations whose predictions are fed back."""
    cities: int | None = None
    """Cities of urban wind: the first ones."""
    draws: int = 10
    """Draws of points for each city; the paper's ten."""
    cells: int | None = None
    """Cells of each city that a draw predicts, chosen at random with its points."""

    def is_nothing(self) -> bool:
        """Whether a scale is left out."""
        return 0 in (self.pairs, self.cities)


class Subject(Protocol):
    """A run of one case, on its test data."""

    default_scales: tuple[str, ...]
    shown: tuple[str, ...]
    """Metrics whose numbers are told while it goes."""

    def open(self, scales: list[str]) -> None:
        """Find the data of these scales; what is not there is an error now, not after an hour."""

    def data(self, scale: str) -> str:
        """A fingerprint of a scale's data: numbers of other data are not kept."""

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        """The amount, resolved against what there is."""

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        """How many predictions that takes."""

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        """The numbers, and the arrays that pictures need."""


def in_order(scales: Iterable[str]) -> list[str]:
    """Scales as a user names them, each once, by their size."""

    def size(scale: str) -> tuple[float, ...]:
        try:
            return scale_order(scale)
        except ValueError:
            raise ValueError(f"expected scales like 1, 10 or 2x1, got {scale!r}") from None

    return sorted(dict.fromkeys(scales), key=size)
