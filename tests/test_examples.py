"""Every example runs, here with few steps; what it shows with all of them it prints itself."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

import pages  # noqa: E402


def test_all_examples_are_run():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(pages.EXAMPLES)


@pytest.mark.parametrize("name", pages.EXAMPLES)
def test_an_example_runs_to_its_end(name, tmp_path, capsys):
    result = pages.run_example(name, tmp_path)
    errors = [result] if isinstance(result, float) else list(_numbers(result))
    assert errors and all(0 < error < float("inf") for error in errors)
    assert "steps ..." in capsys.readouterr().out


def _numbers(found):
    for value in found.values():
        yield from _numbers(value) if isinstance(value, dict) else [value]
