"""Every Python snippet of the README runs, its commands are understood, and every file that it links to exists."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from farfield.cli import _joined, app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_snippets_run(snippet, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "README.md", "exec"), {"__name__": "readme"})


COMMANDS = sorted(set(re.findall(r"^farfield (.*)$", README, flags=re.MULTILINE)))


@pytest.mark.parametrize("command", [command for command in COMMANDS if "--help" not in command])
def test_commands_are_understood(command):
    """Names, options and values are parsed as the command line would be; nothing is run."""
    words = _joined(shlex.split(command, comments=True))
    found = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    found.make_context(found.name, words)
    assert ("--buildings" in words) == ("--wind-direction" in words)  # the one needs the other


def test_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []
