"""AB-SWIFT: the steady wind around buildings from their geometry alone, at any number of points.

Shapes: B batch, N points, S supernodes, A anchors, Q queries, P space axes, W width, H heads, K neighbours.

    pooling     supernode at s:  g = mean over |x - s| < r of  mlp([sincos((x - s) / r, |x - s| / r), features(x)])
                for obstacles o and terrain t, with a network each
    geometry    (o, t) <- (self(o), self(t));  (o, t) <- (cross(o; t), cross(t; o));  then g = o and t together
    volume      v = mlp(inflow profile), the same at every point
    processor   three times:  (g, v) <- (self(g), self(v));  (g, v) <- (cross(g; v), cross(v; g))
    decoder     four times:   v <- self(v)
    fields      one mlp(norm(v)) each

No absolute position enters anywhere: positions act through relative encodings and x - s only.

self(a) is a pre-norm block in which a attends to itself, cross(a; b) one in which a attends to b; the weights of a
block serve both branches. In the volume only the *anchors* offer keys and values. Any other point reads: it goes
through the same blocks and is seen by none, so that any number of points can be asked for in pieces, and a point on
top of an anchor gets that anchor's answer.

Positions are in normalised units, in which attention and its decay lengths work. Pooling works in metres
(``metres_per_unit``), where a ball is round: the paper's radii 1 (obstacles) and 5 (terrain) are read as metres, since
1/1000 of the domain would leave every supernode alone with itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farfield.attention import LAAPE, LASPE, Encoding, Plan, RoPE, plan_attention
from farfield.models.blocks import Block, pointwise
from farfield.models.tokens import exactly

FIELDS = {"velocity": 3, "pressure": 1, "k": 1, "epsilon": 1}
METRES_PER_UNIT = (0.47, 0.24, 0.06)  # the training domain, 470 m x 240 m x 60 m, is 1000 units wide along each axis


class AbSwiftEncodings(NamedTuple):
    """How positions act on attention in each part of the network; every block gets its own copy."""

    geometry: Encoding
    processor: Encoding
    decoder: Encoding


def ab_swift_encodings(kind: str, *, factor: float = 1.0, rotary: RoPE | None = None) -> AbSwiftEncodings:
    """The paper's encodings: "rope", "laspe" or "laape".

    Geometry and processor see as far as the building square is wide (111, 250, 500); the decoder, which carries the
    wakes, twice as far downstream (225). LASPE, being symmetric, takes the mean of both (168).

    Args:
        kind: which family.
        factor: multiplies all decay lengths.
        rotary: the rotation of queries and keys; None for the paper's.
    """
    rotary = RoPE() if rotary is None else rotary
    if kind == "rope":
        return AbSwiftEncodings(rotary, rotary, rotary)
    building_square, upstream, downstream = ([x * factor, 250 * factor, 500 * factor] for x in (111.0, 111.0, 225.0))
    if kind == "laspe":
        symmetric = [(a + b) / 2 for a, b in zip(upstream, downstream, strict=True)]
        near: Encoding = LASPE(building_square, rotary=rotary)
        return AbSwiftEncodings(near, near, LASPE(symmetric, rotary=rotary))
    if kind == "laape":
        near = LAAPE(building_square, rotary=rotary)
        wake = LAAPE(decay_length_plus=upstream, decay_length_minus=downstream, rotary=rotary)
        return AbSwiftEncodings(near, near, wake)
    raise ValueError(f"kind must be 'rope', 'laspe' or 'laape', got {kind!r}")


class SupernodePooling(nn.Module):
    """The surface around a supernode as one token: the mean message of the points within a radius.

    At most the ``max_neighbours`` nearest points within ``radius`` (metres) send a message; a supernode is one of the
    points, so it always has itself. A radius of two or more point spacings lets a supernode feel the slope of its
    surface; with less, many have only themselves, and say no more than where they are.

    Relative positions and distances, over the radius, are embedded by sines and cosines with wavelengths from 4 (which
    tells all displacements apart) down to 1/4.
    """

    frequencies: Tensor
    metres_per_unit: Tensor

    def __init__(self, width: int, features: int, radius: float, max_neighbours: int, metres_per_unit: Sequence[float]):
        super().__init__()
        self.space_dim, self.radius, self.max_neighbours = len(metres_per_unit), radius, max_neighbours
        count = 8
        wavelengths = 4.0 ** (1 - 2 * torch.arange(count) / (count - 1))
        self.register_buffer("frequencies", 2 * math.pi / wavelengths, persistent=False)
        self.register_buffer("metres_per_unit", torch.tensor(metres_per_unit), persistent=False)
        self.message = _mlp(2 * count * (self.space_dim + 1) + features, width, width)

    def forward(self, points: Tensor, features: Tensor | None, supernodes: Tensor) -> Tensor:
        """Points (B, N, P), their features (B, N, F), indices of supernodes (B, S) -> tokens (B, S, W)."""
        centres = _take(points, supernodes)
        index, found = self.neighbours(points, centres)  # (B, S, K) each
        relative = (_take(points, index) - centres[:, :, None]) * (self.metres_per_unit.to(points) / self.radius)
        parts = [found[..., None].to(relative), relative]
        if features is not None:
            parts.append(_take(features, index).to(relative))
        return pointwise(self._pool, torch.cat(parts, dim=-1))

    def neighbours(self, points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
        """Indices (B, S, K) of the nearest points within the radius, and which are there; O(N + S K) memory."""
        metres = [t.detach().to("cpu", torch.float64) * self.metres_per_unit.cpu() for t in (points, centres)]
        ranks = np.arange(1, min(self.max_neighbours, points.shape[1]) + 1)
        index = np.stack(
            [
                cKDTree(cloud).query(places, k=ranks, distance_upper_bound=self.radius)[1]
                for cloud, places in zip(*(t.numpy() for t in metres), strict=True)
            ]
        )
        found = index < points.shape[1]  # the tree marks a missing neighbour by N
        most = int(found.sum(-1).max())
        index, found = np.where(found, index, 0)[..., :most], found[..., :most]
        return torch.from_numpy(index).to(points.device), torch.from_numpy(found).to(points.device)

    def _pool(self, neighbours: Tensor) -> Tensor:
        """(B, S, K, 1 + P + F): found, relative position over the radius, features -> (B, S, W)."""
        found, relative, features = neighbours.tensor_split([1, 1 + self.space_dim], dim=-1)
        distance = torch.linalg.vector_norm(relative, dim=-1, keepdim=True)
        phases = (torch.cat([relative, distance], dim=-1)[..., None] * self.frequencies.to(relative)).flatten(-2)
        embedded = torch.cat([phases.sin(), phases.cos(), features], dim=-1)
        messages = self.message(embedded.to(next(self.message.parameters()).dtype)) * found
        return messages.sum(-2) / found.sum(-2)


@dataclass(frozen=True)
class Offer:
    """Keys and values (B, H, N, W / H) of points at positions (B, N, P) in one block, for anyone to read."""

    block: Block
    positions: Tensor
    keys: Tensor
    values: Tensor


@dataclass
class Branch:
    """Tokens (B, N, W) at positions (B, N, P): they offer keys and values, and read those of others or their own."""

    positions: Tensor
    tokens: Tensor
    options: dict[str, Any]  # of :func:`farfield.local_attention`
    checkpointing: bool = False
    plans: dict[tuple, tuple[Tensor, Plan]] = field(default_factory=dict)

    def offer(self, block: Block) -> Offer:
        return Offer(block, self.positions, *block.keys_values(self.tokens))

    def read(self, offer: Offer) -> None:
        """Let the tokens pass the offer's block; the one place where the network calls attention."""
        given = (self.tokens, offer.keys, offer.values, self.positions, offer.positions)
        plan = self._plan(offer)
        options = {**self.options, "plan": plan, "backend": plan.backend}
        if self.checkpointing and torch.is_grad_enabled():
            self.tokens = checkpoint(offer.block.read, *given, use_reentrant=False, **options)
        else:
            self.tokens = offer.block.read(*given, **options)

    def _plan(self, offer: Offer) -> Plan:
        """The plan for reading from these points, made for the first block that does."""
        encoding = offer.block.attention.encoding
        key = (id(offer.positions), encoding.identity())
        if key not in self.plans:  # the positions are kept too: another tensor may not get their id
            plan = plan_attention(
                self.positions, offer.positions, encoding=encoding, heads=offer.block.attention.heads, **self.options
            )
            self.plans[key] = (offer.positions, plan)
        return self.plans[key][1]


