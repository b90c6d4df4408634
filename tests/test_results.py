"""What is kept of results: rows, tables, figures and configurations, each once."""

import hashlib
from pathlib import Path

import pytest

from farfield.bench import LEADS

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "results").iterdir()))
def test_nothing_is_kept_twice_and_nothing_that_can_be_made_again(folder):
    files = [path for path in (ROOT / "results" / folder).rglob("*") if path.is_file()]
    assert files and {path.suffix for path in files} <= {".csv", ".json", ".md", ".png", ".yaml"}
    assert max(path.stat().st_size for path in files) < 1_000_000
    for path in files:
        if path.name == "losses.csv":
            assert len(path.read_text().splitlines()) <= 501, "thin it: python benchmarks/keep_run.py"
    large = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.stat().st_size > 2000]
    assert len(set(large)) == len(large)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "benchmarks").glob("*.md")))
def test_a_benchmark_page_begins_with_what_it_shows_and_defines_its_columns(name):
    lead = LEADS[name.partition("-")[0]]  # one page by problem: peers-swe
    assert "Columns: " in lead
    assert (ROOT / "benchmarks" / f"{name}.md").read_text().startswith(lead)
