"""Other networks on the same footing: the same data, loss, loop, evaluation and CPU time as one of our runs.

    unet    a plain U-Net: four levels of two convolutions 3 cells wide, GroupNorm, GELU
    fno     a Fourier neural operator of the package neuraloperator (pip install neuraloperator)

A peer is trained for as much CPU time as the run it is compared with takes, by ``training.train``: its settings but for
those that a peer cannot have. So a row differs from ours in the network alone. What a training step costs is measured
for all networks in one process, one after the other: the table says what each was given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from farfield.data.spec import SampleSpec
from farfield.evaluation.stepping import one_step_errors, test_splits
from farfield.models.tokens import apply_on_cells, grid_of
from farfield.prediction.stepping import Predictor
from farfield.runs.config import SteppingRun
from farfield.runs.run import Run
from farfield.training.budget import seconds_per_step
from farfield.training.loop import Task, computing_dtype, start_fabric, train
from farfield.training.tasks import generated_task

_CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
_TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
_POOL: dict[int, Callable[..., Tensor]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


class UNet(nn.Module):
    """Fields (B, in, n...) -> (B, out, n...); a domain that the pooling does not divide is filled up and cut again."""

    def __init__(self, in_features: int, out_features: int, space_dim: int, features: int = 24, levels: int = 4):
        super().__init__()
        self.space_dim, self.levels = space_dim, levels
        convolution, transposed = _CONVOLUTION[space_dim], _TRANSPOSED[space_dim]

        def block(inner: int, outer: int) -> nn.Sequential:
            layers: list[nn.Module] = []
            for size in (inner, outer):
                layers += [
                    convolution(size, outer, 3, padding=1, padding_mode="replicate"),
                    nn.GroupNorm(4, outer),
                    nn.GELU(),
                ]
            return nn.Sequential(*layers)

        sizes = [features * 2**level for level in range(levels)]
        self.down = nn.ModuleList(block(a, b) for a, b in zip([in_features, *sizes], sizes, strict=False))
        self.up = nn.ModuleList(transposed(b, a, 2, 2) for a, b in zip(sizes, sizes[1:], strict=False))  # noqa: RUF007
        self.merge = nn.ModuleList(block(2 * a, a) for a in sizes[:-1])
        self.out = convolution(features, out_features, 1)
        nn.init.zeros_(self.out.weight)

    def forward(self, x: Tensor) -> Tensor:
        cells = x.shape[2:]
        fill = [side for size in reversed(cells) for side in (0, -size % 2 ** (self.levels - 1))]
        if any(fill):
            x = F.pad(x, fill, mode="replicate")
        if self.space_dim == 2:
            x = x.contiguous(memory_format=torch.channels_last)
        kept = []
        for level, block in enumerate(self.down):
            x = block(x)
            if level < self.levels - 1:
                kept.append(x)
                x = _POOL[self.space_dim](x, 2)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(kept), strict=True):
            x = merge(torch.cat([up(x), skip], dim=1))
        x = self.out(x)
        for axis, size in enumerate(cells):
            x = x.narrow(axis + 2, 0, size)
        return x


def fourier_operator(in_features: int, out_features: int, space_dim: int) -> nn.Module:
    """neuraloperator's FNO, of about as many weights as ours."""
    try:
        from neuralop.models import FNO
    except ImportError:
        raise ValueError("the peer fno needs the package neuraloperator: pip install neuraloperator") from None
    modes, hidden = {1: (16, 64), 2: (16, 32), 3: (8, 16)}[space_dim]
    return FNO(
        n_modes=(modes,) * space_dim, in_channels=in_features, out_channels=out_features, hidden_channels=hidden,
        n_layers=4,
    )  # fmt: skip


PEERS: dict[str, Callable[[int, int, int], nn.Module]] = {"unet": UNet, "fno": fourier_operator}
# Fourier transforms have no half precision on CPUs, and Muon knows no complex matrices.
SETTINGS: dict[str, Mapping[str, Any]] = {
    "unet": {},
    "fno": {"training.optimiser": "adamw", "training.precision": "float32", "training.average": 0.0},
}


class OnPoints(nn.Module):
    """A network of grids as one of points: the interface of :class:`farfield.TransformerOperator`."""

    def __init__(self, network: nn.Module, spacing: Sequence[float]):
        super().__init__()
        self.network, self.spacing = network, tuple(spacing)

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """The tensors alone: neuraloperator's networks add what built them."""
        state = super().state_dict(*arguments, **options)
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        """(B, N, in), (N, P) -> (B, N, out)."""
        return apply_on_cells(self.network, features, *grid_of(positions, self.spacing))


def build_peer(name: str, spec: SampleSpec) -> OnPoints:
    """A peer with fresh weights."""
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}: expected one of {', '.join(PEERS)}")
    network = PEERS[name](spec.in_features, spec.out_features, spec.space_dim)
    return OnPoints(network, spec.normalised_spacing)


