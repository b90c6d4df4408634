"""What tiled attention costs and how exact it is, beside dense attention, in one run.

The cloud is the paper's Gray-Scott grid with jitter, in shuffled order: spacing 1000 / 127, decay length 250, 3 heads
of 64, on domains s times as wide as the training domain. Dense attention would take hours on the larger ones, so it is
timed on some queries against all keys, and what a further query costs is scaled up; so is tiled attention where all
tiles would take long (every tile is independent work). The plan is always built whole. Seconds are those of the
processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from farfield.attention.functional import local_attention, plan_attention
from farfield.attention.locality import LAAPE, LASPE, Encoding
from farfield.attention.plan import AttentionPlan

HEADS, HEAD_DIM, DECAY_LENGTH, SPACING = 3, 64, 250.0, 1000 / 127
TOLERANCE = 1e-4
# Query-key pairs per head that one timing may take: about ten seconds of one core, several times what it takes to
# prepare the keys of the largest domain.
MOST_PAIRS = 2_000_000_000
DENSE_PAIRS = 200_000_000
# Pairs of which the weights are looked at one by one, to tell how few would do, and parts of 256 queries at most.
LOOKED_AT, PARTS = 1 << 28, 16


def jittered_cloud(scale: int, seed: int = 0) -> Tensor:
    """(128 s)^2 points in shuffled order, moved from their grid places by up to a quarter of the spacing."""
    generator = torch.Generator().manual_seed(seed)
    side = torch.arange(128 * scale)
    points = torch.stack(torch.meshgrid(side, side, indexing="ij"), dim=-1).reshape(-1, 2).double()
    points += 0.5 * (torch.rand(points.shape, generator=generator, dtype=torch.float64) - 0.5)
    return (SPACING * points[torch.randperm(len(points), generator=generator)]).float()


def graded_cloud(points: int, seed: int = 0) -> Tensor:
    """3D points like a CFD mesh around buildings in normalised units: spacing grows away from the walls and upward."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(12, 3, generator=generator) * torch.tensor([220.0, 420.0, 0.0]) + torch.tensor(
        [210.0, 290.0, 0.0]
    )
    around = centres[torch.randint(12, (points,), generator=generator)]
    reach = torch.tensor([600.0, 600.0, 800.0]) * torch.rand(points, 1, generator=generator) ** 2.5
    offset = torch.randn(points, 3, generator=generator) * reach / 2
    moved = around + offset
    moved[:, 2] = moved[:, 2].abs()
    return moved.clamp(0, 1000)


