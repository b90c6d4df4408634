"""Writing files so that a crash never leaves a half-written one under its final name."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
