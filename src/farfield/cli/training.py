"""``farfield train`` and ``finetune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from farfield.cli.words import console, refuse_beside, require_files, say_next


def train(
    problem: str | None = typer.Argument(
        None,
        metavar="PROBLEM|DATA",
        help="swe, gray-scott, urban-wind, urban-columns, or a folder of your own data (`farfield check`).",
    ),
    encoding: str | None = typer.Option(
        None, help="rope, laspe, laape; on grids: flashbias, alibi, window; urban-columns: none.  [default: laape]"
    ),
    preset: str | None = typer.Option(None, help="Built-in problems: quick, cpu or paper.  [default: cpu]"),
    minutes: float | None = typer.Option(
        None, help="Own data: how long training may take here; decides the number of steps.", min=0.01
    ),
    data: Path | None = typer.Option(None, help="Dataset folder.  [default: data/PROBLEM-PRESET]"),
    out: Path | None = typer.Option(None, help="Run folder.  [default: runs/PROBLEM-PRESET-ENCODING-seedN]"),
    seed: int | None = typer.Option(None, help="Decides initial weights and order of the data.  [default: 0]"),
    settings: list[str] = typer.Option([], "--set", help="A setting of the run, e.g. model.width=96; repeatable."),
    config: Path | None = typer.Option(None, help="Repeat a run: its config.yaml, instead of PROBLEM and --preset."),
    resume: Path | None = typer.Option(None, help="Continue the run in this folder, to exactly the same losses."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    devices: int = typer.Option(1, min=1, help="Processes on this machine, one per GPU."),
    nodes: int = typer.Option(
        1, min=1, help="Machines; start the same command on each (torchrun and SLURM are understood)."
    ),
    per_domain: int = typer.Option(
        1, min=1, help="So many of the processes share each domain, for those that fit no single device."
    ),
) -> None:
    """Train one model on a dataset. Ctrl-C saves and leaves; --resume continues.

    Examples:

    `farfield train swe --encoding laape --preset quick`

    `farfield train swe --set training.optimiser=muon --set training.steps=2000 --out runs/muon`

    `farfield train --resume runs/muon`

    `farfield train data/mine --minutes 20 --out runs/mine`
    """
    require_files(data, config, resume, Path(problem) if problem and len(Path(problem).parts) > 1 else None)
    from farfield import api
    from farfield.problems import PROBLEMS, problem_for, problem_named, problem_of
    from farfield.runs.config import parse_settings, read_settings
    from farfield.runs.run import Run
    from farfield.training.loop import is_first_process

    launched: dict[str, Any] = {"accelerator": accelerator, "devices": devices, "nodes": nodes}
    launched |= {"per_domain": per_domain, "console": console}
    if problem is not None and problem not in PROBLEMS and Path(problem).exists():
        refuse_beside("own data has no presets", preset=preset, data=data)
        out = out or Path("runs") / f"{Path(problem).resolve().stem}-{encoding or 'laape'}-seed{seed or 0}"
        launched |= {"encoding": encoding or "laape", "minutes": minutes, "seed": seed or 0}
        api.train(problem, out=out, settings=parse_settings(settings), **launched)
        if is_first_process():
            say_next(f"farfield evaluate {out}", "or with --data LARGE, on larger domains")
        return
    refuse_beside("the built-in problems' presets say their steps", minutes=minutes)
    if sum(source is not None for source in (problem, config, resume)) != 1:
        raise ValueError(
            "give one of: a problem (swe, gray-scott, urban-wind, urban-columns), --config FILE, --resume RUN"
        )
    if problem is None:
        refuse_beside("a run's configuration is in its config.yaml", encoding=encoding, preset=preset, seed=seed)
    if resume is not None:
        refuse_beside("--resume continues a run as it was begun", set=settings, out=out)
        run = Run(resume)
        chosen = problem_of(run)
        run_config = chosen.config(run)
    elif config is not None:
        values = read_settings(config)
        chosen = problem_for(values)
        run_config = chosen.run_type.parse(values, str(config)).changed(parse_settings(settings))
        run = Run(out or Path("runs") / config.resolve().parent.name)
    else:
        assert problem is not None
        preset, chosen = preset or "cpu", problem_named(problem)
        folder = str(data or Path("data") / f"{problem}-{preset}")
        run_config = chosen.run(preset, encoding or "laape", folder, seed or 0).changed(parse_settings(settings))
        run = Run(out or Path("runs") / f"{problem}-{preset}-{run_config.encoding.name}-seed{run_config.seed}")
    if data is not None:
        run_config = run_config.changed({"dataset": str(data)})
    api.fit(chosen, run_config, run, resume=resume is not None, **launched)
    if is_first_process():
        say_next(f"farfield evaluate {run} --scales 1 2 3")


def finetune(
    run: Path = typer.Argument(help="A run on your own data."),
    data: Path = typer.Option(help="A few (larger) simulations of the same kind; all of them are trained on."),
    out: Path = typer.Option(help="Folder of the new run."),
    minutes: float | None = typer.Option(
        None, help="How long it may take here; the run's own steps unless given.", min=0.01
    ),
    settings: list[str] = typer.Option([], "--set", help="A setting of the run, e.g. old_share=0.3; repeatable."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    devices: int = typer.Option(1, min=1, help="Processes on this machine, one per GPU."),
    nodes: int = typer.Option(1, min=1, help="Machines; start the same command on each."),
    per_domain: int = typer.Option(
        1, min=1, help="So many of the processes share each domain, for those that fit no single device."
    ),
) -> None:
    """Continue a run on a few large simulations, with a part of its old data mixed in; errors before and after.

    Example: `farfield finetune runs/mine --data data/few-large --minutes 10 --out runs/mine-large`
    """
    import csv

    require_files(run, data)
    from farfield import api
    from farfield.runs.config import parse_settings
    from farfield.training.loop import is_first_process

    done = api.finetune(
        run,
        data,
        out=out,
        minutes=minutes,
        settings=parse_settings(settings),
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        per_domain=per_domain,
        console=console,
    )
    if not is_first_process():
        return
    with done.finetune_path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] in ("l1", "l1_step"):
                print(f"{row['stage']:>6}, s = {row['scale']}: {row['field']} {100 * float(row['value']):.2f} %")
    say_next(f"farfield predict --model {out} --input FILE --out FILE")
