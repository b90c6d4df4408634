"""Where the encodings break in low precision as published, and that they do not in local coordinates.

The paper forms the bias channels of q and k (see :mod:`farfield.attention.locality`) from the points' *global*
coordinates and rounds them like everything else. Far from the origin LASPE's channels (c/l)², c/l are large numbers
whose difference is small, so rounding eats the bias; LAAPE's exp(±c/l) keep their relative accuracy, but overflow. Our
backends take each tile's coordinates relative to its own centre, which changes nothing in exact arithmetic, and form
the bias in float32.

"published"  q, k, v and channels rounded to a format, products accumulated in float32 as a GPU's kernel does, angles of
             the rotation and channels formed in float32 from global coordinates. Emulated here, for comparison only.
"local"      q, k, v rounded to the same format, then :func:`farfield.local_attention` with the tiled backend.

Both are compared with the formula in float64 on unrounded q, k, v. All else in a model stays in float32, so that what
is seen is the rounding of attention alone.

OUT/stability.csv   one row per number (:class:`StabilityRow`); tables, curves and statements are made of these
OUT/maps.npz        the fields that the maps show
"""

from __future__ import annotations

import copy
import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from farfield.attention import LAAPE, LASPE, Encoding, RoPE, local_attention
from farfield.attention.dense import kernel
from farfield.attention.drawing import half_width
from farfield.files import atomic_write_text

Way = Literal["published", "local"]
FORMATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
ENCODINGS: dict[str, Callable[[float], Encoding]] = {"LASPE": LASPE, "LAAPE": LAAPE}
DECAY_LENGTH = 250.0  # the paper's, in units of which the training domain is 1000 wide
HEAD_DIM = 64  # the paper's
DISTANCES = (0, 1, 2, 5, 10, 20, 50, 80, 100, 200, 500, 1000, 10_000, 100_000, 1_000_000)  # in decay lengths
WIDTHS = (10, 100, 1000, 10_000, 100_000, 1_000_000)  # of the domains that local coordinates are tried on
# What the sparse backend may leave out is far below the rounding that is measured.
_TOLERANCE = 1e-6
# A result counts as right up to this many times the error that rounding makes at the origin.
RIGHT = 10.0


class StabilityRow(NamedTuple):
    """One number, and all that says what it is."""

    experiment: str
    """attention, width, kernel, map or shift."""
    encoding: str
    way: str
    """published, local, formula (computed from a format's limits) or paper (what its table prints)."""
    precision: str
    """The format that q, k, v (and the published way's channels) are rounded to."""
    distance: float
    """From the origin, in decay lengths (a model's longest); for widths, the origin's place: 0 middle, 0.5 corner."""
    quantity: str
    """What ``value`` is."""
    value: float
    """inf where a result is not finite."""


def read_stability(path: str | Path) -> list[StabilityRow]:
    """Read ``stability.csv``."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != StabilityRow._fields:
            raise ValueError(f"{path}: expected the columns {', '.join(StabilityRow._fields)}, got {reader.fieldnames}")
        numbers = ("distance", "value")
        return [StabilityRow(**{k: float(v) if k in numbers else v for k, v in row.items()}) for row in reader]


def write_stability(path: str | Path, rows: Iterable[StabilityRow]) -> None:
    """Write ``stability.csv``, in one step."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(StabilityRow._fields)
    writer.writerows(row._replace(distance=_short(row.distance), value=_short(row.value)) for row in rows)
    atomic_write_text(path, text.getvalue())


def _short(value: float) -> float:
    return float(f"{value:.6g}")


# --- attention as published --------------------------------------------------------------------------------------


def round_to(x: Tensor, precision: str) -> Tensor:
    """x with its values rounded to a format, in the type that sums are kept in: float32, or float64 for float64."""
    return x.to(FORMATS[precision]).to(_sums(precision))


def _sums(precision: str) -> torch.dtype:
    return torch.promote_types(FORMATS[precision], torch.float32)


def published_channels(
    q: Tensor, k: Tensor, query_positions: Tensor, key_positions: Tensor, encoding: Encoding, precision: str
) -> tuple[Tensor, Tensor]:
    """q and k (B, H, N, D), rotated and with the bias channels behind them: (B, H, N, D + C) each, as published.

    Positions (N, P) stay in global coordinates. Their inner product over sqrt(D) is the logit.
    """
    where_q, where_k = query_positions.to(_sums(precision)), key_positions.to(_sums(precision))
    extra = (encoding.query_channels(where_q, q.shape[-1]), encoding.key_channels(where_k))
    return tuple(  # type: ignore[return-value]
        torch.cat(
            [
                round_to(_turn(round_to(x, precision), where, encoding.rotary), precision),
                round_to(channels, precision).expand(*x.shape[:-1], -1),
            ],
            dim=-1,
        )
        for x, where, channels in zip((q, k), (where_q, where_k), extra, strict=True)
    )


