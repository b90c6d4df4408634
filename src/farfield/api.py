"""From names and folders to problems: what ``import farfield`` offers, and what the command line calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast, get_args

from rich.console import Console

from farfield.data.dataset import Dataset
from farfield.data.opening import open_dataset
from farfield.evaluation.evaluate import Amount
from farfield.evaluation.evaluate import evaluate as evaluate_problem
from farfield.evaluation.rows import Row
from farfield.extras import naming_extras
from farfield.models.config import EncodingName
from farfield.problems import PROBLEMS, Problem, problem_named, problem_of
from farfield.problems.own import default_run, own_problem
from farfield.report.saved import Presentation
from farfield.runs.config import RunConfig
from farfield.runs.run import Run
from farfield.runs.weights import Device


@naming_extras()
def load(name_or_run: str | Path, *, device: Device = None) -> Any:
    """Load a shipped model by name, or the best weights of a run; its problem decides what it can do.

    A run is a folder, or ``hf://owner/name`` (``@revision``) on the Hugging Face hub, with the extra ``hub``.
    ``load("swe-laape").step({"v": v, "h": h}, positions)``, ``load("urban-wind-laape").predict("city.stl", ...)``;
    ``device`` is CUDA where there is one, unless given.
    """
    run = Run.find(name_or_run)
    return problem_of(run).predictor(run, device)


@naming_extras()
def train(
    data: Dataset | str | Path,
    *,
    out: str | Path,
    encoding: str = "laape",
    minutes: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    per_domain: int = 1,
    console: Console | None = None,
) -> Run:
    """Train a model on a user's own data into the folder ``out``; returns the run.

    Args:
        data: a dataset, or the folder of one (see :func:`open_dataset`). One in memory is saved to ``out/data`` first.
        encoding: rope, laspe, laape, flashbias, alibi or window.
        minutes: how long it may take here; the number of steps follows from the measured speed, and is written into
            the run's config.yaml, so that a repetition is exact.
        settings: changes by name, e.g. ``{"model.width": 96, "encoding.decay_length": 120.0}``.
        devices, nodes, per_domain: processes per machine, machines, and how many processes share each domain.
    """
    run = Run(out)
    run.check_new()
    if encoding not in get_args(EncodingName):
        raise ValueError(f"unknown encoding {encoding!r}: expected one of {', '.join(get_args(EncodingName))}")
    opened, folder = _on_disk(data, run)
    if opened.spec.problem in PROBLEMS:
        raise ValueError(
            f"{opened.spec.problem} is a built-in problem: give your data another name (dataset.yaml: problem)"
        )
    config = default_run(opened, str(folder), cast(EncodingName, encoding), seed, settings)
    launched: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "nodes": nodes}
    launched |= {"per_domain": per_domain, "console": console}
    return fit(own_problem(opened.spec, opened), config, run, minutes=minutes, **launched)


@naming_extras()
def finetune(
    run_folder: str | Path,
    data: Dataset | str | Path,
    *,
    out: str | Path,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    per_domain: int = 1,
    console: Console | None = None,
) -> Run:
    """Continue from a run's best weights on a few (larger) simulations, with a part of its old data mixed in.

    The rate is a tenth of the run's. Both sizes are evaluated before and after: ``RUN/finetune.csv``.
    """
    base, run = Run.find(run_folder), Run(out)
    run.check_new()
    problem = problem_of(base)
    config = problem.config(base)
    if problem.name in PROBLEMS or problem.spec is None:
        raise ValueError(f"{base} is a run of the built-in problem {problem.name}: fine-tuning is for own data")
    opened = data if isinstance(data, Dataset) else open_dataset(data, like=problem.spec)
    problem.spec.require_same(opened.spec, str(base))
    opened, folder = _on_disk(opened, run, whole=True)
    rate = config.training.learning_rate / 10
    changes = {
        "dataset": str(folder), "starts_from": str(base.folder.resolve()), "training.learning_rate": rate,
        "training.final_learning_rate": min(config.training.final_learning_rate, rate),
    }  # fmt: skip
    config = config.changed({**changes, **(settings or {})})
    launched: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "nodes": nodes}
    launched |= {"per_domain": per_domain, "console": console}
    return fit(own_problem(problem.spec, opened), config, run, minutes=minutes, **launched)


def fit(problem: Problem, config: RunConfig, run: Run, **launched: Any) -> Run:
    """Train a run to its end, or continue it there, with all that belongs to its end."""
    from farfield.training.loop import fit, is_first_process

    fit(problem, config, run, **launched)
    if is_first_process():
        problem.trained(run, config)
    return run


def evaluate(
    run_folder: str | Path,
    data: Dataset | str | Path | None = None,
    scales: Iterable[str] = (),
    *,
    amount: Amount = Amount(),
    device: Device = None,
    precision: str = "float32",
    console: Console | None = None,
) -> list[Row]:
    """Measure a run's errors: on its test data, on domains of rising size, or on any other dataset of its kind.

    Built-in problems are tested at ``scales``, times the size of the training domain; a run on own data on its own
    test simulations, or on all of ``data``, whose scale follows from its extent. What is done is not done again.

    Returns all rows of ``RUN/evaluation.csv``.
    """
    run = Run(run_folder)
    options: dict[str, Any] = {"amount": amount, "data": data, "device": device, "precision": precision}
    return evaluate_problem(problem_of(run), run, scales, **options, console=console)


@naming_extras()
def push(run_folder: str | Path, address: str, *, private: bool = False) -> str:
    """Publish a run on the Hugging Face hub, with a model card made from its provenance; returns its address.

    ``push("runs/mine", "hf://owner/name")``, then anybody's ``load("hf://owner/name")``.
    """
    from farfield.report.model_card import push

    return push(run_folder, address, private=private)


@naming_extras()
def report(runs: Iterable[str | Path], out: str | Path, *, force: bool = False) -> Path:
    """Tables, figures and one HTML page of evaluated runs, from their saved files only; returns the page's path.

    Files that exist are overwritten with ``force`` only.
    """
    from farfield.report.page import write_report

    def shown(problem: str) -> Presentation:
        return problem_named(problem).shown if problem in PROBLEMS else Presentation(problem)

    return write_report(runs, out, shown, force)


def _on_disk(data: Dataset | str | Path, run: Run, whole: bool = False) -> tuple[Dataset, Path]:
    """A dataset and its folder; one that is in memory only is saved beside the run, which must be repeatable."""
    opened = data if isinstance(data, Dataset) else open_dataset(data)
    opened.check(whole=whole)
    if opened.folder is None:
        with run.writing():
            run.check_new()
            opened.save(run.folder / "data")
        return opened, run.folder / "data"
    return opened, opened.folder
