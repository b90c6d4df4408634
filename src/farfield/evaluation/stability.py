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

OUT/stability.csv       one row per number (:class:`StabilityRow`); tables, curves and statements are made of these
OUT/maps.npz            the fields that the maps show
OUT/kernel-shapes.png   the kernels with their half-widths
"""

from __future__ import annotations

import copy
import csv
import functools
import io
import itertools
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
from farfield.attention.drawing import draw_kernel_shapes, half_width
from farfield.datasets.generation import draw_sources, gray_scott_config
from farfield.files import atomic_path, atomic_write_text
from farfield.geometry.domain import NORMALISED_WIDTH, Domain
from farfield.models.predictor import Predictor
from farfield.models.transformer_operator import Attention, TransformerOperator, pointwise
from farfield.solvers import gray_scott

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
# A result counts as right up to this error.
RIGHT = 0.05


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
    """From the origin, in decay lengths (a model's longest). For widths as published, the origin's place: 0 for the
    middle of the domain, 0.5 for its corner. For widths in local coordinates, the width."""
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
        return [
            StabilityRow(
                row["experiment"],
                row["encoding"],
                row["way"],
                row["precision"],
                float(row["distance"]),
                row["quantity"],
                float(row["value"]),
            )
            for row in reader
        ]


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


def _turn(x: Tensor, positions: Tensor, rotary: Encoding | None) -> Tensor:
    """The rotary embedding with angles formed in the positions' own precision, from global coordinates."""
    if not isinstance(rotary, RoPE):
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
    """Attention (B, H, Nq, Dv) over all pairs, as published; NaN where no logit of a query is finite.

    The formula gives 0 / 0 there. Fused kernels return zeros, as for a query that is masked out: no better, and
    harder to notice.
    """
    wide_q, wide_k = published_channels(q, k, query_positions, key_positions, encoding, precision)
    out = kernel(wide_q, wide_k, round_to(v, precision), 1 / math.sqrt(q.shape[-1]))
    return out.masked_fill(~wide_q.isfinite().all(-1, keepdim=True), torch.nan)


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


ATTENTION: dict[Way, Callable[..., Tensor]] = {"published": published_attention, "local": our_attention}


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


# --- a trained model ---------------------------------------------------------------------------------------------


class _Arithmetic(nn.Module):
    """A trained attention layer, computed in one of the two ways."""

    def __init__(self, attention: Attention, way: Way, precision: str, tolerance: float):
        super().__init__()
        self.attention, self.precision = attention, precision
        attend = ATTENTION[way]
        self.attend = attend if way == "published" else functools.partial(attend, tolerance=tolerance)

    def forward(self, x: Tensor, positions: Tensor, **options: Any) -> Tensor:
        q, (k, v) = self.attention.queries(x), self.attention.keys_values(x)
        y = self.attend(q, k, v, positions, positions, self.attention.encoding, self.precision)
        return pointwise(self.attention.out, y.to(x.dtype).transpose(1, 2).flatten(-2))


def with_arithmetic(model: TransformerOperator, way: Way, precision: str) -> TransformerOperator:
    """A copy of a model whose attention is computed in this way; the model itself is left as it is."""
    changed = copy.deepcopy(model)
    for block in changed.blocks:
        block.attention = _Arithmetic(block.attention, way, precision, model.tolerance)  # type: ignore[arg-type]
    return changed


class _InFloat64(nn.Module):
    """A model in float64 throughout: what both ways are compared with."""

    def __init__(self, model: TransformerOperator):
        super().__init__()
        self.model = copy.deepcopy(model).double()
        self.model.backend, self.model.tolerance = "tiled", _TOLERANCE

    def forward(self, features: Tensor, positions: Tensor) -> Tensor:
        return self.model(features.double(), positions)


@dataclass(frozen=True)
class Sizes:
    """The domains that a model is tried on: ``scale`` training domains long, and as high as ``points`` allows.

    All pairs are computed as published, which takes hours on two cores for the paper's square domains; a strip of the
    same length has the same coordinates.
    """

    map_scale: int = 7
    map_points: int | None = None
    shift_scale: int = 2
    shift_points: int | None = None
    shift: float = 25.0  # decay lengths


PRESETS = {
    "quick": Sizes(map_points=1 << 14, shift_points=1 << 13),
    "cpu": Sizes(map_points=1 << 15, shift_points=1 << 14),
    "paper": Sizes(),
}


class Trial:
    """A trained Gray-Scott model, a state on a strip, and its prediction of the next one in float64."""

    def __init__(self, predictor: Predictor, scale: int, points: int | None, seed: int = 0):
        if predictor.case != "gray-scott" or predictor.encoding not in ("laspe", "laape"):
            raise ValueError(
                f"the stability experiment takes Gray-Scott models with laspe or laape, got {predictor.case} with "
                f"{predictor.encoding}"
            )
        encodings = [module for module in predictor.model.modules() if isinstance(module, Encoding)]
        lengths = torch.cat([m.maximum.flatten() for encoding in encodings for m in encoding.lengths()])
        self.predictor, self.name = predictor, predictor.encoding.upper()
        self.shortest, self.longest = float(lengths.min()), float(lengths.max())
        self.unit = self.longest / predictor.position_scale[0]  # the longest decay length, in the positions' unit
        config = gray_scott_config("paper")
        dx, dy = predictor.spacing
        length = round(scale * NORMALISED_WIDTH / predictor.position_scale[0] / dx)
        height = length if points is None else min(length, max(8, points // length))
        self.domain = Domain((length, height), (length * dx, height * dy))
        sources = max(1, round(config.sources * length * height / math.prod(config.cells)))
        initial = draw_sources(np.random.default_rng(seed), self.domain, sources)
        save_every = round(predictor.time_step / config.time_step)
        states = gray_scott.solve(
            initial, self.domain, save_every, 6, time_step=config.time_step, **config.constants
        )  # fmt: skip
        now, self.later = (torch.from_numpy(state.reshape(2, -1).T.copy())[None] for state in states[-2:])
        self.now = now
        self.exact = self._change(_InFloat64(self.model), 0.0)

    @property
    def model(self) -> TransformerOperator:
        return self.predictor.model  # type: ignore[return-value]

    def change(self, way: Way, precision: str, shift: float = 0.0) -> Tensor:
        """The predicted change (N, F) with all positions moved by ``shift`` of the longest decay lengths."""
        return self._change(with_arithmetic(self.model, way, precision), shift)

    def _change(self, model: nn.Module, shift: float) -> Tensor:
        predictor = copy.copy(self.predictor)
        predictor.model = model.eval()
        step = predictor.on(self.domain.points() + shift * self.unit)
        return (step(self.now).cpu() - self.now)[0]

    def error(self, change: Tensor) -> float:
        """sum |change - exact change| / sum |exact change|, over points and fields."""
        return relative_error(change, self.exact)

    def grid(self, values: Tensor) -> NDArray[np.float32]:
        """(N, F) -> (F, nx, ny)"""
        return values.T.reshape(-1, *self.domain.cells).numpy().astype(np.float32)


def map_rows(trial: Trial, bands: int = 14) -> tuple[list[StabilityRow], dict[str, NDArray]]:
    """The error of a bfloat16 prediction over a long domain: as a number, along the domain, and as a map."""
    along = torch.from_numpy(trial.domain.points()[:, 0]) / trial.unit
    edges = torch.linspace(0, trial.domain.extent[0] / trial.unit, bands + 1, dtype=torch.float64)
    size = trial.exact.abs().mean()
    rows = [
        StabilityRow("map", trial.name, "", "", 0, quantity, value)
        for quantity, value in (
            ("shortest decay length", trial.shortest),
            ("longest decay length", trial.longest),
            ("cells along x", trial.domain.cells[0]),
            ("cells along y", trial.domain.cells[1]),
            ("width in shortest decay lengths", float(edges[-1]) * trial.longest / trial.shortest),
            ("error of the exact prediction against the solver", _model_error(trial)),
        )
    ]
    pictures = {
        "exact": trial.grid(trial.exact),
        "extent": np.array(trial.domain.extent) / trial.unit,
    }
    for way in ATTENTION:
        change = trial.change(way, "bfloat16")
        pictures[way] = trial.grid(change)
        about = ("map", trial.name, way, "bfloat16")
        rows.append(StabilityRow(*about, float(edges[-1]), "prediction error", trial.error(change)))
        lost = 1 - float(change.isfinite().all(-1).double().mean())
        rows.append(StabilityRow(*about, float(edges[-1]), "share of points not finite", lost))
        for low, high in itertools.pairwise(edges):
            band = (along >= low) & (along < high)
            local = _finite(float((change - trial.exact)[band].abs().mean() / size))
            rows.append(StabilityRow(*about, float(low + high) / 2, "prediction error at this distance", local))
    return rows, {f"map {trial.name} {name}": values for name, values in pictures.items()}


def _model_error(trial: Trial) -> float:
    return relative_error(trial.exact, (trial.later - trial.now)[0])


def shift_rows(trial: Trial, shift: float) -> tuple[list[StabilityRow], dict[str, NDArray]]:
    """The same prediction at the origin and ``shift`` decay lengths away, in bfloat16 and float32, both ways."""
    rows = []
    pictures = {"exact": trial.grid(trial.exact), "extent": np.array(trial.domain.extent) / trial.unit}
    for distance in (0.0, shift):
        for precision in ("float32", "bfloat16"):
            for way in ATTENTION:
                change = trial.change(way, precision, distance)
                about = ("shift", trial.name, way, precision, distance)
                rows.append(StabilityRow(*about, "prediction error", trial.error(change)))
                pictures[f"{way} {precision} {distance:g}"] = trial.grid(change)
    return rows, {f"shift {trial.name} {name}": values for name, values in pictures.items()}


def evaluate_stability(
    out: str | Path,
    predictors: Sequence[Predictor] = (),
    preset: str = "quick",
    say: Callable[[str], None] = lambda text: None,
) -> list[StabilityRow]:
    """Run all experiments into ``out``; ``predictors`` are trained Gray-Scott models."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}: expected one of {', '.join(PRESETS)}")
    sizes, out = PRESETS[preset], Path(out)
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
