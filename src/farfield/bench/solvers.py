"""How fast the solvers are: against NumPy, and against what this machine allows, all within one run.

Limits are measured, not looked up. *Arithmetic*: the same operations per cell on numbers that never leave a
core's first-level cache. *Bandwidth*: both fields of one simulation copied back and forth, as the two buffers
of a step are. The lower one binds. Timings of one round follow each other, and the best of several rounds
counts, so that other work on the machine disturbs the ratios little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np

from farfield.data.domain import Domain
from farfield.problems.gray_scott import solver as gray_scott
from farfield.problems.swe import solver as shallow_water

L1_CELLS = 512  # four arrays of this many float64 are half of a 32 KiB first-level cache


def benchmark_solvers(rounds: int = 5) -> dict[str, Any]:
    """Cell updates per second, ratios to NumPy and to the limits; plain data, for JSON."""
    steps = 500  # from one saved state to the next
    many = _gray_scott_speed(Domain((128, 128), (128.0, 128.0)), 32, steps, 4, rounds)
    large = _gray_scott_speed(Domain((1280, 1280), (1280.0, 1280.0)), 1, steps, 4, rounds)
    return {
        "machine": {"cpu": _cpu_name(), "cores": os.cpu_count(), "threads": numba.get_num_threads()},
        "rounds": rounds,
        "gray_scott": [many, large],
        "shallow_water": _shallow_water_speed(rounds),
    }


def markdown(results: dict[str, Any]) -> str:
    """The same figures as a small table."""
    machine = results["machine"]
    lines = [
        f"`farfield bench solvers` on {machine['cpu']}, {machine['threads']} threads, best of {results['rounds']}:",
        "",
        "| Gray-Scott | million cells/s | NumPy | times NumPy | arithmetic allows | bandwidth allows | limit / ours |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in results["gray_scott"]:
        speeds = ("ours", "numpy", "times_numpy", "arithmetic_limit", "bandwidth_limit", "limit_over_ours")
        ours, numpy, times, arithmetic, bandwidth, limit = (row[key] for key in speeds)
        lines.append(
            f"| {row['simulations']} x {row['cells'][0]} x {row['cells'][1]} | {ours:.0f} | {numpy:.0f} "
            f"| {times:.0f} "
            f"| {arithmetic:.0f} | {bandwidth:.0f} | {limit:.2f} ({row['bound_by']}) |"
        )
    water = results["shallow_water"]
    lines += [
        "",
        f"Shallow water, {water['simulations']} x {water['cells']}: {water['ours']:.0f} million cells/s.",
    ]
    for name, seconds in results.get("datasets", {}).items():
        lines.append(f"The paper's whole {name} dataset, every split, written: {seconds:.1f} s.")
    return "\n".join(lines) + "\n"


def _gray_scott_speed(domain: Domain, simulations: int, steps: int, numpy_steps: int, rounds: int) -> dict[str, Any]:
    """All speeds in million cell updates per second."""
    state = np.zeros((simulations, 2, *domain.cells))
    rng = np.random.default_rng(0)
    state[:, 0], state[:, 1] = 1, 0.3 * rng.random(state[:, 1].shape)
    coefficients = gray_scott.step_coefficients(domain)
    cells = simulations * int(np.prod(domain.cells))
    threads = numba.get_num_threads()
    small = np.full((threads, 4, L1_CELLS), 0.5)
    pair = np.ones((threads, 2, 2 * min(cells, gray_scott.TILE**2)))
    repeats = max(1, steps * cells // (threads * L1_CELLS))
    copies = max(2, steps * cells // (threads * pair.shape[-1] // 2))

    def numpy_steps_once() -> None:
        for one in state:
            advanced = one
            for _ in range(numpy_steps):
                advanced = gray_scott.reference_step(advanced, coefficients)

    seconds = _best_times(
        {
            "ours": lambda: gray_scott.advance(state, steps, coefficients),
            "numpy": numpy_steps_once,
            "arithmetic_limit": lambda: _arithmetic(small, repeats, coefficients),
            "bandwidth_limit": lambda: _copy(pair, copies),
        },
        rounds,
    )
    work = {
        "ours": steps * cells,
        "numpy": numpy_steps * cells,
        "arithmetic_limit": repeats * threads * L1_CELLS,
        "bandwidth_limit": copies * threads * pair.shape[-1] // 2,
    }
    speeds = {name: work[name] / seconds[name] / 1e6 for name in work}
    bound = min(("arithmetic_limit", "bandwidth_limit"), key=lambda name: speeds[name])
    return {
        "cells": list(domain.cells),
        "simulations": simulations,
        **speeds,
        "times_numpy": speeds["ours"] / speeds["numpy"],
        "bound_by": bound.removesuffix("_limit"),
        "limit_over_ours": speeds[bound] / speeds["ours"],
    }


def _shallow_water_speed(rounds: int) -> dict[str, Any]:
    domain, simulations, save_every, states = Domain((128,), (100.0,)), 400, 10, 11
    initial = np.zeros((simulations, 2, *domain.cells))
    initial[:, 1] = 1
    initial[:, 1, 40:60] = 1.05
    seconds = _best_times({"ours": lambda: shallow_water.solve(initial, domain, save_every, states)}, rounds)["ours"]
    updates = simulations * domain.cells[0] * save_every * (states - 1)
    return {"cells": domain.cells[0], "simulations": simulations, "ours": updates / seconds / 1e6}


def _best_times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()  # compile, and fault the memory in
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


@numba.njit(parallel=True, cache=True)
def _arithmetic(arrays: Any, repeats: int, coefficients: Any) -> None:
    for thread in numba.prange(len(arrays)):
        for _ in range(repeats):
            _arithmetic_step(arrays[thread, :2], arrays[thread, 2:], coefficients)


@numba.njit(cache=True, fastmath={"contract"})
def _arithmetic_step(old: Any, new: Any, coefficients: Any) -> None:
    """The operations of a Gray-Scott step, with constants in place of the neighbours."""
    ux, uy, vx, vy, dt, feed, loss = coefficients
    u, v, new_u, new_v = old[0], old[1], new[0], new[1]
    for j in range(u.size):
        uc, vc = u[j], v[j]
        reaction = dt * uc * (vc * vc)
        diffusion_u = ux * (ux + uc - 2 * uc) + uy * (uy + uc - 2 * uc)
        diffusion_v = vx * (vx + vc - 2 * vc) + vy * (vy + vc - 2 * vc)
        new_u[j] = uc + (diffusion_u + (feed * (1 - uc) - reaction))
        new_v[j] = vc + (diffusion_v + (reaction - loss * vc))


@numba.njit(parallel=True, cache=True)
def _copy(arrays: Any, repeats: int) -> None:
    for thread in numba.prange(len(arrays)):
        for k in range(repeats):
            _copy_array(arrays[thread, k % 2], arrays[thread, 1 - k % 2])


@numba.njit(cache=True)
def _copy_array(source: Any, target: Any) -> None:
    for j in range(source.size):
        target[j] = source[j]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        if info.exists()
        else []
    )
    return names[0] if names else "unknown CPU"
