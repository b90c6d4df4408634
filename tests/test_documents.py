"""Every Python snippet of the README and the documentation runs, commands are understood, and links lead somewhere."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import typer

from farfield.cli import _joined, app

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import pages  # noqa: E402

DOCUMENTS = {str(page.relative_to(ROOT)): page for page in pages.documents()}
BLOCKS = [
    block for page in DOCUMENTS.values() for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.S | re.M)
]
COMMANDS = sorted({line[9:] for block in BLOCKS for line in block.splitlines() if line.startswith("farfield ")})


@pytest.mark.parametrize("name", [name for name, page in DOCUMENTS.items() if pages.snippets(page)])
def test_snippets_run(name, tmp_path):
    pages.run_snippets(DOCUMENTS[name], tmp_path)


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--help" not in command])
def test_commands_are_understood(command):
    """Names, options and values are parsed as the command line would be; nothing is run."""
    words = _joined(shlex.split(command, comments=True))
    found = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    found.make_context(found.name, words)
    if "--buildings" in words and found.name == "predict":
        assert "--wind-direction" in words  # the one needs the other


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    page, text = DOCUMENTS[name], DOCUMENTS[name].read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link and "generated/" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    made = {f"example-{path.stem}" for path in (ROOT / "examples").glob("*.py")} | {"settings", "results"}
    assert set(re.findall(r"generated/([\w-]+)\.md", text)) <= made


def test_the_table_of_settings_has_every_one_of_them():
    from farfield.runs.config import OwnRun

    names = [name for name, *_ in pages.settings_rows(OwnRun)]
    assert {"seed", "model.width", "training.precision", "encoding.decay_length", "model.tokens.patch"} <= set(names)
    meanings = {name: meaning for name, _, _, meaning in pages.settings_rows(OwnRun)}
    assert all(meanings.values()), [name for name, meaning in meanings.items() if not meaning]
    assert "| `training.optimiser` | lion, adamw, muon | `lion` |" in pages.settings_page()
