"""``farfield demo``, ``report``, ``view`` and ``push``: what others are shown."""

from __future__ import annotations

from pathlib import Path

import typer

from farfield.cli.words import console, require_files, say_next
from farfield.extras import naming_extras


def demo(out: Path = typer.Option(Path("farfield-demo"), help="Folder for the picture.")) -> None:
    """Draw how far a point sees with each encoding, and what enlarging the domain does to attention: one picture.

    Example: `farfield demo --out pictures`

    It trains nothing and takes seconds. `make demo`, in the source, is the ten-minute experiment: it trains three
    encodings and tests them on larger domains, as `farfield reproduce swe --preset quick` does.
    """
    from farfield.studies.kernels import draw_overview

    out.mkdir(parents=True, exist_ok=True)
    console.print("Drawing the kernels, and attention in domains of up to ten times the size (a few seconds) ...")
    path = draw_overview(out / "overview.png")
    console.print(
        f"See [bold]{path}[/]: RoPE's output inside changes when the domain grows, LASPE's and LAAPE's does not."
    )
    say_next("farfield reproduce swe --preset quick", "the same in trained models, ten minutes")


def report(
    runs: list[Path] = typer.Argument(
        help="Folders of evaluated runs, of one or several problems, encodings and seeds."
    ),
    out: Path = typer.Option(Path("report"), help="Folder for the page, tables and figures."),
    force: bool = typer.Option(False, "--force", help="Overwrite a report that is there."),
) -> None:
    """Make tables, figures and one HTML page of evaluated runs, from their saved rows only.

    Example: `farfield report runs/swe-quick-*-seed0 --out report`
    """
    require_files(*runs)
    from farfield.api import report

    print(f"{report(runs, out, force=force)}: open it in a browser; tables and figures are beside it")
    say_next(f"farfield predict --model {runs[0]} --input FILE --out FILE", "of wind, --buildings FILE")


def view(
    file: Path = typer.Argument(help="A prediction, or data: .vtu, .vtk, .vtp, .npz, or .hdf5 in The Well's layout."),
    truth: Path | None = typer.Option(None, help="What it should be, to switch to or to see beside it."),
    buildings: Path | None = typer.Option(
        None, help="Wind: surfaces to draw, .stl, .obj, .ply or .vtk; else what is no air in FILE."
    ),
    simulation: int = typer.Option(0, help="States: which simulation of a file with several.", min=0),
    out: Path | None = typer.Option(None, help="The page.  [default: FILE with the ending .html]"),
    force: bool = typer.Option(False, "--force", help="Overwrite a page that is there."),
) -> None:
    """Look at a prediction in the browser: one page, which needs no server and can be sent to others.

    **Wind in three dimensions**, with a slider for the height, streamlines, and truth, prediction or error:

    `farfield view flow.vtu --buildings city.stl`

    **States in time**, with a slider, truth beside prediction:

    `farfield view next.npz --truth solved.npz`
    """
    require_files(file, truth, buildings)
    with naming_extras("view"):
        from farfield.view.files import write_view

        page, told = write_view(file, out, truth, buildings, simulation, force=force)
    print(f"{page}: {told}; open it in a browser")


def push(
    run: Path = typer.Argument(help="A run's folder."),
    address: str = typer.Argument(help="hf://owner/name: a repository of yours on the Hugging Face hub."),
    private: bool = typer.Option(False, help="Make the repository private, if it is new."),
) -> None:
    """Publish a run: its configuration, weights and provenance, with a model card made from them.

    Example: `farfield push runs/mine hf://me/my-model`

    Log in first: `hf auth login`. Anybody can then `farfield.load("hf://me/my-model")`.
    """
    from farfield.api import push

    print(f"{push(run, address, private=private)}: published")
    say_next(f"farfield predict --model {address} --input FILE --out FILE", "by anybody")
