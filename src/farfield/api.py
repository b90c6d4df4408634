"""From names and folders to problems: what ``import farfield`` offers, and what the command line calls."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from farfield.evaluation.evaluate import Amount
from farfield.evaluation.evaluate import evaluate as evaluate_problem
from farfield.evaluation.rows import Row
from farfield.problems import PROBLEMS, problem_named, problem_of
from farfield.report.saved import Presentation
from farfield.runs.run import Run
from farfield.runs.weights import Device


def load(name_or_run: str | Path, *, device: Device = None) -> Any:
    """Load a shipped model by name, or the best weights of a run's folder; its problem decides what it can do.

    ``load("swe-laape").step({"v": v, "h": h}, positions)``, ``load("urban-wind-laape").predict("city.stl", ...)``;
    ``device`` is CUDA where there is one, unless given.
    """
    run = Run.find(name_or_run)
    return problem_of(run).predictor(run, device)


def evaluate(
    run_folder: str | Path,
    scales: Iterable[str] = (),
    *,
    amount: Amount = Amount(),
    data: str | Path | None = None,
    device: Device = None,
    console: Console | None = None,
) -> list[Row]:
    """Measure a run's errors on domains of rising size (the paper's by default), skipping what is done.

    Returns all rows of ``RUN/evaluation.csv``.
    """
    run = Run(run_folder)
    return evaluate_problem(problem_of(run), run, scales, amount=amount, data=data, device=device, console=console)


def report(runs: Iterable[str | Path], out: str | Path) -> Path:
    """Tables, figures and one HTML page of evaluated runs, from their saved files only; returns the page's path."""
    from farfield.report.page import write_report

    return write_report(runs, out, lambda name: problem_named(name).shown if name in PROBLEMS else Presentation(name))
