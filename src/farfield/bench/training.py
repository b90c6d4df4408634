"""What a training step costs: the paper's model as farfield computes it, and written the plain way.

Plain means that the logits of all pairs are formed, the bias added and the softmax taken (``backend="reference"``).
Each variant runs in a process of its own, so that its peak memory is its own; the machine's speed in matrix products is
measured in the same process as the steps, so the fraction of it does not depend on what else the machine does.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from farfield.bench.attention import process_memory
from farfield.models import TransformerOperator
from farfield.models.config import EncodingConfig
from farfield.runs.config import TrainingConfig
from farfield.training.optimisers import build_optimisers

# name: points per axis, batch, features in (the fields, then a boundary flag per axis). Gray-Scott's 128 x 128 points
# need more than 100 GB the plain way, so a quarter of its domain is measured.
SETUPS: dict[str, tuple[tuple[int, ...], int, int]] = {
    "shallow water, 128 points, batch 32": ((128,), 32, 3),
    "Gray-Scott, 64 x 64 points, batch 1": ((64, 64), 1, 4),
}
VARIANTS = {"farfield": "auto", "plain": "reference"}
# torch counts the operations of its attention kernels for CUDA, not of those for CPU; the arguments are shapes.
CPU_KERNELS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, q, k, v, *_, **__: sdpa_backward_flop_count(gradient, q, k, v)
    ),
}


def benchmark_training(steps: int = 5) -> dict[str, Any]:
    """Measure every setup both ways; a minute or two."""
    return {
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "rows": [measure_alone(setup, variant, steps) for setup in SETUPS for variant in VARIANTS],
    }


def measure_alone(setup: str, variant: str, steps: int) -> dict[str, Any]:
    """``measure`` in a process of its own: a peak of memory that is its own, which no earlier work has passed."""
    command = [sys.executable, "-m", "farfield.bench.training", setup, variant, str(steps)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(setup: str, variant: str, steps: int) -> dict[str, Any]:
    """Median of ``steps`` training steps of the paper's model (LAAPE, Lion) after one to warm up."""
    cells, batch, in_features = SETUPS[setup]
    torch.manual_seed(0)
    model = TransformerOperator(
        in_features, 2, len(cells), encoding=EncodingConfig(name="laape").build(3, 64), backend=VARIANTS[variant]
    )
    optimisers = build_optimisers(model, TrainingConfig(epochs=1))
    grid = torch.meshgrid(*((torch.arange(n) + 0.5) * 1000 / 128 for n in cells), indexing="ij")
    positions = torch.stack([axis.flatten() for axis in grid], dim=-1)
    features = torch.randn(batch, len(positions), in_features)
    before = _peak_memory()

    def step() -> float:
        began = time.perf_counter()
        model(features, positions).square().mean().backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return time.perf_counter() - began

    with FlopCounterMode(display=False, custom_mapping=CPU_KERNELS) as counter:
        step()
    gemm, seconds = [], []
    for _ in range(steps):  # alternately: both see the same machine
        gemm.append(_gemm_speed())
        seconds.append(step())
    median, peak = statistics.median(seconds), statistics.median(gemm)
    return {
        "setup": setup,
        "variant": variant,
        "points_per_second": features.shape[0] * features.shape[1] / median,
        "seconds_per_step": median,
        "memory_megabytes": (_peak_memory() - before) / 1e6,
        "gflop_per_second": counter.get_total_flops() / median / 1e9,
        "gemm_gflop_per_second": peak / 1e9,
        "gemm_fraction": counter.get_total_flops() / median / peak,
    }


def _gemm_speed(size: int = 1024) -> float:
    """Operations per second in products of square float32 matrices."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    a @ b
    began = time.perf_counter()
    for _ in range(10):
        a @ b
    return 10 * 2 * size**3 / (time.perf_counter() - began)


def _peak_memory() -> float:
    """The largest resident size of this process so far, in bytes."""
    # not getrusage where it can be helped: Linux hands its figure down from the process that started this one
    other = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return process_memory("VmHWM") or other


def markdown(results: dict[str, Any]) -> str:
    """The figures as a table, with the ratios."""
    lines = [
        f"Training steps of the paper's model (width 192, depth 6, LAAPE, Lion), torch {results['torch']}, "
        f"{results['threads']} thread(s), float32.",
        "",
        "| setup | variant | points/s | ratio | memory [MB] | ratio | GFLOP/s | of the machine's GEMM |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = {row["setup"]: row for row in results["rows"] if row["variant"] == "plain"}
    for row in results["rows"]:
        base = plain[row["setup"]]
        lines.append(
            f"| {row['setup']} | {row['variant']} | {row['points_per_second']:,.0f} "
            f"| {row['points_per_second'] / base['points_per_second']:.2f} | {row['memory_megabytes']:,.0f} "
            f"| {row['memory_megabytes'] / base['memory_megabytes']:.2f} | {row['gflop_per_second']:.1f} "
            f"| {100 * row['gemm_fraction']:.0f} % |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
