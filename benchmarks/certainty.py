"""What certainty costs on the layers of the shipped models: pairs and CPU seconds, certified over estimated.

    python benchmarks/certainty.py [--markdown FILE]

Each model takes one step on a domain several times as wide as the one it was trained on, from a smooth random state, or
predicts the wind through a random city; what its layers ask of attention is kept, and asked again of the tiled backend
with and without ``certify``. From how many points on "auto" takes tiles is found by cutting the domain down.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import farfield as ff
from farfield.bench import LEADS
from farfield.models import blocks
from farfield.problems.urban_wind.buildings import UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.city import City
from farfield.problems.urban_wind.lattice import SPACING, Lattice

# Cells along each axis; the city's width over that of training.
SIZES = {"swe-laape": 6400, "swe-laspe": 6400, "gray-scott-laape": 640, "gray-scott-laspe": 640, "urban-wind-laape": 5}
HEADER = "| model | layer | points | pairs read / all | certified / estimated: pairs | CPU time | auto tiles from |"


def layers(name: str, size: int) -> list[tuple[tuple, dict[str, Any]]]:
    """What the layers of a shipped model give to ``local_attention`` in one step."""
    model, calls, whole = ff.load(name), [], blocks.local_attention

    def kept(*given: Any, **options: Any) -> torch.Tensor:
        calls.append((given, options))
        return whole(*given, **options)

    with mock.patch.object(blocks, "local_attention", kept):
        if name.startswith("urban-wind"):
            model.from_city(random_city(size), np.array([[0.0, 0.0, 40.0]]))
        else:
            model.step(random_state(model, size))
    return calls


def random_city(scale: float) -> City:
    """Random buildings in the air around them."""
    buildings = boxes_to_mesh(random_buildings(np.random.default_rng(0), scale, SPACING))
    triangles = np.asarray(buildings.triangles, dtype=np.float32)
    return City.of(Lattice.around(triangles, UrbanDomain.around(buildings)), 0.3)


def random_state(model: Any, cells: int) -> dict[str, Any]:
    """Fields that vary over sixteen cells, about as much as those of training."""
    shape = (cells,) * len(model.spacing)
    generator = torch.Generator().manual_seed(0)
    mean, spread = (m.tolist() for m in model._state)
    fields = {}
    for field, middle, wide in zip(model.fields, mean, spread, strict=True):
        noise = torch.randn(1, 1, *(n // 16 for n in shape), generator=generator)
        mode = "linear" if len(shape) == 1 else "bilinear"
        fields[field] = middle + 0.5 * wide * torch.nn.functional.interpolate(noise, shape, mode=mode)[0, 0].numpy()
    return fields


def compared(given: tuple, options: dict[str, Any]) -> tuple[float, float, float]:
    """Pairs read over all, and certified over estimated pairs and CPU seconds."""
    encoding, period = options["encoding"], options.get("period")
    plan = ff.plan_attention(*given[3:], encoding=encoding, period=period)
    read, best = {}, dict.fromkeys((True, False), float("inf"))
    for certify in 3 * (True, False):
        start = time.process_time()
        ff.local_attention(*given, encoding=encoding, plan=plan, period=period, certify=certify)
        best[certify] = min(best[certify], time.process_time() - start)
        read[certify] = plan.pairs_read
    every = given[0].shape[-2] * given[1].shape[-2]
    return read[True] / every, read[True] / read[False], best[True] / best[False]


def tiles_from(given: tuple, options: dict[str, Any]) -> str:
    """The smallest number of points, of those in corners of the domain, for which "auto" takes tiles."""
    q, positions, found = given[0], torch.as_tensor(given[3]), None
    if positions.ndim == 3:
        positions = positions[0]
    low, width = positions.amin(0), positions.amax(0) - positions.amin(0)
    for share in (1.0, 0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1):
        inside = (positions <= low + share * width).all(-1)
        if not ff.explain_backend(q[:, :, inside], positions[inside], encoding=options["encoding"]).startswith("tiled"):
            return "never up to here" if found is None else str(found)
        found = int(inside.sum())
    return f"at most {found}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [HEADER, "|" + "---|" * 7]
    with torch.no_grad():
        for name, size in SIZES.items():
            for number, (given, options) in enumerate(layers(name, size)):
                share, pairs, seconds = compared(given, options)
                lines.append(
                    f"| {name} | {number} | {given[0].shape[-2]} | {share:.3f} | {pairs:.2f} | {seconds:.2f} | "
                    f"{tiles_from(given, options)} |"
                )
                print(lines[-1], flush=True)
    if arguments.markdown:
        about = LEADS["certainty"] + "\n\n`python benchmarks/certainty.py`, one thread.\n\n"
        arguments.markdown.write_text(about + "\n".join(lines) + "\n")