def train_peer(
    name: str, config: SteppingRun, run: Run, minutes: float | None, console: Console
) -> tuple[SteppingRun, float]:
    """Train a peer into a run's folder for so many minutes of CPU time, or continue it there.

    Without ``minutes``, for as long as ``config`` takes itself. Returns its settings, and the CPU time of a step.
    """
    whole, ours = generated_task(config), config
    config = config.changed(SETTINGS[name])
    torch.manual_seed(config.seed)
    task = replace(whole, model=build_peer(name, SampleSpec.model_validate(whole.dataset["spec"])))
    seconds = seconds_per_step(task, config.training, time.process_time)
    resume = run.state_path.exists()
    if resume:
        steps = int(run.settings()["training"]["steps"])
    else:
        given = training_seconds(whole, ours) if minutes is None else 60 * minutes
        steps = max(1, round(given / seconds))
    config = config.changed({"training.steps": steps})
    with run.begun(config, task.dataset, resume):
        fabric = start_fabric("cpu")
        train(task, config.training, config.seed, run, fabric, resume=resume, console=console)
    return config, seconds


def training_seconds(task: Task, config: SteppingRun) -> float:
    """CPU time of all training steps of a run."""
    steps = config.training.total_steps(len(task.training_data))  # type: ignore[arg-type]
    return steps * seconds_per_step(task, config.training, time.process_time)


def benchmark_peers(
    ours: Run,
    config: SteppingRun,
    data: Path,
    out: Path,
    *,
    peers: Sequence[str] = tuple(PEERS),
    minutes: float | None = None,
    scales: Sequence[str] = ("1", "3", "10"),
    pairs: Mapping[str, int] | None = None,
    console: Console,
) -> dict[str, Any]:
    """Train what is not trained yet, evaluate all on the same pairs, and return one entry per network."""
    own = f"ours, {config.encoding.name}"
    models: dict[str, Predictor] = {own: Predictor.load(ours, "cpu")}
    config = config.changed({"dataset": str(data)})
    took = {own: training_seconds(generated_task(config), config)}
    precision = {own: computing_dtype(config.training, torch.device("cpu"))}
    description = ours.dataset()
    for name in peers:
        run = Run(out / name)
        trained, seconds = train_peer(name, config, run, minutes, console)
        took[name] = seconds * int(trained.training.steps or 0)
        precision[name] = computing_dtype(trained.training, torch.device("cpu"))
        model = build_peer(name, SampleSpec.model_validate(description["spec"]))
        run.load_weights(model)
        models[name] = Predictor(model, run.dataset(), name)
    splits = test_splits(data, list(scales), ours)
    rows = []
    for name, predictor in models.items():
        weights = sum(p.numel() * (1 + p.is_complex()) for p in predictor.model.parameters())
        row: dict[str, Any] = {"network": name, "weights": weights, "minutes": took[name] / 60}
        for scale in scales:
            split = splits[scale]
            count = len(split) * (split.states(0) - 1)
            count = min(count, (pairs or {}).get(scale, count))
            began = time.process_time()
            dtype = precision[name]  # of its own training
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                found = list(one_step_errors(predictor, split, count, lambda _: None))
            seconds = (time.process_time() - began) / count
            errors = {field: value for field, metric, _, value, _ in found if metric == "l1_step"}
            row[scale] = {"pairs": count, "seconds": seconds, "l1": errors}
            console.print(f"{name}, s = {scale}: {errors}, {seconds:.3g} s per state", highlight=False)
        rows.append(row)
    return {"problem": config.problem, "scales": list(scales), "rows": rows}


def markdown(results: dict[str, Any]) -> str:
    """The table: errors by scale, and what a state costs."""
    scales = results["scales"]
    head = " | ".join(f"s = {scale} [%] | CPU s" for scale in scales)
    lines = [
        f"# {results['problem']}: peers",
        "",
        "Relative L1 error of one step, by field, and CPU seconds per predicted state, in the precision of the "
        "training. Training is steps times the CPU "
        "time of a step, measured for all networks beside one another. Pairs of states by scale: "
        + ", ".join(f"{results['rows'][0][scale]['pairs']} at s = {scale}" for scale in scales)
        + ".",
        "",
        f"| network | weights | training [CPU min] | {head} |",
        "|---|---|---|" + "---|---|" * len(scales),
    ]
    for row in results["rows"]:
        cells = []
        for scale in scales:
            entry = row[scale]
            cells += [" / ".join(f"{100 * e:.1f}" for e in entry["l1"].values()), f"{entry['seconds']:.2g}"]
        lines.append(f"| {row['network']} | {row['weights']:,} | {row['minutes']:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
