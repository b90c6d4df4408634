"""Generation with real, very coarse OpenFOAM runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv
from typer.testing import CliRunner

from farfield.cli import app
from farfield.problems.urban_wind import generation as urban_generation
from farfield.problems.urban_wind.buildings import UrbanDomain
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.generation import generate_urban_wind
from farfield.problems.urban_wind.openfoam_case import SolverSettings
from farfield.problems.urban_wind.presets import (
    ATTEMPTS,
    FOR_TRAINING,
    PRESETS,
    UrbanPreset,
    draw_air,
    draw_city,
    list_cases,
)
from farfield.problems.urban_wind.recipe import UrbanGeneration
from farfield.problems.urban_wind.solver import NODE_TYPES, Convergence, NotConvergedError, WindSolution, solve_boxes

needs_openfoam = pytest.mark.skipif(
    shutil.which("simpleFoam") is None, reason="OpenFOAM is not installed (Debian package openfoam)"
)
TINY = UrbanPreset({"train": 2, "val": 1, "test": 1, "ls": 1}, cell=12.5, ground_cell=4.0)


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("urban")
    generate_urban_wind(out, TINY, workers=2, seed=3, show_progress=False)
    return out


def test_presets_have_the_published_counts() -> None:
    for name in ("cpu", "paper"):
        cases = list_cases(PRESETS[name])
        assert len(cases) == 138 + 10 + 80 + 10 + 10
        assert [case.name for case in cases[:2]] == ["0", "1"] and cases[-1].name == "vls_9"
        assert len({case.name for case in cases}) == len(cases)
    for preset in PRESETS.values():
        assert (100 / preset.cell) % 1 == 0, "the edge of the square is a mesh line"


def test_roughness_covers_its_range_and_is_shared_by_the_large_scales() -> None:
    cases = list_cases(PRESETS["cpu"])
    drawn = [draw_air(0, case, PRESETS["cpu"])[0] for case in cases]
    assert 0.05 <= min(drawn) < 0.06 and 0.9 < max(drawn) <= 1.0
    assert np.median(drawn) == pytest.approx(np.sqrt(0.05), rel=0.25)
    by_name = dict(zip((case.name for case in cases), drawn, strict=True))
    assert by_name["ls_3"] == by_name["vls_3"] != by_name["3"]


def test_cities_do_not_depend_on_their_roughness() -> None:
    cases = list_cases(PRESETS["cpu"])[:228]
    logs = np.log([draw_air(0, case, PRESETS["cpu"])[0] for case in cases])
    counts = [len(draw_city(0, case, 0, PRESETS["cpu"])) for case in cases]
    assert set(counts) == set(range(4, 11))
    assert abs(np.corrcoef(logs, counts)[0, 1]) < 3 / np.sqrt(len(cases))
    assert draw_city(0, cases[0], 0, PRESETS["cpu"]) != draw_city(0, cases[0], 1, PRESETS["cpu"])


def test_more_cities_are_other_cities_and_the_first_ones_stay_as_they_were() -> None:
    cases = list_cases(PRESETS["cpu"])
    assert len(draw_city(0, cases[1], 0, PRESETS["cpu"])) == 10  # as in the card of the kept dataset
    assert draw_air(0, cases[1], PRESETS["cpu"])[0] == pytest.approx(0.192, abs=5e-4)
    for name in ("cpu-more", "cpu-oblique"):
        assert draw_city(0, cases[1], 0, PRESETS[name]) != draw_city(0, cases[1], 0, PRESETS["cpu"])
    angles = np.array([draw_air(0, case, PRESETS["cpu-oblique"])[1] for case in list_cases(PRESETS["cpu-oblique"])])
    assert -45 <= angles.min() < -40 and 40 < angles.max() <= 45 and abs(angles.mean()) < 6
    assert not any(draw_air(0, case, PRESETS["cpu-more"])[1] for case in cases)


@needs_openfoam
def test_oblique_cases_are_read_in_wind_axes(tmp_path: Path) -> None:
    preset = replace(TINY, cases={"train": 1, "val": 1, "test": 1}, max_wind_angle=45.0, stream=2)
    generate_urban_wind(tmp_path, preset, workers=1, show_progress=False)
    files = UrbanWindFiles(tmp_path)
    which = max((("train", 0), ("val", 1), ("test", 2)), key=lambda one: abs(files.wind_angle(*one)))
    case, turned = files.load(*which), files.volume(*which)
    angle = np.deg2rad(case.wind_angle)
    assert abs(case.wind_angle) > 10
    velocity = np.asarray(turned["velocity"])
    downwind = velocity[:, 0] * np.cos(angle) + velocity[:, 1] * np.sin(angle)
    assert np.allclose(case.fields["velocity"][:, 0], downwind, atol=1e-5)
    mean = case.fields["velocity"].mean(0)
    assert mean[0] > 2 and abs(mean[1]) < 0.1 * mean[0], "the wind blows along +x"
    centres = turned.cell_centers().points
    assert np.array_equal(case.in_square, (np.abs(centres[:, :2]) < 50).all(1))
    assert np.allclose(np.linalg.norm(case.positions, axis=1), np.linalg.norm(centres, axis=1), rtol=1e-5)


@needs_openfoam
def test_the_layout_is_complete_and_readable(generated: Path) -> None:
    index = json.loads((generated / "random_buildings_dataset.json").read_text())
    assert index["total_size"] == 4 and index["node_type_classes"] == list(NODE_TYPES)
    assert (index["train_ids"], index["val_ids"], index["test_ids"]) == ([0, 1], [2], [3])
    assert len(index["z0"]) == len(index["invlmo"]) == 4 and len(index["ls_z0s"]) == 1
    files = UrbanWindFiles(generated, fields=("velocity", "pressure", "k", "epsilon", "pottemp"))
    for split in ("train", "val", "test", "ls"):
        for number in files.ids(split):
            case = files.load(split, number)
            half = 50 * case.scale
            assert np.abs(case.obstacles[..., :2]).max() <= half + 1e-3
            assert case.obstacles[..., 2].min() >= 0 and 0.01 < case.plan_density < 0.6
            assert (case.fields["pottemp"] == np.float32(293.15)).all()
            assert 5 < case.fields["velocity"][:, 0].max() < 15
    volume = pv.read(generated / "volume_0.vtk")
    assert set(volume.cell_data.keys()) == {"velocity", "pressure", "pottemp", "k", "epsilon", "node_type"}
    assert volume["node_type"].shape[1] == len(NODE_TYPES)
    assert b"BINARY" in (generated / "volume_0.vtk").read_bytes()[:200]


@needs_openfoam
def test_every_case_keeps_its_convergence(generated: Path) -> None:
    for name in ("0", "1", "2", "3", "ls_0"):
        record = json.loads((generated / "records" / f"{name}.json").read_text())
        last = record["attempts"][-1]
        assert last["converged"] and last["iterations"] == len(last["residuals"]["p"])
        assert max(last["residuals"][f][-1] for f in ("Ux", "Uy", "Uz", "k", "epsilon")) < 1e-4
    card = (generated / "README.md").read_text()
    for expected in (
        "| train | 1 | 2 |",
        "| ls | 2 | 1 |",
        "Cases that were drawn again",
        "speed_at_2m_s2.png",
    ):
        assert expected in card
    assert (generated / "speed_at_2m_s1.png").stat().st_size > 10_000


@needs_openfoam
def test_an_interrupted_generation_continues(generated: Path) -> None:
    before = {path: path.read_bytes() for path in generated.glob("*.vtk")}
    touched = {path: path.stat().st_mtime_ns for path in before}
    (generated / "records" / "1.json").unlink()  # as after a kill between the files and the record
    (generated / "volume_1.vtk").unlink()
    (generated / "random_buildings_dataset.json").unlink()
    with pytest.raises(FileNotFoundError, match="generation is not finished"):
        UrbanWindFiles(generated)
    generate_urban_wind(generated, TINY, workers=1, seed=3, show_progress=False)
    for path, data in before.items():
        assert path.read_bytes() == data, "the same seed gives the same case"
        assert (path.stat().st_mtime_ns == touched[path]) == (not path.stem.endswith("_1")), path.name


@needs_openfoam
def test_training_may_begin_before_the_cities_that_judge_are_solved(tmp_path, monkeypatch) -> None:
    def stops_at_the_large(boxes, domain, *arguments, **start) -> WindSolution:
        if domain == UrbanDomain.square(2.0):
            raise KeyboardInterrupt
        return solve_boxes(boxes, domain, *arguments, **start)

    kinds = UrbanGeneration()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(urban_generation, "solve_boxes", stops_at_the_large)
        generate_urban_wind(tmp_path, TINY, workers=1, seed=3, show_progress=False)
    files = UrbanWindFiles(tmp_path)
    assert [files.ids(split) for split in ("train", "val", "test", "ls")] == [[0, 1], [2], [3], []]
    assert files.load("train", 1).roughness == draw_air(3, list_cases(TINY)[1], TINY)[0]
    assert not kinds.is_whole(tmp_path), "`reproduce` goes on with it"
    generate_urban_wind(tmp_path, TINY, workers=1, seed=3, show_progress=False)
    assert UrbanWindFiles(tmp_path).ids("ls") == [0]
    assert kinds.is_whole(tmp_path)


@pytest.mark.parametrize("done", [("0", "1"), ("0", "2"), ("0", "1", "2", "ls_0"), ("3", "ls_0", "vls_0")])
def test_an_index_lists_whole_splits_alone(tmp_path, done) -> None:
    preset = replace(TINY, cases={"train": 2, "val": 1, "test": 1, "ls": 1, "vls": 1})
    (tmp_path / "records").mkdir()
    for name in done:
        (tmp_path / "records" / f"{name}.json").write_text('{"z0": 0.5, "wind_angle": 0.0}')
    urban_generation._write_index(tmp_path, list_cases(preset), preset)
    path = tmp_path / "random_buildings_dataset.json"
    if done == ("0", "2"):
        assert not path.exists(), "no split is whole"
        return
    index = json.loads(path.read_text())
    small = done != ("3", "ls_0", "vls_0")
    assert index["train_ids"] == ([0, 1] if small else []), "what comes before the test city is missing"
    assert index["val_ids"] == ([2] if "2" in done else []) and index["test_ids"] == []
    assert len(index["ls_z0s"]) == (0 if small else 1), "both large scales or none"


@needs_openfoam
def test_other_settings_do_not_mix_into_a_folder(generated: Path) -> None:
    with pytest.raises(ValueError, match="seed 3 instead of 2"):
        generate_urban_wind(generated, TINY, seed=2, show_progress=False)


@needs_openfoam
def test_a_stalled_case_is_drawn_again_and_stays_on_record(tmp_path, monkeypatch) -> None:
    calls = []

    def stalls_once(boxes, domain, roughness, cell, ground_cell, settings, folder, **start) -> WindSolution:
        calls.append(boxes)
        if len(calls) == 1:
            settings = replace(settings, iteration_limit=3)
        return solve_boxes(boxes, domain, roughness, cell, ground_cell, settings, folder, **start)

    monkeypatch.setattr(urban_generation, "solve_boxes", stalls_once)
    generate_urban_wind(tmp_path, replace(TINY, cases={"train": 1}), workers=1, show_progress=False)
    attempts = json.loads((tmp_path / "records" / "0.json").read_text())["attempts"]
    assert [attempt["converged"] for attempt in attempts] == [False, True]
    assert attempts[0]["reason"].startswith("stalled") and len(attempts[0]["residuals"]["p"]) == 3
    assert calls[0] != calls[1], "another city"
    assert "case 0, attempt 0: stalled" in (tmp_path / "README.md").read_text()


@needs_openfoam
def test_a_case_that_never_converges_is_reported_and_harms_no_other(tmp_path, monkeypatch) -> None:
    def first_city_stalls(boxes, domain, roughness, *arguments, **start) -> WindSolution:
        *mesh, settings, folder = arguments
        if roughness in stalling:
            settings = SolverSettings(iteration_limit=2)
        return solve_boxes(boxes, domain, roughness, *mesh, settings, folder, **start)

    preset = replace(TINY, cases={"train": 2})
    stalling = [draw_air(0, list_cases(preset)[0], preset, again)[0] for again in (False, True)]
    monkeypatch.setattr(urban_generation, "solve_boxes", first_city_stalls)
    with pytest.raises(RuntimeError, match=r"1 of 2 cases could not be made[\s\S]*0: .*stalled"):
        generate_urban_wind(tmp_path, preset, workers=1, show_progress=False)
    assert (tmp_path / "volume_1.vtk").exists() and not (tmp_path / "volume_0.vtk").exists()
    assert len(json.loads((tmp_path / "records" / "0.failed.json").read_text())) == 2 * ATTEMPTS
    # with its second air it converges, and the index says which that is
    del stalling[1]
    generate_urban_wind(tmp_path, preset, workers=1, show_progress=False)
    index = json.loads((tmp_path / "random_buildings_dataset.json").read_text())
    assert index["z0"][0] == draw_air(0, list_cases(preset)[0], preset, again=True)[0] != stalling[0]


@pytest.mark.parametrize(("cases", "airs"), [({"ls": 1}, 2), ({"ls": 1, "vls": 1}, 1)])
def test_only_a_case_that_has_its_air_for_itself_draws_another(tmp_path, monkeypatch, cases, airs) -> None:
    tried = []

    def never(boxes, domain, roughness, *_, **start) -> WindSolution:
        tried.append((len(boxes), roughness))
        raise NotConvergedError(Convergence(False, "stalled", 1, 1, 0.0, 0.0, 0.0, {}))

    monkeypatch.setattr(urban_generation, "solve_boxes", never)
    monkeypatch.setattr(urban_generation, "require_openfoam", lambda: None)
    with pytest.raises(RuntimeError, match="could not be made"):
        generate_urban_wind(tmp_path, replace(TINY, cases=cases), workers=1, show_progress=False)
    assert len({roughness for _, roughness in tried}) == airs
    assert len(tried) == len(cases) * airs * ATTEMPTS


@needs_openfoam
def test_cities_to_learn_from_start_from_a_prediction(tmp_path) -> None:
    usual = replace(TINY, cases={"train": 1, "val": 1}, training_settings=FOR_TRAINING)
    warm = usual.starting_from("urban-wind-laape")
    for name, preset in (("usual", usual), ("warm", warm)):
        generate_urban_wind(tmp_path / name, preset, workers=1, show_progress=False)

    def solved(name: str, case: int) -> dict:
        return json.loads((tmp_path / name / "records" / f"{case}.json").read_text())["attempts"][-1]

    assert solved("warm", 0)["buildings"] == solved("usual", 0)["buildings"]
    assert solved("warm", 0)["iterations"] < 0.8 * solved("usual", 0)["iterations"]
    one, other = (UrbanWindFiles(tmp_path / name).load("train", 0).fields["velocity"] for name in ("usual", "warm"))
    assert np.abs(one - other).sum() < 0.02 * np.abs(one).sum()
    judged = [(tmp_path / name / "volume_1.vtk").read_bytes() for name in ("usual", "warm")]
    assert judged[0] == judged[1], "no prediction has a part in what judges it"
    assert "These started from what urban-wind-laape predicts" in (tmp_path / "warm" / "README.md").read_text()
    with pytest.raises(ValueError, match="starts_from"):
        generate_urban_wind(tmp_path / "warm", usual, show_progress=False)


@pytest.mark.parametrize(
    ("preset", "change", "message"),
    [
        ("cpu", "cell=2", "starts_from=MODEL alone, got cell=2"),
        ("cpu", "starts_from=", "starts_from=MODEL alone, got starts_from="),
        ("paper", "starts_from=urban-wind-laape", "no cities that are for learning alone"),
    ],
)
def test_settings_that_cities_do_not_have_are_refused(tmp_path, preset, change, message) -> None:
    words = ["generate", "urban-wind", "--preset", preset, "--set", change, "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, ValueError) and message in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["generate", "urban-wind", "--preset", "huge"])
    assert isinstance(result.exception, ValueError)
    assert "expected one of quick, cpu, paper" in str(result.exception)


def test_missing_openfoam_is_said_before_anything_is_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="apt install openfoam"):
        generate_urban_wind(tmp_path / "out", TINY)
    assert not (tmp_path / "out").exists()
