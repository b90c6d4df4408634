"""``farfield bench``: speed and memory, always as ratios within one run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory, always as ratios within one run.")
console = Console()
Json = Annotated[
    Path | None, typer.Option("--json", help="Write the figures here, and a table (a picture, too) beside it.")
]


@bench.command("attention")
def bench_attention(
    json_file: Json = None,
    scales: Annotated[str, typer.Option(help="Domain sizes over the training domain's.")] = "1,2,4,10",
) -> None:
    """Time, memory and error of tiled attention against dense attention, on up to 1.6 million points (ten minutes).

    Example: `farfield bench attention --json benchmarks/attention.json`
    """
    import torch

    from farfield.bench.attention import benchmark_attention, draw, markdown
    from farfield.files import atomic_path

    with torch.no_grad():
        results = benchmark_attention(tuple(int(s) for s in scales.split(",")), console.print)
    _keep("attention", results, markdown, json_file)
    if json_file is not None:
        with atomic_path(json_file.with_suffix(".png")) as partial:
            draw(results, partial)


@bench.command("training")
def bench_training(
    json_file: Json = None,
    steps: Annotated[int, typer.Option(help="Training steps to take the median of.")] = 5,
) -> None:
    """Points per second and memory of the paper's model in training, against the plain way of writing attention.

    Example: `farfield bench training --json benchmarks/training.json`
    """
    from farfield.bench.training import benchmark_training, markdown

    results = benchmark_training(steps)
    _keep("training", results, markdown, json_file)


@bench.command("solvers")
def bench_solvers(
    json_file: Json = None,
    datasets: Annotated[bool, typer.Option(help="Also make the paper's whole datasets (6 GB, minutes).")] = False,
) -> None:
    """Speed of the solvers against NumPy and against what the machine allows.

    Example: `farfield bench solvers --json benchmarks/solvers.json`
    """
    import tempfile
    import time

    from farfield.bench.solvers import benchmark_solvers, markdown
    from farfield.problems import problem_named

    results = benchmark_solvers()
    for name in ("swe", "gray-scott") if datasets else ():
        generation = problem_named(name).generation
        assert generation is not None
        with tempfile.TemporaryDirectory(dir=".") as folder:
            start = time.perf_counter()
            generation.make(generation.configure("paper"), Path(folder) / name)
            results.setdefault("datasets", {})[name] = time.perf_counter() - start
    _keep("solvers", results, markdown, json_file)


@bench.command("inference")
def bench_inference(
    model: Annotated[str, typer.Option(help="A shipped name, or a run's folder.")],
    data: Annotated[Path, typer.Option(help="A dataset of `farfield generate` for its problem.")],
    json_file: Json = None,
    cases: Annotated[int, typer.Option(min=1, help="Test cities of each scale.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="Predictions of each: the fastest time, the mean error.")] = 3,
    solve: Annotated[bool, typer.Option(help="Run OpenFOAM beside it, instead of the recorded times.")] = False,
    finer: Annotated[bool, typer.Option(help="Also the first city on cells of half the size (OpenFOAM runs).")] = False,
    scales: Annotated[str, typer.Option(help="Sizes of the domain, e.g. `1 5`; all of the above if none.")] = "",
) -> None:
    """Time of a prediction against its solver's, with the error and by the size of the domain.

    Urban wind: against OpenFOAM for s = 1, 2, 5, every city and all of a size together, and dense against tiled
    attention. Problems of steps: against our own solver for s = 1, 3, 10, with the memory.

    Example: `farfield bench inference --model urban-wind-laape --data data/urban-wind --json benchmarks/inference.json`
    """
    from farfield.api import load
    from farfield.bench.inference import benchmark_inference, markdown
    from farfield.cli.words import listed
    from farfield.prediction.stepping import Predictor
    from farfield.problems import problem_of
    from farfield.problems.generation import GridGeneration
    from farfield.runs.run import Run

    run = Run.find(model)
    generation = problem_of(run).generation
    chosen: dict[str, Any] = {"scales": listed(scales)} if scales else {}
    if isinstance(generation, GridGeneration):
        from farfield.bench import steps

        measured = steps.benchmark_steps(
            Predictor.load(run, "cpu"), run, generation, data, repeats=repeats, say=console.print, **chosen
        )
        _keep("steps", measured, steps.markdown, json_file)
        return
    predictor = load(model, device="cpu")  # one core, as OpenFOAM
    results = benchmark_inference(
        predictor, data, cases=cases, repeats=repeats, solve=solve, finer=finer, say=console.print, **chosen
    )
    _keep("inference", results, markdown, json_file)


@bench.command("scaling")
def bench_scaling(
    json_file: Json = None,
    points: Annotated[int, typer.Option(min=64, help="Of strong scaling; weak scaling begins with fewer.")] = 262_144,
    processes: Annotated[str, typer.Option(help="Numbers of processes, one of them 1.")] = "1,2",
    decay_length: Annotated[float, typer.Option(help="Of LAAPE; the points lie 7.9 apart.")] = 25.0,
    parts: Annotated[
        str | None, typer.Option(help="Also one process that takes parts in turn: points/parts, e.g. `2000000/8`.")
    ] = None,
) -> None:
    """One domain over several processes of one thread each: speed-up, memory, what crosses the cuts.

    Example: `farfield bench scaling --parts 2000000/8 --json benchmarks/scaling.json`
    """
    from farfield.bench.scaling import benchmark_scaling, markdown

    counts = [int(n) for n in processes.split(",")]
    if 1 not in counts:
        raise ValueError(f"--processes needs a 1 to compare with, got {processes}")
    turns = None
    if parts is not None:
        total, slash, number = parts.partition("/")
        if not slash:
            raise ValueError(f"--parts expects points/parts, e.g. 2000000/8, got {parts}")
        turns = (int(float(total)), int(number))
    _keep("scaling", benchmark_scaling(points, counts, decay_length, turns, console.print), markdown, json_file)


@bench.command("peers")
def bench_peers(
    problem: Annotated[str, typer.Argument(help="gray-scott or swe.")],
    run: Annotated[Path, typer.Option(help="Our run, trained; its settings are the peers'.")],
    data: Annotated[Path, typer.Option(help="The dataset, with the scales to test on.")],
    out: Annotated[Path, typer.Option(help="Folder of the peers' runs; the same command continues them.")],
    minutes: Annotated[
        float | None,
        typer.Option(help="CPU minutes of training for each peer; what our run takes unless given."),
    ] = None,
    peers: Annotated[str, typer.Option(help="Which of them.")] = "unet,fno",
    scales: Annotated[str, typer.Option(help="Domain sizes over the training domain's.")] = "1,3,10",
    limit: Annotated[str | None, typer.Option(help="Pairs, one number for each scale; all unless given.")] = None,
    json_file: Json = None,
) -> None:
    """Other networks trained and evaluated by the same code for the same CPU time: a U-Net, and an FNO.

    Example: `farfield bench peers gray-scott --run runs/gray-scott/laape-seed0 --data data/gray-scott-cpu
    --out runs/peers --limit 1000,100,10 --json benchmarks/peers-gray-scott.json`
    """
    from farfield.bench.peers import benchmark_peers, markdown
    from farfield.problems import SteppingProblem, problem_named
    from farfield.runs.run import Run

    found = problem_named(problem)
    if not isinstance(found, SteppingProblem):
        raise ValueError(f"peers are for problems of steps on a grid, {problem} is none")
    config: Any = found.config(Run(run))
    chosen = scales.split(",")
    pairs = None if limit is None else _pairs(chosen, limit)
    results = benchmark_peers(
        Run(run), config, data, out, peers=peers.split(","), minutes=minutes, scales=chosen, pairs=pairs,
        console=console,
    )  # fmt: skip
    _keep("peers", results, markdown, json_file)


def _pairs(scales: list[str], limit: str) -> dict[str, int]:
    """How many pairs of states each scale is scored on, from numbers like "1000,100,10"."""
    numbers = limit.split(",")
    if len(numbers) != len(scales) or not all(n.strip().isdecimal() and int(n) > 0 for n in numbers):
        raise ValueError(f"--limit must be one number for each of the scales {','.join(scales)}, got {limit!r}")
    return {scale: int(number) for scale, number in zip(scales, numbers, strict=True)}


def _keep(name: str, results: dict[str, Any], markdown: Callable[[Any], str], json_file: Path | None) -> None:
    """Print the figures as a table, under what they show, and write them where asked."""
    from farfield.bench import LEADS
    from farfield.files import atomic_write_text

    page = f"{LEADS[name]}\n\n{markdown(results)}"
    if json_file is not None:
        atomic_write_text(json_file, json.dumps(results, indent=1) + "\n")
        atomic_write_text(json_file.with_suffix(".md"), page)
    print(page)