@dataclass(frozen=True)
class Encoded:
    """A city as the network knows it, once for all queries: what its points read, block by block.

    Its size is that of the keys and values: two numbers per anchor, channel and self-attention block.
    """

    start: Tensor  # (B, 1, W), the token with which every point of the volume begins
    offers: tuple[Offer, ...]  # of geometry and anchors, in the order in which the volume reads them
    anchor_tokens: Tensor  # (B, A, W)


class AbSwift(nn.Module):
    """Fields of the wind at points of the air, from surfaces of obstacles and terrain and the inflow profile.

        encoded = model.encode(obstacle_points=..., ..., anchors=anchors)
        model.decode(encoded, queries)                   # (B, Q, fields), in pieces, as often as wanted
        model(obstacle_points=..., ..., anchors=anchors) # (B, A, fields)

    Args:
        encodings: per part of the network, see :func:`ab_swift_encodings`.
        fields: names and numbers of components, in the order of the output's channels.
        width, heads, expansion: size of the blocks.
        geometry_depth, processor_depth: numbers of pairs (self-attention, cross-attention).
        decoder_depth: number of self-attention blocks.
        obstacle_radius, terrain_radius: of pooling, in metres.
        max_neighbours: so many points at most send messages to a supernode: the nearest.
        terrain_features: features per terrain point: roughness z0 and 1/L.
        profile_shape: heights and columns of the inflow profile.
        metres_per_unit: per axis, the length of one unit of position.
        checkpointing: keep only what the blocks receive in training and recompute the rest (less memory, a third more
            time).
        backend, tolerance: as in :func:`farfield.local_attention`; plain attributes, may be changed at any time.
    """

    metres_per_unit: Tensor

    def __init__(
        self,
        encodings: AbSwiftEncodings,
        *,
        fields: Mapping[str, int] = FIELDS,
        width: int = 192,
        heads: int = 3,
        expansion: int = 4,
        geometry_depth: int = 1,
        processor_depth: int = 3,
        decoder_depth: int = 4,
        obstacle_radius: float = 1.0,
        terrain_radius: float = 5.0,
        max_neighbours: int = 32,
        terrain_features: int = 2,
        profile_shape: tuple[int, int] = (64, 4),
        metres_per_unit: Sequence[float] = METRES_PER_UNIT,
        checkpointing: bool = False,
        backend: str = "auto",
        tolerance: float = 1e-4,
    ):
        super().__init__()
        sizes = {
            "width": width,
            "heads": heads,
            "expansion": expansion,
            "geometry_depth": geometry_depth,
            "processor_depth": processor_depth,
            "decoder_depth": decoder_depth,
            "max_neighbours": max_neighbours,
            "terrain_features": terrain_features,
            "the number of fields": len(fields),
            **{f"the number of components of {name}": components for name, components in fields.items()},
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        lengths = {"obstacle_radius": [obstacle_radius], "terrain_radius": [terrain_radius]}
        for name, values in {**lengths, "metres_per_unit": metres_per_unit}.items():
            if not all(math.isfinite(value) and value > 0 for value in values):
                raise ValueError(f"{name} must be positive and finite, got {values}")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width {width} and {heads} heads")
        space_dim = len(metres_per_unit)
        for part, encoding in encodings._asdict().items():
            if encoding.space_dim() not in (None, space_dim):
                raise ValueError(f"the {part} encoding is for {encoding.space_dim()} axes, there are {space_dim}")
        if fields.get("velocity", space_dim) != space_dim:
            raise ValueError(f"velocity must have {space_dim} components, one per axis, got {fields['velocity']}")
        self.space_dim, self.terrain_features, self.profile_shape = space_dim, terrain_features, tuple(profile_shape)
        self.fields = dict(fields)
        self.checkpointing, self.backend, self.tolerance = checkpointing, backend, tolerance
        self.register_buffer("metres_per_unit", torch.tensor(metres_per_unit), persistent=False)

        def blocks(encoding: Encoding, count: int) -> nn.ModuleList:
            return nn.ModuleList(Block(width, heads, copy.deepcopy(encoding), expansion) for _ in range(count))

        self.pool_obstacles = SupernodePooling(width, 0, obstacle_radius, max_neighbours, metres_per_unit)
        self.pool_terrain = SupernodePooling(width, terrain_features, terrain_radius, max_neighbours, metres_per_unit)
        self.embed_profile = _mlp(math.prod(profile_shape), width, width)
        self.geometry = blocks(encodings.geometry, 2 * geometry_depth)
        self.processor = blocks(encodings.processor, 2 * processor_depth)
        self.decoder = blocks(encodings.decoder, decoder_depth)
        self.norm = nn.LayerNorm(width)
        self.project = nn.ModuleDict({name: _mlp(width, expansion * width, n) for name, n in fields.items()})

    def forward(self, *, queries: Tensor | None = None, **city: Any) -> Tensor:
        """Fields at the anchors, followed by those at the queries: (B, A + Q, fields); ``city`` as in ``encode``."""
        encoded = self.encode(**city)
        at_anchors = self.at_anchors(encoded)
        return at_anchors if queries is None else torch.cat([at_anchors, self.decode(encoded, queries)], dim=1)

    def encode(
        self,
        *,
        obstacle_points: Tensor,
        obstacle_supernodes: Tensor,
        terrain_points: Tensor,
        terrain_supernodes: Tensor,
        terrain_features: Tensor,
        profile: Tensor,
        anchors: Tensor,
    ) -> Encoded:
        """Everything that does not depend on the queries.

        Args:
            obstacle_points, terrain_points: surfaces as points (B, N, P), normalised positions.
            obstacle_supernodes, terrain_supernodes: indices (B, S) into these points.
            terrain_features: (B, N, F), or (B, F) where all points have the same.
            profile: the standardised inflow, (B, heights, columns).
            anchors: (B, A, P), the points of the air that all others read from.
        """
        batch = anchors.shape[0]
        clouds = {"anchors": anchors, "obstacle_points": obstacle_points, "terrain_points": terrain_points}
        for name, points in clouds.items():
            self._check_positions(name, points, batch)
        _check_supernodes("obstacle_supernodes", obstacle_supernodes, obstacle_points)
        _check_supernodes("terrain_supernodes", terrain_supernodes, terrain_points)
        if terrain_features.ndim == 2:
            terrain_features = terrain_features[:, None].expand(-1, terrain_points.shape[1], -1)
        _check_shape("terrain_features", terrain_features, (*terrain_points.shape[:2], self.terrain_features))
        _check_shape("profile", profile, (batch, *self.profile_shape))

        pooled = self.pool_obstacles(obstacle_points, None, obstacle_supernodes)
        obstacles = self._branch(_take(obstacle_points, obstacle_supernodes), pooled)
        pooled = self.pool_terrain(terrain_points, terrain_features, terrain_supernodes)
        terrain = self._branch(_take(terrain_points, terrain_supernodes), pooled)
        for among, between in _pairs(self.geometry):
            for surface in (obstacles, terrain):
                surface.read(surface.offer(among))
            from_obstacles, from_terrain = (surface.offer(between) for surface in (obstacles, terrain))
            obstacles.read(from_terrain)
            terrain.read(from_obstacles)
        both = (obstacles, terrain)
        geometry = self._branch(*(torch.cat([getattr(b, n) for b in both], 1) for n in ("positions", "tokens")))

        # Before the volume has read the geometry, its points are all alike, and attention to equal values returns that
        # value whatever the weights: until then one token stands for all.
        volume = self._branch(anchors[:, :1], exactly(self.embed_profile, profile.flatten(1))[:, None])
        start = volume.tokens
        offers: list[Offer] = []
        for number, (among, between) in enumerate(_pairs(self.processor)):
            geometry.read(geometry.offer(among))
            volume_to_itself = volume.offer(among)
            volume.read(volume_to_itself)
            from_geometry, from_volume = geometry.offer(between), volume.offer(between)
            if 2 * number + 2 < len(self.processor):  # nobody reads the geometry after the last
                geometry.read(from_volume)
            if number == 0:
                start = volume.tokens
                volume = self._branch(anchors, start.expand(-1, anchors.shape[1], -1))
            else:
                offers.append(volume_to_itself)
            volume.read(from_geometry)
            offers.append(from_geometry)
        for block in self.decoder:
            assert isinstance(block, Block)
            offers.append(volume.offer(block))
            volume.read(offers[-1])
        return Encoded(start, tuple(offers), volume.tokens)

    def at_anchors(self, encoded: Encoded) -> Tensor:
        """The fields at the anchors, (B, A, fields)."""
        return self._project(encoded.anchor_tokens)

    def decode(self, encoded: Encoded, queries: Tensor, chunk: int = 16_384) -> Tensor:
        """The fields at any points (B, Q, P) -> (B, Q, fields), ``chunk`` points at a time."""
        self._check_positions("queries", queries, encoded.start.shape[0], at_least=0)
        out = []
        for positions in queries.split(chunk, dim=1) if queries.shape[1] else ():
            tokens = encoded.start.expand(-1, positions.shape[1], -1)
            points = self._branch(positions, tokens)
            for offer in encoded.offers:
                points.read(offer)
            out.append(self._project(points.tokens))
        return torch.cat(out, dim=1) if out else encoded.start.new_zeros(*queries.shape[:2], sum(self.fields.values()))

    def _branch(self, positions: Tensor, tokens: Tensor) -> Branch:
        options = {"backend": self.backend, "tolerance": self.tolerance}
        return Branch(positions, tokens, options, self.checkpointing)

    def _project(self, tokens: Tensor) -> Tensor:
        def fields(part: Tensor) -> Tensor:
            part = self.norm(part)
            values = [exactly(head[-1], head[:-1](part)) for head in self.project.values()]  # type: ignore[index]
            return torch.cat(values, dim=-1)

        return pointwise(fields, tokens)

    def _check_positions(self, name: str, positions: Tensor, batch: int, at_least: int = 1) -> None:
        if positions.ndim != 3 or positions.shape[1] < at_least:
            raise ValueError(
                f"{name} must have the shape (batch, points, axes) with at least {at_least} points, "
                f"got {tuple(positions.shape)}"
            )
        _check_shape(name, positions, (batch, positions.shape[1], self.space_dim))
        if not bool(torch.isfinite(positions).all()):
            raise ValueError(f"{name} must be finite, it holds NaN or infinity")


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


def _pairs(blocks: nn.ModuleList) -> list[tuple[Block, Block]]:
    """Blocks one after the other as (self-attention, cross-attention)."""
    return list(zip(blocks[::2], blocks[1::2], strict=True))  # type: ignore[arg-type]


def _take(points: Tensor, index: Tensor) -> Tensor:
    """Rows (B, ..., C) of points (B, N, C) at the indices (B, ...)."""
    batch = torch.arange(points.shape[0], device=points.device).view(-1, *[1] * (index.ndim - 1))
    return points[batch, index]


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(tensor.shape)}")


def _check_supernodes(name: str, index: Tensor, points: Tensor) -> None:
    batch, count = points.shape[:2]
    if index.dtype != torch.int64 or index.ndim != 2 or index.shape[0] != batch or index.shape[1] < 1:
        raise ValueError(
            f"{name} must be int64 of the shape ({batch}, supernodes), got {index.dtype} {tuple(index.shape)}"
        )
    if bool(((index < 0) | (index >= count)).any()):
        raise ValueError(f"{name} must lie in 0 .. {count - 1}, got {int(index.min())} .. {int(index.max())}")
