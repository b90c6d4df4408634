"""A dataset of urban wind without the test cities that somebody watched while the network was designed: 148 to 152.

    python benchmarks/unspent_cities.py data/urban-wind-cpu data/urban-wind-unspent

Its files are links into the dataset, so that it costs nothing; `farfield evaluate --data` takes it.
"""

import json
import sys
from pathlib import Path

from farfield.files import atomic_write_text
from farfield.problems.urban_wind.files import INDEX_FILE

SPENT = range(148, 153)


def unspent(data: Path, out: Path) -> int:
    """Make the folder; the number of test cities that are left."""
    index = json.loads((data / INDEX_FILE).read_text())
    index["test_ids"] = [number for number in index["test_ids"] if number not in SPENT]
    out.mkdir(parents=True, exist_ok=True)
    for file in data.iterdir():
        link = out / file.name
        if file.name != INDEX_FILE and not file.name.startswith(".") and not link.is_symlink():
            link.symlink_to(file.resolve())
    atomic_write_text(out / INDEX_FILE, json.dumps(index, indent=1) + "\n")
    return len(index["test_ids"])


if __name__ == "__main__":
    print(f"{unspent(*map(Path, sys.argv[1:3]))} test cities are left")
