"""From how many points on tiled attention wins, and what "auto" chooses: a table by axes, encoding and decay length.

    python benchmarks/break_even.py [--json FILE]

Points fill a cube of width 1000, three heads of 64. CPU seconds of the process, the better of two runs, plans included.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import farfield as ff

SIZES = (1_000, 2_000, 4_000, 8_000, 16_000)
LENGTHS = (25.0, 60.0, 125.0, 250.0)


def seconds(run) -> float:  # type: ignore[no-untyped-def]
    best = float("inf")
    for _ in range(2):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def measure() -> list[dict]:
    rows = []
    for axes in (1, 2, 3):
        for name, make in (("LAAPE", ff.LAAPE), ("LASPE", ff.LASPE)):
            for length in LENGTHS:
                for points in SIZES:
                    generator = torch.Generator().manual_seed(points)
                    where = 1000 * torch.rand(points, axes, generator=generator)
                    q, k, v = (torch.randn(1, 3, points, 64, generator=generator) for _ in range(3))
                    encoding = make(length)
                    row = {"axes": axes, "encoding": name, "decay_length": length, "points": points}
                    for backend in ("dense", "tiled", "auto"):
                        try:
                            row[backend] = seconds(
                                lambda b=backend, e=encoding: ff.local_attention(q, k, v, where, encoding=e, backend=b)  # noqa: B023
                            )
                        except ValueError:  # refused: the domain is too wide for channels
                            row[backend] = float("inf")
                    row["chosen"] = ff.explain_backend(q, where, encoding=encoding).partition(":")[0]
                    rows.append(row)
                    better = min(row["dense"], row["tiled"])
                    print(
                        f"| {axes} | {name} | {length:g} | {points} | {row['dense']:.3f} | {row['tiled']:.3f} | "
                        f"{row['chosen']} | {row['auto'] / better:.2f} |",
                        flush=True,
                    )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print("| axes | encoding | decay length | points | dense [s] | tiled [s] | auto takes | auto / better |")
    print("|" + "---|" * 8)
    with torch.no_grad():
        found = measure()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