def benchmark_attention(scales: tuple[int, ...] = (1, 2, 4, 10), say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure every scale with LAAPE and LASPE, gradients, large logits, and points in 3D."""
    rows = []
    with torch.no_grad():  # numba compiles what will be timed, and torch warms up
        q, k, v = _random(256)
        local_attention(q, k, v, jittered_cloud(1)[:256], encoding=LAAPE(DECAY_LENGTH), backend="tiled")
    for scale in scales:
        for encoding in (LAAPE(DECAY_LENGTH), LASPE(DECAY_LENGTH)):
            say(f"s = {scale}, {type(encoding).__name__} ...")
            rows.append(_measure(scale, encoding))
            say(json.dumps(rows[-1]))  # what a stopped run has measured is not lost
    say("gradients, large logits, 3D ...")
    return {
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[2], 1),
        "cores": os.cpu_count(),
        "tolerance": TOLERANCE,
        "rows": rows,
        "gradients": [_gradients(e) for e in (LAAPE(DECAY_LENGTH), LASPE(DECAY_LENGTH))],
        "large_logits": [_large_logits(e) for e in (LAAPE(DECAY_LENGTH), LASPE(DECAY_LENGTH))],
        "graded_3d": _graded(),
    }


def _measure(scale: int, encoding: Encoding) -> dict[str, Any]:
    points = jittered_cloud(scale)
    q, k, v = _random(len(points))
    reset_peak_memory()
    before = process_memory()
    start = time.process_time()
    plan = _planned(points, encoding=encoding)
    plan_seconds = time.process_time() - start
    chosen, some = _sample(plan, MOST_PAIRS)
    whole = len(chosen) == len(points)
    where = points[chosen]

    def run(
        queries: slice, backend: str, plan: AttentionPlan | None, certify: bool = True, values: Tensor = v
    ) -> Tensor:
        near = q[:, :, chosen[queries]]
        return local_attention(
            near, k, values, where[queries], points, encoding=encoding, backend=backend, plan=plan, certify=certify
        )

    tiled, tiled_seconds = _timed(lambda: run(slice(None), "tiled", some))
    memory, read, sounded = _peak() - before, some.pairs_read, some.pairs_sounded
    _, estimated_seconds = _timed(lambda: run(slice(None), "tiled", some, certify=False))
    estimated_read, certified_seconds = some.pairs_read, tiled_seconds
    if not whole:  # rotating and sorting all keys is done once, however many queries there are
        few, few_plan = _sample(plan, 1)

        def prepared() -> Tensor:
            return local_attention(q[:, :, few], k, v, points[few], points, encoding=encoding, plan=few_plan)

        once = min(_timed(prepared)[1] for _ in range(2))
        tiled_seconds = once + (tiled_seconds - once) * (len(points) - len(few)) / (len(chosen) - len(few))
    # likewise for dense attention: what further queries cost, in calls large enough for the kernel's best speed
    most = min(len(chosen), 1024 + max(1024, DENSE_PAIRS // len(points)))
    dense, first = _timed(lambda: run(slice(0, 1024), "dense", None))
    _, second = _timed(lambda: run(slice(0, most), "dense", None))
    sizes = run(slice(0, 1024), "dense", None, values=v.norm(dim=-1, keepdim=True))
    dense_seconds = first + (second - first) * (len(points) - 1024) / (most - 1024)
    pairs = read * len(points) / len(chosen)
    return {
        "scale": scale,
        "points": len(points),
        "encoding": type(encoding).__name__,
        "plan_seconds": plan_seconds,
        "tiled_seconds": tiled_seconds,
        "tiled_queries_measured": len(chosen),
        "dense_seconds": dense_seconds,
        "dense_queries_measured": most,
        "speed_up": dense_seconds / (tiled_seconds + plan_seconds),
        "error": _error(tiled[:, :, :1024], dense),
        "error_over_tolerance": _over_tolerance(tiled[:, :, :1024], dense, sizes),
        "pairs_over_all": pairs / len(points) ** 2,
        "sounded_over_all": sounded / len(chosen) / len(points),
        **_least_pairs(plan, q, k, v, points, encoding),
        "certified_over_estimated_pairs": read / estimated_read,
        "certified_over_estimated_seconds": certified_seconds / estimated_seconds,
        "cost_per_pair_read": (tiled_seconds / pairs) / (dense_seconds / len(points) ** 2),
        "cost_per_pair": tiled_seconds / (pairs * (1 + sounded / read)) / (dense_seconds / len(points) ** 2),
        "microseconds_per_point": 1e6 * tiled_seconds / len(points),
        "plan_over_forward": plan_seconds / tiled_seconds,
        # the buffers of a sample are smaller than those of the whole; only whole runs tell the memory
        "bytes_per_point": memory / len(points) if whole else None,
    }


@torch.no_grad()
def _least_pairs(
    plan: AttentionPlan, q: Tensor, k: Tensor, v: Tensor, points: Tensor, encoding: Encoding
) -> dict[str, float | None]:
    """The least that can be read for the tolerance's sake, over all pairs, by who knows every weight beforehand.

    What is left out, sum p_j (|v_j| + |o|), must not exceed tolerance V (see the certificate). Each query chooses
    keys of its own, or four neighbours leave out tiles of 64 keys together, as the compiled kernel does. Of one head,
    for some queries; None where not even four parts of 256 can be looked at.
    """
    rows, out = 256, {"least_by_query": [], "least_by_tiles": []}  # type: ignore[var-annotated]
    parts = min(PARTS, LOOKED_AT // (rows * len(points)))
    if parts < 4:
        return dict.fromkeys(out)
    keys = plan.keys.order
    where, k, v = points[keys], encoding.rotate(k[0, :1, keys], points[keys])[0], v[0, 0, keys]
    size, owner = v.norm(dim=-1), torch.repeat_interleave(torch.arange(len(plan.keys)), plan.keys.count())
    firsts = torch.randperm(len(points) // rows, generator=torch.Generator().manual_seed(1))[:parts] * rows
    for first in firsts.tolist():
        some = plan.queries.order[first : first + rows]
        logits = encoding.rotate(q[0, :1, some], points[some])[0] @ k.T / HEAD_DIM**0.5
        for n, place in enumerate(points[some]):
            logits[n] -= encoding.penalty(place - where)
        weights = torch.softmax(logits, -1)
        left_out = weights * (size + (weights @ v).norm(dim=-1, keepdim=True)) / (TOLERANCE * (weights @ size)[:, None])
        alone = left_out[::8].sort(dim=-1).values.cumsum(-1)
        out["least_by_query"].append(float((alone > 1).double().mean()))
        tiles = left_out.new_zeros(len(some), len(plan.keys)).index_add_(1, owner, left_out)
        tiles = tiles[: len(some) // 4 * 4].unflatten(0, (-1, 4))
        lightest = tiles.amax(1, keepdim=True).argsort(-1).expand_as(tiles)
        together = tiles.gather(-1, lightest).cumsum(-1).amax(1)
        out["least_by_tiles"].append(float((together > 1).double().mean()))
    return {name: sum(shares) / len(shares) for name, shares in out.items()}


def _gradients(encoding: Encoding) -> dict[str, Any]:
    """Forward and backward of some tiles at s = 2 against dense forward and backward of as many queries."""
    points = jittered_cloud(2)
    q, k, v = _random(len(points))
    chosen, some = _sample(_planned(points, encoding=encoding), MOST_PAIRS // 20)
    q = q[:, :, chosen]

    def run(backend: str) -> list[Tensor]:
        with torch.enable_grad():
            q_leaf, k_leaf, v_leaf = leaves = [t.detach().requires_grad_() for t in (q, k, v)]
            plan = some if backend == "tiled" else None
            out = local_attention(
                q_leaf, k_leaf, v_leaf, points[chosen], points, encoding=encoding, backend=backend, plan=plan
            )
            return list(torch.autograd.grad(out.square().sum(), leaves))

    tiled, tiled_seconds = _timed(lambda: run("tiled"))
    dense, dense_seconds = _timed(lambda: run("dense"))
    share = some.pairs_read / (len(chosen) * len(points))
    return {
        "encoding": type(encoding).__name__,
        "queries": len(chosen),
        "cost_per_pair": tiled_seconds / share / dense_seconds,
        "errors": {name: _error(a, b) for name, a, b in zip("qkv", tiled, dense, strict=True)},
    }


def _large_logits(encoding: Encoding) -> dict[str, Any]:
    """The error with q and k scaled by 4, so that single logits decide."""
    points = jittered_cloud(2)
    q, k, v = _random(len(points))
    chosen, some = _sample(_planned(points, encoding=encoding), MOST_PAIRS // 40)
    with torch.no_grad():
        results = [
            local_attention(
                4 * q[:, :, chosen], 4 * k, v, points[chosen], points, encoding=encoding, backend=backend,
                plan=some if backend == "tiled" else None,
            )
            for backend in ("tiled", "dense")
        ]  # fmt: skip
    return {"encoding": type(encoding).__name__, "queries": len(chosen), "error": _error(*results)}


def _graded() -> dict[str, Any]:
    """200 k points of a graded 3D cloud read from 8 k anchors."""
    points = graded_cloud(200_000)
    anchors = points[:8192]  # the cloud is in random order
    encoding = LAAPE(decay_length_plus=[111.0, 250.0, 500.0], decay_length_minus=[111.0, 250.0, 500.0])
    q = _random(len(points))[0]
    k, v = _random(len(anchors), seed=1)[:2]
    start = time.process_time()
    plan = _planned(points, anchors, encoding=encoding)
    plan_seconds = time.process_time() - start

    def run(backend: str) -> Tensor:
        given = plan if backend == "tiled" else None
        return local_attention(q, k, v, points, anchors, encoding=encoding, backend=backend, plan=given)

    tiled, tiled_seconds = _timed(lambda: run("tiled"))
    dense, dense_seconds = _timed(lambda: run("dense"))
    return {
        "points": len(points),
        "anchors": len(anchors),
        "keys_per_query": plan.pairs_read / len(points),
        "error": _error(tiled, dense),
        "speed_up": dense_seconds / (tiled_seconds + plan_seconds),
    }


def _random(points: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, HEADS, points, HEAD_DIM, generator=generator) for _ in range(3)]


def _error(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


def _over_tolerance(result: Tensor, expected: Tensor, sizes: Tensor) -> float:
    """The largest error of a query over what the certificate allows it, by the sizes of values it attends to."""
    return float(((result - expected).norm(dim=-1, keepdim=True) / (TOLERANCE * sizes)).max())


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = run()
    return result, time.process_time() - start


def _planned(*positions: Tensor, encoding: Encoding) -> AttentionPlan:
    plan = plan_attention(*positions, encoding=encoding, tolerance=TOLERANCE)
    assert isinstance(plan, AttentionPlan)
    return plan


def _sample(plan: AttentionPlan, most_pairs: int) -> tuple[Tensor, AttentionPlan]:
    """Some query tiles of a plan, drawn at random: which points they hold, and the plan for just these, in that order.

    Evenly spaced ones would be those of the corners, which read less than others.
    """
    keep = max(1, round(len(plan.queries) * min(1.0, most_pairs / plan.pairs())))
    drawn = torch.randperm(len(plan.queries), generator=torch.Generator().manual_seed(0))[:keep]
    return plan.only(drawn.sort().values)


def process_memory(field: str = "VmRSS") -> int:
    """Bytes of this process, on Linux; 0 elsewhere."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


def reset_peak_memory() -> None:
    if Path("/proc/self/clear_refs").exists():
        Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    return process_memory("VmHWM")


def markdown(results: dict[str, Any]) -> str:
    """The figures as tables."""
    columns = [
        "s", "points", "encoding", "plan [s]", "tiled [s]", "dense [s]", "speed-up", "error", "worst query / tolerance",
        "pairs read / all", "sounded", "least by tiles", "least by query", "cost per pair / dense", "per pair read",
        "certified / estimated: pairs", "time", "µs per point", "kB per point",
    ]  # fmt: skip
    lines = [
        "# Tiled attention beside dense attention",
        "",
        f"`farfield bench attention`, torch {results['torch']} on {results['threads']} threads; {HEADS} heads of "
        f"{HEAD_DIM}, decay length {DECAY_LENGTH:g}, spacing 1000/127, float32, tolerance {results['tolerance']:g}. "
        "Every tile is certified; beside it the same without certificate (certify=False). CPU seconds for all points, "
        f"at a load of {results['load']} on {results['cores']} cores; a star marks figures scaled up from a sample of "
        "queries.",
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for r in results["rows"]:
        cells = [
            r["scale"],
            r["points"],
            r["encoding"],
            f"{r['plan_seconds']:.2f}",
            f"{r['tiled_seconds']:.1f}" + ("*" if r["tiled_queries_measured"] < r["points"] else ""),
            f"{r['dense_seconds']:.0f}" + ("*" if r["dense_queries_measured"] < r["points"] else ""),
            f"{r['speed_up']:.1f}",
            f"{r['error']:.1e}",
            f"{r['error_over_tolerance']:.2f}",
            f"{r['pairs_over_all']:.3f}",
            f"{r['sounded_over_all']:.3f}",
            "" if r["least_by_tiles"] is None else f"{r['least_by_tiles']:.3f}",
            "" if r["least_by_query"] is None else f"{r['least_by_query']:.3f}",
            f"{r['cost_per_pair']:.2f}",
            f"{r['cost_per_pair_read']:.2f}",
            f"{r['certified_over_estimated_pairs']:.2f}",
            f"{r['certified_over_estimated_seconds']:.2f}",
            f"{r['microseconds_per_point']:.0f}",
            "" if r["bytes_per_point"] is None else f"{r['bytes_per_point'] / 1000:.1f}",
        ]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    if "stopped" in results:
        return "\n".join([*lines, "", f"The run was stopped {results['stopped']}."]) + "\n"
    lines += ["", "| forward and backward | cost per pair / dense | error of dq | dk | dv |", "|---|---|---|---|---|"]
    for r in results["gradients"]:
        e = r["errors"]
        lines.append(f"| {r['encoding']} | {r['cost_per_pair']:.2f} | {e['q']:.1e} | {e['k']:.1e} | {e['v']:.1e} |")
    lines += ["", "| q and k scaled by 4 | error |", "|---|---|"]
    lines += [f"| {r['encoding']} | {r['error']:.1e} |" for r in results["large_logits"]]
    g = results["graded_3d"]
    lines += [
        "",
        f"3D, {g['points']} points of a graded cloud reading {g['anchors']} anchors, LAAPE with decay lengths 111, "
        f"250, 500: {g['keys_per_query']:.0f} keys per query, error {g['error']:.1e}, speed-up {g['speed_up']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], path: str | Path) -> Path:
    """Time and the pairs it is spent on against the number of points, on logarithmic axes."""
    import matplotlib.pyplot as plt

    from farfield.style import COLOURS

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for name in ("LAAPE", "LASPE"):
        rows = [r for r in results["rows"] if r["encoding"] == name]
        points = [r["points"] for r in rows]
        left.loglog(
            points,
            [r["tiled_seconds"] for r in rows],
            "o-",
            color=COLOURS[name.lower()],
            label=f"{name}, tiled",
        )
        left.loglog(
            points,
            [r["dense_seconds"] for r in rows],
            "s--",
            color=COLOURS[name.lower()],
            alpha=0.5,
            label=f"{name}, dense",
        )
        for share, style, label in (("pairs_over_all", "o-", "read"), ("sounded_over_all", "^:", "sounded")):
            right.loglog(points, [r[share] for r in rows], style, color=COLOURS[name.lower()], label=f"{name}, {label}")
    left.set(xlabel="points", ylabel="CPU seconds per forward", title="Time")
    right.set(xlabel="points", ylabel="share of all pairs", title="What tiles read, or only sound")
    sizes = sorted({r["points"] for r in results["rows"]})
    for axes in (left, right):
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.grid(which="major", color="0.9")
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150, format="png")
    plt.close(figure)
    return Path(path)
