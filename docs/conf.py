"""The documentation: ``make docs``. No network, no warning; snippets and examples run before anything is written."""

import os
import re
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import pages  # noqa: E402
from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402
from sphinx.errors import ExtensionError  # noqa: E402

from farfield.version import __version__  # noqa: E402

project, author, release = "farfield", "the farfield authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_theme, html_title = "furo", "farfield"
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"  # formulas that a browser draws by itself: no script, no network
exclude_patterns = ["_build", "generated/*.txt"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True


def visit_formula(writer, node):
    """A formula in a line, or on a line of its own, as MathML."""
    inline = isinstance(node, nodes.math)
    writer.body.append(convert(node.astext().strip(), display="inline" if inline else "block"))
    raise nodes.SkipNode


def bars_are_plain(app, what, name, obj, options, lines):
    """A bar in a docstring is an absolute value, not a substitution."""
    for number, line in enumerate(lines):
        parts = line.split("``")  # every other one is literal
        lines[number] = "``".join(p if i % 2 else p.replace("|", "\\|") for i, p in enumerate(parts))


def bring_what_is_outside(app, name, source):
    """Files that are no pages of the site (rows, tables, sources) come with it, to be downloaded."""

    def link(found):
        target = (HERE / name).parent.joinpath(found[2]).resolve()
        if target.is_relative_to(HERE):
            return found[0]
        if not target.is_file():
            raise ValueError(f"docs/{name}.md links to {found[2]}, which is no file")
        path = os.path.relpath(target, (HERE / name).parent)
        return f"{{download}}`{found[1].strip('`')} <{path}>`"

    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\((\.\.?/[^)#]+)\)", link, source[0])


def check_links(app, error):
    """Every link of the finished site leads to a file and a place in it, and nothing is fetched from elsewhere."""
    if error or app.builder.name != "html":
        return
    pages = {page: page.read_text(encoding="utf-8") for page in Path(app.outdir).rglob("*.html")}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    wrong = []
    for page, text in pages.items():
        for tag, link in re.findall(r'<(a|link|script|img)\b[^>]*?\b(?:href|src)="([^"]*)"', text):
            path, _, place = unquote(unescape(link)).partition("#")
            target = page if not path else page.parent / path.partition("?")[0]
            target = target.resolve()
            if re.match(r"(https?:)?//", link):
                wrong += [f"{page.name}: <{tag}> needs the network, {link}"] if tag != "a" else []
            elif ":" not in path and not target.is_file():
                wrong.append(f"{page.name}: {link} leads nowhere")
            elif place and target in places and place not in places[target]:
                wrong.append(f"{page.name}: there is no place {link}")
    if wrong:
        raise ExtensionError("\n".join(wrong))


def setup(app):
    """What is read is made fit for Sphinx."""
    app.add_html_math_renderer("mathml", (visit_formula, None), (visit_formula, None))
    app.connect("autodoc-process-docstring", bars_are_plain, priority=900)
    app.connect("source-read", bring_what_is_outside)
    app.connect("build-finished", check_links)


pages.write_generated(HERE / "generated")
if not os.environ.get("FARFIELD_DOCS_QUICK"):  # to look at the pages while writing them; the tests run all of it, too
    pages.run_all()
