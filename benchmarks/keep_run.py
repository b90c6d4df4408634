"""Keep a run under results/: its rows, configuration and provenance, and its losses thinned; no weights, no arrays.

    python benchmarks/keep_run.py runs/swe-cpu/laape-seed0 results/swe-cpu/laape-seed0

Where both folders are the same, what is there is thinned in place. Tables and figures are what `farfield report` makes
of the kept folders; weights that are worth shipping go to src/farfield/shipped.
"""

import csv
import io
import shutil
import sys
from pathlib import Path

from farfield.files import atomic_write_text

KEPT = ("config.yaml", "evaluation.csv", "evaluation.json", "provenance.json", "validation.csv", "finetune.csv")
LOSSES = 500  # rows that a curve needs


def thinned(path: Path) -> str:
    """At most ``LOSSES`` rows, evenly, the last one included: a mean over what each stands for, but for the step."""
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        columns, rows = list(reader.fieldnames or ()), list(reader)
    every = -(-len(rows) // LOSSES)
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for end in range(len(rows), 0, -every)[::-1] if every > 1 else range(1, len(rows) + 1):
        part = rows[max(0, end - every) : end]
        mean = sum(float(row["loss"]) for row in part) / len(part)
        writer.writerow(part[-1] | {"loss": repr(float(f"{mean:.6g}"))})
    return out.getvalue()


def keep(run: Path, kept: Path) -> None:
    """Copy what is kept of a run."""
    if not (run / "evaluation.csv").is_file():
        raise SystemExit(f"{run} has not been evaluated: there is nothing to keep")
    kept.mkdir(parents=True, exist_ok=True)
    for name in KEPT if run.resolve() != kept.resolve() else ():
        if (run / name).is_file():
            shutil.copyfile(run / name, kept / name)
    if (run / "losses.csv").is_file():
        atomic_write_text(kept / "losses.csv", thinned(run / "losses.csv"))


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
