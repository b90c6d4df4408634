"""The training loop: any model, any data, one loss; from top to bottom, no callbacks.

What makes a run repeatable, and its continuation exact: the order of the data follows from (seed, epoch), every
random number of a step from (seed, step, process), the rate from the step, and all else is in the checkpoint.
"""

from __future__ import annotations

import copy
import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only
from rich.console import Console
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from farfield.denormals import denormals_as_zero
from farfield.models.transformer_operator import TransformerOperator
from farfield.runs.config import RunConfig, TrainingConfig
from farfield.runs.run import Run
from farfield.runs.weights import fill, load_state, restore_optimisers, save_state, save_weights
from farfield.training import Interrupted
from farfield.training.domain import OverDomain, check_per_domain, domain_group
from farfield.training.optimisers import build_optimisers, learning_rate, update_average
from farfield.training.progress import Log, StopRequest


@dataclass(frozen=True)
class Task:
    """What the loop is told about a problem, and all that it knows of it."""

    model: nn.Module
    training_data: Dataset
    validation_data: Dataset
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean loss of a batch, as a scalar."""
    points: Callable[[Any], int]
    """The number of points in a batch, for the throughput."""
    dataset: dict[str, Any]
    """What the data is: kept in the run folder, and compared when the run is resumed."""
    collate: Callable[[list], Any] | None = None
    """Makes a batch of items; None for those that PyTorch knows how to stack."""


class Trainable(Protocol):
    """What training asks of a problem."""

    def task(self, config: Any) -> Task:
        """Model, data and loss of a run."""


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Diverged(RuntimeError):
    """The loss is no longer a number; the last checkpoint is untouched."""


def is_first_process() -> bool:
    """Whether this is the process that writes; known before the others are started, from the launcher's variables."""
    return rank_zero_only.rank == 0  # type: ignore[attr-defined]


def start_fabric(accelerator: str = "auto", devices: int = 1, nodes: int = 1) -> Fabric:
    """Set up the device and, with several, start the other processes (they run the same command).

    Fabric is not told the precision: it would round every input of the model to it, positions included. The loop
    runs the model under autocast instead, which touches the products alone (see :func:`computing_dtype`).
    """
    fabric = Fabric(
        accelerator=accelerator, devices=devices, num_nodes=nodes, strategy="ddp" if devices * nodes > 1 else "auto"
    )
    fabric.launch()
    return fabric


def computing_dtype(config: TrainingConfig, device: torch.device) -> torch.dtype:
    """The precision of matrix products: what the configuration says, or with ``auto`` the best for this device.

    The environment variable FARFIELD_PRECISION says what ``auto`` means, to try one machine's choice on another.
    """
    name: str = config.precision
    if name == "auto":
        name = os.environ.get("FARFIELD_PRECISION", "auto")
    if name == "auto":
        fast = torch.cuda.is_bf16_supported() if device.type == "cuda" else _cpu_has_bfloat16()
        name = "bfloat16" if fast else "float32"
    if name not in _DTYPES:
        raise ValueError(f"FARFIELD_PRECISION must be one of auto, {', '.join(_DTYPES)}, got {name!r}")
    return _DTYPES[name]


