"""The ``farfield`` command: it parses, calls the library and prints; every idea lives elsewhere.

Heavy imports (torch, numba, matplotlib) stay inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import TextIO

import typer
from rich.console import Console
from rich.markup import escape

from farfield.cli.bench import bench
from farfield.cli.commands import COMMANDS
from farfield.extras import naming_extras

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Transformer neural operators that are trained on small domains and used on much larger ones.",
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(bench, name="bench")


def _joined(arguments: list[str]) -> list[str]:
    """``--scales 1 2 3`` as ``--scales 1,2,3``: what follows a list option, up to the next option, belongs to it."""
    out: list[str] = []
    into_list = False
    for argument in arguments:
        if argument.startswith("-"):
            into_list = argument in ("--scales", "--encodings", "--seeds", "--fields")
            out.append(argument)
        elif into_list and not out[-1].startswith("-"):
            out[-1] += "," + argument
        else:
            out.append(argument)
    return out


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our warnings, like our errors, are for the user: a line without the place in the code."""
    text = f"[bold yellow]warning:[/] {escape(str(message))}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; a user's mistake is one line, not a traceback (unless FARFIELD_DEBUG is set)."""
    warnings.showwarning = _show_warning
    try:
        with naming_extras():
            app(_joined(sys.argv[1:]))
    except (ValueError, OSError, RuntimeError, ModuleNotFoundError) as error:
        if os.environ.get("FARFIELD_DEBUG"):
            raise
        message = f"[bold red]error:[/] {type(error).__name__}: {escape(str(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
