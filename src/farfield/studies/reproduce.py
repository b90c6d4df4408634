"""The paper's experiments from one command: generate, train, evaluate, report."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from farfield.api import load
from farfield.evaluation.evaluate import Amount, evaluate
from farfield.problems import Problem, problem_named
from farfield.problems.problem import Preset
from farfield.report.page import write_report
from farfield.runs.config import RunConfig
from farfield.runs.run import Run, shipped_models
from farfield.training.loop import fit


@dataclass(frozen=True)
class Experiment:
    """The paper's experiment on one problem: which data, which runs, evaluated how far."""

    problem: Problem
    name: str
    """Of the preset."""
    preset: Preset
    data: Path
    dataset: Any
    """Settings of the data, as its generation takes them."""
    settings: Mapping[str, Any]
    """Changes to the preset's runs."""

    def run(self, encoding: str, seed: int) -> RunConfig:
        """The configuration of one of its runs."""
        return self.problem.run(self.name, encoding, str(self.data), seed).changed(self.settings)

    def amount(self, encoding: str, scale: str) -> Amount:
        """How much of a scale is evaluated with an encoding."""
        amount = self.preset.amounts.get(scale, Amount())
        return self.preset.dense_amounts.get(scale, amount) if encoding == "rope" else amount


def experiment(
    problem: str | Problem, preset: str, data: str | Path, settings: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment of a preset, from names as a user types them."""
    problem = problem_named(problem) if isinstance(problem, str) else problem
    chosen = problem.preset(preset)
    if problem.generation is None:
        raise ValueError(f"{problem.name} has no data of its own to repeat an experiment with")
    dataset = problem.generation.configure(preset, scales=chosen.data_scales)
    return Experiment(problem, preset, chosen, Path(data), dataset, settings or {})


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
        _check_same(experiment.problem, runs[name], config)
    todo = [name for name in configs if not is_trained(runs[name], configs[name])]
    unfinished = [name for name in configs if name in todo or not runs[name].evaluation_path.exists()]
    duration = _duration(experiment.preset.minutes * len(unfinished))
    console.print(
        f"[bold]{experiment.problem.name}, preset {experiment.name}[/]: train {', '.join(encodings)} "
        f"({len(configs)} runs, {len(configs) - len(todo)} already trained) on one domain size, then test them on "
        f"domains of {', '.join(experiment.preset.scales)} times that size.\n"
        f"Data in {experiment.data}, runs and report in {out}. "
        f"This takes about {duration} on two cores; Ctrl-C stops, and the same "
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
        fit(experiment.problem, configs[name], runs[name], resume=begun, accelerator=accelerator, console=console)
    for name, config in configs.items():
        _say(console, 4, f"evaluating {name}")
        for scale in experiment.preset.scales:
            amount = experiment.amount(config.encoding.name, scale)
            if amount.is_nothing():
                console.print(f"{name}, s = {scale}: left out, it would take hours here", highlight=False)
                continue
            evaluate(experiment.problem, runs[name], [scale], amount=amount, data=experiment.data, console=console)
    _say(console, 5, "report")
    shown = experiment.problem.shown
    # the report is this command's own: what it says is brought up to date
    return write_report([run.folder for run in runs.values()], out / "report", lambda name: shown, force=True)


def rehearse(experiment: Experiment, configs: Mapping[str, RunConfig], accelerator: str = "auto") -> None:
    """One step of training, one validation and one evaluation on the largest domain, for each run's configuration.

    What cannot work on this machine fails here, in seconds, and not at the end of the first long training.
    """
    quiet = Console(quiet=True)
    for name, config in configs.items():
        short = config.changed({"training.steps": 1, "training.validation_items": 1})
        scales = [scale for scale in experiment.preset.scales if not experiment.amount(name, scale).is_nothing()]
        with tempfile.TemporaryDirectory(prefix="farfield-rehearsal-") as folder:
            run = Run(Path(folder) / name)
            fit(experiment.problem, short, run, accelerator=accelerator, console=quiet)
            amount = Amount(samples=1, rollouts=0, draws=1, cells=1)
            evaluate(experiment.problem, run, scales[-1:], amount=amount, data=experiment.data, console=quiet)


def reproduce_stability(models: Sequence[str], preset: str, out: Path, *, console: Console | None = None) -> Path:
    """The experiments about precision, with these trained Gray-Scott models or the shipped ones; returns the page."""
    from farfield.studies.precision.experiments import evaluate_stability
    from farfield.studies.precision.page import write_stability_report

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
    generation = experiment.problem.generation
    if generation is not None and not generation.is_whole(experiment.data):
        generation.make(experiment.dataset, experiment.data, console=console)


def is_trained(run: Run, config: RunConfig) -> bool:
    """Whether a run has reached its last step, which is always validated."""
    if not run.state_path.exists():
        return False
    steps = config.training.total_steps(run.dataset()["items"]["train"])
    return any(row["step"] == steps for row in run.validations())


def _check_same(problem: Problem, run: Run, config: RunConfig) -> None:
    """A folder of the same name with other settings is not this experiment."""
    if run.config_path.exists() and problem.config(run) != config:
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
