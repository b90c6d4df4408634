"""Where the encodings break in low precision as published, and that they do not in local coordinates.

The paper forms the bias channels of q and k (see :mod:`farfield.attention.locality`) from the points' *global*
coordinates and rounds them like everything else. Far from the origin LASPE's channels (c/l)², c/l are large numbers
whose difference is small, so rounding eats the bias; LAAPE's exp(±c/l) keep their relative accuracy, but overflow. Our
backends take each tile's coordinates relative to its own centre, which changes nothing in exact arithmetic, and form
the bias in float32.

Both ways (:mod:`farfield.studies.precision.arithmetic`) are compared with the formula in float64 on unrounded q, k, v.
All else in a model stays in float32, so that what is seen is the rounding of attention alone.

OUT/stability.csv       one row per number (:class:`StabilityRow`); tables, curves and statements are made of these
OUT/maps.npz            the fields that the maps show
OUT/kernel-shapes.png   the kernels with their half-widths
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from farfield.attention import LAAPE, LASPE, Encoding, local_attention
from farfield.files import atomic_path
from farfield.prediction.stepping import Predictor
from farfield.studies.kernels import draw_kernel_shapes, half_width
from farfield.studies.precision.arithmetic import (
    ATTENTION,
    FORMATS,
    Way,
    finite,
    our_attention,
    published_channels,
    relative_error,
)
from farfield.studies.precision.models import SIZES, Trial, map_rows, shift_rows
from farfield.studies.precision.rows import StabilityRow, write_stability

ENCODINGS: dict[str, Callable[[float], Encoding]] = {"LASPE": LASPE, "LAAPE": LAAPE}
DECAY_LENGTH = 250.0  # the paper's, in units of which the training domain is 1000 wide
HEAD_DIM = 64  # the paper's
DISTANCES = (0, 1, 2, 5, 10, 20, 50, 80, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000)  # in decay lengths
WIDTHS = (10, 100, 1000, 10_000, 100_000, 1_000_000)  # of the domains that local coordinates are tried on
# A result counts as right up to this error.
RIGHT = 0.05


# --- attention at growing distance from the origin ---------------------------------------------------------------


@dataclass(frozen=True)
class Patch:
    """Random queries, keys and values at scattered points in a square, and the formula's answer in float64.

    Points lie on multiples of 1/1024 of a unit, so that moving them by whole decay lengths is exact and only the
    arithmetic that follows can differ.
    """

    encoding: Encoding
    q: Tensor
    k: Tensor
    v: Tensor
    positions: Tensor  # (N, P) around the origin
    near: Tensor  # (N, N) pairs closer than two decay lengths, which carry nearly all weight
    logits: Tensor
    output: Tensor

    @classmethod
    def draw(cls, encoding: Encoding, points: int = 20, width: float = 5.0, seed: int = 0) -> Patch:
        """``points`` along each axis of a square ``width`` decay lengths wide."""
        generator = torch.Generator().manual_seed(seed)
        unit = width * DECAY_LENGTH / points
        line = torch.arange(points, dtype=torch.float64) - (points - 1) / 2
        grid = torch.stack(torch.meshgrid(line, line, indexing="ij"), dim=-1).flatten(0, 1)
        scatter = torch.rand(grid.shape, generator=generator, dtype=torch.float64) - 0.5
        where = ((grid + scatter) * unit * 1024).round() / 1024
        shape = (1, 3, len(where), HEAD_DIM)
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
        delta = where[:, None] - where[None]
        logits = encoding.rotate(q, where) @ encoding.rotate(k, where).transpose(-1, -2) / math.sqrt(HEAD_DIM)
        logits = logits - encoding.potential(delta)
        return cls(
            encoding, q, k, v, where, delta.norm(dim=-1) < 2 * DECAY_LENGTH, logits, torch.softmax(logits, -1) @ v
        )

    def errors(self, way: Way, precision: str, distance: float) -> dict[str, float]:
        """Of the patch moved by ``distance`` decay lengths along both axes.

        logit error: root mean square over near pairs, after the mean of each query's errors (which softmax ignores) is
        taken off. output error: sum |error| / sum |output|.
        """
        moved = self.positions + distance * DECAY_LENGTH
        output = ATTENTION[way](self.q, self.k, self.v, moved, moved, self.encoding, precision)
        if way == "published":
            wide_q, wide_k = published_channels(self.q, self.k, moved, moved, self.encoding, precision)
            logits = wide_q @ wide_k.transpose(-1, -2) / math.sqrt(HEAD_DIM)
        else:  # the weights are what attention makes of unit vectors; their logarithm is the logits but for a constant
            unit = torch.eye(len(moved), dtype=torch.float64).expand(*self.q.shape[:2], -1, -1)
            logits = our_attention(self.q, self.k, unit, moved, moved, self.encoding, precision).log()
        return {
            "logit error": self._logit_error(logits.double()),
            "output error": relative_error(output.double(), self.output),
        }

    def _logit_error(self, logits: Tensor) -> float:
        error = torch.where(self.near, logits - self.logits, 0.0)
        count = self.near.sum(-1, keepdim=True)
        error = torch.where(self.near, error - error.sum(-1, keepdim=True) / count, 0.0)
        return finite((error.square().sum() / (count.sum() * len(error[0]))).sqrt())


def attention_rows(distances: Sequence[float] = DISTANCES, **size: Any) -> Iterator[StabilityRow]:
    """Errors of logits and output against the distance from the origin, both ways, below float64."""
    for name, make in ENCODINGS.items():
        patch = Patch.draw(make(DECAY_LENGTH), **size)
        for precision in ("float16", "bfloat16", "float32"):
            for way in ATTENTION:
                for distance in distances:
                    for quantity, value in patch.errors(way, precision, distance).items():
                        yield StabilityRow("attention", name, way, precision, distance, quantity, value)


# --- attainable domain sizes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """What a format can hold, as natural logarithms: the width in decay lengths that each number allows."""

    largest: float
    smallest_normal: float
    smallest_subnormal: float

    @classmethod
    def of(cls, precision: str) -> Limits:
        info = torch.finfo(FORMATS[precision])
        subnormal = math.log(info.smallest_normal) + math.log(info.eps)
        return cls(math.log(info.max), math.log(info.smallest_normal), subnormal)

    def laape_width(self, head_dim: int = HEAD_DIM) -> float:
        """Of the widest domain, centred on the origin, whose channels are all finite.

        Every point needs both sqrt(D)/2 exp(x / l) and sqrt(D)/2 exp(-x / l), so either end overflows at
        |x| = l ln(2 max / sqrt(D)).
        """
        return 2 * (self.largest - math.log(math.sqrt(head_dim) / 2))

    def laspe_width(self, head_dim: int = HEAD_DIM) -> float:
        """Likewise for sqrt(D)/2 (x / l)²."""
        return 2 * math.exp((self.largest - math.log(math.sqrt(head_dim) / 2)) / 2)


# "max. domain size" of the paper's table "Maximum attainable scaling range of LAAPE", in decay lengths.
PAPER_WIDTHS = {"float16": 27.0, "bfloat16": 181.0, "float32": 181.0, "float64": 1418.0}


@dataclass(frozen=True)
class WideDomain:
    """A line of any width with points in its middle and at both ends, so that its width costs nothing."""

    encoding: Encoding
    q: Tensor
    k: Tensor
    v: Tensor
    cluster: Tensor  # (n,) one cluster's coordinates

    @classmethod
    def draw(cls, encoding: Encoding, points: int = 48, seed: int = 0) -> WideDomain:
        """``points`` per cluster, three decay lengths wide."""
        generator = torch.Generator().manual_seed(seed)
        shape = (1, 1, 3 * points, HEAD_DIM)
        q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
        return cls(encoding, q, k, v, torch.linspace(0, 3 * DECAY_LENGTH, points, dtype=torch.float64))

    def error(self, way: Way, precision: str, width: float, origin: float) -> float:
        """Relative error of the output on a domain ``width`` decay lengths wide, at the worst of the three places.

        inf where it is not finite. ``origin`` is where coordinates start: 0 for the middle of the domain, 0.5 for its
        left end.
        """
        width = max(width, 3.0)
        ends = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64) + origin
        starts = ends * width * DECAY_LENGTH - torch.tensor([0.0, 1.5, 3.0]) * DECAY_LENGTH
        where = (starts[:, None] + self.cluster).reshape(-1, 1)
        args = (self.q, self.k, self.v, where, where)
        reference = local_attention(*args[:4], encoding=self.encoding, backend="reference")
        output = ATTENTION[way](*args, self.encoding, precision).double()
        places = zip(output.chunk(3, dim=-2), reference.chunk(3, dim=-2), strict=True)
        return max(relative_error(*place) for place in places)


def widest(passes: Callable[[float], bool], low: float, high: float, steps: int = 40) -> float:
    """The largest value up to which ``passes`` holds, by bisection of the logarithm."""
    for _ in range(steps):
        middle = math.sqrt(low) * math.sqrt(high)  # their product may overflow
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def widest_by_steps(passes: Callable[[float], bool], low: float, ratio: float = 1.1) -> float:
    """The last value before the first failure, found in steps and then by bisection: for what may pass again."""
    while passes(low * ratio):
        low *= ratio
    return widest(passes, low, low * ratio, steps=8)


def width_rows(encodings: Iterable[str] = ENCODINGS) -> Iterator[StabilityRow]:
    """How wide a domain may be: from the formats' limits, as printed, found by search, and ours."""
    for precision in FORMATS:
        limits = Limits.of(precision)
        for quantity, value in (
            ("ln of the largest number", limits.largest),
            ("ln of the smallest normal number", limits.smallest_normal),
            ("ln of the smallest subnormal number", limits.smallest_subnormal),
        ):
            yield StabilityRow("width", "", "formula", precision, 0, quantity, value)
        yield StabilityRow("width", "LAAPE", "paper", precision, 0, "finite width", PAPER_WIDTHS[precision])
        for name in encodings:
            domain = WideDomain.draw(ENCODINGS[name](DECAY_LENGTH))
            finite = limits.laape_width() if name == "LAAPE" else limits.laspe_width()
            for origin in (0.0, 0.5):
                end_share = 1 - origin  # with the origin at one end, the other is twice as far from it
                yield StabilityRow("width", name, "formula", precision, origin, "finite width", end_share * finite)

                def error(width: float, domain: WideDomain = domain, origin: float = origin) -> float:
                    return domain.error("published", precision, width, origin)  # noqa: B023

                found = widest(lambda width: math.isfinite(error(width)), 3.0, 4 * finite)
                yield StabilityRow("width", name, "published", precision, origin, "finite width", found)
                found = widest_by_steps(lambda width: error(width) <= RIGHT, 3.0)
                yield StabilityRow("width", name, "published", precision, origin, "right width", found)
            for width in (3.0, *WIDTHS):
                value = domain.error("local", precision, width, 0.0)
                yield StabilityRow("width", name, "local", precision, width, "output error", value)


