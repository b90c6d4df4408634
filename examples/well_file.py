"""A file of The Well, as it is: opened, checked, learned from, and predicted to a file.

The file is written here by hand, to The Well's specification (HDF5 with `t0_fields`, `t1_fields`, `scalars`,
`boundary_conditions` and `dimensions`); one that you have downloaded is opened in the same way. It holds a density that
is carried by a velocity which differs from trajectory to trajectory and stays as it is, on a domain that is periodic
along x and has walls along y.

    python examples/well_file.py [folder]
"""

import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from rich.console import Console

import farfield as ff

CELLS, TIMES, TIME_STEP = (32, 16), 6, 1.0


def write_well(path: Path, trajectories: int, seed: int = 0) -> None:
    """Trajectories of a carried density, in The Well's layout."""
    rng = np.random.default_rng(seed)
    x, y = (np.arange(n) + 0.5 for n in CELLS)
    height = np.sin(np.pi * y / CELLS[1])  # the velocity's profile between the walls
    speed = rng.uniform(0.5, 2.0, trajectories)
    velocity = np.zeros((trajectories, *CELLS, 2), np.float32)
    velocity[..., 0] = speed[:, None, None] * height
    waves, phases = rng.integers(1, 4, trajectories), rng.uniform(0, 2 * np.pi, trajectories)
    time = TIME_STEP * np.arange(TIMES)
    moved = x[:, None] - speed[:, None, None, None] * height * time[:, None, None]  # (trajectories, times, x, y)
    density = 1 + 0.5 * np.cos(2 * np.pi * waves[:, None, None, None] * moved / CELLS[0] + phases[:, None, None, None])
    fields = {
        "t0_fields": {"density": (density.astype(np.float32), True)},
        "t1_fields": {"velocity": (velocity, False)},
        "t2_fields": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs.update({"dataset_name": "carried", "grid_type": "cartesian", "n_spatial_dims": 2})
        file.attrs.update({"n_trajectories": trajectories, "simulation_parameters": []})
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        for name, values in {"time": time, "x": x, "y": y}.items():
            dimensions.create_dataset(name, data=values.astype(np.float32)).attrs.update(
                {"sample_varying": False, "time_varying": False}
            )
        conditions = file.create_group("boundary_conditions")
        for axis, cells, kind in zip("xy", CELLS, ("PERIODIC", "WALL"), strict=True):
            condition = conditions.create_group(f"{axis}_{kind.lower()}")
            condition.attrs.update({"bc_type": kind, "sample_varying": False, "time_varying": False})
            condition.attrs.update({"associated_dims": [axis], "associated_fields": ["density"]})
            condition.create_dataset("mask", data=np.isin(np.arange(cells), [0, cells - 1]))
        file.create_group("scalars").attrs["field_names"] = np.array([], dtype="S1")
        for group, members in fields.items():
            made = file.create_group(group)
            made.attrs["field_names"] = list(members) if members else np.array([], dtype="S1")
            for name, (values, in_time) in members.items():
                made.create_dataset(name, data=values).attrs.update(
                    {"sample_varying": True, "time_varying": in_time, "dim_varying": [True, True]}
                )


def main(folder: Path, steps: int = 200) -> float:
    """Returns the error of one step on the test trajectories."""
    for split, count, seed in (("train", 16, 0), ("valid", 3, 1), ("test", 3, 2)):
        write_well(folder / "carried/data" / split / "carried.hdf5", count, seed)
    data = ff.open_dataset(folder / "carried")
    print(data)
    quiet = Console(quiet=True)
    print(f"training laape, {steps} steps ...", flush=True)
    settings = {"training.steps": steps, "training.batch_size": 8, "model.width": 32, "model.depth": 2}
    run = ff.train(folder / "carried", out=folder / "run", settings=settings, console=quiet)
    error = next(row.value for row in ff.evaluate(run.folder, console=quiet) if row.metric == "l1_step")
    print(f"error of one step on the test trajectories: {error:.2%}")
    first = h5py.File(folder / "carried/data/test/carried.hdf5")
    density, velocity = first["t0_fields/density"][0, 0], first["t1_fields/velocity"][0]
    later = ff.load(run.folder).rollout({"density": density}, steps=3, inputs={"velocity": velocity})
    print(f"three steps fed back: density {later['density'].shape}, from {density.min():.2f} to {density.max():.2f}")
    return error


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
