"""Evaluation of a trained model on domains of rising size, whatever its case: scale by scale, resumable."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from farfield.evaluation.domain_extension import StepPairSubject
from farfield.evaluation.record import Record
from farfield.evaluation.rows import Row
from farfield.evaluation.subject import Amount, Numbers, Subject, in_order
from farfield.training.config import UrbanRun
from farfield.training.runs import Run


def evaluate(
    run_folder: str | Path,
    scales: Iterable[str] = (),
    *,
    amount: Amount = Amount(),
    data: str | Path | None = None,
    device: str | None = None,
    console: Console | None = None,
) -> list[Row]:
    """Evaluate a run at these scales (the paper's by default), skipping what is done.

    Returns all rows of ``RUN/evaluation.csv``.
    """
    run = Run(run_folder)
    config = run.config()
    subject = subject_of(run, data, device)
    chosen = in_order(scales or subject.default_scales)
    subject.open(chosen)
    record = Record.open(run, {scale: subject.data(scale) for scale in chosen})
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description:>8}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        wanted = {scale: subject.wanted(scale, amount) for scale in chosen}
        todo = [scale for scale in chosen if not record.has(scale, wanted[scale])]
        wanted = {scale: record.raised(scale, wanted[scale]) for scale in todo}
        for scale in todo:
            if subject.predictions(scale, wanted[scale]) == 0:
                raise ValueError(f"nothing to evaluate at s = {scale}: neither steps nor rollouts are asked for")
        tasks = {s: bars.add_task(f"s = {s}", total=subject.predictions(s, wanted[s])) for s in todo}
        for scale in todo:
            began, predicted = time.perf_counter(), 0.0

            def advance(predictions: float, task: Any = tasks[scale]) -> None:
                nonlocal predicted
                predicted += predictions
                bars.advance(task, predictions)

            found, pictures = subject.measure(scale, wanted[scale], advance)
            seconds = (time.perf_counter() - began) / predicted
            found.append(("", "seconds", 1, float(f"{seconds:.3g}"), round(predicted)))
            rows = [Row(config.case, config.encoding.name, config.seed, scale, *numbers) for numbers in found]
            record.add(scale, wanted[scale], rows, pictures())
            errors = ", ".join(_told(numbers) for numbers in found if numbers[1] in subject.shown)
            console.print(f"{config.encoding.name}, s = {scale}: {errors}", highlight=False)
    return record.rows


def subject_of(run: Run, data: str | Path | None = None, device: str | None = None) -> Subject:
    """The run as what is to be evaluated; ``data`` is the dataset's folder if not the one it was trained on."""
    config = run.config()
    folder = Path(data or config.dataset)
    if isinstance(config, UrbanRun):
        from farfield.evaluation.urban import UrbanSubject  # VTK, which the other cases need not wait for

        return UrbanSubject(run, folder, device)
    return StepPairSubject(run, folder, device)


def _told(numbers: Numbers) -> str:
    field, metric, _, value, _ = numbers
    where = {"l1_step": ""}.get(metric, f" ({metric.removeprefix('l1_')})")
    return f"{field}{where} {100 * value:.2f} %"
