import io
import re

import pytest
from rich.console import Console

from farfield import cli
from farfield.cli.words import listed
from farfield.studies.reproduce import experiment, reproduce

STAGES = re.compile(r"^\d/5", re.MULTILINE)


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_it_says_what_it_will_do_first_and_ends_with_a_page(reproduced):
    plan, out, said = reproduced
    assert said.startswith(f"{plan.problem.name}, preset quick: train laspe, laape (2 runs, 0 already trained)")
    assert "This takes about a minute on two cores" in said.splitlines()[1]
    assert STAGES.findall(said) == ["1/5", "2/5", "3/5", "3/5", "4/5", "4/5", "5/5"]
    assert (out / "report" / "index.html").exists()


def test_what_is_done_is_not_done_again(reproduced):
    plan, out, _ = reproduced
    runs_before = {path: time for path, time in times(out).items() if "report" not in path.parts}
    data_before, page = times(plan.data), (out / "report" / "index.html").read_bytes()
    said = io.StringIO()
    reproduce(plan, ["laspe", "laape"], [0], out, console=Console(file=said, width=200))
    assert "2 runs, 2 already trained" in said.getvalue()
    assert {path: time for path, time in times(out).items() if "report" not in path.parts} == runs_before
    assert times(plan.data).keys() == data_before.keys()
    solved = {path: time for path, time in data_before.items() if path.suffix == ".hdf5"}
    assert solved and solved.items() <= times(plan.data).items()
    assert (out / "report" / "index.html").read_bytes() == page


def test_urban_wind_goes_the_same_way(urban_reproduced):
    plan, out, said = urban_reproduced
    assert said.startswith("urban-wind, preset quick: train rope, laape (2 runs, 0 already trained)")
    assert STAGES.findall(said) == ["1/5", "2/5", "3/5", "3/5", "4/5", "4/5", "5/5"]
    before = {path: time for path, time in times(out).items() if "report" not in path.parts}
    again = io.StringIO()
    reproduce(plan, ["rope", "laape"], [0], out, console=Console(file=again, width=200))
    assert "2 runs, 2 already trained" in again.getvalue()
    assert {path: time for path, time in times(out).items() if "report" not in path.parts} == before


def test_urban_data_that_is_not_there_needs_openfoam(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    plan = experiment("urban-wind", "quick", tmp_path / "data")
    with pytest.raises(RuntimeError, match="apt install openfoam"):
        reproduce(plan, ["laape"], [0], tmp_path / "out", console=Console(quiet=True))


def test_a_folder_with_other_settings_is_refused(reproduced):
    from dataclasses import replace

    plan, out, _ = reproduced
    other = replace(plan, settings={**plan.settings, "training.learning_rate": 1e-4})
    with pytest.raises(ValueError, match="holds a run with other settings than asked for now"):
        reproduce(other, ["laape"], [0], out, console=Console(quiet=True))


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ValueError, match="unknown problem 'heat'"):
        experiment("heat", "quick", tmp_path)
    with pytest.raises(ValueError, match="swe has no preset 'slow'"):
        experiment("swe", "slow", tmp_path)
    with pytest.raises(ValueError, match="unknown encoding 'sine'"):
        experiment("swe", "quick", tmp_path).run("sine", 0)


def test_list_options_take_words_or_commas():
    assert cli._joined(["evaluate", "RUN", "--scales", "1", "2", "10", "--limit", "3"]) == [
        "evaluate", "RUN", "--scales", "1,2,10", "--limit", "3",
    ]  # fmt: skip
    assert cli._joined(["reproduce", "swe", "--seeds", "0,1"]) == ["reproduce", "swe", "--seeds", "0,1"]
    assert listed("1,2 10") == ["1", "2", "10"]


def test_commands_evaluate_report_and_predict(reproduced, run_copy, tmp_path, monkeypatch, capsys):
    import h5py

    from farfield.data.generated import split_path

    plan, *_ = reproduced

    def farfield(*words) -> str:
        monkeypatch.setattr("sys.argv", ["farfield", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 0, capsys.readouterr().err
        return capsys.readouterr().out

    (run_copy / "evaluation.json").unlink()
    words = ("evaluate", run_copy, "--scales", 1, 3, "--limit", 2, "--rollouts", 1, "--data", plan.data)
    assert "evaluation.csv" in farfield(*words)
    assert "index.html" in farfield("report", run_copy, "--out", tmp_path / "report")
    source, out = split_path(plan.data, plan.problem.name, "s3"), tmp_path / "out.hdf5"
    farfield("predict", "--model", run_copy, "--input", source, "--out", out, "--steps", 2)
    with h5py.File(out) as file:
        assert all(dataset.shape[1] == 3 for dataset in file["t0_fields"].values())
