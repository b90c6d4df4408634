"""The ``farfield`` command: it parses, calls the library and prints; every idea lives elsewhere.

Heavy imports (torch, numba, matplotlib) stay inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer
from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Transformer neural operators that are trained on small domains and used on much larger ones.",
)
generate = typer.Typer(no_args_is_help=True, help="Make a dataset with the built-in solvers.")
bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory, always as ratios within one run.")
app.add_typer(generate, name="generate")
app.add_typer(bench, name="bench")


console = Console()


@app.command()
def version() -> None:
    """Print the versions of farfield and of what its results depend on."""
    from importlib.metadata import version as installed

    for package in ("farfield", "torch", "numpy", "numba", "h5py"):
        print(f"{package} {installed(package)}")


@app.command()
def demo(out: Path = typer.Option(Path("farfield-demo"), help="Folder for the picture.")) -> None:
    """Draw how far a point sees with each encoding, and what enlarging the domain does to attention.

    Example: `farfield demo --out pictures`
    """
    from farfield.attention.drawing import draw_overview

    out.mkdir(parents=True, exist_ok=True)
    console.print("Drawing the kernels, and attention in domains of up to ten times the size (a few seconds) ...")
    path = draw_overview(out / "overview.png")
    console.print(
        f"See [bold]{path}[/]: RoPE's output inside changes when the domain grows, LASPE's and LAAPE's does not."
    )


def main() -> None:
    """Run the command; a user's mistake is one line, not a traceback (unless FARFIELD_DEBUG is set)."""
    try:
        app()
    except (ValueError, OSError, RuntimeError) as error:
        if os.environ.get("FARFIELD_DEBUG"):
            raise
        Console(stderr=True).print(f"[bold red]error:[/] {type(error).__name__}: {error}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
