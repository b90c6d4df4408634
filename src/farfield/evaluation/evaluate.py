"""Evaluation of a trained model on domains of rising size, whatever its problem: scale by scale, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from numpy.typing import NDArray
from rich.console import Console

from farfield.evaluation.rows import Record, Row, scale_order
from farfield.progress import Progress
from farfield.runs.run import Run
from farfield.runs.weights import Device, chosen_device

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset

Numbers = tuple[str, str, int, float, int]  # field, metric, horizon, value, samples: the end of a row
Pictures = Callable[[], dict[str, NDArray]]  # made when the clock has stopped
PRECISIONS = ("float32", "bfloat16")
Advance = Callable[[float], None]  # is told how many predictions have been made since the last call


@dataclass(frozen=True)
class Amount:
    """How much is evaluated at a scale; None for all there is. A problem takes from it what concerns it."""

    samples: int | None = None
    """Stepping: pairs of successive states, drawn at random once. Steady: simulations, the first ones."""
    rollouts: int | None = None
    """Stepping: simulations whose predictions are fed back."""
    draws: int = 10
    """Draws of the points that stand for a simulation, where a network sees some of them only; the paper's ten."""
    cells: int | None = None
    """Cells of each simulation that a draw predicts, chosen at random with its points."""

    def is_nothing(self) -> bool:
        """Whether a scale is left out."""
        return self.samples == 0


class Subject(Protocol):
    """A trained model with its test data, measured scale by scale: what evaluation asks of a problem."""

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


class Scored(Protocol):
    """What evaluation asks of a problem."""

    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        """A run and its test data, in the folder ``data`` or in that which it was trained on."""


def evaluate(
    problem: Scored,
    run: Run,
    scales: Iterable[str] = (),
    *,
    amount: Amount = Amount(),
    data: Dataset | str | Path | None = None,
    device: Device = None,
    precision: str = "float32",
    console: Console | None = None,
) -> list[Row]:
    """Evaluate a run at these scales (the paper's by default), skipping what is done.

    With ``precision`` "bfloat16" products are rounded as in training, which is faster where the processor has units for
    it; the command that is kept beside the rows says so.

    Returns all rows of ``RUN/evaluation.csv``.
    """
    rounded = _rounded(precision, device)
    subject = problem.subject(run, data, device)
    settings = run.settings()
    problem_name, encoding, seed = settings["problem"], settings["encoding"]["name"], settings["seed"]
    chosen = in_order(scales or subject.default_scales)
    subject.open(chosen)
    record = Record.open(run, {scale: subject.data(scale) for scale in chosen})
    console = console or Console(stderr=True)
    with Progress(console) as bars:
        wanted = {scale: subject.wanted(scale, amount) for scale in chosen}
        todo = [scale for scale in chosen if not record.has(scale, wanted[scale])]
        wanted = {scale: record.raised(scale, wanted[scale]) for scale in todo}
        for scale in todo:
            if subject.predictions(scale, wanted[scale]) == 0:
                raise ValueError(f"nothing to evaluate at s = {scale}: neither steps nor rollouts are asked for")
        tasks = {s: bars.add_task(f"s = {s:>3}", total=subject.predictions(s, wanted[s])) for s in todo}
        for scale in todo:
            began, predicted = time.perf_counter(), 0.0

            def advance(predictions: float, task: Any = tasks[scale]) -> None:
                nonlocal predicted
                predicted += predictions
                bars.advance(task, predictions)

            with rounded:
                found, pictures = subject.measure(scale, wanted[scale], advance)
            seconds = (time.perf_counter() - began) / predicted
            found.append(("", "seconds", 1, float(f"{seconds:.3g}"), round(predicted)))
            rows = [Row(problem_name, encoding, seed, scale, *numbers) for numbers in found]
            record.add(scale, wanted[scale], rows, pictures())
            errors = ", ".join(_told(numbers) for numbers in found if numbers[1] in subject.shown)
            console.print(f"{encoding}, s = {scale}: {errors}", highlight=False)
    return record.rows


def _rounded(precision: str, device: Device) -> torch.autocast:
    """Autocast in this precision, or none."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    return torch.autocast(chosen_device(device).type, torch.bfloat16, enabled=precision == "bfloat16")


def _told(numbers: Numbers) -> str:
    field, metric, _, value, _ = numbers
    where = {"l1_step": ""}.get(metric, f" ({metric.removeprefix('l1_')})")
    return f"{field}{where} {100 * value:.2f} %"