def _turn(x: Tensor, positions: Tensor, rotary: RoPE | None) -> Tensor:
    """The rotary embedding with angles formed in the positions' own precision, from global coordinates."""
    if rotary is None:
        return x
    frequencies = rotary.frequencies(x.shape[-1], positions.shape[-1]).to(positions)
    angles = (positions[..., None] * frequencies).flatten(-2)  # (N, P F)
    turned = 2 * angles.shape[-1]
    even, odd = x[..., 0:turned:2], x[..., 1:turned:2]
    cos, sin = angles.cos(), angles.sin()
    pairs = torch.stack([cos * even + sin * odd, cos * odd - sin * even], dim=-1).flatten(-2)
    return torch.cat([pairs, x[..., turned:]], dim=-1)


def published_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    precision: str,
) -> Tensor:
    """Attention (B, H, Nq, Dv) over all pairs, as published."""
    wide_q, wide_k = published_channels(q, k, query_positions, key_positions, encoding, precision)
    return kernel(wide_q, wide_k, round_to(v, precision), 1 / math.sqrt(q.shape[-1]))


def our_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    precision: str,
    tolerance: float = _TOLERANCE,
) -> Tensor:
    """The library's attention on inputs rounded to ``precision``."""
    q, k, v = (round_to(x, precision) for x in (q, k, v))
    return local_attention(
        q, k, v, query_positions, key_positions, encoding=encoding, backend="tiled", tolerance=tolerance
    )


ATTENTION = {"published": published_attention, "local": our_attention}


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
        return _finite(float((error.square().sum() / (count.sum() * len(error[0]))).sqrt()))


def relative_error(result: Tensor, reference: Tensor) -> float:
    """sum |result - reference| / sum |reference|; inf where the result is not finite."""
    return _finite(float((result - reference).abs().sum() / reference.abs().sum()))


def _finite(error: float) -> float:
    return error if math.isfinite(error) else math.inf


def attention_rows(distances: Sequence[float] = DISTANCES, **size: Any) -> Iterator[StabilityRow]:
    """Errors of logits and output against the distance from the origin, both ways, in each format but the reference's."""
    for name, make in ENCODINGS.items():
        patch = Patch.draw(make(DECAY_LENGTH), **size)
        for precision in ("float16", "bfloat16", "float32"):
            for way in ATTENTION:
                for distance in distances:
                    for quantity, value in patch.errors(way, precision, distance).items():  # type: ignore[arg-type]
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


# Of the paper's table "Maximum attainable scaling range of LAAPE": underflow limit, overflow limit, domain size.
PAPER_TABLE = {
    "float16": (6e-8, 6.5e4, 27.0),
    "bfloat16": (6e-41, 3e38, 181.0),
    "float32": (6e-41, 3e38, 181.0),
    "float64": (2e-308, 2e308, 1418.0),
}


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
        """Relative error of the output on a domain ``width`` decay lengths wide; inf where it is not finite.

        ``origin`` is where coordinates start: 0 for the middle of the domain, 0.5 for its left end.
        """
        width = max(width, 3.0)
        ends = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64) + origin
        starts = ends * width * DECAY_LENGTH - torch.tensor([0.0, 1.5, 3.0]) * DECAY_LENGTH
        where = (starts[:, None] + self.cluster).reshape(-1, 1)
        args = (self.q, self.k, self.v, where, where)
        reference = local_attention(*args[:4], encoding=self.encoding, backend="reference")
        return relative_error(ATTENTION[way](*args, self.encoding, precision).double(), reference)


def widest(passes: Callable[[float], bool], low: float, high: float, steps: int = 40) -> float:
    """The largest value up to which ``passes`` holds, by bisection of the logarithm; ``high`` if it never fails."""
    if passes(high):
        return high
    for _ in range(steps):
        middle = math.sqrt(low) * math.sqrt(high)  # their product may overflow
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


def width_rows() -> Iterator[StabilityRow]:
    """How wide a domain may be: from the formats' limits, as the paper prints it, found by search, and ours."""
    for precision in FORMATS:
        limits = Limits.of(precision)
        under, over, printed = PAPER_TABLE[precision]
        for quantity, value in (
            ("largest number, ln", limits.largest),
            ("smallest normal number, ln", limits.smallest_normal),
            ("smallest subnormal number, ln", limits.smallest_subnormal),
        ):
            yield StabilityRow("width", "", "formula", precision, 0, quantity, value)
        for quantity, value in (
            ("underflow limit", under), ("overflow limit", over), ("width", printed),
        ):  # fmt: skip
            yield StabilityRow("width", "LAAPE", "paper", precision, 0, quantity, value)
        for name, make in ENCODINGS.items():
            domain = WideDomain.draw(make(DECAY_LENGTH))
            finite = limits.laape_width() if name == "LAAPE" else limits.laspe_width()
            small = domain.error("published", precision, 3.0, 0.0)
            for origin in (0.0, 0.5):
                share = 1.0 if origin == 0 else 0.5

                def error(width: float, domain: WideDomain = domain, origin: float = origin) -> float:
                    return domain.error("published", precision, width, origin)  # noqa: B023

                yield StabilityRow("width", name, "formula", precision, origin, "finite width", share * finite)
                found = widest(lambda width: math.isfinite(error(width)), 3.0, 4 * finite)
                yield StabilityRow("width", name, "published", precision, origin, "finite width", found)
                right = widest(lambda width: error(width) <= RIGHT * small, 3.0, found)
                yield StabilityRow("width", name, "published", precision, origin, "right width", right)
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
