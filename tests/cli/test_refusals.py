"""Bad files and bad arguments, one line each: exit code 2, one clear sentence, nothing written."""

import json
import re
import shutil
import sys
import warnings
import zipfile
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from farfield.cli import main
from farfield.data.dataset import Dataset
from farfield.evaluation.rows import Row, write_rows
from farfield.files import locked

TINY = {"cells": [16], "save_every": 2, "states": 4}
SPLITS = {name: {"simulations": 3, "scale": [1]} for name in ("train", "validation", "test")}


def farfield(*arguments) -> None:
    """The command as a user gives it; its exit code is a SystemExit."""
    sys.argv = ["farfield", *map(str, arguments)]
    main()


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A dataset, a run on it, an evaluated run, a user's own data; each test has copies to spoil."""
    root, before = tmp_path_factory.mktemp("refusals"), sys.argv
    changes = [f"--set={name}={json.dumps(value)}" for name, value in {**TINY, "splits": SPLITS}.items()]
    settings = {"model.width": 12, "model.depth": 1, "model.heads": 3, "training.optimiser": "adamw",
                "training.batch_size": 3, "training.steps": 4, "training.average": 0.5}  # fmt: skip
    chosen = [f"--set={name}={value}" for name, value in settings.items()]
    for command in (
        ["generate", "swe", "--preset", "quick", "--out", root / "data", "--workers", 1, *changes],
        ["train", "swe", "--preset", "quick", "--data", root / "data", "--out", root / "run", *chosen],
    ):
        with pytest.raises(SystemExit) as ended:
            farfield(*command)
        assert ended.value.code == 0
    sys.argv = before
    shutil.rmtree(root / "run" / "tensorboard")
    x, phase = np.arange(12), np.linspace(0, 6, 4)[:, None, None]
    waves = np.sin(x - 0.5 * np.arange(3)[:, None] + phase)
    Dataset.from_arrays({"T": waves}, spacing=1.0, time_step=0.5).save(root / "own")
    (root / "rows").mkdir()
    rows = [Row("swe", "laape", 0, scale, field, "l1_step", 1, 0.1, 9) for scale in "12" for field in "vh"]
    write_rows(root / "rows" / "evaluation.csv", rows)
    points = np.linspace(0.4, 99.6, 64)
    np.savez(root / "state.npz", positions=points, v=0 * points, h=1 + 0 * points)
    return root


