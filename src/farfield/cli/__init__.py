"""The ``farfield`` command: it parses, calls the library and prints; every idea lives elsewhere.

Heavy imports (torch, numba, matplotlib) stay inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from importlib.metadata import version
from typing import TextIO

import typer
from rich.console import Console
from rich.markup import escape

from farfield.cli.bench import bench
from farfield.cli.data import check, generate
from farfield.cli.evaluation import calibrate, evaluate, reproduce
from farfield.cli.predict import predict
from farfield.cli.results import demo, push, report, view
from farfield.cli.training import finetune, train
from farfield.extras import naming_extras
from farfield.memory import keep_freed_memory
from farfield.training import Interrupted
from farfield.version import __version__

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


def _print_version(asked: bool) -> None:
    if asked:
        others = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy"))
        print(f"farfield {__version__} (Python {platform.python_version()}, {others})")
        raise typer.Exit


@app.callback()
def farfield(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    """Transformer neural operators that are trained on small domains and used on much larger ones.

    **Your own data**, from small domains to a large one:

    `farfield check data/mine`

    `farfield train data/mine --minutes 20 --out runs/mine`

    `farfield evaluate runs/mine --data data/large`

    **A trained model**: the next states of a file, the wind around buildings:

    `farfield predict --model swe-laape --input state.npz --out next.npz --steps 10`

    `farfield predict --model urban-wind-laape --buildings city.stl --roughness 0.3 --wind-direction 250 --out flow.vtu`

    **The paper's experiment**, from data to report, in ten minutes (what `make demo` runs):

    `farfield reproduce swe --preset quick`
    """


for command in (demo, generate, check, train, evaluate, calibrate, finetune, report, reproduce, predict, view, push):
    app.command()(command)
app.add_typer(bench, name="bench")


def _joined(arguments: list[str]) -> list[str]:
    """``--scales 1 2 3`` as ``--scales 1,2,3``: what follows a list option, up to the next option, belongs to it."""
    out: list[str] = []
    into_list = False
    for argument in arguments:
        if argument.startswith("-"):
            into_list = argument in ("--scales", "--encodings", "--seeds", "--fields", "--wind-direction")
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


def _sentence(error: Exception) -> str:
    """What went wrong, without Python's names and numbers for it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def main() -> None:
    """Run the command; a user's mistake is one line, not a traceback (unless FARFIELD_DEBUG is set)."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    try:
        with naming_extras():
            app(_joined(sys.argv[1:]), prog_name="farfield")
    except Interrupted as stopped:
        Console().print(str(stopped), markup=False, highlight=False, soft_wrap=True)
        sys.exit(130)
    except (ValueError, OSError, RuntimeError, MemoryError, ModuleNotFoundError) as error:
        if os.environ.get("FARFIELD_DEBUG"):
            raise
        message = f"[bold red]error:[/] {escape(_sentence(error))}"
        Console(stderr=True).print(message, highlight=False, soft_wrap=True)
        sys.exit(2)
