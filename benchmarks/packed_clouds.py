"""64 clouds of 500 to 5,000 points: one packed call against the loop over them.

    python benchmarks/packed_clouds.py [decay length] [repeats]

Clouds fill a square of width 1000; three heads of 32. The loop lets "auto" choose for each cloud. CPU seconds of the
process are printed, the best of some repeats, and the largest difference of a query over the largest value.
"""

import sys
import time
import warnings

import torch

import farfield as ff

warnings.filterwarnings("ignore", message="the points lie")  # the clouds' spacings differ, the wavelengths do not
decay_length = float(sys.argv[1]) if len(sys.argv) > 1 else 25.0
repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 2
generator = torch.Generator().manual_seed(0)
sizes = torch.randint(500, 5001, (64,), generator=generator).tolist()
total = sum(sizes)
positions = 1000 * torch.rand(total, 2, generator=generator)
q, k, v = (torch.randn(1, 3, total, 32, generator=generator) for _ in range(3))
encoding = ff.LAAPE(decay_length)


def packed() -> torch.Tensor:
    return ff.local_attention(q, k, v, positions, encoding=encoding, lengths=sizes)


def looped(backend: str) -> torch.Tensor:
    parts = zip(*(t.split(sizes, 2) for t in (q, k, v)), positions.split(sizes), strict=True)
    return torch.cat([ff.local_attention(*part, encoding=encoding, backend=backend) for part in parts], dim=2)


def timed(run) -> tuple[torch.Tensor, float]:  # type: ignore[no-untyped-def]
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        out = run()
        best = min(best, time.process_time() - start)
    return out, best


with torch.no_grad():
    one, seconds = timed(packed)
    print(f"{total} points in 64 clouds, decay length {decay_length:g}, {torch.get_num_threads()} threads: CPU seconds")
    print(f"packed {seconds:.2f}")
    for backend in ("auto", "dense", "tiled"):
        many, loop_seconds = timed(lambda backend=backend: looped(backend))
        error = float((one - many).norm(dim=-1).max() / v.norm(dim=-1).max())
        print(f"loop, {backend}: {loop_seconds:.2f}, {loop_seconds / seconds:.2f} times packed, difference {error:.1e}")
