"""What the documentation is made of beside its pages: tables from types, examples, results; and its snippets, run."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

HERE = Path(__file__).parent
ROOT = HERE.parent

# The examples, with as few steps as show that they run; what they show with all steps they print themselves.
EXAMPLES: dict[str, dict[str, int]] = {
    "own_data_grid": {"steps": 4},
    "own_data_mesh": {"steps": 4},
    "well_file": {"steps": 4},
    "finetune_on_large": {"steps": 4, "more_steps": 2},
}


def documents() -> list[Path]:
    """The README, all pages that are written by hand, and what is said about the kept results."""
    site = sorted(p for p in HERE.rglob("*.md") if not {"_build", "generated"} & set(p.relative_to(HERE).parts))
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *site, *sorted((ROOT / "results").glob("*/README.md"))]


def snippets(page: Path) -> list[str]:
    """The Python blocks of a page, in order: each may use what those before it have made."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def run_snippets(page: Path, folder: Path) -> None:
    """Run a page's snippets in a folder; a mistake in one names the page."""
    before, names = Path.cwd(), {"__name__": "snippets"}
    os.chdir(folder)
    try:
        for number, snippet in enumerate(snippets(page), start=1):
            exec(compile(snippet, f"{page.relative_to(ROOT)}, snippet {number}", "exec"), names)
    finally:
        os.chdir(before)


def run_example(name: str, folder: Path) -> Any:
    """Run an example with few steps; returns the errors that it found."""
    before, modules = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        return importlib.import_module(name).main(folder, **EXAMPLES[name])
    finally:
        sys.path[:] = before
        for imported in set(sys.modules) - modules:
            if imported in EXAMPLES:
                del sys.modules[imported]


def run_all() -> None:
    """All snippets and examples, before the site is written; what they print is shown if one of them fails."""
    works = [lambda folder, page=page: run_snippets(page, folder) for page in documents()]
    works += [lambda folder, name=name: run_example(name, folder) for name in EXAMPLES]
    for work in works:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                work(Path(folder))
            except BaseException:
                sys.stderr.write(printed.getvalue())
                raise


