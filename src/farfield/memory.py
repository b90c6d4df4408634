"""Memory that is freed and needed again at once stays with the process."""

from __future__ import annotations

import ctypes
import sys

_LARGEST_KEPT = 1 << 25  # bytes: glibc takes no more; larger arrays come from the kernel and go back to it
_KEPT = 1 << 29  # bytes at the end of the heap that are not given back
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's names of what mallopt sets


def keep_freed_memory() -> bool:
    """Let arrays of up to 32 MB reuse the memory of earlier ones; returns whether this system's C library does.

    glibc gives arrays of more than 128 kB back to the kernel when they are freed, and gets them again page by page:
    a tenth of the time of a prediction of wind, whose arrays are as large as a processor's cache. It concerns the
    whole process, so that the command line decides it and no import does.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    wanted = ((_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, _KEPT), (_TOP_PAD, _LARGEST_KEPT))
    return all(mallopt(name, size) for name, size in wanted)
