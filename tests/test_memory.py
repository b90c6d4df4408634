"""Freed memory that stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT = """
import resource, sys
import numpy as np
from farfield.memory import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "kept" else False
def work():
    for size in (200_000, 900_000, 4_000_000):
        a, b = np.ones(size // 8), np.ones(size // 8)
        a + b
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc alone")
def test_arrays_that_come_and_go_do_not_ask_the_kernel_for_their_pages_again() -> None:
    """In processes of their own: what is set here holds for a process until it ends."""

    def faults(how: str) -> tuple[str, int]:
        done = subprocess.run([sys.executable, "-c", _COUNT, how], capture_output=True, text=True, check=True)
        told, count = done.stdout.split()
        return told, int(count)

    (_, usual), (told, kept) = faults("usual"), faults("kept")
    if told != "True":
        pytest.skip("this C library has no mallopt")
    assert kept < usual / 10, f"{kept} page faults, {usual} without"