# --- kernel shapes -----------------------------------------------------------------------------------------------


def kernel_rows() -> Iterator[StabilityRow]:
    """Half-widths of the kernels in decay lengths: from the closed form where there is one, and found on the curve."""
    for name, encoding, closed in (
        ("LASPE", LASPE(1.0), math.sqrt(2 * math.log(2))),
        ("LAAPE", LAAPE(1.0), math.acosh(1 + math.log(2))),
        ("LAAPE, asymmetric", LAAPE(decay_length_plus=0.5, decay_length_minus=1.0), None),
    ):
        left, right = half_width(encoding)
        yield StabilityRow("kernel", name, "local", "float64", 0, "half-width, left", left)
        yield StabilityRow("kernel", name, "local", "float64", 0, "half-width, right", right)
        yield StabilityRow("kernel", name, "local", "float64", 0, "peak", float(encoding.centre(1)[0]))
        if closed is not None:
            yield StabilityRow("kernel", name, "formula", "float64", 0, "half-width, left", -closed)
            yield StabilityRow("kernel", name, "formula", "float64", 0, "half-width, right", closed)


# --- all of it ---------------------------------------------------------------------------------------------------


def evaluate_stability(
    out: str | Path,
    predictors: Sequence[Predictor] = (),
    preset: str = "quick",
    say: Callable[[str], None] = lambda text: None,
) -> list[StabilityRow]:
    """Run all experiments into ``out``; ``predictors`` are trained Gray-Scott models."""
    if preset not in SIZES:
        raise ValueError(f"unknown preset {preset!r}: expected one of {', '.join(SIZES)}")
    sizes, out = SIZES[preset], Path(out)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # thousands of small products: threads would only wait for one another
    try:
        say("attention at growing distance from the origin")
        rows = [*kernel_rows(), *attention_rows()]
        say("attainable domain sizes")
        rows += width_rows()
    finally:
        torch.set_num_threads(threads)
    pictures: dict[str, NDArray] = {}
    with torch.no_grad():
        for predictor in predictors:
            for scale, points, run in (
                (sizes.map_scale, sizes.map_points, map_rows),
                (sizes.shift_scale, sizes.shift_points, functools.partial(shift_rows, shift=sizes.shift)),
            ):
                trial = Trial(predictor, scale, points)
                cells = " x ".join(map(str, trial.domain.cells))
                say(f"{trial.name} model on {cells} cells, {scale} training domains long")
                found, arrays = run(trial)
                rows += found
                pictures |= arrays
    out.mkdir(parents=True, exist_ok=True)
    draw_kernel_shapes(out / "kernel-shapes.png")
    with atomic_path(out / "maps.npz") as partial, partial.open("wb") as file:
        np.savez_compressed(file, **pictures)  # type: ignore[arg-type]
    write_stability(out / "stability.csv", rows)
    return rows
