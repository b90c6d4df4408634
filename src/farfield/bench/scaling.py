"""One domain over several processes: how much faster, with how much memory, and what crosses the cuts.

Every process runs one thread on a core of its own (as far as there are cores) and predicts its part of a square of
random points once with the paper's model. *Strong*: the same points on more processes. *Weak*: as many points for each.
CPU seconds are those of the busiest process, from its first point to its last; wall seconds besides, which whatever
else the machine does lengthens. Memory is the largest resident size that a process ever had, Python and torch included.

*What should cross a cut.* Keys within R of a part are sent to it, R being the distance at which Phi has risen by the
plan's limit. A part of a x b of density n then receives n ((a + 2 R)(b + 2 R) - a b) keys, less what lies outside the
domain, 2 W numbers each, in every layer. The same formula, with nothing measured in it but R and W, extrapolates.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from farfield.attention import LAAPE, Group, InTurn, Processes, ShardedPlan
from farfield.attention.bisection import split_points
from farfield.attention.cloud import rising_reach
from farfield.bench.attention import SPACING, process_memory
from farfield.models.transformer_operator import TransformerOperator
from farfield.processes import joined, launch, place

WIDTH, DEPTH, HEADS = 192, 6, 3


class Counted(Processes):
    """A group that keeps the time its members spend in it, not on their points: what is not overlapped."""

    cpu = wall = 0.0

    def begin_exchange(
        self, rows: torch.Tensor, send: Sequence[int], receive: Sequence[int]
    ) -> tuple[torch.Tensor, Callable[[], None]]:
        out, finish = self._timed(lambda: super(Counted, self).begin_exchange(rows, send, receive))
        return out, lambda: self._timed(finish)

    def gather(self, value: Any) -> list[Any]:
        return self._timed(lambda: super(Counted, self).gather(value))

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        return self._timed(lambda: super(Counted, self).maximum(values))

    def _timed(self, together: Callable[[], Any]) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        try:
            return together()
        finally:
            self.cpu, self.wall = self.cpu + time.thread_time() - cpu, self.wall + time.perf_counter() - wall


def benchmark_scaling(
    points: int = 262_144,
    processes: Sequence[int] = (1, 2),
    decay_length: float = 25.0,
    parts: tuple[int, int] | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Strong and weak scaling; with ``parts`` = (points, parts) also one process that takes parts in turn."""
    rows: list[dict[str, Any]] = []
    for kind, share in (("strong", points), ("weak", points // max(processes))):
        for count in processes:
            total = share if kind == "strong" else share * count
            if known := next((r for r in rows if (r["points"], r["processes"]) == (total, count)), None):
                rows.append(known | {"kind": kind})
                continue
            say(f"{kind}: {total:,} points on {count} process{'es' * (count > 1)} ...")
            rows.append({"kind": kind, **_run(total, count, decay_length, DEPTH)})
    results: dict[str, Any] = {
        "torch": torch.__version__,
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "decay_length": decay_length,
        "spacing": SPACING,
        "rows": rows,
        "reach": reach(decay_length, max(row["limit"] for row in rows)),
    }
    if parts is not None:
        say(f"{parts[0]:,} points in {parts[1]} parts ...")
        results["in_turn"] = {"parts": parts[1], **_run(parts[0], 1, decay_length, DEPTH, parts[1])}
    return results


def reach(decay_length: float, limit: float) -> float:
    """How far from a part the keys lie that are sent to it."""
    encoding = LAAPE(decay_length)
    return float(rising_reach(encoding, 1, limit)[0])


def halo(sides: Sequence[float], reach: float, spacing: float, open_sides: float = 2.0) -> float:
    """Keys within ``reach`` of a box, of points so far apart; ``open_sides`` of each axis' two have neighbours."""
    grown = math.prod(side + open_sides * reach for side in sides)
    return (grown - math.prod(sides)) / spacing ** len(sides)


def _run(points: int, processes: int, decay_length: float, depth: int, parts: int = 0) -> dict[str, Any]:
    """The figures of one run, whose processes are started for it."""
    with tempfile.TemporaryDirectory() as folder:
        task = {"points": points, "decay_length": decay_length, "depth": depth, "parts": parts, "folder": folder}
        code = launch([sys.executable, "-m", "farfield.bench.scaling", json.dumps(task)], processes)
        if code:
            raise RuntimeError(f"{processes} processes on {points} points ended with the code {code}")
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    busiest = max(found, key=lambda one: one["cpu"])
    return {
        "points": points,
        "processes": processes,
        "cpu": busiest["cpu"],
        "plan_cpu": busiest["plan_cpu"],
        "wall": max(one["wall"] for one in found),
        "memory": max(one["memory"] for one in found),
        "exchange_cpu": max(one["exchange_cpu"] for one in found),
        "exchange_wall": max(one["exchange_wall"] for one in found),
        "received": max(one["received"] for one in found),
        "limit": busiest["limit"],
        "depth": depth,
    }


def _worker(task: dict[str, Any]) -> None:
    """One process of a run: its part of the domain, once through the network."""
    cores = sorted(os.sched_getaffinity(0))
    rank = (place() or (0, 1, 0))[0]
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    with joined() as plain, torch.no_grad():
        torch.manual_seed(0)
        points = task["points"]
        where = SPACING * math.sqrt(points) * torch.rand(points, 2)
        encoding = LAAPE(task["decay_length"])
        model = TransformerOperator(4, 2, 2, width=WIDTH, depth=task["depth"], heads=HEADS, encoding=encoding).eval()
        features = torch.randn(1, points, 4)
        group, size = Counted(), task["parts"] or plain.size
        cpu, wall = time.process_time(), time.perf_counter()
        parts = split_points(where, size, encoding) if size > 1 else [np.arange(points)]
        plan_cpu = [0.0]

        def member(group: Group) -> tuple[int, float]:
            mine = torch.from_numpy(parts[group.rank])
            here = where[mine]
            began = time.process_time()
            plan = model.plan(here, group=group if size > 1 else None)  # one process alone: as without a group
            plan_cpu[0] += time.process_time() - began
            out = model(features[:, mine], plan.cloud.query_positions, plan=plan)
            assert torch.isfinite(out).all()
            return (plan.received, plan.limit) if isinstance(plan, ShardedPlan) else (0, 0.0)

        if task["parts"]:
            with tempfile.TemporaryDirectory(dir=task["folder"]) as waiting:
                told = InTurn(task["parts"], waiting).run(member)
        else:
            told = [member(group)]
        found = {
            "cpu": time.process_time() - cpu,
            "plan_cpu": plan_cpu[0],
            "wall": time.perf_counter() - wall,
            "memory": process_memory("VmHWM"),
            "exchange_cpu": group.cpu,
            "exchange_wall": group.wall,
            "received": max(received for received, _ in told),
            "limit": max(limit for _, limit in told),
        }
        (Path(task["folder"]) / f"{rank}.json").write_text(json.dumps(found))


def markdown(results: dict[str, Any]) -> str:
    """The figures as tables; what is measured, then what is computed."""
    lines = [
        "# One domain over several processes",
        "",
        f"`farfield bench scaling`: the paper's model (width {WIDTH}, depth {DEPTH}, {HEADS} heads), LAAPE with decay "
        f"length {results['decay_length']:g} on random points {results['spacing']:.3g} apart, float32, torch "
        f"{results['torch']}; one thread per process, {results['cores']} cores ({results['processor']}).",
        "",
        "Measured:",
        "",
        "| scaling | points | processes | CPU [s], busiest | speed-up | wall [s] | memory [GB] | of one "
        "| plan, CPU [s] | exchange, CPU | exchange and waiting, wall | keys received per layer | by the formula |",
        "|---" * 13 + "|",
    ]
    for row in results["rows"]:
        one = next(r for r in results["rows"] if r["kind"] == row["kind"] and r["processes"] == 1)
        speedup = one["cpu"] / row["cpu"] * (row["points"] / one["points"])
        side = results["spacing"] * math.sqrt(row["points"])
        expected = 0.0
        if row["processes"] == 2:  # one cut: a neighbour on one of the four sides
            expected = results["reach"] * side / results["spacing"] ** 2
        lines.append(
            f"| {row['kind']} | {row['points']:,} | {row['processes']} | {row['cpu']:.1f} | {speedup:.2f} "
            f"| {row['wall']:.1f} | {row['memory'] / 1e9:.2f} | {row['memory'] / one['memory']:.2f} "
            f"| {row['plan_cpu']:.1f} | {100 * row['exchange_cpu'] / row['cpu']:.1f} % "
            f"| {100 * row['exchange_wall'] / row['wall']:.1f} % | {row['received']:,} "
            f"| {f'{expected:,.0f}' if expected else '-'} |"
        )
    if "in_turn" in results:
        row = results["in_turn"]
        lines += [
            "",
            f"{row['points']:,} points in {row['parts']} parts, one after the other in one process, {row['depth']} "
            f"layers: peak memory {row['memory'] / 1e9:.2f} GB, {row['cpu']:.0f} s of CPU, {row['wall']:.0f} s.",
        ]
    lines += ["", *_extrapolation(results)]
    return "\n".join(lines) + "\n"


def _extrapolation(results: dict[str, Any]) -> list[str]:
    """Computed, not measured: what 64 devices would exchange."""
    lines = [
        "Computed from the formula with the measured reach "
        f"({results['reach']:.0f} units, {results['reach'] / results['spacing']:.0f} spacings), for 100 million points "
        "and bfloat16 or float32 keys and values; no machine of this size was at hand:",
        "",
        "| axes | devices | points each | keys received each | of its own | MB per layer, float32 | bfloat16 |",
        "|---|---|---|---|---|---|---|",
    ]
    for axes, devices in ((2, 8), (2, 64), (3, 64)):
        points = 100e6 / devices
        side = results["spacing"] * points ** (1 / axes)
        received = halo([side] * axes, results["reach"], results["spacing"])
        megabytes = received * 2 * WIDTH * 4 / 1e6
        lines.append(
            f"| {axes} | {devices} | {points / 1e6:.1f} M | {received / 1e6:.2f} M | {100 * received / points:.0f} % "
            f"| {megabytes:,.0f} | {megabytes / 2:,.0f} |"
        )
    return lines


if __name__ == "__main__":
    _worker(json.loads(sys.argv[1]))
