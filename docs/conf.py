"""The documentation: ``make docs``. No network, no warning; snippets are run before anything is written."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import pages  # noqa: E402

from farfield.version import __version__  # noqa: E402

SOURCE = "https://github.com/farfield-operators/farfield/blob/main"
project, author, release = "farfield", "the farfield authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
html_theme, html_title = "furo", "farfield"
html_theme_options = {"navigation_with_keys": True}
exclude_patterns = ["_build", "generated/*.txt"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
# formulas are drawn where there is a network; without one they are read as they are written
mathjax_path = "https://cdn.jsdelivr.net/npm/mathjax@3/es5/tex-mml-chtml.js"
linkcheck_ignore = [r"https?://.*"]  # no network: only what is here is checked


def setup(app):
    """What is read is made fit for Sphinx."""

    def plain(app, what, name, obj, options, lines):
        """A bar in a docstring is an absolute value, not a substitution."""
        for number, line in enumerate(lines):
            parts = line.split("``")  # every other one is literal
            lines[number] = "``".join(p if i % 2 else p.replace("|", "\\|") for i, p in enumerate(parts))

    def outward(app, name, source):
        """Links to what is not part of the site lead to the source's page."""

        def link(found):
            target = (HERE / name).parent.joinpath(found[2]).resolve()
            inside = target.is_relative_to(HERE)
            return found[0] if inside else f"[{found[1]}]({SOURCE}/{target.relative_to(HERE.parent)})"

        source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\((\.\.?/[^)#]+)\)", link, source[0])

    app.connect("autodoc-process-docstring", plain, priority=900)
    app.connect("source-read", outward)


pages.write_generated(HERE / "generated")
if not os.environ.get("FARFIELD_DOCS_QUICK"):  # the same snippets are run by the tests
    pages.run_all_snippets()
