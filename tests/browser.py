"""Pages in headless Chromium: what they say, what they log, and how they look."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import pytest
from numpy.typing import NDArray

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

# What is wider than the page, unless it is in something that scrolls; and pictures that did not load.
MEASURE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const kinds = ["auto", "scroll", "hidden"];
  const scrolls = e => e && (kinds.includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const over = e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement);
  const all = [...document.body.querySelectorAll("*")].filter(e => e.tagName !== "OPTION");
  const broken = [...document.images].filter(i => !i.complete || !i.naturalWidth).length;
  const wide = all.filter(over).map(e => e.tagName), width = document.documentElement.scrollWidth;
  const measured = {width, inner: innerWidth, wide, broken, images: document.images.length};
  parent.postMessage({measured, dom: document.documentElement.outerHTML}, "*");
}, 50));
</script>
"""
# A window of Chromium is never narrower than 500 pixels: the page is in a frame of the width asked for.
FRAME = """<!doctype html>
<style>body {{ margin: 0 }} iframe {{ border: 0; width: {width}px; height: {height}px }}</style>
<script>addEventListener("message", e => {{
  for (const name of ["measured", "dom"]) {{
    const kept = document.createElement("template");
    kept.id = name;
    kept.setAttribute("data-kept", JSON.stringify(e.data[name]));
    document.body.append(kept);
  }} }});</script><body><iframe src="{page}"></iframe></body>"""


class Seen(NamedTuple):
    """A page as a browser has it after its scripts ran."""

    dom: str
    errors: list[str]
    picture: NDArray
    measured: dict


def look(page: Path, folder: Path, width: int, height: int, script: str = "") -> Seen:
    """Open a copy of a page at a size; ``script`` runs at its end."""
    copy, frame, picture = (folder / f"{width}-{name}" for name in ("copy.html", "frame.html", "picture.png"))
    added = MEASURE + (f"<script>{script}</script>" if script else "")
    copy.write_text(page.read_text().replace("</body>", f"{added}</body>"))
    frame.write_text(FRAME.format(width=width, height=height, page=copy.name))
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--use-angle=swiftshader", "--hide-scrollbars",
        "--enable-unsafe-swiftshader", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=3000",
        f"--window-size={max(500, width)},{height}", "--enable-logging=stderr", "--dump-dom",
        f"--screenshot={picture}",
    ]  # fmt: skip
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line and "GL Driver Message" not in line]
    found = dict(re.findall(r'<template id="(\w+)" data-kept="([^"]*)"', done.stdout))
    assert found, (done.stdout[-2000:], done.stderr[-2000:])
    measured, dom = (json.loads(unescape(found[name])) for name in ("measured", "dom"))
    assert measured["inner"] == width
    return Seen(dom, errors, matplotlib.image.imread(picture)[:, :width], measured)
