"""The report: one self-contained HTML page, and beside it the same tables and figures as files."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.text import Text

from farfield.files import atomic_path, refuse_overwriting
from farfield.report.figures import Drawn, all_figures, in_small_type
from farfield.report.saved import Presentation, Results, read_runs
from farfield.report.tables import Table, all_tables, growth, numbers_csv, percent
from farfield.style import MEANINGS, NAMES, quantity
from farfield.view.player import Rollout

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2330; background: #fff; margin: 0 auto; max-width: 62rem;
  padding: 1rem 1rem 4rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 2px solid #dde3ec; }
nav { background: #f3f6fa; padding: .6rem 1rem; border-radius: .3rem; } nav ul { margin: 0; padding-left: 1.2rem; }
dt { font-weight: 600; float: left; clear: left; margin-right: .5rem; } dd { margin: 0 0 .2rem; }
.scroll { overflow-x: auto; margin-bottom: 1.5rem; } figure { margin: 1.5rem 0; }
.hint { display: none; color: #505a6b; font-size: .8rem; } .wide > .hint { display: block; }
img { max-width: 100%; height: auto; display: block; cursor: zoom-in; }
iframe { width: 100%; height: 34rem; border: 1px solid #dde3ec; box-sizing: border-box; }
dialog { max-width: none; max-height: none; width: 100%; height: 100%; padding: 0; border: 0; overflow: auto; }
dialog img { max-width: none; cursor: zoom-out; }
figcaption, .caption { color: #505a6b; font-size: .9rem; margin: .3rem 0; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e6eaf1; }
th { background: #f3f6fa; } td:first-child, th:first-child { text-align: left; }
td:first-child { position: sticky; left: 0; background: #fff; }
code { background: #f3f6fa; padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
"""
# A click shows a picture at its full size; what is wider than the page says that it can be scrolled.
SCRIPT = """
const large = document.createElement("dialog");
document.body.append(large);
large.addEventListener("click", () => large.close());
document.querySelectorAll("figure img").forEach(image => image.addEventListener("click", () => {
  const copy = image.cloneNode();
  large.replaceChildren(copy);
  large.showModal();
  copy.style.width = Math.max(image.naturalWidth, large.clientWidth) + "px";
}));
const hint = () => document.querySelectorAll(".scroll").forEach(box =>
  box.parentElement.classList.toggle("wide", box.scrollWidth > box.clientWidth + 1));
addEventListener("resize", hint);
hint();
"""
ANIMATED = ("3", "2", "1")  # the first of these scales that is saved; the paper shows s = 3