def fit(
    problem: Trainable,
    config: RunConfig,
    run: Run,
    *,
    resume: bool = False,
    minutes: float | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    per_domain: int = 1,
    console: Console | None = None,
) -> None:
    """Train what ``config`` says into the folder of ``run``, or continue it there.

    ``minutes`` decides the number of steps, from the speed that is measured here. ``per_domain`` processes share the
    points of every item (:mod:`farfield.training.domain`).
    """
    from farfield.training.budget import within

    task = problem.task(config)
    check_per_domain(task.model, devices * nodes, per_domain)
    check_sizes(task, config.training, devices * nodes // per_domain)  # before the folder holds anything
    if minutes is not None and is_first_process():
        config = within(minutes, task, config)
    # and that before the other processes start: they must not wait for one that has failed
    with run.begun(config, task.dataset, resume) if is_first_process() else nullcontext():
        fabric = start_fabric(accelerator, devices, nodes)
        training = fabric.broadcast(config.training)  # the first one's: only that has measured
        console = console or Console()
        train(task, training, config.seed, run, fabric, resume=resume, per_domain=per_domain, console=console)


def check_sizes(task: Task, config: TrainingConfig, processes: int) -> None:
    """Refuse batches that the data cannot fill or the processes cannot share, and data without validation items."""
    parts, items = config.accumulation * processes, len(task.training_data)  # type: ignore[arg-type]
    if config.batch_size % parts:
        raise ValueError(
            f"training.batch_size {config.batch_size} cannot be shared by {processes} processes with "
            f"{config.accumulation} part(s) each: choose a multiple of {parts}"
        )
    if items < config.batch_size:
        raise ValueError(f"the dataset has {items} training items, fewer than one batch of {config.batch_size}")
    if not len(task.validation_data):  # type: ignore[arg-type]
        raise ValueError("the dataset has no validation items, by which the best weights are chosen: add some")


@denormals_as_zero()  # with them, the backward pass of local attention takes four times as long
def train(
    task: Task,
    config: TrainingConfig,
    seed: int,
    run: Run,
    fabric: Fabric,
    *,
    resume: bool,
    console: Console,
    per_domain: int = 1,
) -> None:
    """Train ``task`` to the end, leaving everything in the run's folder.

    Raises ``Interrupted`` after SIGTERM or Ctrl-C (a checkpoint is saved first), ``Diverged`` where the loss stops
    being finite (the last checkpoint stays as it is).
    """
    main = fabric.is_global_zero
    dtype = computing_dtype(config, fabric.device)
    autocast = functools.partial(torch.autocast, fabric.device.type, dtype=dtype, enabled=dtype != torch.float32)
    scaler = torch.amp.GradScaler(fabric.device.type, enabled=dtype == torch.float16)
    items = len(task.training_data)  # type: ignore[arg-type]
    steps_per_epoch = items // config.batch_size
    steps = config.total_steps(items)

    optimisers = build_optimisers(task.model, config, dtype)
    model, *optimisers = fabric.setup(task.model, *optimisers)
    average = copy.deepcopy(task.model).requires_grad_(False) if config.average else task.model
    replica, replicas = fabric.global_rank // per_domain, fabric.world_size // per_domain
    learner, judge = model, average
    domain = domain_group(fabric.world_size, per_domain, fabric.device.type)
    if domain is not None:
        assert isinstance(task.model, TransformerOperator) and isinstance(average, TransformerOperator)
        learner, judge = OverDomain(model, task.model, domain), OverDomain(average, average, domain)

    first, best, seconds = 0, math.inf, 0.0
    if resume:
        state = load_state(run.state_path)
        if not 0 <= state["step"] <= steps:
            raise ValueError(
                f"{run.state_path} is at step {state['step']}, the run ends at step {steps}: config.yaml was altered "
                "since, or the checkpoint is another run's; restore it, or start a new run"
            )
        fill(task.model, state["model"], run.state_path)
        if config.average:
            fill(average, state.get("average") or {}, run.state_path)
        restore_optimisers(optimisers, state["optimisers"], run.state_path)
        scaler.load_state_dict(state.get("scaler", {}))
        first, best, seconds = state["step"], state["best"], state["seconds"]
        if first == steps and main:
            console.print(f"{run} is trained to its last step, {steps}: nothing to continue", highlight=False)

    trained_with = run.trained_with() if main else ""

    def save(step: int) -> None:
        if log is None:
            return
        log.sync()
        save_weights(run.last_path, average, trained_with)
        save_state(
            run.state_path,
            {
                "model": task.model.state_dict(),
                "average": average.state_dict() if config.average else None,
                "optimisers": [optimiser.state_dict() for optimiser in optimisers],
                "scaler": scaler.state_dict(),
                "step": step,
                "best": best,
                "seconds": seconds,
            },
        )

    batches = _batches(task, config, seed, first, steps, fabric, replica, replicas)
    held_out = _validation_groups(task.validation_data, config, replica, replicas)
    log = Log(run, first, steps, console) if main else None
    stop = StopRequest()
    if main:
        run.note_command(seed, str(dtype).removeprefix("torch."), fabric.world_size)
        if dtype == torch.bfloat16 and fabric.device.type == "cpu" and not _cpu_has_bfloat16():
            console.print(
                "This processor has no units for bfloat16 and emulates it far more slowly than float32: "
                "--set training.precision=float32 is faster here, and gives slightly other numbers.",
                highlight=False,
            )
    if not resume:
        save(0)
    started = time.perf_counter() - seconds
    try:
        for step in range(first, steps):
            began = time.perf_counter()
            torch.manual_seed(_seed_of(seed, step, replica))
            rate = learning_rate(step, steps, config)
            for optimiser in optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = rate
            total, points = torch.zeros((), device=fabric.device), 0
            for part in range(config.accumulation):
                batch = next(batches)
                with fabric.no_backward_sync(model, enabled=part < config.accumulation - 1):
                    with autocast():
                        loss = task.loss(learner, batch) / config.accumulation
                    fabric.backward(scaler.scale(loss))
                total, points = total + loss.detach(), points + task.points(batch)
            # one exchange per step: the mean loss, and whether any process was asked to stop
            shared = fabric.all_reduce(torch.stack([total, total.new_tensor(float(stop.requested))]), reduce_op="mean")
            loss_value, stopping = float(shared[0]), float(shared[1]) > 0
            for optimiser in optimisers:
                scaler.unscale_(optimiser)
            norm = nn.utils.clip_grad_norm_(task.model.parameters(), config.gradient_clip or math.inf)
            # in float16 a gradient that overflows is left out, and the next ones are scaled less
            overflow_allowed = scaler.is_enabled() and scaler.get_scale() > 1
            if not (math.isfinite(loss_value) and (math.isfinite(float(norm)) or overflow_allowed)):
                raise Diverged(
                    f"the loss is {loss_value} and the gradient's norm {float(norm)} at step {step + 1}: stopped. "
                    f"{run.last_path} holds the weights of the last checkpoint; a lower training.learning_rate or "
                    "training.gradient_clip may help"
                )
            for optimiser in optimisers:
                scaler.step(optimiser)
                optimiser.zero_grad(set_to_none=True)
            scaler.update()
            if config.average:
                update_average(average, task.model, config.average, step)

            done, now = step + 1, time.perf_counter()
            seconds = now - started
            speed = points * replicas / (now - began)
            if log:
                log.step(done, step // steps_per_epoch, loss_value, rate, speed, seconds)
            if done % config.validate_every == 0 or done == steps:
                judged = _validate(task, judge, held_out, fabric, autocast)
                seconds = time.perf_counter() - started
                if not math.isfinite(judged):
                    raise Diverged(
                        f"the validation loss is {judged} at step {done}: stopped, for no weights could be called the "
                        f"best. {run.last_path} holds those of the last checkpoint; a lower training.learning_rate or "
                        "training.gradient_clip may help"
                    )
                if judged < best:
                    best = judged
                    if main:
                        save_weights(run.best_path, average, trained_with)
                if log:
                    log.validation(done, step // steps_per_epoch, judged, best, seconds)
            if done % config.checkpoint_every == 0 or done == steps or stopping:
                save(done)
            if stopping and done < steps:
                fabric.barrier()  # the checkpoint is on disk before any process leaves
                if not main:
                    return
                raise Interrupted(f"stopped after step {done} of {steps}; continue with --resume {run}")
    finally:
        stop.close()
        if log:
            log.close()


def _batches(
    task: Task,
    config: TrainingConfig,
    seed: int,
    first: int,
    steps: int,
    fabric: Fabric,
    replica: int,
    replicas: int,
) -> Iterator[Any]:
    """This process' (parts of) batches from step ``first`` on.

    Items are made in this process, not by workers: random crops then follow from the step's seed, and a resumed run
    draws the same.
    """
    data = task.training_data
    order = _order(len(data), config, seed, first, steps, replica, replicas)  # type: ignore[arg-type]
    loader: DataLoader = DataLoader(data, batch_sampler=order, collate_fn=task.collate, generator=torch.Generator())
    return (fabric.to_device(batch) for batch in loader)


def _order(
    items: int, config: TrainingConfig, seed: int, first: int, steps: int, process: int, processes: int
) -> Iterator[list[int]]:
    """The items of each (part of a) batch: one permutation per epoch, whose incomplete last batch is left out."""
    share = config.batch_size // processes
    per_epoch = items // config.batch_size
    epoch, order = -1, torch.empty(0)
    for step in range(first, steps):
        if step // per_epoch != epoch:
            epoch = step // per_epoch
            order = torch.randperm(items, generator=torch.Generator().manual_seed(_seed_of(seed, epoch)))
        start = step % per_epoch * config.batch_size + process * share
        for part in order[start : start + share].chunk(config.accumulation):
            yield part.tolist()


def _seed_of(*numbers: int) -> int:
    """One seed from several numbers; neighbours give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _validation_groups(data: Dataset, config: TrainingConfig, replica: int, replicas: int) -> list[list[int]]:
    """This process' validation items, drawn once and for all, in batches."""
    items = len(data)  # type: ignore[arg-type]
    wanted = min(items, config.validation_items or items)
    drawn = torch.randperm(items, generator=torch.Generator().manual_seed(0))[:wanted].sort().values
    chosen = drawn[replica::replicas].tolist()
    size = config.batch_size // config.accumulation // replicas
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


@torch.no_grad()
def _validate(
    task: Task,
    model: nn.Module,
    groups: list[list[int]],
    fabric: Fabric,
    autocast: Callable[[], AbstractContextManager],
) -> float:
    """The mean loss over the validation items of all processes."""
    total = torch.zeros(2, dtype=torch.float64)
    loader: DataLoader = DataLoader(
        task.validation_data, batch_sampler=groups, collate_fn=task.collate, generator=torch.Generator()
    )
    for group, batch in zip(groups, loader, strict=True):
        with autocast():
            loss = float(task.loss(model, fabric.to_device(batch)))
        total += torch.tensor([loss * len(group), len(group)], dtype=torch.float64)
    loss_sum, count = fabric.all_reduce(total.to(fabric.device), reduce_op="sum")
    return float(loss_sum / count)


def _cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies in bfloat16; where it does not, bfloat16 is emulated and slower."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
