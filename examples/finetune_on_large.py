"""Fine-tuning on a few large simulations, where the large domain has physics that the small one cannot have.

    dT/dt + c dT/dx = kappa (d2T/dx2 + d2T/dy2)

The small domains hold waves of a few cells. On the large ones longer waves ride below these, longer than a small domain
is wide, and lift the temperature beyond what training has seen. A model of the small domains has no reason to be right
there; three large simulations, with twice as many items of the old ones mixed in, teach it, and the small domains stay
as good as they were.

    python examples/finetune_on_large.py [folder]
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from own_data_grid import DIFFUSION, SPACING, TIME_STEP, simulate
from rich.console import Console

import farfield as ff

SWELL = 2.5  # amplitude of the long waves; those of a few cells have one of about 1


def dataset(simulations: int, cells: int, seed: int, swell: float = 0.0) -> ff.Dataset:
    """The waves of ``own_data_grid.py``, with long ones of amplitude ``swell`` below them."""
    temperature, speed = simulate(simulations, cells, seed=seed)
    x = SPACING * np.arange(cells)
    wavenumber = 2 * np.pi / (cells * SPACING)  # one wave across the domain
    time = TIME_STEP * np.arange(temperature.shape[1])
    phase = wavenumber * (x - speed[:, None, None] * time[:, None])  # (simulations, times, cells)
    long = swell * np.exp(-DIFFUSION * wavenumber**2 * time)[:, None] * np.cos(phase)
    return ff.Dataset.from_arrays(
        {"T": temperature + long[..., None].astype(np.float32)},
        spacing=(SPACING, SPACING),
        time_step=TIME_STEP,
        boundary="periodic",
        parameters={"speed": speed},
        name="advection-diffusion",
    )


def main(folder: Path, steps: int = 200, more_steps: int = 50) -> dict[tuple[str, str], float]:
    """Train on small domains, fine-tune on three large ones; returns the errors by stage and size, all on new data."""
    small, few_large = dataset(40, cells=24, seed=0), dataset(3, cells=72, seed=2, swell=SWELL)
    quiet = Console(quiet=True)
    settings = {"training.steps": steps, "model.width": 48, "model.depth": 3}
    print(f"training on 40 small domains, {steps} steps ...", flush=True)
    run = ff.train(small, out=folder / "small", settings=settings, console=quiet)
    print(f"fine-tuning on 3 large ones, {more_steps} steps ...", flush=True)
    changes = {"training.steps": more_steps, "training.batch_size": 8, "old_share": 0.7}
    tuned = ff.finetune(run.folder, few_large, out=folder / "tuned", settings=changes, console=quiet)
    with (tuned.folder / "finetune.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] == "l1_step" and row["data"] == "own":
                print(f"{row['stage']:>6} fine-tuning, test split of the small domains: {float(row['value']):.2%}")
    unseen, errors = {"small": dataset(4, 24, seed=3), "large": dataset(2, 72, seed=4, swell=SWELL)}, {}
    for stage, trained in (("before", run), ("after", tuned)):
        for size, data in unseen.items():
            rows = [r for r in ff.evaluate(trained.folder, data, console=quiet) if r.metric == "l1_step"]
            scale = "1" if size == "small" else "3"
            errors[stage, size] = next(row.value for row in rows if row.scale == scale)
    print("\nerror of one step on unseen data    small     large")
    for stage in ("before", "after"):
        print(f"{stage:<32} {errors[stage, 'small']:8.2%}  {errors[stage, 'large']:8.2%}")
    return errors


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
