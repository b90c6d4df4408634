"""The paper's experiments from one command: generate, train, evaluate, report."""

from __future__ import annotations

import csv
import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from farfield.datasets import generation
from farfield.datasets.urban_generation import UrbanPreset, generate_urban_wind
from farfield.datasets.urban_wind import INDEX_FILE
from farfield.evaluation.evaluate import evaluate
from farfield.evaluation.stability import evaluate_stability
from farfield.evaluation.subject import Amount
from farfield.models import load
from farfield.models.predictor import shipped_models
from farfield.recipes import Experiment
from farfield.report.page import write_report
from farfield.report.stability import write_stability_report
from farfield.training.config import RunConfig
from farfield.training.fit import fit
from farfield.training.runs import Run


def reproduce(
    experiment: Experiment,
    encodings: Sequence[str],
    seeds: Sequence[int],
    out: Path,
    *,
    accelerator: str = "auto",
    console: Console | None = None,
) -> Path:
    """Run an experiment into ``out`` (one folder per run, and ``report/``); returns the report's page."""
    console = console or Console()
    configs = {f"{name}-seed{seed}": experiment.run(name, seed) for seed in seeds for name in encodings}
    if not configs:
        raise ValueError("give at least one encoding and one seed")
    runs = {name: Run(out / name) for name in configs}
    for name, config in configs.items():
        _check_same(runs[name], config)
    todo = [name for name in configs if not is_trained(runs[name])]
    unfinished = [name for name in configs if name in todo or not (runs[name].folder / "evaluation.json").exists()]
    console.print(
        f"[bold]{experiment.case}, preset {experiment.preset}[/]: train {', '.join(encodings)} "
        f"({len(configs)} runs, {len(configs) - len(todo)} already trained) on one domain size, then test them on "
        f"domains of {', '.join(experiment.scales)} times that size.\n"
        f"Data in {experiment.data}, runs and report in {out}. "
        f"This takes about {_duration(experiment.minutes * len(unfinished))} on two cores; Ctrl-C stops, and the same "
        "command continues.",
        highlight=False,
    )
    _say(console, 1, f"data in {experiment.data}")
    _generate(experiment, console)
    if todo:
        _say(console, 2, "rehearsal: one step of training and one evaluation on the largest domain for every encoding")
        rehearse(experiment, {config.encoding.name: config for config in map(configs.get, todo) if config}, accelerator)
    for number, name in enumerate(todo, 1):
        _say(console, 3, f"training {name} ({number} of {len(todo)})")
        begun = runs[name].state_path.exists()
        fit(configs[name], runs[name], resume=begun, accelerator=accelerator, console=console)
    for name, config in configs.items():
        _say(console, 4, f"evaluating {name}")
        for scale in experiment.scales:
            amount = experiment.amount(config.encoding.name, scale)
            if amount.is_nothing():
                console.print(f"{name}, s = {scale}: left out, it would take hours here", highlight=False)
                continue
            evaluate(runs[name].folder, [scale], amount=amount, data=experiment.data, console=console)
    _say(console, 5, "report")
    return write_report([run.folder for run in runs.values()], out / "report")


def rehearse(experiment: Experiment, configs: Mapping[str, RunConfig], accelerator: str = "auto") -> None:
    """One step of training, one validation and one evaluation on the largest domain, for each run's configuration.

    What cannot work on this machine fails here, in seconds, and not at the end of the first long training.
    """
    quiet = Console(quiet=True)
    for name, config in configs.items():
        short = config.changed({"training.steps": 1, "training.validation_items": 1})
        scales = [scale for scale in experiment.scales if not experiment.amount(name, scale).is_nothing()]
        with tempfile.TemporaryDirectory(prefix="farfield-rehearsal-") as folder:
            fit(short, Run(Path(folder) / name), accelerator=accelerator, console=quiet)
            amount = Amount(pairs=1, rollouts=0, cities=1, draws=1, cells=1)
            evaluate(Path(folder) / name, scales[-1:], amount=amount, data=experiment.data, console=quiet)


def reproduce_stability(models: Sequence[str], preset: str, out: Path, *, console: Console | None = None) -> Path:
    """The experiments about precision, with these trained Gray-Scott models or the shipped ones; returns the page."""
    console = console or Console()
    chosen = list(models) or [name for name in shipped_models() if name in ("gray-scott-laspe", "gray-scott-laape")]
    if not chosen:
        console.print("no trained Gray-Scott model given or shipped: the parts that need one are left out")
    predictors = [load(name) for name in chosen]
    evaluate_stability(out, predictors, preset, lambda text: console.print(text, highlight=False))
    command = shlex.join(["farfield", "reproduce", "stability", "--preset", preset, *(f"--model={m}" for m in models)])
    return write_stability_report(out, out / "report", command)


def _generate(experiment: Experiment, console: Console) -> None:
    """Make the data, or what is missing of it."""
    dataset = experiment.dataset
    if isinstance(dataset, UrbanPreset):
        # written last, so all is there: OpenFOAM is not needed, and the data may be the published one
        if not (experiment.data / INDEX_FILE).exists():
            workers = os.cpu_count() or 1
            generate_urban_wind(experiment.data, dataset, workers, show_progress=console.is_terminal)
        return
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("generating", total=sum(map(dataset.work, dataset.splits.values())))
        generation.generate(dataset, experiment.data, report=lambda _, work: bars.advance(task, work))


def is_trained(run: Run) -> bool:
    """Whether a run has reached its last step, which is always validated."""
    if not run.validation_path.exists() or not run.state_path.exists():
        return False
    steps = run.config().training.total_steps(run.dataset()["items"]["train"])
    with run.validation_path.open(newline="", encoding="utf-8") as file:
        return any(row["step"] == str(steps) for row in csv.DictReader(file))


def _check_same(run: Run, config: RunConfig) -> None:
    """A folder of the same name with other settings is not this experiment."""
    if run.config_path.exists() and run.config() != config:
        raise ValueError(
            f"{run} holds a run with other settings than asked for now (see {run.config_path}): choose another --out, "
            "or delete it"
        )


def _say(console: Console, number: int, text: str) -> None:
    console.print(f"[bold]{number}/5[/] {text}", highlight=False)


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "a minute"
    for unit, size in (("days", 24 * 60), ("hours", 60)):
        if minutes >= 2 * size:
            return f"{minutes / size:.0f} {unit}"
    return f"{minutes:.0f} minutes"
