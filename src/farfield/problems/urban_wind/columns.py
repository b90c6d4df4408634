"""The network of urban wind: columns of air as tokens, and a light query for any point.

    lattice inputs -> linear, ConvNeXt -> 4 x 4 columns become a token -> local attention between tokens
                   -> back to columns, added to what the tokens were made of
                   -> ConvNeXt blocks on 2 x 2 columns, added -> ConvNeXt blocks
                   -> features of every cell;   a point reads the eight cells around it

Everything horizontal is a convolution or depends on differences of positions: the network commutes with translations
by whole tokens, and takes a city of any extent. What it returns is a correction to what physics says
(:mod:`farfield.problems.urban_wind.city`), standardised.

Letters: B batch, C channels per cell, Z levels, Y and X columns across and along the wind, N points, F outputs.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farfield.attention import Encoding, plan_attention
from farfield.models.blocks import Block
from farfield.problems.urban_wind.column_part import ColumnPart
from farfield.problems.urban_wind.column_spread import Spread

# Up to so many tokens all pairs are computed where that is possible: a third of the time of tiles at 2000 of them.
_ALL_PAIRS = 4096


class ConvNeXt(nn.Module):
    """A 7 x 7 convolution per channel, then a network per column (Liu et al. 2022), on (B, Y, X, channels)."""

    def __init__(self, channels: int):
        super().__init__()
        self.spread = Spread(channels, 7)
        self.norm = nn.LayerNorm(channels)
        narrow = nn.Linear(2 * channels, channels)
        nn.init.normal_(narrow.weight, std=0.03)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), narrow)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.spread(x)))


class Coarser(nn.Module):
    """What ConvNeXt blocks make of 2 x 2 columns at a time, added to the columns (B, Y, X, channels); Y and X are even.

    A block sees twice as far as one between columns and has twice the channels or more for its cost. At first nothing
    is added: a trained network can grow by this level.
    """

    def __init__(self, channels: int, width: int, depth: int):
        super().__init__()
        self.gather = nn.Linear(4 * channels, width)
        self.blocks = nn.Sequential(*(ConvNeXt(width) for _ in range(depth)), nn.LayerNorm(width))
        self.hand_back = nn.Linear(width, 4 * channels)
        nn.init.zeros_(self.hand_back.weight)
        nn.init.zeros_(self.hand_back.bias)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.blocks(self.gather(to_patches(x, 2)))
        return x + from_patches(self.hand_back(seen), 2)


def to_patches(x: Tensor, size: int) -> Tensor:
    """(B, Y, X, C) -> (B, Y / size, X / size, size size C)."""
    batch, across, along, channels = x.shape
    x = x.view(batch, across // size, size, along // size, size, channels).transpose(2, 3)
    return x.reshape(batch, across // size, along // size, size * size * channels)


def from_patches(x: Tensor, size: int) -> Tensor:
    """The inverse of :func:`to_patches`."""
    batch, rows, columns, _ = x.shape
    x = x.view(batch, rows, columns, size, size, -1).transpose(2, 3)
    return x.reshape(batch, rows * size, columns * size, -1)


class PointwiseBlock(nn.Module):
    """A transformer block without its attention: what the comparison "none" has instead."""

    def __init__(self, width: int, expansion: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width))

    def forward(self, x: Tensor, positions: Tensor, **options: Any) -> Tensor:
        return x + self.mlp(self.norm(x))


class ColumnNetwork(nn.Module):
    """Corrections to the physics of a city's wind.

    Args:
        channels: inputs per cell of the lattice.
        levels: cells per column.
        profile: numbers that describe the inflow.
        point_features: numbers that describe a point by itself.
        outputs: corrected quantities.
        encoding: how positions (metres) act on the attention between tokens; None for no attention.
        spacing: m between columns.
        width, depth, heads, expansion: of the blocks.
        patch: columns along each side of a token.
        columns: channels of the ConvNeXt blocks, of which ``stem_depth`` come before the tokens and ``decoder_depth``
            after them.
        coarser_depth, coarser_width: ConvNeXt blocks on 2 x 2 columns, and their channels; with depth 0 there are none.
        level_features, query_width: what points read, and the inner width of the network that they have.
        backend, tolerance: as in :func:`farfield.local_attention`.
    """

    def __init__(
        self,
        *,
        channels: int,
        levels: int,
        profile: int,
        point_features: int,
        outputs: int,
        encoding: Encoding | None,
        spacing: float = 4.0,
        width: int = 128,
        depth: int = 3,
        heads: int = 4,
        expansion: int = 3,
        patch: int = 4,
        columns: int = 96,
        stem_depth: int = 1,
        decoder_depth: int = 3,
        coarser_depth: int = 0,
        coarser_width: int = 192,
        level_features: int = 16,
        query_width: int = 64,
        backend: str = "auto",
        tolerance: float = 1e-4,
    ):
        super().__init__()
        self.channels, self.levels, self.patch, self.spacing = channels, levels, patch, spacing
        self.backend, self.tolerance = backend, tolerance
        self.first = nn.Linear(channels * levels, columns, bias=False)
        self.in_air = nn.Parameter(torch.randn(columns) / math.sqrt(columns))
        self.stem = nn.Sequential(*(ConvNeXt(columns) for _ in range(stem_depth)), nn.LayerNorm(columns))
        self.inflow = nn.Sequential(nn.Linear(profile, width), nn.GELU(), nn.Linear(width, width))
        self.to_tokens = nn.Linear(patch * patch * columns, width)
        self.blocks = nn.ModuleList(
            PointwiseBlock(width, expansion)
            if encoding is None
            else Block(width, heads, copy.deepcopy(encoding), expansion)
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.to_columns = nn.Linear(width, patch * patch * columns)
        self.inflow_to_columns = nn.Linear(width, columns)
        self.coarser = Coarser(columns, coarser_width, coarser_depth) if coarser_depth else None
        self.decoder = nn.Sequential(*(ConvNeXt(columns) for _ in range(decoder_depth)), nn.LayerNorm(columns))
        self.to_levels = nn.Linear(columns, levels * level_features)
        read = level_features + channels + point_features
        self.hidden = nn.Linear(read, query_width)
        self.from_hidden = nn.Linear(query_width, outputs)
        self.direct = nn.Linear(read, outputs, bias=False)
        nn.init.normal_(self.from_hidden.weight, std=0.05)
        nn.init.normal_(self.direct.weight, std=0.05)
        # many inputs are nearly always 0
        nn.init.normal_(self.first.weight, std=2 / math.sqrt(self.first.in_features))
        for weight in (self.to_columns.weight, self.to_levels.weight, self.to_tokens.weight):
            nn.init.normal_(weight, std=1 / math.sqrt(weight[0].numel()))

    def forward(
        self,
        cells: Tensor,
        air: Tensor,
        profile: Tensor,
        index: Tensor,
        weight: Tensor,
        points: Tensor,
        phase: tuple[int, int] = (0, 0),
    ) -> tuple[Tensor, Tensor]:
        """One city, as :meth:`volume` takes it but without a batch, and points, as :meth:`query` takes them."""
        volume = self.volume(cells[None], air[None], profile[None], phase)[0]
        return self.query(volume, cells, index, weight, points)

    def volume(
        self,
        cells: Tensor,
        air: Tensor,
        profile: Tensor,
        phase: tuple[int, int] = (0, 0),
        part: ColumnPart | None = None,
    ) -> Tensor:
        """Inputs of the cells (B, Y, X, Z, C), columns in the air (B, Y, X), inflow (B, p) -> (B, Y X Z, features).

        ``phase`` begins the tokens so many columns (across, along) before the lattice. With a ``part`` the columns are
        its own, and the answer is for these and one more on every side where there are any.
        """
        batch, across, along = air.shape
        size = self.patch
        before = (phase[1], -(along + phase[1]) % size, phase[0], -(across + phase[0]) % size)
        seen = self.first(cells.flatten(3)) + air[..., None].to(cells) * self.in_air
        seen = functional.pad(seen, (0, 0, *before))
        stem = self.stem(seen) if part is None else part.through(self.stem, seen, _reach(self.stem))
        rows, columns = stem.shape[1] // size, stem.shape[2] // size
        inflow = self.inflow(profile)
        tokens = self.to_tokens(to_patches(stem, size).flatten(1, 2)) + inflow[:, None]
        tokens = self._attend(tokens, self._positions(rows, columns, cells.device), part)
        spread = from_patches(self.to_columns(self.norm(tokens)).unflatten(1, (rows, columns)), size)
        spread = spread + stem + self.inflow_to_columns(inflow)[:, None, None]
        if self.coarser is not None:
            reach = 2 * _reach(self.coarser)
            spread = self.coarser(spread) if part is None else part.through(self.coarser, spread, reach)
        if part is None:
            decoded = self.decoder(spread)[:, phase[0] : phase[0] + across, phase[1] : phase[1] + along]
        else:
            decoded = part.through(self.decoder, spread, _reach(self.decoder), margin=1)
            decoded = decoded[:, : part.seen[0].stop - part.seen[0].start, : part.seen[1].stop - part.seen[1].start]
        return self.to_levels(decoded.contiguous()).view(batch, -1, self.to_levels.out_features // self.levels).float()

    def query(
        self, volume: Tensor, cells: Tensor, index: Tensor, weight: Tensor, points: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One city's features (Y X Z, f) and inputs (Y, X, Z, C), the cells around each point (N, K), their weights,
        and what is known of the points themselves (N, p) -> corrections (N, F), and the inputs at the points (N, C)."""

        def read(table: Tensor) -> Tensor:
            return functional.embedding_bag(index, table, per_sample_weights=weight, mode="sum")

        with torch.autocast(volume.device.type, enabled=False):  # in the precision of the weights
            local = read(cells.reshape(-1, self.channels).float())
            known = torch.cat([read(volume), local, points], dim=-1)
            inner = self.from_hidden(functional.gelu(self.hidden(known.to(self.hidden.weight))))
            return inner.to(known) + self.direct(known), local

    def _attend(self, tokens: Tensor, positions: Tensor, part: ColumnPart | None) -> Tensor:
        """The blocks, one after the other."""
        if part is not None:
            return self._spread_blocks(tokens, positions, part)
        backend = self.backend
        if backend == "auto" and len(positions) <= _ALL_PAIRS:
            try:
                return self._blocks(tokens, positions, "dense")
            except ValueError:  # the domain is too many decay lengths wide for it, which auto knows to get around
                pass
        return self._blocks(tokens, positions, backend)

    def _blocks(self, tokens: Tensor, positions: Tensor, backend: str) -> Tensor:
        for block in self.blocks:
            tokens = block(tokens, positions, backend=backend, tolerance=self.tolerance)
        return tokens

    def _spread_blocks(self, tokens: Tensor, positions: Tensor, part: ColumnPart) -> Tensor:
        first = [self.spacing * ends[0] for ends in reversed(part.block)]  # along, across
        positions = positions + positions.new_tensor(first)
        options: dict[str, Any] = {"tolerance": self.tolerance}
        if isinstance(self.blocks[0], Block):
            encoding = self.blocks[0].attention.encoding
            plan = plan_attention(positions, encoding=encoding, tolerance=self.tolerance, group=part.group)
            positions, options["plan"] = plan.cloud.query_positions, plan
        for block in self.blocks:
            tokens = block(tokens, positions, **options)
        return tokens

    def _positions(self, rows: int, columns: int, device: torch.device) -> Tensor:
        """Positions (rows columns, 2) of the tokens along and across the wind, m."""
        step = self.patch * self.spacing
        y, x = torch.meshgrid(torch.arange(rows) * step, torch.arange(columns) * step, indexing="ij")
        return torch.stack([x.flatten(), y.flatten()], dim=1).to(device)


def _reach(layers: nn.Module) -> int:
    """How many columns away a chain of convolutions sees."""
    return sum(layer.kernel_size[0] // 2 for layer in layers.modules() if isinstance(layer, Spread))
