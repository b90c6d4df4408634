"""64 clouds of 500 to 5,000 points: one packed call against the loop over them, and what bounds the gain.

    python benchmarks/packed_clouds.py [decay length] [repeats] [--markdown FILE]

Clouds fill a square of width 1000; three heads of 32. CPU seconds of the process, the best of some repeats. The
kernel's own seconds bound from below what the packed call can take.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import farfield as ff
from farfield.attention import AttentionPlan, sweep
from farfield.bench import LEADS

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("decay_length", type=float, nargs="?", default=25.0)
parser.add_argument("repeats", type=int, nargs="?", default=2)
parser.add_argument("--markdown", type=Path)
arguments = parser.parse_args()
torch.set_num_threads(1)
warnings.filterwarnings("ignore", message="the points lie")  # the clouds' spacings differ, the wavelengths do not
generator = torch.Generator().manual_seed(0)
sizes = torch.randint(500, 5001, (64,), generator=generator).tolist()
total, all_pairs = sum(sizes), sum(n * n for n in sizes)
positions = 1000 * torch.rand(total, 2, generator=generator)
q, k, v = (torch.randn(1, 3, total, 32, generator=generator) for _ in range(3))
encoding, in_kernel = ff.LAAPE(arguments.decay_length), [0.0]


def packed() -> Tensor:
    return ff.local_attention(q, k, v, positions, encoding=encoding, lengths=sizes)


def looped(backend: str) -> Tensor:
    parts = zip(*(t.split(sizes, 2) for t in (q, k, v)), positions.split(sizes), strict=True)
    return torch.cat([ff.local_attention(*part, encoding=encoding, backend=backend) for part in parts], dim=2)


def timed(run: Callable[[], Tensor]) -> tuple[Tensor, float]:
    best = float("inf")
    for _ in range(arguments.repeats):
        start = time.process_time()
        out = run()
        best = min(best, time.process_time() - start)
    return out, best


def counted(*given: Any) -> None:
    start = time.process_time()
    call(*given)
    in_kernel[0] += time.process_time() - start


call = sweep._call
with torch.no_grad():
    packed()  # compiles the kernel
    one, seconds = timed(packed)
    rows = [("one packed call", seconds, 1.0, 0.0)]
    for backend in ("auto", "dense", "tiled"):
        many, taken = timed(lambda backend=backend: looped(backend))  # type: ignore[misc]
        rows.append((f"loop, {backend}", taken, taken / seconds, float((one - many).norm(dim=-1).max())))
    start = time.process_time()
    plan = ff.plan_attention(positions, encoding=encoding, lengths=sizes)
    planning = time.process_time() - start
    assert isinstance(plan, AttentionPlan)
    with mock.patch.object(sweep, "_call", counted):
        ff.local_attention(q, k, v, positions, encoding=encoding, lengths=sizes, plan=plan)
largest = float(v.norm(dim=-1).max())
lines = ["| | CPU seconds | over packed | difference of a query over the largest value |", "|---|---|---|---|"]
lines += [f"| {name} | {taken:.2f} | {ratio:.2f} | {error / largest:.1e} |" for name, taken, ratio, error in rows]
lines += [
    "",
    f"{total} points, decay length {arguments.decay_length:g}, one thread. The packed call reads "
    f"{plan.pairs_read / all_pairs:.2f} of all pairs within the clouds, in tiles of {plan.queries.size} queries and "
    f"{plan.keys.size} keys. The kernel alone takes {in_kernel[0]:.2f} s for them, {in_kernel[0] / seconds:.2f} of the "
    f"call; the plan takes {planning:.2f} s, and the rest goes into sorting and turning points and the summaries of "
    "the certificate. In the loop, auto serves nearly every cloud by the same kernel: what packing spares there is "
    "what a call costs whatever its size.",
]
print("\n".join(lines))
if arguments.markdown:
    command = f"`python benchmarks/packed_clouds.py {arguments.decay_length:g} {arguments.repeats}`\n\n"
    arguments.markdown.write_text(LEADS["packed_clouds"] + "\n\n" + command + "\n".join(lines) + "\n")
