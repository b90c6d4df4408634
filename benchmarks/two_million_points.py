"""One forward pass of the paper's model over two million points: time, plans and peak memory.

    python benchmarks/two_million_points.py [points] [decay length]

Memory does not depend on the decay length but for the plan's lists; time does, in proportion to the keys in reach. The
paper's 250 takes over an hour here, so the default is 25 (three cells, as a Gray-Scott model may use). Seconds are
those of the processor, and how many plans were built, and in what time, is counted. A line tells when a block is done.
"""

import resource
import sys
import time
from typing import Any

import torch

import farfield as ff
from farfield.attention import plan
from farfield.bench.attention import SPACING

points = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000
decay_length = float(sys.argv[2]) if len(sys.argv) > 2 else 25.0
build, plan_seconds = plan._planned, []


def counted(*given: Any) -> plan.AttentionPlan:
    """The plan, and what it took."""
    start = time.process_time()
    built = build(*given)
    plan_seconds.append(time.process_time() - start)
    return built


plan._planned = counted
torch.manual_seed(0)
side = round(points**0.5)
positions = SPACING * side * torch.rand(points, 2)
model = ff.TransformerOperator(4, 2, 2, encoding=ff.LAAPE(decay_length)).eval()
features = torch.randn(1, points, 4)
start = time.process_time()


def peak_memory() -> float:
    """Of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def say(block: torch.nn.Module, *_: Any) -> None:
    """How far the pass has come."""
    number = list(model.blocks).index(block) + 1
    print(
        f"block {number} of {len(model.blocks)}: {time.process_time() - start:.0f} CPU seconds, {len(plan_seconds)} "
        f"plans in {sum(plan_seconds):.1f}, peak memory {peak_memory():.1f} GB",
        flush=True,
    )


for each in model.blocks:
    each.register_forward_hook(say)
with torch.no_grad():
    out = model(features, positions)
seconds = time.process_time() - start
assert torch.isfinite(out).all()
print(
    f"{points} points, decay length {decay_length:g}, {torch.get_num_threads()} threads: {seconds:.0f} CPU seconds, of "
    f"which {len(plan_seconds)} plans {sum(plan_seconds):.1f}; peak memory {peak_memory():.1f} GB"
)
