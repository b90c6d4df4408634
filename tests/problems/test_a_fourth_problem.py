"""A problem is one place: heat conduction, defined here and nowhere else, goes through every command."""

import json

import h5py
import numpy as np
import pytest
import yaml

import farfield as ff
from farfield import cli
from farfield.api import report
from farfield.evaluation.rows import read_rows
from farfield.problems import PROBLEMS, SteppingProblem
from farfield.problems.generation import DatasetConfig, GridGeneration, published_splits
from farfield.problems.problem import Preset
from farfield.report.saved import Presentation
from farfield.runs.config import SteppingRun

SETTINGS = {
    "model.width": 24,
    "model.depth": 1,
    "training.optimiser": "adamw",
    "training.learning_rate": 3e-3,
    "training.batch_size": 4,
    "training.steps": 30,
    "training.validate_every": 15,
}


def draw(rng, domain, count):
    """Warm spots in a cold rod: (1, cells)."""
    (x,) = domain.centres()
    return sum(np.exp(-(((x - rng.uniform(0, domain.extent[0])) / 2) ** 2)) for _ in range(count))[None]


def solve(first, domain, save_every, states, *, time_step, diffusivity):
    """∂T/∂t = a ∂²T/∂x², explicit, insulated ends."""
    saved = [first]
    for _ in range(states - 1):
        now = saved[-1]
        for _ in range(save_every):
            padded = np.pad(now, [(0, 0), (0, 0), (1, 1)], mode="edge")
            now = now + time_step * diffusivity / domain.spacing[0] ** 2 * np.diff(padded, 2)
        saved.append(now)
    return np.stack(saved, axis=1)


def settings(preset, seed):
    return DatasetConfig(
        problem="heat",
        preset=preset,
        seed=seed,
        cells=(32,),
        extent=(32.0,),
        sources=2,
        time_step=0.2,
        save_every=5,
        states=5,
        constants={"diffusivity": 1.0},
        splits=published_splits(1, 6, 2, {2: 2, 3: 2}),
    )


HEAT = SteppingProblem(
    name="heat",
    shown=Presentation("Heat conduction", horizons=(2, 4)),
    generation=GridGeneration(
        settings, ("T",), ("K",), "mm", "s", "wall", draw, solve, "Heat in a rod.", presets=("quick",)
    ),
    presets={
        "quick": Preset(
            lambda encoding, dataset, seed: SteppingRun(problem="heat", dataset=dataset, seed=seed).changed(
                {"encoding.name": encoding, "encoding.decay_length": None if encoding == "rope" else 120.0, **SETTINGS}
            ),
            minutes=0.1,
            scales=("1", "2", "3"),
        )
    },
)


@pytest.fixture
def farfield(monkeypatch, capsys, tmp_path):
    """The command line, which knows of heat, in an empty folder."""
    monkeypatch.setitem(PROBLEMS, "heat", HEAT)
    monkeypatch.chdir(tmp_path)

    def run(*words) -> str:
        monkeypatch.setattr("sys.argv", ["farfield", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        said = capsys.readouterr()
        assert left.value.code == 0, said.err
        return said.out

    return run


def test_generate_train_evaluate_report_and_predict(farfield, tmp_path):
    assert "made train, validation, test, s2, s3" in farfield("generate", "heat", "--preset", "quick")
    card = (tmp_path / "data/heat-quick/README.md").read_text()
    assert "Heat in a rod." in card and "published" not in card
    farfield("train", "heat", "--preset", "quick")
    run = tmp_path / "runs/heat-quick-laape-seed0"
    farfield("evaluate", run, "--scales", 1, 2, 3)
    rows = read_rows(run / "evaluation.csv")
    assert {(row.problem, row.field) for row in rows if row.field} == {("heat", "T")}
    errors = {row.scale: row.value for row in rows if row.metric == "l1_step"}
    assert set(errors) == {"1", "2", "3"} and errors["1"] < 1
    page = farfield("report", run, "--out", tmp_path / "report").split(":")[0]
    assert "Heat conduction" in (tmp_path / page).read_text()
    assert {path.name for path in (tmp_path / "report/figures").iterdir()} >= {"heat-error-scale.png", "heat-s3.png"}
    source, out = tmp_path / "data/heat-quick/data/s3/heat.hdf5", tmp_path / "next.hdf5"
    farfield("predict", "--model", run, "--input", source, "--out", out, "--steps", 3)
    with h5py.File(out) as file:
        assert file["t0_fields/T"].shape == (2, 4, 96)


def test_reproduce_is_the_same_in_one_command(farfield, tmp_path):
    said = farfield("reproduce", "heat", "--encodings", "rope", "laape")
    assert "heat, preset quick: train rope, laape" in said
    table = (tmp_path / "runs/heat-quick/report/tables/heat-l1.md").read_text()
    assert table.startswith("Heat conduction: L1 error [%] of the change over one step, on test domains")
    assert "paper" not in table


def test_a_run_of_a_problem_that_is_not_built_in_is_what_its_data_says(farfield, tmp_path, monkeypatch):
    farfield("generate", "heat", "--preset", "quick")
    farfield("train", "heat", "--preset", "quick", "--out", "runs/mine")
    monkeypatch.delitem(PROBLEMS, "heat")
    predictor = ff.load("runs/mine")
    assert predictor.fields == ("T",) and predictor.problem == "heat"
    rows = ff.evaluate("runs/mine", scales=["1", "3"])
    assert {row.scale for row in rows} == {"1", "3"}
    assert ">heat</h2>" in report(["runs/mine"], "report").read_text()
    farfield("train", "--config", "runs/mine/config.yaml", "--out", "runs/again")
    assert (tmp_path / "runs/again/last.safetensors").read_bytes() == (
        tmp_path / "runs/mine/last.safetensors"
    ).read_bytes()


def test_a_folder_of_an_older_version_is_read(farfield, tmp_path):
    """It says ``case`` where we say ``problem``, in its settings, its data and its rows."""
    farfield("generate", "heat", "--preset", "quick")
    farfield("train", "heat", "--preset", "quick", "--out", "runs/old")
    rows = ff.evaluate("runs/old", scales=["1"])
    run = tmp_path / "runs/old"
    for name in ("config.yaml", "dataset.json", "evaluation.csv"):
        text = (run / name).read_text()
        assert text.count("problem") == 1
        (run / name).write_text(text.replace("problem", "case"))
    manifest = tmp_path / "data/heat-quick/dataset.yaml"
    manifest.write_text(manifest.read_text().replace("problem", "case"))
    with h5py.File(tmp_path / "data/heat-quick/data/s2/heat.hdf5", "r+") as file:
        header = json.loads(file.attrs["farfield"])
        header["spec"]["case"] = header["spec"].pop("problem")
        file.attrs["farfield"] = json.dumps(header)
    assert "already complete" in farfield("generate", "heat", "--preset", "quick")
    assert ff.evaluate("runs/old", scales=["1"]) == rows
    assert {row.scale for row in ff.evaluate("runs/old", scales=["2"])} == {"1", "2"}
    farfield("train", "--resume", "runs/old")
    assert yaml.safe_load((run / "config.yaml").read_text())["case"] == "heat"
