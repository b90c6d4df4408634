"""What the documentation is made of beside its pages: tables from types, examples, results; and its snippets, run."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

HERE = Path(__file__).parent
ROOT = HERE.parent


def documents() -> list[Path]:
    """The README and all pages that are written by hand."""
    return [ROOT / "README.md", *sorted(p for p in HERE.rglob("*.md") if not {"_build", "generated"} & set(p.parts))]


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


def run_all_snippets() -> None:
    """All of them, before the site is written."""
    for page in documents():
        with tempfile.TemporaryDirectory() as folder:
            run_snippets(page, Path(folder))


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
    lines = ["| setting | type | default | |", "|---|---|---|---|"]
    for name, kind, default, meaning in rows:
        cells = (f"`{name}`", kind, default and f"`{default}`", " ".join(meaning.split()))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """Every setting of every kind of run."""
    from farfield.problems import problem_named
    from farfield.runs.config import OwnRun

    kinds = {
        "Own data": (OwnRun, "`farfield train DATA`, `ff.train`, `ff.finetune`"),
        "Shallow water, Gray-Scott": (problem_named("swe").run_type, "`farfield train swe`, `... gray-scott`"),
        "Urban wind, AB-SWIFT": (problem_named("urban-wind").run_type, "`farfield train urban-wind`"),
        "Urban wind, columns": (problem_named("urban-columns").run_type, "`farfield train urban-columns`"),
    }
    parts = ["# Every setting\n", "This page is made from the types that check a run's `config.yaml`.\n"]
    for title, (kind, commands) in kinds.items():
        parts += [f"## {title}\n", f"{commands}: `--set NAME=VALUE`, or `settings={{NAME: VALUE}}` in Python.\n"]
        parts.append(_table(settings_rows(kind)))
    return "\n".join(parts)


def example_page(example: Path) -> str:
    """An example of ``examples/`` with what it says about itself."""
    source = example.read_text(encoding="utf-8")
    about, code = re.fullmatch(r'"""(.*?)"""\n(.*)', source, flags=re.DOTALL).groups()  # type: ignore[union-attr]
    title, _, rest = about.partition("\n")
    words = [line if not line.startswith("    ") else f"    {line.strip()}" for line in rest.strip().splitlines()]
    return f"# {title.rstrip('.')}\n\n" + "\n".join(words) + f"\n\n```py\n{code.strip()}\n```\n"


def results_page() -> str:
    """The kept tables, with the paper's numbers beside ours."""
    parts = [
        "# Results, with the paper's numbers\n",
        "These tables are made by `farfield report` from the rows under `results/`; the README of each folder has the "
        "commands that made its runs, how many samples each number is of, and where we miss the paper.\n",
    ]
    for folder in sorted(path.parent for path in (ROOT / "results").glob("*/README.md")):
        parts.append(f"## {folder.name}\n")
        tables = [path for path in sorted(folder.glob("*.md")) if path.name != "README.md"]
        parts += [path.read_text(encoding="utf-8") for path in tables]
    return "\n".join(parts)


def break_even() -> str:
    """From how many points tiles pay, as measured; what stands in ``benchmarks``."""
    measured = ROOT / "benchmarks" / "break_even.md"
    text = (measured if measured.is_file() else ROOT / "benchmarks" / "attention.md").read_text(encoding="utf-8")
    return re.sub(r"^# .*\n", "", text, flags=re.MULTILINE) + "\n"


def tutorials() -> str:
    """Their contents; of many processes, where that page is there."""
    order = ("own-data-grid", "own-data-meshes", "wind", "attention", "fine-tuning")
    pages = [f"tutorials/{name}" for name in order] + [path.stem for path in HERE.glob("many-processes.md")]
    return "```{toctree}\n:maxdepth: 1\n:caption: Tutorials\n" + "\n".join(pages) + "\n```\n"


def write_generated(folder: Path) -> None:
    """Write the pages that are made from something else."""
    folder.mkdir(exist_ok=True)
    made = {"settings.md": settings_page(), "results.md": results_page(), "break-even.txt": break_even()}
    made["tutorials.txt"] = tutorials()
    made |= {f"example-{path.stem}.md": example_page(path) for path in sorted((ROOT / "examples").glob("*.py"))}
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
