"""Numbers below the smallest normal one count as zero: many processors compute with them a hundred times slower.

They are common here: weights of attention and potentials of the wind fade exponentially with the distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Within it, for this thread, whatever computes: torch, numpy, compiled kernels; as it was before, afterwards."""
    before = _are_zero()
    torch.set_flush_denormal(True)  # answers False, and does nothing, where the processor cannot
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _are_zero() -> bool:
    smallest = torch.tensor(torch.finfo(torch.float32).tiny)
    return not bool(smallest / 2)
