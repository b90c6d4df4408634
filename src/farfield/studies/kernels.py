"""Pictures of what the encodings do: kernel shapes, and what enlarging the domain changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from farfield.attention.functional import local_attention
from farfield.attention.locality import LAAPE, LASPE, Encoding, RoPE
from farfield.attention.plan import AttentionPlan, typical_reach
from farfield.attention.tiles import Tiles
from farfield.style import ASYMMETRIC_COLOUR, COLOURS, NAMES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = {NAMES[name]: colour for name, colour in COLOURS.items()} | {"LAAPE, asymmetric": ASYMMETRIC_COLOUR}


def half_width(encoding: Encoding) -> tuple[float, float]:
    """The displacements at which the 1D kernel exp(-Phi) has fallen to half of its peak, on either side.

    LASPE: +- l sqrt(2 ln 2). Symmetric LAAPE: +- l arcosh(1 + ln 2). Asymmetric LAAPE has no closed form.
    """
    from scipy.optimize import brentq

    peak, level = float(encoding.centre(1)[0]), float(encoding.floor(1)) + math.log(2)

    def excess(displacement: float) -> float:
        return float(encoding.penalty(torch.tensor([displacement], dtype=torch.float64))) - level

    def crossing(direction: float) -> float:
        far = 1.0
        while excess(peak + direction * far) < 0:
            far *= 2
        return float(brentq(excess, peak, peak + direction * far))

    return crossing(-1.0), crossing(1.0)


def plot_kernel_shapes(axes: Axes, decay_length: float = 250.0) -> None:
    """exp(-Phi), scaled to a peak of 1, against the displacement, with the half-widths marked."""
    kernels: dict[str, Encoding] = {
        "LASPE": LASPE(decay_length),
        "LAAPE": LAAPE(decay_length),
        "LAAPE, asymmetric": LAAPE(decay_length_plus=decay_length / 2, decay_length_minus=decay_length),
    }
    delta = torch.linspace(-3.5 * decay_length, 3.5 * decay_length, 701, dtype=torch.float64)
    for name, encoding in kernels.items():
        kernel = torch.exp(encoding.floor(1) - encoding.penalty(delta[:, None]))
        left, right = half_width(encoding)
        label = f"{name}: half-width {left / decay_length:+.2f} … {right / decay_length:+.2f}"
        axes.plot(delta / decay_length, kernel, color=CURVES[name], label=label)
        axes.plot([left / decay_length, right / decay_length], [0.5, 0.5], "o", ms=3.5, color=CURVES[name])
    axes.axhline(0.5, color="0.8", lw=0.8, zorder=0)
    axes.set(xlabel="displacement (query − key) / decay length", ylabel="kernel exp(−Φ), peak at 1", ylim=(0, 1.55))
    axes.set_title("How far a point sees")
    axes.legend(frameon=False, fontsize=8, loc="upper center")


def interior_change(encoding: Encoding, scales: list[int], points: int = 128, seed: int = 0) -> list[float]:
    """How much the attention output in the middle of a 1D domain of width 1000 changes when the domain grows.

    Random queries, keys and values at jittered points; new points are added on both sides of the old ones. Returns,
    per scale, the relative L2 change over the middle half of the original domain.
    """
    generator = torch.Generator().manual_seed(seed)
    widest = max(scales)
    total = points * widest
    spacing = 1000.0 / points
    jitter = torch.rand(total, 1, generator=generator, dtype=torch.float64) - 0.5
    positions = (torch.arange(total)[:, None] + jitter - total / 2) * spacing
    q, k, v = (torch.randn(1, 3, total, 64, generator=generator) for _ in range(3))
    middle = slice(total // 2 - points // 4, total // 2 + points // 4)

    def output(scale: int) -> torch.Tensor:
        part = slice(total // 2 - scale * points // 2, total // 2 + scale * points // 2)
        return local_attention(
            q[:, :, middle], k[:, :, part], v[:, :, part], positions[middle], positions[part], encoding=encoding
        )

    small = output(1)
    return [float((output(scale) - small).norm() / small.norm()) for scale in scales]


def plot_domain_enlargement(axes: Axes, scales: list[int], decay_length: float = 125.0) -> None:
    """``interior_change`` of RoPE, LASPE and LAAPE against the scale of the domain."""
    for encoding in (RoPE(), LASPE(decay_length), LAAPE(decay_length)):
        name = type(encoding).__name__
        change = interior_change(encoding, scales)
        axes.semilogy(scales, change, "o-", ms=4, color=CURVES[name], label=name)
    axes.set(xlabel="domain size over training size", ylabel="relative change of the output inside")
    axes.set_title("What enlarging the domain changes")
    axes.legend(frameon=False, fontsize=8)


def draw_kernel_shapes(path: str | Path) -> Path:
    """Draw the kernels to a PNG and return its path."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5.2, 3.6), layout="constrained")
    plot_kernel_shapes(axes)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return Path(path)


def draw_overview(path: str | Path) -> Path:
    """Kernel shapes beside the effect of enlarging the domain, to one PNG."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    plot_kernel_shapes(left)
    plot_domain_enlargement(right, [2, 3, 5, 7, 10])
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return Path(path)


def draw_plan(plan: AttentionPlan, positions: torch.Tensor, path: str | Path, tile: int | None = None) -> Path:
    """Draw the tiles of 2D key positions, with the keys that one query tile reads, to a PNG."""
    import matplotlib.pyplot as plt
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    if positions.shape[-1] != 2:
        raise ValueError(f"draw_plan draws points in 2 axes, these have {positions.shape[-1]}")
    reach = plan.reaches[0]
    tile = len(plan.queries) // 2 if tile is None else tile
    start = int(reach.start[tile])
    chosen = reach.key_tile[start : start + int(reach.counts(typical_reach(plan.tolerance))[tile])].long()

    def boxes(tiles: Tiles, which: torch.Tensor, **style: Any) -> PatchCollection:
        corners, sizes = tiles.low[which], (tiles.high - tiles.low)[which]
        patches = [Rectangle(c, *s) for c, s in zip(corners.tolist(), sizes.tolist(), strict=True)]
        return PatchCollection(patches, **style)

    figure, axes = plt.subplots(figsize=(5.6, 5.2), layout="constrained")
    everything = torch.arange(len(plan.keys))
    axes.add_collection(boxes(plan.keys, everything, facecolor="none", edgecolor="0.75", lw=0.4))
    axes.add_collection(boxes(plan.keys, chosen, facecolor="#bcd7c6", edgecolor="#3a8f5c", lw=0.5))
    axes.add_collection(boxes(plan.queries, torch.tensor([tile]), facecolor="none", edgecolor="#c1443c", lw=1.6))
    axes.autoscale_view()
    axes.set_aspect("equal")
    axes.set_title(
        f"One tile of {plan.queries.size} queries (red) reads the green tiles of {plan.keys.size} keys", fontsize=9
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return Path(path)
