"""Files: written so that a crash never leaves a half-written one under its final name, that no two processes write
the same folder and that nothing is overwritten unasked; read so that a damaged one is named."""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import math
import os
import reprlib
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
    make_folder(path.parent)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_partials(*paths: Path) -> None:
    """Remove what processes that were killed while they wrote these files have left behind; nobody may be writing."""
    for path in paths:
        for partial in path.parent.glob(f".{path.name}.*.partial"):
            partial.unlink()


@contextmanager
def locked(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold the lock file ``path``; while another process does, refuse with ``busy``, or wait where that is None.

    The kernel releases the lock however its process ends: what a killed one leaves behind locks nobody out.
    """
    make_folder(path.parent)
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
            if os.path.samestat(path.stat(), os.fstat(lock.fileno())):
                break
        except BlockingIOError:
            lock.close()
            raise RuntimeError(busy) from None
        except FileNotFoundError:
            pass
        lock.close()  # its holder has removed it between our opening and our locking: such a lock locks nobody out
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder} cannot be a folder, there is a file of that name: choose another") from None


def refuse_overwriting(paths: Iterable[Path], force: bool, given: Iterable[Path] = ()) -> None:
    """Refuse to write over files that exist, above all over those that were ``given``, unless forced to."""
    existing = [path for path in paths if path.exists()]
    if folders := [path for path in existing if path.is_dir()]:
        raise ValueError(f"{folders[0]} is a folder: choose another --out")
    if not existing or force:
        return
    first, others = existing[0], f" and {len(existing) - 1} more exist" if len(existing) > 1 else " exists"
    what = " is the input itself" if any(path.exists() and first.samefile(path) for path in given) else others
    raise ValueError(f"{first}{what}: choose another --out, or overwrite with --force")


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
    program = Path(sys.argv[0])
    name = program.parent.name if program.name == "__main__.py" else program.name  # python -m farfield
    return shlex.join([name, *sys.argv[1:]])


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


def read_mapping(path: Path, remedy: str) -> dict[str, Any]:
    """The names and values in a YAML or JSON file; what is damaged is named, with ``remedy``: what to do about it."""
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError, IsADirectoryError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged ({reason}): {remedy}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged, it holds {reprlib.repr(values)} instead of names and values: {remedy}")
    return values


def read_description(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file of a run's folder."""
    if not path.is_file():
        raise ValueError(f"{path.parent} is not a trained model: it has no {path.name}")
    return modern(read_mapping(path, "restore it from a copy, or train the run anew"))


def read_arrays(path: Path) -> dict[str, NDArray]:
    """The arrays of a NumPy .npz file; pickled objects are refused, and arrays that memory cannot hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_memory(sum(_claimed_bytes(archive, member) for member in archive.infolist()), str(path))
        with np.load(path) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, zlib.error, TypeError, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} is truncated, damaged or not a NumPy .npz file ({error})") from None


def _claimed_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """What an array will take, by its header alone, which must agree with the archive's own count of bytes."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds Python objects")
        claimed, held = math.prod(shape) * dtype.itemsize, member.file_size - file.tell()
    if claimed != held:
        raise ValueError(f"{member.filename} claims {shape} numbers, {claimed:.3g} bytes, and holds {held:.3g}")
    return claimed


def check_memory(needed: int, what: str) -> None:
    """Refuse to read what this machine cannot hold, before anything is allocated."""
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > free:
        raise MemoryError(f"{what} claims {needed / 1e9:,.1f} GB, this machine has {free / 1e9:,.1f} GB of memory")
