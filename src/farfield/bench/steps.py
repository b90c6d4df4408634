"""What a predicted step costs: against our own solver on the same state, by the size of the domain.

Both begin with the same state and end with the one a saved step later. The solver is compiled and parallel, the
network runs on torch's threads; a first call of each is not counted. Seconds are wall time on the cores that the
process may use, and CPU time, which what else the machine does changes little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farfield.bench.attention import process_memory, reset_peak_memory
from farfield.evaluation.stepping import test_splits
from farfield.prediction.stepping import Predictor
from farfield.problems.generation import GridGeneration, read_config
from farfield.runs.run import Run


def benchmark_steps(
    predictor: Predictor,
    run: Run,
    generation: GridGeneration,
    data: Path,
    *,
    scales: Sequence[str] = ("1", "3", "10"),
    repeats: int = 3,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """One row per scale: seconds of network and solver, the network's peak memory, and its error on that state."""
    config = read_config(data / "dataset.yaml")
    rows = []
    for scale, split in test_splits(data, list(scales), run).items():
        time_of_state = split.states(0) // 2
        now, later = split.grids(0, slice(time_of_state, time_of_state + 2))
        fields = dict(zip(split.spec.fields, now, strict=True))
        reset_peak_memory()
        network, predicted = _fastest(lambda fields=fields: predictor.step(fields), repeats)  # type: ignore[misc]
        peak = process_memory("VmHWM")
        first = now[None].astype(np.float64)
        solver, _ = _fastest(
            lambda first=first, split=split: generation.solve(  # type: ignore[misc]
                first, split.domain, config.save_every, 2, time_step=config.time_step, **config.constants
            ),
            repeats,
        )
        change = later - now
        found = np.stack([predicted[name] for name in split.spec.fields]) - now
        axes = tuple(range(1, change.ndim))
        error = np.abs(found - change).sum(axes) / np.abs(change).sum(axes)
        row = {
            "scale": scale,
            "cells": list(split.domain.cells),
            "network": network,
            "solver": solver,
            "peak_bytes": peak,
            "l1": dict(zip(split.spec.fields, error.tolist(), strict=True)),
        }
        say(f"s = {scale}: network {network['wall']:.3g} s, solver {solver['wall']:.3g} s, {peak / 1e9:.2f} GB")
        rows.append(row)
    return {
        "problem": predictor.problem,
        "encoding": predictor.encoding,
        "threads": torch.get_num_threads(),
        "rows": rows,
    }


def _fastest(step: Callable[[], Any], repeats: int) -> tuple[dict[str, float], Any]:
    """Wall and CPU seconds of the fastest of some calls, after one that does not count; and what it returned."""
    result, best = step(), {"wall": float("inf"), "cpu": float("inf")}
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = step()
        best["wall"] = min(best["wall"], time.perf_counter() - wall)
        best["cpu"] = min(best["cpu"], time.process_time() - cpu)
    return best, result


def markdown(results: dict[str, Any]) -> str:
    """The table."""
    lines = [
        f"# {results['problem']}, {results['encoding']}: one saved step, {results['threads']} threads",
        "",
        "| s | cells | network [s] | solver [s] | solver / network | network, CPU [s] | peak memory [GB] | L1 [%] |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        network, solver = row["network"], row["solver"]
        cells = " x ".join(map(str, row["cells"]))
        errors = " / ".join(f"{100 * e:.1f}" for e in row["l1"].values())
        lines.append(
            f"| {row['scale']} | {cells} | {network['wall']:.3g} | {solver['wall']:.3g} | "
            f"{solver['wall'] / network['wall']:.2g} | {network['cpu']:.3g} | {row['peak_bytes'] / 1e9:.2f} | "
            f"{errors} |"
        )
    return "\n".join(lines) + "\n"
