"""The one time loop: a step is what a solver does between two saved states, or what a network predicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

State = TypeVar("State")


def rollout(step: Callable[[State], State], state: State, steps: int) -> Iterator[State]:
    """Yield ``state``, ``step(state)``, ``step(step(state))``, ...: ``steps + 1`` states, one at a time.

    It is lazy, so a long rollout on a large domain need not fit into memory: keep what you need. ``State``
    may be anything ``step`` accepts (an array, a tensor, a dictionary of fields); ``step`` must not change it
    in place.
    """
    if steps < 0:
        raise ValueError(f"expected a number of steps of at least 0, got {steps}")
    yield state
    for _ in range(steps):
        state = step(state)
        yield state