class Pages:
    """The files of a report: gathered, then written together into one folder, and nowhere else, whatever their names.

    ``index.html``, ``tables/`` (Markdown, HTML, CSV) and ``figures/`` (PNG).
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self._files: dict[Path, bytes] = {}

    def add(self, group: str, name: str, content: str | bytes) -> None:
        """A file; what its name holds beside letters, digits and .+- becomes _, so that it leads nowhere else."""
        path = self.folder / group / re.sub(r"[^\w.+-]", "_", name).lstrip(".")
        if path in self._files:
            raise ValueError(f"two files of the report would be called {path}: report these runs one by one")
        self._files[path] = content if isinstance(content, bytes) else content.encode()

    def add_table(self, table: Table) -> str:
        """A table as Markdown, HTML and CSV; returns it as a part of the page."""
        for ending, text in (("md", table.markdown()), ("html", table.html()), ("csv", table.csv())):
            self.add("tables", f"{table.name}.{ending}", text)
        return table.html()

    def add_figure(self, drawn: Drawn) -> str:
        """A figure as PNG; returns it as a part of the page, with the picture inside."""
        for text in drawn.figure.findobj(Text):
            if isinstance(text, Text) and "$" in text.get_text():
                text.set_parse_math(False)  # a name, no formula; the numbers at the axes are not written yet
        picture = io.BytesIO()
        drawn.figure.savefig(picture, format="png", dpi=110, metadata={"Software": None})
        return self.add_picture(drawn.name, drawn.caption, picture.getvalue())

    def add_picture(self, name: str, caption: str, png: bytes) -> str:
        """:meth:`add_figure` of a picture that is drawn already."""
        self.add("figures", f"{name}.png", png)
        data = base64.b64encode(png).decode("ascii")
        text = html.escape(caption, quote=True)
        image = f'<img src="data:image/png;base64,{data}" alt="{text}">'
        return f"<figure><figcaption>{text}</figcaption>{image}</figure>\n"

    def write(self, title: str, heading: str, body: str, force: bool) -> Path:
        """Write all files, ``index.html`` of this body last; returns its path. Files that exist need ``force``."""
        page = (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
            f"<h1>{html.escape(heading)}</h1>\n{body}<script>{SCRIPT}</script>\n</body>\n</html>\n"
        )
        self.add("", "index.html", page)
        refuse_overwriting(reversed(self._files), force)
        for path, content in self._files.items():
            with atomic_path(path) as partial:
                partial.write_bytes(content)
        return path


@in_small_type
def write_report(
    runs: Iterable[str | Path], out: str | Path, presentation: Callable[[str], Presentation], force: bool = False
) -> Path:
    """Write :class:`Pages` about evaluated runs into the folder ``out``; returns the page's path.

    ``presentation`` says how a problem is shown, from its name in the rows. The result depends on the runs' saved files
    alone, byte for byte.
    """
    saved, pages = read_runs(runs), Pages(out)
    if not saved:
        raise ValueError("give at least one evaluated run")
    refuse_overwriting([pages.folder / "index.html"], force)  # before anything is drawn
    body, contents = [], []
    for number, problem in enumerate(dict.fromkeys(run.key[0] for run in saved)):
        results = Results(problem, saved, presentation(problem))
        title = html.escape(results.shown.title)
        table, *tables = [pages.add_table(table) for table in all_tables(results)]
        pages.add("tables", f"{problem}-numbers.csv", numbers_csv(results))
        figure, *figures = [pages.add_figure(drawn) for drawn in all_figures(results)]
        found = "".join(f"<p>{html.escape(line)}</p>\n" for line in findings(results))
        body.append(f'<h2 id="problem{number}">{title}</h2>\n{found}{figure}{table}')
        parts = {
            "look around": _embedded(results),
            "figures": "".join(figures),
            "tables": "".join(tables),
            "commands": _commands(results),
        }
        places = {name: f"{name.replace(' ', '-')}{number}" for name, part in parts.items() if part}
        body += [f'<h3 id="{place}">{name.capitalize()}</h3>\n{parts[name]}' for name, place in places.items()]
        links = ", ".join(f'<a href="#{place}">{name}</a>' for name, place in places.items())
        contents.append(f'<li><a href="#problem{number}">{title}</a>: {links}</li>\n')
    encodings = [name for name in NAMES if any(run.key[1] == name for run in saved)]
    meanings = "".join(f"<dt>{NAMES[name]}</dt><dd>{MEANINGS[name]}</dd>\n" for name in encodings)
    introduction = (
        "<p>Each model was trained on one domain size and then, without retraining, asked to predict on domains of up "
        "to many times that size; s is the size of the test domain over that of training. The encodings differ in what "
        f"a point sees of the others:</p>\n<dl>\n{meanings}</dl>\n<nav><ul>\n{''.join(contents)}</ul></nav>\n"
    )
    heading = "Trained on a small domain, tested on larger ones"
    return pages.write("farfield: trained small, tested large", heading, introduction + "".join(body), force)


def _embedded(results: Results) -> str:
    """Something to look around in: a scene in three dimensions, or a rollout in time; nothing where none is saved."""
    found = (results.shown.scene or rollout_scene)(results)
    if found is None:
        return ""
    caption, page = (html.escape(text, quote=True) for text in found)
    return f'<figure><figcaption>{caption}</figcaption><iframe title="{caption}" srcdoc="{page}"></iframe></figure>\n'


def rollout_scene(results: Results) -> tuple[str, str] | None:
    """Truth beside all predictions, fed back, of one scale."""
    for scale in ANIMATED:
        runs = results.pictured(f"s{scale}_rollout_truth")
        if runs and (spec := next(iter(runs.values())).dataset.get("spec")):
            first = next(iter(runs.values())).pictures
            states = {"truth": first[f"s{scale}_rollout_truth"]} | {
                name: run.pictures[f"s{scale}_rollout_prediction"] for name, run in runs.items()
            }
            unit = spec["time_unit"]
            times = [quantity(round(step * spec["time_step"], 6), unit) for step in range(len(states["truth"]))]
            extent = first[f"s{scale}_extent"].tolist()
            rollout = Rollout(states, spec["fields"], spec["field_units"], spec["axes"], extent, times)
            return f"s = {scale}, the first test simulation: predictions fed back, beside the truth.", rollout.page()
    return None


def findings(results: Results) -> list[str]:
    """What the table says, one sentence per encoding."""
    lines = []
    for encoding in results.encodings:
        ends = []
        field, metric, *_ = results.quantities[0]
        measured = [s for s in results.scales if results.summary(encoding, s, field, metric)]
        for scale in dict.fromkeys((*measured[:1], *measured[-1:])):
            found = [results.summary(encoding, scale, q.field, q.metric) for q in results.quantities]
            errors = " / ".join(percent(number.mean) for number in found if number is not None)
            ends.append(f"{errors} % at s = {scale}")
        times = growth(results, encoding)
        grown = f", {times} times that of s = 1" if times != "–" and len(ends) > 1 else ""
        names = " / ".join(quantity.name for quantity in results.quantities)
        if ends:
            lines.append(f"{NAMES[encoding]}: the L1 error of {names} is {' and '.join(ends)}{grown}.")
    return lines


def _commands(results: Results) -> str:
    """How the runs were made."""
    made_by = [about.get("commands", []) for run in results.runs for about in (run.provenance, run.evaluation)]
    commands = dict.fromkeys(command for commands in made_by for command in commands)
    items = "".join(f"<li><code>{html.escape(command)}</code></li>\n" for command in commands)
    return f"<p>Commands that made these runs:</p>\n<ul>\n{items}</ul>\n" if items else ""
