"""The pictures in ``docs/screenshots``: the site, a report and a scene, on a phone and on a screen.

    make docs && .venv/bin/python docs/screenshots.py [--all FOLDER]

It needs Chromium, and fails where a page is wider than the screen, logs an error or misses a picture. The report is of
the kept rows of ``results/swe-cpu``, the scene of a prediction that is made here. ``--all`` also takes every page of
the site, into a folder that is not kept, to be looked at.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
ROOT, SITE = HERE.parent, HERE / "_build" / "html"
sys.path.insert(0, str(ROOT / "tests"))

from browser import look  # noqa: E402

SIZES = ((390, 844), (1400, 900))
CITY = """
import numpy as np
from farfield.problems.urban_wind.buildings import boxes_to_mesh, random_buildings, write_stl

write_stl("city.stl", boxes_to_mesh(random_buildings(np.random.default_rng(0), 3, count=60)))
"""


def farfield(*words: str, folder: Path) -> None:
    """Run a command of this source."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", "farfield", *words], cwd=folder, env=environment, check=True)


def shoot(page: Path, name: str, out: Path) -> list[str]:
    """Take a page at both widths; returns what is wrong with it."""
    wrong = []
    for width, height in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            seen = look(page, Path(folder), width, height)
        picture = Image.fromarray((255 * seen.picture[..., :3]).astype(np.uint8))
        picture.quantize(256).save(out / f"{name}-{width}.png", optimize=True)  # a third of the bytes
        measured = seen.measured
        if seen.errors or measured["wide"] or measured["broken"] or measured["width"] > width:
            wrong.append(f"{name} at {width}: {seen.errors} {measured}")
    return wrong


def main() -> None:
    """Take all pictures that are kept; with ``--all``, also every page of the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, help="a folder for pictures of every page of the site")
    arguments = parser.parse_args()
    kept = HERE / "screenshots"
    wrong = shoot(SITE / "index.html", "front", kept)
    wrong += shoot(SITE / "tutorials" / "own-data-grid.html", "tutorial", kept)
    if arguments.all:
        arguments.all.mkdir(parents=True, exist_ok=True)
        for page in sorted(SITE.rglob("*.html")):
            if page.name not in ("search.html", "genindex.html", "py-modindex.html"):
                wrong += shoot(page, "-".join(page.relative_to(SITE).with_suffix("").parts), arguments.all)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        runs = sorted(str(path.parent) for path in (ROOT / "results" / "swe-cpu").glob("*/evaluation.csv"))
        farfield("report", *runs, "--out", "report", folder=folder)
        wrong += shoot(folder / "report" / "index.html", "report", kept)
        subprocess.run(
            [sys.executable, "-c", CITY], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True
        )
        wind = ("--roughness", "0.3", "--wind-direction", "250", "--out", "flow.vtu")
        farfield("predict", "--model", "urban-wind-laape", "--buildings", "city.stl", *wind, folder=folder)
        farfield("view", "flow.vtu", "--buildings", "city.stl", folder=folder)
        wrong += shoot(folder / "flow.html", "scene", kept)
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
