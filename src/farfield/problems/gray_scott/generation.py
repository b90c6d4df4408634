"""Data of Gray-Scott: squares of V at random places in U."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.data.domain import Domain
from farfield.problems.generation import DatasetConfig, GridGeneration, published_splits
from farfield.problems.gray_scott import DIFFUSION_U, DIFFUSION_V, FEED_RATE, FIELDS, KILL_RATE

SOURCE_CELLS = 5  # a source is a square of this many cells
SOURCE_U, SOURCE_V = 0.5, 0.25


def draw_sources(rng: np.random.Generator, domain: Domain, count: int) -> NDArray[np.float64]:
    """U = 1, V = 0 with ``count`` squares of U = 0.5, V = 0.25, anywhere inside the domain: (2, nx, ny)."""
    if min(domain.cells) < SOURCE_CELLS:
        raise ValueError(f"expected at least {SOURCE_CELLS} cells along each axis to hold a source, got {domain.cells}")
    state = np.stack([np.ones(domain.cells), np.zeros(domain.cells)])
    for _ in range(count):
        i, j = (int(rng.integers(0, cells - SOURCE_CELLS + 1)) for cells in domain.cells)
        square = (slice(i, i + SOURCE_CELLS), slice(j, j + SOURCE_CELLS))
        state[0, *square], state[1, *square] = SOURCE_U, SOURCE_V
    return state


def solve(*arguments: Any, **options: Any) -> NDArray[np.float64]:
    """:func:`farfield.problems.gray_scott.solver.solve`, whose compiler is imported when it is needed."""
    from farfield.problems.gray_scott.solver import solve

    return solve(*arguments, **options)


def settings(preset: str = "cpu", seed: int = 0) -> DatasetConfig:
    """``paper`` and ``cpu``: the published set, 5.6 GB. ``quick``: fewer simulations, of a quarter of the area."""
    paper = DatasetConfig(
        problem="gray-scott",
        preset=preset,
        seed=seed,
        cells=(128, 128),
        extent=(128.0, 128.0),
        sources=3,
        time_step=1.0,
        save_every=500,
        states=11,
        constants={
            "diffusion_u": DIFFUSION_U,
            "diffusion_v": DIFFUSION_V,
            "feed_rate": FEED_RATE,
            "kill_rate": KILL_RATE,
        },
        splits=published_splits(2, 800, 100, {2: 50, 3: 50, 7: 25, 10: 10}),
    )
    if preset != "quick":
        return paper
    fewest = published_splits(2, 64, 8, {2: 4, 3: 4, 7: 2, 10: 1})
    return paper.replace(cells=(64, 64), extent=(64.0, 64.0), sources=1, splits=fewest)


GENERATION = GridGeneration(
    settings=settings,
    fields=FIELDS,
    field_units=("1", "1"),
    length_unit="cell",
    time_unit="1",
    boundary="wall",
    draw=draw_sources,
    solve=solve,
    about="""Gray-Scott reaction and diffusion: concentrations U and V, after squares of V are placed
at random into U = 1. Explicit Euler, five-point stencil, zero-gradient sides.

    ∂U/∂t = D_u ∇²U - U V² + F (1 - U),      ∂V/∂t = D_v ∇²V + U V² - (F + k) V""",
    published={
        "mean": {"U": 0.7170, "V": 0.1048},
        "std": {"U": 0.2494, "V": 0.1207},
        "mean_delta": {"U": -0.0402, "V": 0.0137},
        "std_delta": {"U": 0.1577, "V": 0.0848},
    },
)
