"""Soak: commands killed at random moments and run again, byte for byte; long rollouts in constant memory.

    python benchmarks/soak.py --kills 200 --steps 2000 --out runs/soak

``generate``, ``train``, ``finetune`` and ``predict`` run in children of a process that has imported everything, so that
a kill hits the work and not the imports. A child is ended by SIGKILL after a random time; whatever stands under a final
name must then be whole, and the command (or ``train --resume``) goes on until it ends undisturbed, to the bytes of a
run that nobody killed. Figures are in ``OUT/worker-*.json`` after every kill, in ``OUT/soak.json`` at the end; the same
command continues.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import farfield as ff
from farfield.cli import main as farfield
from farfield.files import atomic_write_text, remove_partials

for module in ("farfield.training.loop", "farfield.evaluation.own", "farfield.studies.reproduce",
               "farfield.data.card", "farfield.prediction.files", "torch.utils.tensorboard", "numba"):  # fmt: skip
    __import__(module)

MODEL = ["--set", "model.width=24", "--set", "model.depth=1", "--set", "training.batch_size=4"]
STEPS = [*MODEL, "--set", "training.steps=8", "--set", "training.checkpoint_every=2", "--set",
         "training.validate_every=4", "--set", "training.precision=float32"]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A command, what it leaves behind, and how it goes on."""

    begin: Callable[[Path], list[str]]
    left: Callable[[Path], dict[str, str]]
    """Digests of what stands under a final name."""
    whole_at_any_time: bool
    """Whether each file is final as soon as it is there; a run's weights are replaced as it goes on."""


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files(folder: Path) -> dict[str, str]:
    """Of every visible file of a folder, or of one file."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return {
        str(path.relative_to(folder.parent)): digest(path.read_bytes())
        for path in paths
        if path.is_file() and not path.name.startswith(".")
    }


def weights_and_losses(folder: Path) -> dict[str, str]:
    """Of a run: its weights, and its losses without the times that they took."""
    found = {p.name: digest(p.read_bytes()) for p in folder.glob("*.safetensors")}
    for name in ("losses.csv", "validation.csv"):
        if (folder / name).is_file():
            with (folder / name).open(newline="") as rows:
                found[name] = digest(repr([(r["step"], r["loss"]) for r in csv.DictReader(rows)]).encode())
    return found


def resumed(folder: Path, command: list[str]) -> list[str]:
    return ["train", "--resume", str(folder)] if (folder / "state.pt").exists() else command


def jobs(root: Path) -> dict[str, Job]:
    splits = ", ".join(f"{split}: {{simulations: 4, scale: [1]}}" for split in ("train", "validation"))
    small = ["--set", "cells=[40]", "--set", "extent=[50.0]", "--set", "states=6", "--set", f"splits={{{splits}}}",
             "--workers", "1"]  # fmt: skip
    data, own, base, state = root / "data", root / "own", root / "base", root / "state.npz"
    return {
        "generate": Job(
            lambda out: ["generate", "swe", "--preset", "quick", *small, "--out", str(out)], files, True
        ),
        "train": Job(
            lambda out: resumed(
                out, ["train", "swe", "--preset", "quick", "--data", str(data), *STEPS, "--out", str(out)]
            ),
            weights_and_losses,
            False,
        ),
        "finetune": Job(
            lambda out: resumed(out, ["finetune", str(base), "--data", str(own), *STEPS[6:], "--out", str(out)]),
            weights_and_losses,
            False,
        ),
        "predict": Job(
            lambda out: ["predict", "--model", "swe-laape", "--input", str(state), "--steps", "10", "--force",
                         "--out", str(out)],
            files,
            True,
        ),
    }  # fmt: skip


def start(arguments: list[str], log: Path) -> int:
    """Run ``farfield ARGUMENTS`` in a child; returns its process number."""
    child = os.fork()
    if child:
        return child
    try:
        with log.open("ab", buffering=0) as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            print(f"$ farfield {' '.join(arguments)}", flush=True)
            sys.argv = ["farfield", *arguments]
            farfield()
    except SystemExit as ended:
        sys.stdout.flush()
        os._exit(ended.code if isinstance(ended.code, int) else 0)
    finally:
        os._exit(70)


def ended(child: int, deadline: float) -> int | None:
    """How a child ended, or None where it still runs at the deadline."""
    handle = os.pidfd_open(child)
    try:
        left = None if deadline == float("inf") else max(0.0, deadline - time.monotonic())
        if not select.select([handle], [], [], left)[0]:
            return None
    finally:
        os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def undisturbed(name: str, arguments: list[str], root: Path) -> float:
    """Run a command to its end; returns the seconds it took."""
    began = time.monotonic()
    code = ended(start(arguments, root / "log.txt"), float("inf"))
    if code != 0:
        raise RuntimeError(f"{name} ended with {code}: see {root / 'log.txt'}")
    return time.monotonic() - began


def prepare(root: Path) -> None:
    """What the commands start from."""
    root.mkdir(parents=True, exist_ok=True)
    if (root / "base" / "finetune-from-here").exists():
        return
    for made in ("data", "own", "base"):
        shutil.rmtree(root / made, ignore_errors=True)
    x, times, phase = np.arange(24), np.arange(3)[:, None], np.linspace(0, 6, 5)[:, None, None]
    waves = np.sin(2 * np.pi * (x - 0.5 * times) / 24 + phase)
    ff.Dataset.from_arrays({"T": waves}, spacing=1.0, time_step=0.5).save(root / "own")
    points = np.linspace(0.4, 99.6, 128)
    np.savez(root / "state.npz", positions=points, v=0 * points, h=1 + 0.03 * np.exp(-(((points - 50) / 5) ** 2)))
    undisturbed("generate", jobs(root)["generate"].begin(root / "data"), root)
    command = ["train", str(root / "own"), "--out", str(root / "base"), *STEPS]
    undisturbed("train", command, root)
    (root / "base" / "finetune-from-here").touch()


def references(root: Path) -> dict[str, tuple[dict[str, str], float]]:
    """What each command leaves behind when nobody kills it, and the seconds it takes."""
    found = {}
    for name, job in jobs(root).items():
        out = root / ("whole-" + name + (".npz" if name == "predict" else ""))
        if out.is_dir():
            shutil.rmtree(out)
        seconds = undisturbed(name, job.begin(out), root)
        found[name] = {key.replace(out.name, "OUT"): value for key, value in job.left(out).items()}, seconds
    return found


def kill_many(root: Path, worker: int, wanted: int, seed: int, known: dict[str, tuple[dict[str, str], float]]) -> None:
    """Kill commands until so many are dead, then let all of them end; the figures are written after each."""
    record, all_jobs = root / f"worker-{worker}.json", jobs(root)
    nothing: dict = {"kills": dict.fromkeys(all_jobs, 0), "finished": dict.fromkeys(all_jobs, 0), "differences": []}
    figures = json.loads(record.read_text()) if record.exists() else nothing
    expected, seconds = ({name: pair[i] for name, pair in known.items()} for i in (0, 1))
    to_end = list(all_jobs)
    while (done := sum(figures["kills"].values())) < wanted or to_end:
        chance = random.Random(f"{seed} {worker} {done} {sum(figures['finished'].values())}")
        name, patience = min(all_jobs, key=lambda name: figures["kills"][name]), 1.1  # in turn
        if done >= wanted:
            name, patience = to_end.pop(), float("inf")
        job = all_jobs[name]
        out = root / (f"killed-{worker}-{name}" + (".npz" if name == "predict" else ""))
        began = time.monotonic()
        child = start(job.begin(out), root / "log.txt")
        code = ended(child, began + patience * chance.uniform(0, seconds[name]))
        if code is None:
            os.kill(child, signal.SIGKILL)
            code = ended(child, float("inf"))
        found = {key.replace(out.name, "OUT"): value for key, value in job.left(out).items()} if out.exists() else {}
        if code == -signal.SIGKILL:
            figures["kills"][name] += 1
            seconds[name] *= 1.15  # where the machine has become slower, moments near the end are to be met, too
            wrong = [key for key in found if job.whole_at_any_time and found[key] != expected[name].get(key)]
        elif code == 0:
            figures["finished"][name] += 1
            seconds[name] = time.monotonic() - began
            wrong = [key for key in expected[name] if found.get(key) != expected[name][key]]
            wrong += [f"{path} left behind" for path in out.rglob("*.partial")]
            shutil.rmtree(out) if out.is_dir() else out.unlink()
            remove_partials(out)  # of a file there is no folder of its own to tidy up
        else:
            wrong = [f"ended with {code}"]
            shutil.rmtree(out, ignore_errors=True)
        figures["differences"] += [f"kill {done}, {name}: {what}" for what in wrong]
        atomic_write_text(record, json.dumps(figures, indent=1) + "\n")


def kills(root: Path, wanted: int, workers: int, seed: int) -> dict:
    """Kill commands in several processes at once, until so many are dead; the figures of all."""
    known, children = references(root), []
    for worker in range(workers):
        child = os.fork()
        if child == 0:
            kill_many(root, worker, -(-wanted // workers), seed, known)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    found = [json.loads(path.read_text()) for path in sorted(root.glob("worker-*.json"))]
    summed = {
        what: {name: sum(one[what][name] for one in found) for name in jobs(root)} for what in ("kills", "finished")
    }
    return {**summed, "differences": [line for one in found for line in one["differences"]], "seed": seed}


def rollout(model: str, steps: int) -> dict:
    """Memory and open files of a long rollout, every tenth of it."""
    points = np.linspace(0.4, 99.6, 128)
    fields = {"v": 0 * points, "h": 1 + 0.03 * np.exp(-(((points - 50) / 5) ** 2))}
    every, rows = max(1, steps // 10), []
    for step, state in enumerate(ff.load(model).states(fields, points, steps)):
        if step % every == 0:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            opened = len(list(Path("/proc/self/fd").iterdir()))
            finite = all(np.isfinite(values).all() for values in state.values())
            rows.append({"step": step, "megabytes": round(resident / 1e6, 1), "files": opened, "finite": finite})
    return {"model": model, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=1, help="that kill at once")
    parser.add_argument("--steps", type=int, default=2000, help="of the rollouts")
    parser.add_argument("--models", nargs="*", default=["swe-laape"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    root = options.out
    prepare(root)
    figures: dict = {"kills": kills(root, options.kills, options.workers, options.seed)}
    figures["rollouts"] = [rollout(model, options.steps) for model in options.models]
    atomic_write_text(root / "soak.json", json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
