"""One forward pass of the paper's model over two million points: time and peak memory.

    python benchmarks/two_million_points.py [points] [decay length]

Memory does not depend on the decay length but for the plan's lists; time does, in proportion to the keys in reach. The
paper's 250 takes over an hour here, so the default is 25 (three cells, as a Gray-Scott model may use).
"""

import resource
import sys
import time

import torch

import farfield as ff
from farfield.bench.attention import SPACING

points = int(float(sys.argv[1])) if len(sys.argv) > 1 else 2_000_000
decay_length = float(sys.argv[2]) if len(sys.argv) > 2 else 25.0

torch.manual_seed(0)
side = round(points**0.5)
positions = SPACING * side * torch.rand(points, 2)
model = ff.TransformerOperator(4, 2, 2, encoding=ff.LAAPE(decay_length)).eval()
features = torch.randn(1, points, 4)
start = time.perf_counter()
with torch.no_grad():
    out = model(features, positions)
seconds = time.perf_counter() - start
assert torch.isfinite(out).all()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
print(f"{points} points, decay length {decay_length:g}: {seconds:.0f} s, peak memory {peak:.1f} GB")
