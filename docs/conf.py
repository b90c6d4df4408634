"""The documentation: ``make docs``. No network, no warning; snippets and examples run before anything is written."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import pages  # noqa: E402
from docutils import nodes  # noqa: E402
from latex2mathml.converter import convert  # noqa: E402

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
linkcheck_ignore = [r"https?://.*"]  # no network: only what is here is checked


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


def setup(app):
    """What is read is made fit for Sphinx."""
    app.add_html_math_renderer("mathml", (visit_formula, None), (visit_formula, None))
    app.connect("autodoc-process-docstring", bars_are_plain, priority=900)
    app.connect("source-read", bring_what_is_outside)


pages.write_generated(HERE / "generated")
if not os.environ.get("FARFIELD_DOCS_QUICK"):  # to look at the pages while writing them; the tests run all of it, too
    pages.run_all()