def settings_rows(settings: type[BaseModel], group: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Name as ``--set`` takes it, type, default, meaning: of a configuration and all that it holds."""
    for name, field in settings.model_fields.items():
        nested = next((t for t in (field.annotation, *get_args(field.annotation)) if _is_settings(t)), None)
        default = "" if field.default is PydanticUndefined else _told(field.default)
        if nested is not None:
            if field.description:
                kind = "group, or null" if type(None) in get_args(field.annotation) else "group"
                yield f"{group}{name}", kind, default, field.description
            yield from settings_rows(nested, f"{group}{name}.")
            continue
        yield f"{group}{name}", _type(field.annotation), default, field.description or ""


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _type(kind: Any) -> str:
    if get_origin(kind) is not None and get_origin(kind).__name__ in ("Literal", "_LiteralGenericAlias"):
        return ", ".join(map(str, get_args(kind)))
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    text = re.sub(r"typing\.|farfield\.[\w.]*\.", "", text)
    literals = re.sub(r"Literal\[([^\]]*)\]", lambda found: found[1].replace("'", ""), text)
    return literals.replace(" | None", ", or null").replace("NoneType", "null").replace("|", "or")


def _told(value: Any) -> str:
    if isinstance(value, BaseModel):
        return ""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _table(rows: Iterator[tuple[str, str, str, str]]) -> str:
    lines = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for name, kind, default, meaning in rows:
        cells = (f"`{name}`", kind, default and f"`{default}`", " ".join(meaning.split()))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Every setting of every kind of run."""
    from farfield.problems import problem_named
    from farfield.runs.config import OwnRun

    kinds = {
        "Own data": (OwnRun, "`farfield train DATA`, `farfield finetune RUN`, `ff.train` and `ff.finetune`"),
        "Shallow water and Gray-Scott": (
            problem_named("swe").run_type,
            "`farfield train swe`, `farfield train gray-scott` and `farfield reproduce` of both",
        ),
        "Urban wind, AB-SWIFT": (problem_named("urban-wind").run_type, "`farfield train urban-wind`"),
        "Urban wind, columns": (problem_named("urban-columns").run_type, "`farfield train urban-columns`"),
    }
    parts = [SETTINGS_LEAD]
    for title, (kind, commands) in kinds.items():
        parts += [f"## {title}\n", f"For {commands}.\n", _table(settings_rows(kind))]
    return "\n".join(parts)


SETTINGS_LEAD = """# Every setting

Whatever a run can be told stands in its `config.yaml`, and every line of that file can be set from outside:

- on the command line with `--set NAME=VALUE`, which may be repeated: `--set model.width=96 --set training.steps=2000`;
- in Python with `settings={"model.width": 96, "training.steps": 2000}`.

The presets of the built-in problems, and what follows from your own data, are only other defaults than those below.
Values are written as in YAML: `null`, `true`, `[15, 30]`. A name that does not exist and a value that cannot work are
refused before anything starts. The tables are made from the types that do that checking, so they are complete.
"""


def example_page(example: Path) -> str:
    """An example of ``examples/`` with what it says about itself."""
    source = example.read_text(encoding="utf-8")
    about, code = re.fullmatch(r'"""(.*?)"""\n(.*)', source, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    first, _, rest = about.partition("\n")
    title = re.split(r"[,:]", first, maxsplit=1)[0].rstrip(".")
    return (
        f"# {title}\n\n{first}\n\n{rest.strip(chr(10))}\n\nThe whole file, which was run when this page was made, "
        f"with fewer steps:\n\n```py\n{code.strip()}\n```\n"
    )


def results_page() -> str:
    """What is kept of our runs: what each folder says of itself, its tables and its pictures."""
    parts = [RESULTS_LEAD]
    for name in ("swe-cpu", "gray-scott-cpu", "urban-wind-cpu", "swe-quick"):
        folder = ROOT / "results" / name
        parts.append(_outward(folder / "README.md", deeper=True))
        tables = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
        parts += ["### The tables\n", *(_outward(path) for path in tables)] if tables else []
        pictures = sorted(folder.glob("*.png"))
        parts += [f"`{path.name}`\n\n![{path.stem}](../../results/{name}/{path.name})\n" for path in pictures]
    return "\n".join(parts)


RESULTS_LEAD = """# Results, with the paper's numbers

Every table here is made by `farfield report` from rows that are kept under `results/`, beside the configuration of
every run; the commands that made them are given with each. Rows marked *paper* are the paper's, rows marked *here* are
ours. *s* is the size of the test domain over that of the training domain along each axis. All of it was trained and
measured on two cores of a CPU, so networks are small and trainings short, and where that costs accuracy it is said.
"""


def _outward(page: Path, deeper: bool = False) -> str:
    """A page of another folder with its links leading there, perhaps with its headings one level deeper."""
    folder = os.path.relpath(page.parent, HERE / "generated")
    text = re.sub(
        r"\]\((?![a-z]+:|#)([^)]+)\)", lambda link: f"]({folder}/{link[1]})", page.read_text(encoding="utf-8")
    )
    blocks = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)  # every other one is code
    if deeper:
        blocks[::2] = [re.sub(r"^#", "##", block, flags=re.MULTILINE) for block in blocks[::2]]
    return "".join(blocks).replace("```python", "```py")


def break_even() -> str:
    """From how many points tiles pay, by the measured rows in ``benchmarks/break_even.md``."""
    lines = [line for line in (ROOT / "benchmarks" / "break_even.md").read_text().splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    wanted = [names.index(n) for n in ("axes", "encoding", "decay length", "points", "dense [s]", "tiled [s]")]
    measured: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        axes, encoding, length, points, dense, tiled = (row[column] for column in wanted)
        measured.setdefault((axes, encoding, length), {})[int(points)] = float(dense) / float(tiled)
    out = [
        "| axes | encoding | decay length / width | tiles pay from | dense over tiled time |",
        "|---|---|---|---|---|",
    ]
    for (axes, encoding, length), gains in measured.items():
        pays = next((n for n in sorted(gains) if all(g >= 1 for m, g in gains.items() if m >= n)), None)
        last = max(gains)
        told = f"{pays:,} points" if pays else f"more than {last:,} points"
        out.append(
            f"| {axes} | {encoding} | {float(length) / 1000:g} | {told} | {gains[last]:.2f} at {last:,} points |"
        )
    return "\n".join(out) + "\n"


def write_generated(folder: Path) -> None:
    """Write the pages that are made from something else."""
    folder.mkdir(exist_ok=True)
    made = {"settings.md": settings_page(), "results.md": results_page(), "break-even.txt": break_even()}
    made |= {f"example-{path.stem}.md": example_page(path) for path in sorted((ROOT / "examples").glob("*.py"))}
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
