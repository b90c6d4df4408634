"""Data of shallow water: crenels at random places, let go."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.data.domain import Domain
from farfield.problems.generation import DatasetConfig, GridGeneration, published_splits
from farfield.problems.swe import FIELDS, GRAVITY

CRENEL_WIDTH = (4.0, 15.0)  # m
CRENEL_HEIGHT = (0.02, 0.08)  # m


def draw_crenels(rng: np.random.Generator, domain: Domain, count: int) -> NDArray[np.float64]:
    """Water at rest, 1 m high, with ``count`` crenels: (2, cells), v and h.

    Centres are uniform over the domain, so that a crenel may reach across an end; it raises every cell it
    touches, and where two overlap their heights add. Of the set-ups tried, this one comes nearest to the
    published statistics.
    """
    (x,), (dx,), (extent,) = domain.centres(), domain.spacing, domain.extent
    state = np.stack([np.zeros_like(x), np.ones_like(x)])
    for _ in range(count):
        centre, width, height = (
            rng.uniform(0, extent),
            rng.uniform(*CRENEL_WIDTH),
            rng.uniform(*CRENEL_HEIGHT),
        )
        state[1, np.abs(x - centre) < (width + dx) / 2] += height
    return state


def solve(*arguments: Any, **options: Any) -> NDArray[np.float64]:
    """:func:`farfield.problems.swe.solver.solve`, whose compiler is imported when it is needed."""
    from farfield.problems.swe.solver import solve

    return solve(*arguments, **options)


def settings(preset: str = "cpu", seed: int = 0) -> DatasetConfig:
    """The paper's set takes seconds, so ``cpu`` is the whole of it; ``quick`` has fewer simulations."""
    published = published_splits(1, 800, 100, {2: 50, 3: 50, 7: 50, 10: 50})
    quick = published_splits(1, 200, 20, {2: 10, 3: 10, 7: 10, 10: 10})
    return DatasetConfig(
        problem="swe",
        preset=preset,
        seed=seed,
        cells=(128,),
        extent=(100.0,),
        sources=3,
        time_step=0.01,
        save_every=30,
        states=51,
        constants={"gravity": GRAVITY},
        splits=quick if preset == "quick" else published,
    )


GENERATION = GridGeneration(
    settings=settings,
    fields=FIELDS,
    field_units=("m/s", "m"),
    length_unit="m",
    time_unit="s",
    boundary="open",
    draw=draw_crenels,
    solve=solve,
    about="""One-dimensional shallow water: height h and velocity v of water over a flat bed, after crenels
of random place, width and height are let go. First-order Rusanov finite volumes, zero-gradient ends.

    ∂h/∂t + ∂(hv)/∂x = 0,      ∂(hv)/∂t + ∂(hv² + g h²/2)/∂x = 0""",
    published={
        "mean": {"v": 0.0008, "h": 1.0140},
        "std": {"v": 0.04559, "h": 0.01507},
        "std_delta": {"v": 0.006492, "h": 0.002224},
    },
)
