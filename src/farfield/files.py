"""Files: written so that a crash never leaves a half-written one under its final name, and read so that a damaged one
is named."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shlex
import sys
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is flushed to disk and renamed to ``path``.

    If the block raises, the temporary file is removed and whatever stood at ``path`` is untouched. After a
    ``kill -9`` the temporary file stays behind (its name ends in ``.partial``), never a truncated ``path``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def atomic_write_text(path: str | Path, text: str) -> None:
    """Write ``text`` to ``path`` in one step (see :func:`atomic_path`)."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_table(path: str | Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file, in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    atomic_write_text(path, text.getvalue())


def this_command() -> str:
    """The command line of this process, for files that say how they were made; no folder of this machine."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def fingerprint(*contents: bytes) -> str:
    """The same for the same bytes only."""
    digest = hashlib.sha256()
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


def modern(values: Any) -> Any:
    """Settings as they are written today: what is called ``problem`` was a ``case`` before version 0.2."""
    if not isinstance(values, dict) or "problem" in values:
        return values
    renamed = {"problem" if name == "case" else name: value for name, value in values.items()}
    return renamed | ({"spec": modern(values["spec"])} if "spec" in values else {})


def read_description(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file of a run's folder."""
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a trained model: it has no {path.name}")
    text = path.read_text(encoding="utf-8")
    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: expected names and values, got {values!r}")
    return modern(values)


def read_arrays(path: Path) -> dict[str, NDArray]:
    """The arrays of a NumPy .npz file; pickled objects are refused."""
    try:
        with np.load(path) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, zlib.error, TypeError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is truncated, damaged or not a NumPy .npz file ({error})") from None
