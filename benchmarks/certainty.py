"""What certainty costs on the layers of the shipped models: pairs and CPU seconds, certified over estimated.

    python benchmarks/certainty.py [--markdown FILE]

Each model takes one step on a domain several times as wide as the one it was trained on, from a smooth random state;
what its layers ask of attention is kept, and asked again of the tiled backend with and without ``certify``.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import farfield as ff
from farfield.bench import LEADS
from farfield.models import blocks

SIZES = {"swe-laape": 6400, "swe-laspe": 6400, "gray-scott-laape": 384, "gray-scott-laspe": 384}
HEADER = "| model | layer | points | pairs read / all | certified / estimated: pairs | CPU time |"


def layers(name: str, points: int) -> list[tuple[tuple, dict[str, Any]]]:
    """What the layers of a shipped model give to ``local_attention`` in one step."""
    model, calls, whole = ff.load(name), [], blocks.local_attention
    shape = (points,) * len(model.spacing)
    generator = torch.Generator().manual_seed(0)
    mean, spread = (m.tolist() for m in model._state)
    fields = {}
    for field, middle, wide in zip(model.fields, mean, spread, strict=True):
        noise = torch.randn(1, 1, *(n // 16 for n in shape), generator=generator)
        mode = "linear" if len(shape) == 1 else "bilinear"
        fields[field] = middle + 0.5 * wide * torch.nn.functional.interpolate(noise, shape, mode=mode)[0, 0].numpy()

    def kept(*given: Any, **options: Any) -> torch.Tensor:
        calls.append((given, options))
        return whole(*given, **options)

    with mock.patch.object(blocks, "local_attention", kept):
        model.step(fields)
    return calls


def compared(given: tuple, options: dict[str, Any]) -> tuple[float, float, float]:
    """Pairs read over all, and certified over estimated pairs and CPU seconds."""
    encoding, period = options["encoding"], options.get("period")
    plan = ff.plan_attention(*given[3:], encoding=encoding, period=period)
    read, seconds = [], []
    for certify in (True, False):
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            ff.local_attention(*given, encoding=encoding, plan=plan, period=period, certify=certify)
            best = min(best, time.process_time() - start)
        read.append(plan.pairs_read)
        seconds.append(best)
    return read[0] / (given[0].shape[-2] * given[1].shape[-2]), read[0] / read[1], seconds[0] / seconds[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [HEADER, "|" + "---|" * 6]
    with torch.no_grad():
        for name, points in SIZES.items():
            for number, (given, options) in enumerate(layers(name, points)):
                share, pairs, seconds = compared(given, options)
                lines.append(
                    f"| {name} | {number} | {given[0].shape[-2]} | {share:.3f} | {pairs:.2f} | {seconds:.2f} |"
                )
                print(lines[-1], flush=True)
    if arguments.markdown:
        about = LEADS["certainty"] + "\n\n`python benchmarks/certainty.py`, one thread.\n\n"
        arguments.markdown.write_text(about + "\n".join(lines) + "\n")
