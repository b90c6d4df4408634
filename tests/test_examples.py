"""Every example runs, here with few steps; what it shows with all of them is in its own table."""

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
FEW_STEPS = {
    "own_data_grid": {"steps": 4},
    "own_data_mesh": {"steps": 4},
    "well_file": {"steps": 4},
    "finetune_on_large": {"steps": 4, "more_steps": 2},
}


def test_all_examples_are_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(FEW_STEPS)


@pytest.mark.parametrize("name", FEW_STEPS)
def test_an_example_runs_to_its_end(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.delitem(sys.modules, name, raising=False)
    result = importlib.import_module(name).main(tmp_path, **FEW_STEPS[name])
    errors = [result] if isinstance(result, float) else list(_numbers(result))
    assert errors and all(0 < error < float("inf") for error in errors)
    assert "steps ..." in capsys.readouterr().out


def _numbers(found):
    for value in found.values():
        yield from _numbers(value) if isinstance(value, dict) else [value]
