"""From how many points on tiled attention wins, and what "auto" chooses: a table by axes, encoding and decay length.

    python benchmarks/break_even.py [--json FILE] [--markdown FILE]

With ``--json`` it goes on where the file ends.

Points fill a cube of width 1000, three heads of 64. CPU seconds of the process, the best of two runs, plans included;
of up to eight where "auto" seems to take over 1.1 times the better one's, since single runs vary on a busy machine.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import farfield as ff
from farfield.bench import LEADS

SIZES = (1_000, 2_000, 4_000, 8_000)
LENGTHS = (25.0, 60.0, 125.0)
HEADER = "| axes | encoding | decay length | points | dense [s] | tiled [s] | auto takes | auto [s] | auto / better |"


def seconds(run: Callable[[], object]) -> float:
    """CPU seconds; infinite where the call is refused."""
    start = time.process_time()
    try:
        run()
    except ValueError:  # the domain is too wide for the dense backend's channels
        return float("inf")
    return time.process_time() - start


def measure(axes: int, encoding: ff.Encoding, points: int) -> dict[str, Any]:
    """CPU seconds by backend, the best of some runs in turn, and what "auto" takes."""
    generator = torch.Generator().manual_seed(points)
    where = 1000 * torch.rand(points, axes, generator=generator)
    q, k, v = (torch.randn(1, 3, points, 64, generator=generator) for _ in range(3))
    found: dict[str, Any] = dict.fromkeys(("dense", "tiled", "auto"), float("inf"))
    for run in range(8):
        if run >= 2 and found["auto"] <= 1.1 * min(found["dense"], found["tiled"]):
            break
        for backend in ("dense", "tiled", "auto"):
            taken = seconds(lambda b=backend: ff.local_attention(q, k, v, where, encoding=encoding, backend=b))  # type: ignore[misc]
            found[backend] = min(found[backend], taken)
    return found | {"takes": ff.explain_backend(q, where, encoding=encoding).partition(":")[0]}


def cases() -> list[tuple[int, str, float, int]]:
    """Axes, encoding, decay length and points of each row."""
    return [(a, e, x, n) for a in (1, 2, 3) for e in ("LAAPE", "LASPE") for x in LENGTHS for n in SIZES]


def fill(file: Path | None) -> dict[str, dict[str, Any]]:
    """The rows of all cases, small ones first; what ``file`` holds is not measured again, and it grows row by row."""
    done: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    for case in sorted(cases(), key=lambda case: case[3]):
        if str(case) in done:
            continue
        axes, name, length, points = case
        done[str(case)] = found = measure(axes, getattr(ff, name)(length), points)
        print(case, found, flush=True)
        if file is not None:
            file.write_text(json.dumps(done, indent=1))
    return done


def table(done: dict[str, dict[str, Any]]) -> list[str]:
    """The rows as Markdown, and how far "auto" is from the better one."""
    lines, ratios = [HEADER, "|" + "---|" * 9], []
    for case in cases():
        if str(case) in done:
            found = done[str(case)]
            ratios.append(found["auto"] / min(found["dense"], found["tiled"]))
            shown = [f"{part:g}" if isinstance(part, float) else part for part in case]
            cells = [*shown, *(f"{found[b]:.3f}" for b in ("dense", "tiled")), found["takes"], f"{found['auto']:.3f}"]
            lines.append("| " + " | ".join(str(c) for c in [*cells, f"{ratios[-1]:.2f}"]) + " |")
    within, most = sum(ratio <= 1.1 for ratio in ratios), max(ratios)
    return [
        *lines,
        "",
        f"auto is within 1.10 of the better one in {within} of {len(ratios)} rows, at worst {most:.2f}.",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="the points lie")  # spacings differ, the wavelengths do not
    with torch.no_grad():
        lines = table(fill(arguments.json))
    print("\n".join(lines))
    if arguments.markdown:
        about = (
            "`python benchmarks/break_even.py`: CPU seconds on one thread, three heads of 64, plans included; the best "
            "of two runs, and of up to eight where auto seemed over 1.1 times the better one, which favours it.\n\n"
        )
        arguments.markdown.write_text(LEADS["break_even"] + "\n\n" + about + "\n".join(lines) + "\n")
