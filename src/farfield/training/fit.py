"""Train what a configuration says: the one door to the loop for every case."""

from __future__ import annotations

from rich.console import Console

from farfield.training.academic import step_pair_task
from farfield.training.config import AcademicRun, RunConfig, UrbanRun
from farfield.training.loop import Task, computing_dtype, is_first_process, start_fabric, train
from farfield.training.runs import Run


def fit(
    config: RunConfig,
    run: Run,
    *,
    resume: bool = False,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    console: Console | None = None,
) -> None:
    """Train what ``config`` says into the folder of ``run``, or continue it there."""
    task = task_of(config)
    if is_first_process():  # before the other processes start: they must not wait for one that has failed
        if resume:
            run.reopen(task.dataset)
        else:
            run.create(config, task.dataset)
    fabric = start_fabric(accelerator, devices, nodes)
    if fabric.is_global_zero:
        dtype = computing_dtype(config.training, fabric.device)
        run.note_command(config.seed, str(dtype).removeprefix("torch."), fabric.world_size)
    train(task, config.training, config.seed, run, fabric, resume=resume, console=console or Console())


def task_of(config: RunConfig) -> Task:
    """Model, data and loss of a run."""
    if isinstance(config, UrbanRun):
        from farfield.training.urban import urban_task  # VTK, which the other cases need not wait for

        return urban_task(config)
    assert isinstance(config, AcademicRun)
    return step_pair_task(config)
