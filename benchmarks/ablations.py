"""A table of short training runs: what each changes, what it costs, how accurate it gets.

    python benchmarks/ablations.py results/ablations/shallow_water RUN RUN ...

The first run is the baseline; the others are described by the settings in which they differ from it. The error is the
relative L1 error of the tables over the validation split: of the changes, the mean of both fields, on a fixed draw of
pairs; for urban wind, of the velocity among the buildings.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset

from farfield.data.samples import collate, step_pairs
from farfield.evaluation.metrics import mean_error, relative_errors
from farfield.files import atomic_path, atomic_write_text
from farfield.models.for_data import build_network
from farfield.problems import SteppingProblem, problem_of
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.prediction import UrbanPredictor
from farfield.problems.urban_wind.scoring import errors_of_draw
from farfield.runs.config import SteppingRun
from farfield.runs.run import Run
from farfield.runs.weights import load_weights


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"model": {"width": 96}} -> {"model.width": 96}"""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return out


def error(run: Run) -> float:
    """The relative error, in per cent."""
    return 100 * (step_error(run) if isinstance(problem_of(run), SteppingProblem) else urban_error(run))


def urban_error(run: Run, draws: int = 2, cells: int = 8192) -> float:
    """Of the velocity among the buildings, over all validation cities."""
    predictor = UrbanPredictor.load(run)
    files = UrbanWindFiles(run.settings()["dataset"], predictor.fields)
    errors = []
    for number in files.ids("val"):
        case = files.load("val", number)
        for draw in range(draws):
            _, found = errors_of_draw(predictor, case, np.random.default_rng([1, draw, number]), cells)
            errors.append(float(found["velocity", "l1_buildings"]))
    return float(np.mean(errors))


@torch.no_grad()
def step_error(run: Run) -> float:
    """Of the changes over one step."""
    config = SteppingRun.parse(run.settings())
    data = step_pairs(config.dataset, "validation")
    items = 400 if len(data.spec.axes) == 1 else 40  # a plane has so many more points
    data.source.split.preload()
    model = build_network(data.spec, config.encoding, config.model)
    load_weights(run.best_path, model)
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(1))[:items].tolist()
    errors = []
    for (batch,) in DataLoader(Subset(data, drawn), batch_size=20, collate_fn=collate):
        predicted, truth = (
            data.standardise["changes"].inverse(change)
            for change in (model(batch.features, batch.positions), batch.targets)
        )
        errors.append(relative_errors(predicted, truth)["l1"].flatten())
    return mean_error(torch.cat(errors))[0]


def main(out: Path, runs: list[Run]) -> None:
    settings = [flat(problem_of(run).config(run).model_dump()) for run in runs]
    rows = []
    for run, values in zip(runs, settings, strict=True):
        changed = {name: value for name, value in values.items() if value != settings[0][name]}
        with run.losses_path.open() as file:
            last = list(csv.DictReader(file))[-1]
        rows.append(
            {
                "run": run.folder.name,
                "changed": " ".join(f"{name}={value}" for name, value in changed.items()) or "(baseline)",
                "steps": last["step"],
                "items": int(last["step"]) * values["training.batch_size"],
                "error_percent": round(error(run), 3),
            }
        )
    with atomic_path(out.with_suffix(".csv")) as partial, partial.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    base = problem_of(runs[0]).config(runs[0])
    lines = [
        f"Short runs of {base.problem} with {base.encoding.name}, made by `farfield train {base.problem} --set ...` "
        "with the settings named and, for the rest, the baseline's configuration, which is below. One seed each: small "
        "differences mean nothing.",
        "",
        "| changed | steps | items seen | error [%] |",
        "|---|---|---|---|",
        *(f"| `{r['changed']}` | {r['steps']} | {r['items']} | {r['error_percent']:.2f} |" for r in rows),
        "",
        "```yaml",
        *(f"{name}: {value}" for name, value in settings[0].items() if name != "dataset"),
        "```",
    ]
    atomic_write_text(out.with_suffix(".md"), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Run(folder) for folder in sys.argv[2:]])
