"""Own data on a grid: advection and diffusion on a periodic domain, with the wind's speed as a parameter.

    dT/dt + c dT/dx = kappa (d2T/dx2 + d2T/dy2),      c differs from simulation to simulation

Forty small simulations are made (here by an exact Fourier solution; yours come from your solver), two models are
trained on them for the same number of steps, one with a local encoding and one without, and both are tested on domains
three times as wide in each direction, which neither has seen.

In one saved step the field moves by two to six cells, further than a patch of two by two cells reaches, so attention
has to carry it. Rotary wavelengths that divide the period tell RoPE that the small domain closes on itself, where it
is nearly as good as LAAPE. On the large domain it looks at nine times as many keys, and takes points that lie a small
period apart for one another.

    python examples/own_data_grid.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

import farfield as ff

SPACING, TIME_STEP, DIFFUSION = 1.0, 4.0, 0.04


def simulate(simulations: int, cells: int, times: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Exact solutions T (simulations, times, cells, cells) of smooth random fields, and the speeds (simulations,)."""
    rng = np.random.default_rng(seed)
    wavenumber = 2 * np.pi * np.fft.fftfreq(cells, SPACING)
    kx, ky = np.meshgrid(wavenumber, wavenumber, indexing="ij")
    squared = kx**2 + ky**2
    noise = np.fft.fft2(rng.normal(size=(simulations, cells, cells)))
    start = noise * np.exp(-2.0 * squared)  # correlated over a few cells, whatever the size of the domain
    start *= 1 / np.std(np.fft.ifft2(start).real, axis=(1, 2), keepdims=True)
    speed = rng.uniform(0.5, 1.5, simulations)
    time = TIME_STEP * np.arange(times)[None, :, None, None]
    decay = np.exp((-1j * kx * speed[:, None, None, None] - DIFFUSION * squared) * time)
    return np.fft.ifft2(start[:, None] * decay).real.astype(np.float32), speed


def dataset(simulations: int, cells: int, seed: int) -> ff.Dataset:
    """The arrays as data: that is all that farfield has to be told."""
    temperature, speed = simulate(simulations, cells, seed=seed)
    return ff.Dataset.from_arrays(
        {"T": temperature},
        spacing=(SPACING, SPACING),
        time_step=TIME_STEP,
        boundary="periodic",
        parameters={"speed": speed},
        name="advection-diffusion",
    )


def main(folder: Path, steps: int = 250) -> dict[str, dict[str, float]]:
    """Train and test both encodings; returns the error of a step by encoding and scale."""
    small, large = dataset(40, cells=24, seed=0), dataset(4, cells=72, seed=1)
    small.save(folder / "data")
    print(ff.open_dataset(folder / "data"))
    quiet, errors = Console(quiet=True), {}
    for encoding in ("rope", "laape"):
        print(f"training {encoding}, {steps} steps ...", flush=True)
        settings = {"training.steps": steps, "model.width": 48, "model.depth": 3}
        run = ff.train(folder / "data", encoding=encoding, out=folder / encoding, settings=settings, console=quiet)
        ff.evaluate(run.folder, console=quiet)
        rows = ff.evaluate(run.folder, large, console=quiet)
        errors[encoding] = {row.scale: row.value for row in rows if row.metric == "l1_step"}
    print("\nerror of one step   s = 1     s = 3   ratio")
    for encoding, found in errors.items():
        print(f"{encoding:<18} {found['1']:6.2%}  {found['3']:8.2%}  {found['3'] / found['1']:6.2f}")
    return errors


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
