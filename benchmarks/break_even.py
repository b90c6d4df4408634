"""From how many points on tiled attention wins, and what "auto" chooses: a table by axes, encoding and decay length.

    python benchmarks/break_even.py [--markdown FILE]

Points fill a cube of width 1000, three heads of 64. CPU seconds of the process, the better of two runs, plans included.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import farfield as ff
from farfield.bench import LEADS

SIZES = (1_000, 2_000, 4_000, 8_000)
LENGTHS = (25.0, 60.0, 125.0)
HEADER = "| axes | encoding | decay length | points | dense [s] | tiled [s] | auto takes | auto [s] | auto / better |"


def seconds(run: Callable[[], object]) -> float:
    """CPU seconds, the better of two runs; infinite where the call is refused."""
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        try:
            run()
        except ValueError:  # the domain is too wide for the dense backend's channels
            return float("inf")
        best = min(best, time.process_time() - start)
    return best


def measure(axes: int, encoding: ff.Encoding, points: int) -> tuple[dict[str, float], str]:
    """CPU seconds by backend, and what "auto" takes."""
    generator = torch.Generator().manual_seed(points)
    where = 1000 * torch.rand(points, axes, generator=generator)
    q, k, v = (torch.randn(1, 3, points, 64, generator=generator) for _ in range(3))
    found = {
        backend: seconds(lambda b=backend: ff.local_attention(q, k, v, where, encoding=encoding, backend=b))  # type: ignore[misc]
        for backend in ("dense", "tiled", "auto")
    }
    return found, ff.explain_backend(q, where, encoding=encoding).partition(":")[0]


def rows() -> list[str]:
    """The table, line by line; printed as it grows."""
    lines, ratios = [HEADER, "|" + "---|" * 9], []
    print("\n".join(lines), flush=True)
    for axes in (1, 2, 3):
        for make in (ff.LAAPE, ff.LASPE):
            for length in LENGTHS:
                for points in SIZES:
                    found, chosen = measure(axes, make(length), points)
                    ratios.append(found["auto"] / min(found["dense"], found["tiled"]))
                    lines.append(
                        f"| {axes} | {make.__name__} | {length:g} | {points} | {found['dense']:.3f} | "
                        f"{found['tiled']:.3f} | {chosen} | {found['auto']:.3f} | {ratios[-1]:.2f} |"
                    )
                    print(lines[-1], flush=True)
    within = sum(ratio <= 1.1 for ratio in ratios)
    lines += [
        "",
        f"auto is within 1.10 of the better one in {within} of {len(ratios)} rows, at worst {max(ratios):.2f}.",
    ]
    print(lines[-1])
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="the points lie")  # spacings differ, the wavelengths do not
    with torch.no_grad():
        table = rows()
    if arguments.markdown:
        about = "`python benchmarks/break_even.py`: CPU seconds on one thread, three heads of 64, plans included.\n\n"
        arguments.markdown.write_text(LEADS["break_even"] + "\n\n" + about + "\n".join(table) + "\n")