class Box:
    """What a case spoils: copies of good things, made when asked for, and the ways to spoil them."""

    def __init__(self, made: Path, folder: Path, stack: ExitStack):
        self.made, self.folder, self.stack = made, folder, stack
        self.out = folder / "out"

    def __getattr__(self, name: str) -> Path:
        """A copy of ``data``, ``run``, ``own``, ``rows`` or ``state`` (an NPZ)."""
        source = next(path for path in (self.made / name, self.made / f"{name}.npz") if path.exists())
        copy = self.folder / source.name
        if copy.exists():
            return copy
        shutil.copytree(source, copy) if source.is_dir() else shutil.copy(source, copy)
        if name == "run":
            config = yaml.safe_load((copy / "config.yaml").read_text())
            (copy / "config.yaml").write_text(yaml.safe_dump({**config, "dataset": str(self.data)}))
        return copy

    def write(self, path: Path, content) -> Path:
        """Any content under any name; returns what holds it, for the command."""
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        return path

    def cut(self, path: Path, length: int = 100) -> None:
        path.write_bytes(path.read_bytes()[:length])

    def stats(self, change) -> list:
        """``train`` on a dataset whose statistics are changed as text."""
        path = self.data / "stats.yaml"
        path.write_bytes(change(path.read_bytes()))
        return self.train()

    def train(self, *more) -> list:
        return ["train", "swe", "--preset", "quick", "--data", self.data, "--out", self.out, *more]

    def resumed(self, change) -> list:
        """``train --resume`` of a run whose checkpoint is changed."""
        path = self.run / "state.pt"
        state = torch.load(path, weights_only=True)
        changed = change(state)
        torch.save(state if changed is None else changed, path)
        return ["train", "--resume", self.run]

    def side(self, name: str, content) -> list:
        """``train --resume`` of a run with a file replaced."""
        self.write(self.run / name, content)
        return ["train", "--resume", self.run]

    def weights(self, change) -> list:
        """``evaluate`` of a run whose weights are changed."""
        weights = load_file(self.run / "best.safetensors")
        change(weights)
        save_file(weights, self.run / "best.safetensors")
        return ["evaluate", self.run, "--scales", 1]

    def altered(self, name: str, *keys: str, to) -> list:
        """``evaluate`` of a run with one value of a side file altered."""
        path = self.run / name
        values = yaml.safe_load(path.read_text())
        group = values
        for key in keys[:-1]:
            group = group[key]
        group[keys[-1]] = to
        path.write_text(json.dumps(values))  # JSON is YAML
        return ["evaluate", self.run, "--scales", 1]

    def hdf5(self, change, split: str = "train") -> list:
        """``train`` on a dataset whose file is changed."""
        with h5py.File(self.data / "data" / split / "swe.hdf5", "r+") as file:
            change(file)
        return self.train()

    def header(self, **changes) -> list:
        def change(file):
            file.attrs["farfield"] = json.dumps(json.loads(file.attrs["farfield"]) | changes)

        return self.hdf5(change)

    def arrays(self, **changes) -> list:
        """``predict`` from a state with arrays changed, or left out with None."""
        with np.load(self.state) as held:
            arrays = {**held, **changes}
        np.savez(self.state, **{name: array for name, array in arrays.items() if array is not None})
        return self.predict()

    def predict(self, *more, source=None, to="out.npz", model="swe-laape") -> list:
        return ["predict", "--model", model, "--input", source or self.state, "--out", self.folder / to, *more]

    def claiming(self, path: Path) -> Path:
        """An NPZ whose header claims terabytes."""
        with zipfile.ZipFile(path, "w") as archive, archive.open("h.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
        return path

    def well(self, fields, x, name="in.hdf5") -> list:
        """``predict`` from a file in The Well's layout."""
        with h5py.File(self.folder / name, "w") as file:
            for key, shape in {**{f"t0_fields/{field}": shape for field, shape in fields.items()}, **x}.items():
                made = file.create_dataset(key, shape, "f4", chunks=True)
                if shape == (8,):
                    made[...] = range(8)
        return self.predict(source=self.folder / name, to="out.hdf5")

    def csv(self, old: str, new: str) -> list:
        """``report`` of rows with some text replaced."""
        path = self.rows / "evaluation.csv"
        path.write_text(path.read_text().replace(old, new))
        return self.report()

    def report(self, *runs) -> list:
        return ["report", *(runs or [self.rows]), "--out", self.out]

    def owned(self, name: str, content) -> list:
        """``check`` of own data with a file replaced."""
        self.write(self.own / name, content)
        return ["check", self.own]

    def simulation(self, change) -> list:
        """``check`` of own data with all simulations changed in place."""
        for path in sorted(self.own.glob("*.npz")):
            with np.load(path) as held:
                arrays = dict(held)
            change(path.stem[-1], arrays)
            np.savez(path, **arrays)
        return ["check", self.own]

    def cloud(self, **changes) -> list:
        """``check`` of a cloud of points in a file."""
        arrays = {"positions": np.arange(10.0).reshape(5, 2) ** 2, "outputs/T": np.arange(5.0), **changes}
        (self.folder / "cloud").mkdir()
        for number in range(3):
            np.savez(self.folder / "cloud" / f"simulation_{number}.npz", **arrays)
        return ["check", self.folder / "cloud"]

    def described(self, **changes) -> list:
        path = self.own / "dataset.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
        return ["check", self.own]


def spoil(array, index, value=np.nan):
    array[index] = value


GENERATE = {
    "an unknown problem": (lambda b: ["generate", "lorenz"], "unknown problem 'lorenz': expected one of"),
    "an unknown preset": (
        lambda b: ["generate", "swe", "--preset", "huge"],
        "a preset of quick, cpu, paper, got 'huge'",
    ),
    "a negative seed": (
        lambda b: ["generate", "swe", "--seed", -1],
        "seed: Input should be greater than or equal to 0",
    ),
    "scales in words": (lambda b: ["generate", "swe", "--scales", "two"], "scales like 2,10 or 2x1"),
    "a scale that cuts cells": (lambda b: ["generate", "swe", "--scales", "1.003"], "not whole positive numbers"),
    "an unknown setting": (lambda b: ["generate", "swe", "--set", "sizes=3"], "sizes: Extra inputs are not permitted"),
    "a setting without value": (lambda b: ["generate", "swe", "--set", "cells"], "changes like cells="),
    "no workers": (lambda b: ["generate", "swe", "--out", b.out, "--workers", 0], "at least one worker, got 0"),
    "a folder of other files": (
        lambda b: ["generate", "swe", "--out", b.write(b.folder / "thesis" / "a.tex", "years").parent],
        "holds other files and no dataset",
    ),
    "a file for a folder": (
        lambda b: ["generate", "swe", "--out", b.write(b.folder / "file", "text")],
        "a file of that name|Not a directory",
    ),
    "another dataset's folder": (lambda b: ["generate", "swe", "--out", b.data], r"holds another dataset \(preset is"),
    "a damaged dataset.yaml": (
        lambda b: ["generate", "swe", "--out", b.write(b.data / "dataset.yaml", "problem: [").parent],
        "dataset.yaml is damaged .*: restore it, or choose another folder",
    ),
    "more than the disk holds": (
        lambda b: [
            "generate",
            "swe",
            "--preset",
            "quick",
            "--out",
            b.out,
            "--set",
            "splits={train: {simulations: 1000000000000, scale: [1]}}",
        ],
        r"needs [\d.]+ GB and .* has [\d.]+ GB free",
    ),
    "a dataset that is being made": (
        lambda b: [b.stack.enter_context(locked(b.data / ".lock")), "generate", "swe", "--out", b.data][1:],
        "another process is generating into",
    ),
}
OWN = {
    "no data": (lambda b: ["check", b.folder / "nowhere"], "no file or folder .*nowhere"),
    "an empty folder": (
        lambda b: ["check", b.write(b.folder / "e" / ".hidden", "").parent],
        "holds no data that can be",
    ),
    "two kinds of files": (lambda b: b.owned("more.hdf5", b"\x89HDF"), "1 files of HDF5 and 4 files of NPZ"),
    "a truncated NPZ": (
        lambda b: [b.cut(b.own / "simulation_0.npz"), "check", b.own][1:],
        "simulation_0.npz is truncated",
    ),
    "an NPZ of objects": (
        lambda b: [np.savez(b.own / "simulation_0.npz", x=np.array([{}])), "check", b.own][1:],
        "x.npy holds Python objects",
    ),
    "an NPZ that claims terabytes": (
        lambda b: ["check", b.claiming(b.own / "simulation_0.npz").parent],
        r"h.npy claims \(1000000000000,\) numbers",
    ),
    "an NPZ without places": (
        lambda b: [np.savez(b.own / "simulation_0.npz", T=np.zeros(3)), "check", b.own][1:],
        "has neither positions nor spacing",
    ),
    "files of two makes": (
        lambda b: [np.savez(b.own / "simulation_0000.npz", positions=np.zeros(3), T=np.zeros(3)), "check", b.own][1:],
        "simulation_0000.npz: expected spacing and states/NAME or outputs/NAME as in the others, got positions, T",
    ),
    "NaN in the boundary of own points": (
        lambda b: b.cloud(boundary=np.array([0, 0, np.nan, 1, 1])),
        "simulation_0.npz: boundary must be finite, it holds NaN",
    ),
    "NaN in a simulation": (
        lambda b: b.simulation(lambda i, a: spoil(a["states/T"], (2, 5)) if i == "1" else None),
        r"simulation_1.*state 2: T holds 1 values that are NaN or infinite, the first at point 5",
    ),
    "a constant field": (lambda b: b.simulation(lambda i, a: a["states/T"].fill(float(i))), "T never changes"),
    "two simulations": (
        lambda b: [[(b.own / f"simulation_{i}.npz").unlink() for i in (2, 3)], b.described(splits=None)][1],
        "at least three simulations, .* got 2",
    ),
    "a binary dataset.yaml": (
        lambda b: b.owned("dataset.yaml", b"\x80\x00\xff"),
        "dataset.yaml is (not valid YAML|damaged)",
    ),
    "an unknown key in dataset.yaml": (
        lambda b: b.described(bondary="open"),
        "unknown key 'bondary': did you mean 'boundary'",
    ),
    "splits that overlap": (
        lambda b: b.described(splits={"train": [0, 1], "validation": [1]}),
        "simulation 1 is in train and in validation",
    ),
    "a split beyond the data": (
        lambda b: b.described(splits={"train": [0, 9], "validation": [1]}),
        "names simulation 9, there are 4",
    ),
    "a negative time step": (lambda b: b.described(time_step=-1.0), "time_step: Input should be greater than 0"),
    "an unknown boundary": (lambda b: b.described(boundary="wavy"), "wavy"),
    "an unknown encoding for own data": (
        lambda b: ["train", b.own, "--encoding", "laap", "--out", b.out],
        "unknown encoding 'laap'",
    ),
    "a preset for own data": (lambda b: ["train", b.own, "--preset", "cpu", "--out", b.out], "own data has no presets"),
}
TRAIN = {
    "nothing to train": (lambda b: ["train"], "give one of: a problem"),
    "an unknown encoding": (lambda b: b.train("--encoding", "laap"), "unknown encoding 'laap': expected one of"),
    "a misspelt setting": (lambda b: b.train("--set", "model.with=3"), "unknown key 'with': did you mean 'width'"),
    "a half list": (lambda b: b.train("--set", "model.width=[3"), "the value is not a number"),
    "a setting without =": (lambda b: b.train("--set", "model.width"), "--set expects name=value"),
    "a width for no heads": (lambda b: b.train("--set", "model.width=50"), "must be a multiple of heads, got 50"),
    "a negative rate": (lambda b: b.train("--set", "training.learning_rate=-1"), "learning_rate.*greater than 0"),
    "minutes of a preset": (lambda b: b.train("--minutes", 3), "--minutes cannot be given with it"),
    "no dataset": (lambda b: ["train", "swe", "--data", b.folder / "none", "--out", b.out], "no file or folder .*none"),
    "another problem's data": (
        lambda b: ["train", "gray-scott", "--preset", "quick", "--data", b.data, "--out", b.out],
        "is a dataset of swe, the run is for gray-scott",
    ),
    "a batch beyond the data": (
        lambda b: b.train("--set", "training.batch_size=64"),
        "has 9 training items, fewer than one batch of 64",
    ),
    "a run that exists": (
        lambda b: [
            "train",
            "swe",
            "--preset",
            "quick",
            "--data",
            b.data,
            "--out",
            b.run,
            "--set",
            "training.batch_size=3",
        ],
        "already holds a run: continue it with --resume",
    ),
    "weights that exist": (
        lambda b: [
            (b.run / "state.pt").unlink(),
            "train",
            "swe",
            "--preset",
            "quick",
            "--data",
            b.data,
            "--out",
            b.run,
            "--set",
            "training.batch_size=3",
        ][1:],
        "already holds trained weights",
    ),
    "a file for a run": (
        lambda b: [
            "train",
            "swe",
            "--preset",
            "quick",
            "--data",
            b.data,
            "--out",
            b.write(b.folder / "file", "text"),
            "--set",
            "training.batch_size=3",
        ],
        "there is a file of that name",
    ),
    "a run that is being trained": (
        lambda b: [b.stack.enter_context(locked(b.run / ".lock")), "train", "--resume", b.run][1:],
        "another process is training into",
    ),
    "resuming no run": (lambda b: ["train", "--resume", b.folder], "is not a run: it has no config.yaml"),
    "resuming with settings": (
        lambda b: ["train", "--resume", b.run, "--set", "seed=1"],
        "continues a run as it was begun",
    ),
    "no checkpoint": (
        lambda b: [(b.run / "state.pt").unlink(), "train", "--resume", b.run][1:],
        "no checkpoint to resume",
    ),
    "a truncated checkpoint": (
        lambda b: b.side("state.pt", b"PK\x03\x04 and no more"),
        "state.pt is truncated or damaged",
    ),
    "a checkpoint of text": (lambda b: b.side("state.pt", "weights"), "state.pt is truncated or damaged"),
    "a checkpoint that is a list": (lambda b: b.resumed(lambda s: [1, 2]), "no checkpoint of a run, it lacks model"),
    "a checkpoint without its step": (lambda b: b.resumed(lambda s: s.pop("step") and None), "it lacks step"),
    "a step in words": (lambda b: b.resumed(lambda s: s.update(step="four")), "it lacks step"),
    "a step beyond the end": (lambda b: b.resumed(lambda s: s.update(step=50)), "at step 50, the run ends at step 4"),
    "a negative step": (lambda b: b.resumed(lambda s: s.update(step=-3)), "at step -3, the run ends at step 4"),
    "groups that do not fit": (
        lambda b: b.resumed(lambda s: s["optimisers"][0]["param_groups"][0]["params"].pop() and None),
        "state.pt holds the state of another optimiser",
    ),
    "an optimiser too many": (
        lambda b: b.resumed(lambda s: s["optimisers"].append(s["optimisers"][0])),
        "holds 2 optimisers, the run has 1",
    ),
    "an optimiser of words": (
        lambda b: b.resumed(lambda s: s.update(optimisers=["adam"])),
        "state of another optimiser",
    ),
    "moments of other weights": (
        lambda b: b.resumed(lambda s: s["optimisers"][0]["state"][0].update(exp_avg=torch.zeros(7))),
        r"the optimiser's exp_avg of a weight .* is \(7,\)",
    ),
    "settings of another optimiser": (
        lambda b: b.resumed(lambda s: s["optimisers"][0]["param_groups"][0].update(betas=None)),
        r"holds the state of another optimiser, its betas is None, the run's \(0.9, 0.9",
    ),
    "moments of NaN": (
        lambda b: b.resumed(lambda s: spoil(s["optimisers"][0]["state"][0]["exp_avg"], 0)),
        "the optimiser's exp_avg holds values that are not finite",
    ),
    "a run of negative time": (lambda b: b.resumed(lambda s: s.update(seconds=-5.0)), "the run took -5.0 s"),
    "losses of another table": (
        lambda b: b.side("losses.csv", "a,b\n1,2\n"),
        "losses.csv is damaged, it holds 0 rows of step, .* up to step 4, .*: restore it from a copy, or delete it",
    ),
    "binary losses": (lambda b: b.side("losses.csv", b"\x80\x00\xff"), "losses.csv is damaged, it holds 0 rows"),
    "losses that lack steps": (
        lambda b: b.side("losses.csv", "".join((b.run / "losses.csv").read_text().splitlines(True)[:3])),
        "losses.csv is damaged, it holds 2 rows",
    ),
    "a checkpoint of another model": (
        lambda b: b.resumed(lambda s: s["model"].update({"embed.weight": torch.zeros(2, 2)})),
        "weights of another model",
    ),
    "a checkpoint without averages": (
        lambda b: b.resumed(lambda s: s.update(average=None)),
        "weights of another model",
    ),
    "a checkpoint of NaN": (
        lambda b: b.resumed(lambda s: s["model"].update({"embed.weight": s["model"]["embed.weight"] * torch.nan})),
        "embed.weight holds values that are not finite",
    ),
    "no statistics": (lambda b: [(b.data / "stats.yaml").unlink(), *b.train()][1:], "no statistics at .*stats.yaml"),
    "empty statistics": (
        lambda b: b.stats(lambda t: b""),
        "stats.yaml is damaged, it holds None .*`farfield generate`",
    ),
    "broken statistics": (
        lambda b: b.stats(lambda t: t[:37] + b"{["),
        "stats.yaml is damaged .*: run the same `farfield gen",
    ),
    "binary statistics": (lambda b: b.stats(lambda t: b"\x80\x00\xff"), "stats.yaml is damaged"),
    "statistics without a key": (
        lambda b: b.stats(lambda t: t.replace(b"std_delta:", b"stdev:")),
        "it has no std_delta of v",
    ),
    "statistics without a field": (lambda b: b.stats(lambda t: t.replace(b"  h: ", b"  g: ")), "it has no mean of h"),
    "altered statistics": (
        lambda b: b.stats(lambda t: t.replace(b"  h: 1.0", b"  h: 1.1")),
        "does not belong to the data beside it",
    ),
    "altered statistics without their checksum": (
        lambda b: b.stats(lambda t: t.replace(b"  h: 1.0", b"  h: 1.1").split(b"checksum")[0]),
        "does not belong to the data",
    ),
    "a binary config.yaml": (
        lambda b: b.side("config.yaml", b"\x80\x00\xff"),
        "config.yaml is damaged .*: restore it from a copy",
    ),
    "an empty config.yaml": (lambda b: b.side("config.yaml", ""), "config.yaml is damaged, it holds None"),
    "a list as config.yaml": (lambda b: b.side("config.yaml", "- 1\n- 2"), "config.yaml is damaged, it holds"),
    "a bottomless config.yaml": (lambda b: b.side("config.yaml", "[" * 1500), "config.yaml is damaged"),
    "a config.yaml of nothing known": (lambda b: b.side("config.yaml", "a: 1"), "among them problem: NAME"),
    "a config.yaml that lacks its dataset": (lambda b: b.side("config.yaml", "problem: swe"), "config.yaml: dataset"),
    "a truncated dataset.json": (
        lambda b: b.side("dataset.json", '{"spec": '),
        "dataset.json is damaged .*: restore it",
    ),
    "an altered dataset.json": (
        lambda b: ["train", "--resume", b.altered("dataset.json", "spec", "training_extent", to=[50.0])[1]],
        "was trained on other data: its spec is",
    ),
    "a truncated split": (
        lambda b: [b.cut(b.data / "data/train/swe.hdf5", 3000), *b.train()][1:],
        "swe.hdf5 is truncated, damaged or not HDF5",
    ),
    "a split of text": (
        lambda b: [b.write(b.data / "data/train/swe.hdf5", "text"), *b.train()][1:],
        "truncated, damaged or not HDF5",
    ),
    "an altered extent": (lambda b: b.header(extent=[200.0]), r"its extent \(200.0,\) was altered, its scale times"),
    "an altered scale": (lambda b: b.header(scale=[2.0]), "its extent .* was altered"),
    "altered coordinates": (
        lambda b: b.hdf5(lambda f: spoil(f["dimensions/x"], 3, 7.0)),
        "its dimensions/x was altered",
    ),
    "no header": (lambda b: b.hdf5(lambda f: f.attrs.pop("farfield")), "is not a dataset file of farfield"),
    "NaN in the training data": (
        lambda b: b.hdf5(lambda f: spoil(f["t0_fields/h"], (1, 2, 5))),
        "train/swe.hdf5, simulation 1, state 2: h holds 1 values that are NaN or infinite, the first at point 5",
    ),
    "NaN in the validation data": (
        lambda b: b.hdf5(lambda f: spoil(f["t0_fields/v"], (2, 3, 0), np.inf), "validation"),
        "validation/swe.hdf5, simulation 2, state 3: v holds 1 values that are NaN",
    ),
}
EVALUATE = {
    "a run that is none": (lambda b: ["evaluate", b.folder], "is not a run"),
    "a scale without data": (lambda b: ["evaluate", b.run, "--scales", 7], "7"),
    "scales to evaluate in words": (
        lambda b: ["evaluate", b.run, "--scales", "one"],
        "expected scales like 1, 10 or 2x1",
    ),
    "a negative limit": (lambda b: ["evaluate", b.run, "--limit", -1], "--limit must be at least 0, got -1"),
    "no weights": (
        lambda b: [[(b.run / f"{n}.safetensors").unlink() for n in ("best", "last")], "evaluate", b.run][1:],
        "no weights at",
    ),
    "truncated weights": (lambda b: [b.cut(b.run / "best.safetensors"), "evaluate", b.run][1:], "truncated or damaged"),
    "weights of another model": (lambda b: b.weights(lambda w: w.pop("embed.weight")), "weights of another model"),
    "weights of NaN": (
        lambda b: b.weights(lambda w: w["embed.weight"].fill_(torch.nan)),
        "embed.weight holds values that are not",
    ),
    "an altered training extent": (
        lambda b: b.altered("dataset.json", "spec", "training_extent", to=[50.0]),
        "dataset.json, or the encoding .* was altered",
    ),
    "an altered mean": (
        lambda b: b.altered("dataset.json", "states", "mean", to=[0.0, 2.0]),
        "was altered since best.safetensors",
    ),
    "an altered encoding": (
        lambda b: b.altered("config.yaml", "encoding", "decay_length", to=77.0),
        "was altered since",
    ),
    "a dataset.json without statistics": (
        lambda b: b.predict(model=b.altered("dataset.json", "states", to=3)[1]),
        "altered since|does not describe",
    ),
    "a damaged evaluation.json": (
        lambda b: ["evaluate", b.write(b.run / "evaluation.json", '{"weights": ').parent, "--scales", 1],
        "evaluation.json is damaged",
    ),
    "an evaluation.json of other things": (
        lambda b: ["evaluate", b.write(b.run / "evaluation.json", '{"scales": 3}').parent, "--scales", 1],
        "evaluation.json is damaged at 'scales': delete it and evaluate again",
    ),
}
REPORT = {
    "a run that is not evaluated": (lambda b: b.report(b.run), "has not been evaluated: run `farfield evaluate"),
    "rows of other columns": (lambda b: b.csv("problem,", "planet,"), "expected the columns problem, encoding"),
    "a row of words": (lambda b: b.csv("0.1", "little"), "evaluation.csv, line 2: could not convert"),
    "rows of NaN": (lambda b: b.csv("0.1", "nan"), "none of its 4 errors is a number"),
    "a scale in words": (lambda b: b.csv(",2,", ",../../up,"), "evaluation.csv, line 4: could not convert"),
    "an encoding that is none": (lambda b: b.csv("laape", "magic"), "one run of a known encoding"),
    "no rows": (
        lambda b: b.csv(
            b.rows.joinpath("evaluation.csv").read_text(),
            "problem,encoding,seed,scale,field,metric,horizon,value,samples\n",
        ),
        "does not hold the rows of one run",
    ),
    "binary rows": (lambda b: [b.write(b.rows / "evaluation.csv", b"\x80\x00\xff"), *b.report()][1:], "evaluation.csv"),
    "the same run twice": (
        lambda b: b.report(b.rows, Path(shutil.copytree(b.rows, b.folder / "again"))),
        "are both swe laape 0: give one",
    ),
    "a report that exists": (
        lambda b: [b.write(b.out / "index.html", "mine"), *b.report()][1:],
        "index.html exists: choose another --out, or over",
    ),
    "damaged pictures": (
        lambda b: [b.write(b.rows / "samples.npz", b"PK\x03\x04"), *b.report()][1:],
        "samples.npz is truncated, damaged",
    ),
    "other weights than evaluated": (
        lambda b: [
            b.write(b.rows / "best.safetensors", b"x"),
            b.write(b.rows / "evaluation.json", '{"weights": "y"}'),
            *b.report(),
        ][2:],
        "was evaluated with other weights",
    ),
}
PREDICT = {
    "an unknown model": (lambda b: b.predict(model="swe-nothing"), "no model 'swe-nothing'"),
    "nothing to predict from": (lambda b: ["predict", "--model", "swe-laape", "--out", b.out], "give either --input"),
    "no input": (lambda b: b.predict(source=b.folder / "none.npz"), "no file .*none.npz"),
    "no positions": (lambda b: b.arrays(positions=None), "has no array 'positions', it has v, h"),
    "a missing field": (lambda b: b.arrays(h=None), "expected the fields v, h, got v"),
    "a field too many": (lambda b: b.arrays(w=np.zeros(64)), "expected the fields v, h, got v, h, w"),
    "NaN in a field": (lambda b: b.arrays(h=np.full(64, np.nan)), "field h holds 64 values that are NaN or infinite"),
    "NaN in the boundary": (lambda b: b.arrays(boundary=np.full(64, np.nan)), "boundary must be finite"),
    "a boundary of other numbers": (
        lambda b: b.arrays(boundary=np.full(64, 7.0)),
        "boundary must be 1 where the domain ends and 0 elsewhere, got 7 to 7",
    ),
    "positions of text": (
        lambda b: b.arrays(positions=np.linspace(0, 99, 64).astype(str)),
        "positions must hold real numbers",
    ),
    "NaN in the positions": (lambda b: b.arrays(positions=np.full(64, np.nan)), "positions must be finite"),
    "fields of another length": (lambda b: b.arrays(h=np.ones(63)), r"field h must have the shape \(64,\)"),
    "positions of two axes": (lambda b: b.arrays(positions=np.zeros((64, 2))), r"must have the shape \(points, 1\)"),
    "a boundary of another length": (
        lambda b: b.arrays(boundary=np.zeros(3)),
        r"boundary must have the shape \(64, 1\)",
    ),
    "fields of text": (lambda b: b.arrays(h=np.array(["high"] * 64)), "field h must hold real numbers"),
    "complex fields": (lambda b: b.arrays(h=np.ones(64) * 1j), "field h must hold real numbers"),
    "fields of objects": (lambda b: b.arrays(h=np.array([{}] * 64)), "h.npy holds Python objects"),
    "an empty cloud": (lambda b: b.arrays(positions=np.zeros(0), v=np.zeros(0), h=np.zeros(0)), "must have the shape"),
    "terabytes": (
        lambda b: b.predict(source=b.claiming(b.folder / "huge.npz")),
        "claims .* numbers, 8e[+]12 bytes, and holds 0",
    ),
    "a truncated input": (
        lambda b: [b.cut(b.state), *b.predict()][1:],
        "state.npz is truncated, damaged or not a NumPy",
    ),
    "an input of text": (lambda b: b.predict(source=b.write(b.folder / "a.npz", "text")), "not a NumPy .npz file"),
    "another ending": (
        lambda b: b.predict(to="out.csv"),
        r"expected a name ending in \.npz, .* for --out, got out\.csv",
    ),
    "an output that exists": (
        lambda b: [b.write(b.folder / "out.npz", "mine"), *b.predict()][1:],
        "out.npz exists: choose another --out, or overwrite",
    ),
    "a folder as output": (
        lambda b: [(b.folder / "out.npz").mkdir(), *b.predict("--force")][1:],
        "out.npz is a folder: choose another --out",
    ),
    "pieces in a folder of other things": (
        lambda b: [
            b.write(b.folder / "thesis" / "a.tex", "years"),
            *b.predict("--force", "--parts", 2, to="thesis.pvtu"),
        ][1:],
        "thesis, where the pieces of thesis.pvtu go, holds other things: choose another --out",
    ),
    "pieces over others": (
        lambda b: [b.write(b.folder / "flow" / "0.vtu", "piece"), *b.predict("--parts", 2, to="flow.pvtu")][1:],
        "flow exists: choose another --out, or overwrite with --force",
    ),
    "the input as output": (lambda b: b.predict(to="state.npz"), "state.npz is the input itself"),
    "no steps": (lambda b: b.predict("--steps", 0), "--steps must be at least 1, got 0"),
    "options of another problem": (lambda b: b.predict("--roughness", 0.3), "has no use for --roughness"),
    "buildings for water": (
        lambda b: ["predict", "--model", "swe-laape", "--buildings", b.write(b.folder / "a.stl", ""), "--out", b.out],
        "it needs --input with data",
    ),
    "HDF5 of nothing": (lambda b: b.well({}, {"a": (1,)}), "is for an input in The Well's layout"),
    "HDF5 of other shapes": (
        lambda b: b.well({"v": (1, 2, 8), "h": (1, 2, 9)}, {"dimensions/x": (8,)}),
        "h must have the shape",
    ),
    "HDF5 of terabytes": (
        lambda b: b.well({"v": (1, 2, 10**13), "h": (1, 2, 10**13)}, {"dimensions/x": (10**13,)}),
        "the axis x of .*in.hdf5 claims 80,000.0 GB, this machine has",
    ),
    "a state beyond the file": (
        lambda b: [*b.well({"v": (1, 2, 8), "h": (1, 2, 8)}, {"dimensions/x": (8,)}), "--start", 5],
        "there is no state 5",
    ),
    "a device that is not here": (lambda b: b.predict("--device", "cuda"), "sees no CUDA here"),
    "a device that is none": (lambda b: b.predict("--device", "abacus"), "abacus"),
    "an output in a file": (
        lambda b: [b.write(b.folder / "f", ""), *b.predict(to="f/out.npz")][1:],
        "there is a file of that name|Not a directory",
    ),
}
OTHERS = {
    "fine-tuning a built-in problem": (
        lambda b: ["finetune", b.run, "--data", b.own, "--out", b.out],
        "fine-tuning is for own data",
    ),
    "fine-tuning into a run": (lambda b: ["finetune", b.run, "--data", b.own, "--out", b.run], "already holds a run"),
    "repeating an unknown experiment": (lambda b: ["reproduce", "lorenz", "--out", b.out], "unknown problem 'lorenz'"),
    "repeating an unknown preset": (
        lambda b: ["reproduce", "swe", "--preset", "tiny", "--out", b.out],
        "has no preset 'tiny'",
    ),
    "seeds in words": (
        lambda b: ["reproduce", "swe", "--seeds", "one", "--out", b.out],
        "--seeds expects whole numbers",
    ),
    "encodings of stability": (
        lambda b: ["reproduce", "stability", "--encodings", "rope", "--out", b.out],
        "stability trains nothing",
    ),
    "another run's folder for an experiment": (
        lambda b: [b.run.rename(b.folder / "laape-seed0"), "reproduce", "swe", "--out", b.folder][1:],
        "holds a run with other settings",
    ),
}
CASES = {**GENERATE, **OWN, **TRAIN, **EVALUATE, **REPORT, **PREDICT, **OTHERS}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@pytest.mark.parametrize(("command", "sentence"), CASES.values(), ids=CASES)
def test_what_is_bad_is_refused_in_one_sentence_and_nothing_is_written(
    command, sentence, made, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delenv("FARFIELD_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        arguments = command(Box(made, tmp_path, stack))
        before = contents(tmp_path)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            farfield(*arguments)
        assert contents(tmp_path) == before, "written: nothing should have been"
    said = [line for line in capfd.readouterr().err.splitlines() if not line.startswith("warning: ")]
    assert ended.value.code == 2
    assert len(said) == 1 and said[0].startswith("error: "), said
    assert re.search(sentence, said[0]), said[0]
