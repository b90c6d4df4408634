"""How the command line answers: versions, mistakes in a line, progress in a pipe, and what to type next."""

import io
import re
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from farfield import __version__, cli, progress
from farfield.cli import app
from farfield.runs.run import Run


def left_with(monkeypatch, capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["farfield", *words])
    code = 0
    try:
        cli.main()
    except SystemExit as left:
        code = int(left.code or 0)
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_version_is_one_line(monkeypatch, capsys):
    code, out, _ = left_with(monkeypatch, capsys, "--version")
    assert code == 0 and out.startswith(f"farfield {__version__} (Python 3.") and out.count("\n") == 1


def test_the_help_shows_examples_that_are_understood():
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "farfield train data/mine --minutes 20 --out runs/mine" in shown and "make demo" in shown
    assert "make demo" in CliRunner().invoke(app, ["demo", "--help"]).output


@pytest.mark.parametrize(
    "words",
    [
        ["check", "no/data"],
        ["train", "no/data"],
        ["train", "--resume", "no/data"],
        ["evaluate", "no/data"],
        ["finetune", "no/data", "--data", "no/data", "--out", "new"],
        ["report", "no/data"],
        ["predict", "--model", "swe-laape", "--input", "no/data", "--out", "new.npz"],
        ["view", "no/data"],
        ["predict", "--model", "no/data", "--input", ".", "--out", "new.npz"],
    ],
    ids=" ".join,
)
def test_what_is_missing_is_noticed_before_anything_heavy_is_imported(words, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "farfield.data.dataset", None)  # an import of it would fail
    monkeypatch.setitem(sys.modules, "farfield.problems", None)
    monkeypatch.setitem(sys.modules, "farfield.api", None)
    monkeypatch.setitem(sys.modules, "farfield.view.files", None)
    assert left_with(monkeypatch, capsys, *words) == (2, "", "error: there is no file or folder no/data\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("steps must be positive"), "steps must be positive"),
        (FileNotFoundError(2, "No such file or directory", "state.npz"), "state.npz: No such file or directory"),
        (OSError(28, "could not write best.safetensors"), "could not write best.safetensors"),
        (ModuleNotFoundError("No module named 'trimesh'", name="trimesh"), "this needs trimesh, .*farfield.wind"),
    ],
)
def test_a_mistake_is_told_without_pythons_name_for_it(error, told, monkeypatch, capsys):
    def fails(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fails)
    code, _, shown = left_with(monkeypatch, capsys, "train")
    assert code == 2
    assert re.match(f"error: {told}", shown) and "Error" not in shown


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    out = io.StringIO()
    with progress.Progress(Console(file=out), get_time=lambda: clock[0]) as bars:
        task = bars.add_task("step", total=100)
        for _ in range(100):
            clock[0] += 1.0
            bars.advance(task)
    assert out.getvalue().splitlines() == [
        "step: 20 %, 1 min 20 s left", "step: 40 %, 1 min 0 s left", "step: 60 %, 40 s left", "step: 80 %, 20 s left",
        "step: 100 %, 0 s left",
    ]  # fmt: skip


def test_a_run_without_a_validation_uses_its_last_weights_and_says_so(tmp_path):
    run = Run(tmp_path)
    assert run.weights_path() == run.best_path and run.weights_fingerprint() is None
    run.last_path.write_bytes(b"last")
    with pytest.warns(UserWarning, match="no validation behind it yet: its last weights are used"):
        assert run.weights_path() == run.last_path
    before = run.weights_fingerprint()
    run.best_path.write_bytes(b"best")
    assert run.weights_path() == run.best_path and run.weights_fingerprint() != before
