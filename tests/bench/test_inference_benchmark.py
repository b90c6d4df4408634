"""The real comparison, on cities that OpenFOAM solves in a second."""

import json
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from farfield.bench.inference import benchmark_inference, markdown
from farfield.cli import app
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.generation import generate_urban_wind
from farfield.problems.urban_wind.openfoam_case import SolverSettings
from farfield.problems.urban_wind.prediction import UrbanPredictor
from farfield.problems.urban_wind.presets import UrbanPreset
from farfield.runs.run import Run

pytestmark = pytest.mark.skipif(
    shutil.which("simpleFoam") is None, reason="OpenFOAM is not installed (Debian package openfoam)"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("urban")
    coarse = SolverSettings(tolerance=1e-2)
    preset = UrbanPreset({"train": 1, "test": 1, "ls": 1}, cell=12.5, ground_cell=4.0, settings=coarse)
    generate_urban_wind(folder, preset, workers=1, show_progress=False)
    return folder


def test_times_errors_and_both_kinds_of_attention_are_measured(urban_run, data, tmp_path) -> None:
    arguments = ["bench", "inference", "--model", str(urban_run), "--data", str(data), "--repeats", "2"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(tmp_path / "inference.json")])
    assert result.exit_code == 0, result.exception
    results = json.loads((tmp_path / "inference.json").read_text())
    assert (tmp_path / "inference.md").read_text().endswith(f"\n\n{markdown(results)}")  # after what it shows
    assert [row["scale"] for row in results["rows"]] == [1, 2]
    for row in results["rows"]:
        record = json.loads((data / "records" / f"{row['case']}.json").read_text())["attempts"][-1]
        assert row["openfoam_seconds"] == record["cpu_seconds"] > 0 and row["openfoam_source"] == "recorded"
        assert row["cells"] == record["cells"]
        assert row["seconds"] > 0 and row["dense_seconds"] > 0 and row["tiled_seconds"] > 0
        assert row["tiled_difference"] < 1e-2
        assert 0.01 < row["velocity_error_wake"] < 10, "an untrained network"
    assert results["rows"][1]["anchors"] > results["rows"][0]["anchors"]


def test_the_error_is_the_papers(urban_run, data) -> None:
    predictor = UrbanPredictor.load(Run(urban_run), "cpu")
    row = benchmark_inference(predictor, data, repeats=1, say=lambda text: None)["rows"][0]
    case = UrbanWindFiles(data).load("test", int(row["case"]))
    predicted = predictor.from_case(case, case.positions, np.random.default_rng([0, 0]))[:, :3]
    inside = (np.abs(case.positions[:, :2]) < 50).all(1)
    for region, cells in (("buildings", inside), ("wake", ~inside)):
        truth = case.fields["velocity"][cells]
        expected = np.abs(predicted[cells] - truth).sum() / np.abs(truth).sum()
        assert row[f"velocity_error_{region}"] == pytest.approx(expected, rel=1e-3)


def test_openfoam_runs_again_where_asked_and_missing_records_are_said(urban_run, data, tmp_path) -> None:
    predictor = UrbanPredictor.load(Run(urban_run), "cpu")
    measured = benchmark_inference(predictor, data, repeats=1, solve=True, finer=True, say=lambda text: None)
    assert all(row["openfoam_source"] == "measured" and row["openfoam_seconds"] > 0 for row in measured["rows"])
    first, *_, finer = measured["rows"]
    assert first["case"] == finer["case"] and 2 < finer["cells"] / first["cells"] < 8  # the outer cells stay
    solver, prediction = (first[name] for name in ("openfoam_seconds", "seconds"))
    together = f"| 1 | {first['mesh']} | 1 | {solver:.1f} (measured) | {prediction:.2f} | {solver / prediction:.1f} |"
    assert together in markdown(measured)
    assert "12.5 m, at the ground 4 m high" in markdown(measured) and finer["mesh"].startswith("6.25 m")
    for region in ("buildings", "wake"):  # the same network on the same city: only the truth is finer
        assert finer[f"velocity_error_{region}"] == pytest.approx(first[f"velocity_error_{region}"], rel=0.3)
    copy = shutil.copytree(data, tmp_path / "copy")
    shutil.rmtree(copy / "records")
    without = benchmark_inference(predictor, copy, repeats=1, scales=["2"], say=lambda text: None)
    assert [row["scale"] for row in without["rows"]] == [2]
    with pytest.raises(ValueError, match="s = 1, 2, 5, got 3"):
        benchmark_inference(predictor, copy, scales=["1", "3"])
    assert without["rows"][0]["openfoam_seconds"] is None and "not recorded" in markdown(without)
