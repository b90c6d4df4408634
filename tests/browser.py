"""Pages in headless Chromium: what they say, what they log, and how they look; and what can be said without one."""

import base64
import json
import re
import shutil
import subprocess
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import pytest
from numpy.typing import NDArray

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None,
    reason="NOT TESTED how the page looks: no Chromium on this machine (Debian: apt-get install chromium)",
)
NODE = shutil.which("node")
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}

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
    base = f'<base href="{page.resolve().parent.as_uri()}/">'  # what it links to lies where it was
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{base}", 1).replace("</body>", f"{added}</body>")
    copy.write_text(text, encoding="utf-8")
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


class Page(HTMLParser):
    """A page as it is written: what is in it, and what is wrong with it."""

    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.text, self.wrong, self.images = folder, "", [], []
        self.count, self.boxed, self.order = Counter(), Counter(), []
        self._open, self._ids, self._targets, self._scripts, self._name = [], set(), [], [], ""

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.count[tag] += 1
        self.order.append(tag)
        self._name += f"{given.get('content', '')};" if given.get("name") == "viewport" else ""
        for _, outer in self._open:
            self.boxed[tag, outer] += 1
        self._ids |= {given["id"]} if "id" in given else set()
        if (link := given.get("href", "")).startswith("#"):
            self._targets.append(link[1:])
        if tag == "img":
            self._image(given)
        for name in ("src", "href"):
            if tag in ("script", "link", "iframe", "img") and re.match(r"(https?:)?//", given.get(name) or ""):
                self.wrong.append(f"<{tag}> needs the network: {given[name]}")
        if tag == "iframe" and "srcdoc" in given:
            inner = Page(self.folder)
            inner.feed(given["srcdoc"])
            self.wrong += inner.finished().wrong
        if tag == "script":
            self._scripts.append((given.get("type", ""), ""))
        if tag not in VOID:
            self._open.append((tag, given.get("class", "")))

    def _image(self, given):
        """It is inside the page, or a file beside it, and says what it shows."""
        kind, _, data = (given.get("src") or "").partition(";base64,")
        self.images.append(kind)
        if data and not base64.b64decode(data).startswith(b"\x89PNG"):
            self.wrong.append("an image is no PNG")
        if not data and not (self.folder / kind).is_file():
            self.wrong.append(f"there is no image {kind}")
        if not given.get("alt"):
            self.wrong.append("an image does not say what it shows")

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.wrong.append(f"</{tag}> closes {self._open[-1:]}")
        else:
            self._open.pop()

    def handle_data(self, data):
        if self._open and self._open[-1][0] == "script":
            self._scripts[-1] = (self._scripts[-1][0], self._scripts[-1][1] + data)
        elif not self._open or self._open[-1][0] != "style":
            self.text += data

    def finished(self):
        """Check what shows at the end only."""
        self.wrong += [f"<{tag}> is not closed" for tag, _ in self._open if tag not in ("html", "body", "p", "li")]
        self.wrong += [f"#{target} leads nowhere" for target in self._targets if target not in self._ids]
        if "width=device-width" not in self._name:
            self.wrong.append("a phone would show it as on a desk")
        for kind, script in self._scripts:
            if kind == "application/json":
                json.loads(script)
            elif NODE is not None:
                done = subprocess.run([NODE, "--check", "-"], input=script, capture_output=True, text=True)
                self.wrong += [done.stderr] if done.returncode else []
        return self


def read_page(path: Path) -> Page:
    """What can be checked of a page without a browser."""
    page = Page(path.parent)
    page.feed(path.read_text(encoding="utf-8"))
    return page.finished()
