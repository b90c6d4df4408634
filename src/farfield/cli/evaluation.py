"""``farfield evaluate``, ``calibrate`` and ``reproduce``: how large errors are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from farfield.cli.words import console, listed, refuse_beside, require_at_least, require_files, say_next


def evaluate(
    run: Path = typer.Argument(help="A run's folder."),
    scales: str = typer.Option("", help="Domain sizes, e.g. `1 2 10`: times the training domain; the paper's if none."),
    limit: int | None = typer.Option(
        None, help="Per scale: pairs of states, drawn at random once, or cities of urban wind; all by default."
    ),
    rollouts: int | None = typer.Option(None, help="Simulations per scale to roll out; all by default, 0 for none."),
    draws: int = typer.Option(10, help="Urban wind: draws of points that each city is predicted from."),
    cells: int | None = typer.Option(
        None, help="Urban wind: cells that each draw predicts, chosen at random; all by default, which is slow."
    ),
    data: Path | None = typer.Option(
        None, help="Data to test on, if not the run's own: a dataset folder, or your own data at any size."
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
    precision: str = typer.Option("float32", help="float32, or bfloat16: faster where the processor has units for it."),
) -> None:
    """Measure a run's errors on domains of rising size: RUN/evaluation.csv.

    Over one step and over rollouts; of urban wind, in the square of buildings and in the wake.

    Example: `farfield evaluate runs/swe-quick-laape-seed0 --scales 1 2 3 7 10`

    Run it again to continue: a scale that is done is not done again.
    """
    require_files(run, data)
    from farfield.api import evaluate
    from farfield.evaluation.evaluate import Amount

    require_at_least(0, limit=limit, rollouts=rollouts)
    require_at_least(1, draws=draws, cells=cells)
    amount = Amount(limit, rollouts, draws, cells)
    options: dict[str, Any] = {"amount": amount, "device": device, "precision": precision}
    rows = evaluate(run, data, listed(scales), **options, console=Console(stderr=True))
    print(f"{run / 'evaluation.csv'}: {len(rows)} rows")
    say_next(f"farfield report {run}", "tables and figures")


def calibrate(
    run: str = typer.Argument(help="A run's folder, or a shipped model's name, of urban wind."),
    data: Path | None = typer.Option(
        None, help="Dataset folder whose validation cities are used.  [default: the run's]"
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
) -> None:
    """Measure how large a model's errors are on validation cities: predictions then say it beside every field.

    Example: `farfield calibrate runs/urban-columns-cpu-laape-seed0`
    """
    from farfield.problems import problem_of
    from farfield.runs.run import Run

    found = Run.find(run)
    print(problem_of(found).calibrate(found, data, device))
    say_next(f"farfield predict --model {run} --buildings FILE --roughness 0.3 --wind-direction 250 --out flow.vtu")


def reproduce(
    problem: str = typer.Argument(help="swe, gray-scott, urban-wind, urban-columns or stability."),
    preset: str = typer.Option("quick", help="quick: minutes, cpu: the best for two cores, paper: as published."),
    encodings: str | None = typer.Option(None, help="Encodings to compare.  [default: rope laspe laape]"),
    seeds: str | None = typer.Option(
        None, help="Training runs per encoding, e.g. `0 1 2`: the tables show mean and spread.  [default: 0]"
    ),
    out: Path | None = typer.Option(None, help="Folder of runs and report.  [default: runs/PROBLEM-PRESET]"),
    data: Path | None = typer.Option(None, help="Dataset folder.  [default: data/PROBLEM-PRESET]"),
    settings: list[str] = typer.Option([], "--set", help="A setting of the runs, e.g. training.steps=400; repeatable."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    models: list[str] = typer.Option(
        [], "--model", help="stability: trained Gray-Scott models, as run folders or shipped names; repeatable."
    ),
) -> None:
    """Repeat the paper's experiment: generate data, train, evaluate on larger domains, report.

    Example: `farfield reproduce swe --preset quick`

    `stability` shows where low precision breaks the encodings as published, and not here. It trains nothing:

    `farfield reproduce stability --model runs/gray-scott-cpu/laspe-seed0 --model runs/gray-scott-cpu/laape-seed0`

    Run it again to continue: what is done is not done again.
    """
    from farfield.runs.config import parse_settings
    from farfield.studies.reproduce import experiment, reproduce, reproduce_stability
    from farfield.training import Interrupted

    out = out or Path("runs") / f"{problem}-{preset}"
    if problem == "stability":  # a study, no problem
        refuse_beside("stability trains nothing", encodings=encodings, seeds=seeds, set=settings, data=data)
        page = reproduce_stability(models, preset, out, console=console)
        console.print(f"[bold]{page}[/]: open it in a browser; tables and figures are beside it")
        return
    refuse_beside(f"{problem} trains its own models", model=models)
    chosen_seeds = listed(seeds or "0")
    if not all(number.isdigit() for number in chosen_seeds):
        raise ValueError(f"--seeds expects whole numbers, e.g. 0 1 2, got {seeds!r}")
    plan = experiment(problem, preset, data or Path("data") / f"{problem}-{preset}", parse_settings(settings))
    try:
        chosen = listed(encodings or "rope laspe laape")
        page = reproduce(plan, chosen, list(map(int, chosen_seeds)), out, accelerator=accelerator, console=console)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}, or run the same command again") from None
    console.print(f"[bold]{page}[/]: open it in a browser; tables and figures are beside it")
    first = out / f"{chosen[-1]}-seed{chosen_seeds[0]}"
    say_next(f"farfield predict --model {first} --input FILE --out FILE", "of wind, --buildings FILE")
