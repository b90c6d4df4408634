"""The transformer neural operator of the paper: linear in, pre-norm blocks, linear out, no absolute positions.

Shapes: B batch, N points, P space axes, W width, H heads.

    x = in(features)
    for each block:  x = x + attention(norm(x), positions);  x = x + mlp(norm(x))
    out(norm(x))

Positions enter through the relative encoding only, so the operator commutes with translations, and with a local
encoding its output at a point does not depend on how large the domain around it is.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from farfield.attention import (
    Encoding,
    Group,
    Plan,
    ShardedPlan,
    plan_attention,
    shared_positions,
)
from farfield.attention.wavelengths import warn_of_wavelengths
from farfield.models.blocks import Block, pointwise
from farfield.models.grid_part import GridPart, Ranges, agree_on_model, whole_grid
from farfield.models.saved import read_model, write_model
from farfield.models.tokens import Patches, PatchTokens, apply_on_cells, exactly, grid_of


class TransformerOperator(nn.Module):
    """Maps features at points to fields at the same points, on a domain of any size.

    Args:
        in_features, out_features: channels per point in and out.
        space_dim: number of space axes P.
        width, depth, heads: size of the network; the defaults are the paper's.
        encoding: how positions act on attention, e.g. ``LAAPE(250.0)``; each block gets its own copy.
        expansion: inner width of the point-wise networks over ``width``.
        conditions: numbers of a whole sample (a Reynolds number) that condition every block; standardise them.
        tokens: patches of a regular grid, e.g. ``PatchTokens(4, spacing=1.0)``; None for points as tokens.
        checkpointing: keep only the blocks' inputs in training and recompute the rest (less memory, a third more time).
        backend, tolerance: as in :func:`farfield.local_attention`; plain attributes, may be changed at any time.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        space_dim: int,
        *,
        encoding: Encoding,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        expansion: int = 4,
        conditions: int = 0,
        tokens: PatchTokens | None = None,
        checkpointing: bool = False,
        backend: str = "auto",
        tolerance: float = 1e-4,
    ):
        super().__init__()
        sizes = {
            "in_features": in_features,
            "out_features": out_features,
            "space_dim": space_dim,
            "width": width,
            "depth": depth,
            "heads": heads,
            "expansion": expansion,
        }
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, got width {width} and {heads} heads")
        if encoding.space_dim() not in (None, space_dim):
            raise ValueError(f"the encoding is for {encoding.space_dim()} axes, space_dim is {space_dim}")
        if conditions < 0:
            raise ValueError(f"conditions must be at least 0, got {conditions}")
        self.in_features, self.space_dim, self.heads, self.conditions = in_features, space_dim, heads, conditions
        self.checkpointing, self.backend, self.tolerance = checkpointing, backend, tolerance
        self.tokens = tokens
        self.warns = True  # of wavelengths that cannot fit the points; a run's configuration chooses them knowingly
        self._arguments: dict[str, Any] = {
            **sizes,
            "conditions": conditions,
            "tokens": None if tokens is None else asdict(tokens),
        }
        if tokens is None:
            self.embed = nn.Linear(in_features, width)
        else:
            self.patches = Patches(
                in_features,
                out_features,
                width,
                tokens.patch,
                space_dim,
                overlap=tokens.overlap,
                periodic=tokens.periodic_axes(space_dim),
                levels=tokens.levels,
            )
            self.cell_spacing = tokens.cell_spacing(space_dim)
            self.token_spacing = tuple(tokens.patch * s for s in self.cell_spacing)
        self.blocks = nn.ModuleList(
            Block(width, heads, copy.deepcopy(encoding), expansion, conditions > 0) for _ in range(depth)
        )
        if conditions:
            self.condition = nn.Sequential(nn.Linear(conditions, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.norm = nn.LayerNorm(width)
        if tokens is None:
            self.project = nn.Linear(width, out_features)
        self._last_plans: dict[int | None, tuple] = {}

    @property
    def encoding(self) -> Encoding:
        """Of the first block; those of the others differ in what they have learned only."""
        return self.blocks[0].attention.encoding  # type: ignore[union-attr, return-value]

    def save(self, path: str | Path) -> None:
        """Write weights, sizes and encoding to one file (safetensors), in one step."""
        arguments = {name: getattr(self, name) for name in ("checkpointing", "backend", "tolerance")}
        write_model(path, self._arguments | arguments, self.encoding, self.state_dict())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The model that :meth:`save` wrote, on the CPU."""
        arguments, weights = read_model(path)
        if arguments["tokens"] is not None:
            described: dict[str, Any] = arguments["tokens"]  # JSON has lists for tuples
            tokens = {name: tuple(value) if isinstance(value, list) else value for name, value in described.items()}
            arguments["tokens"] = PatchTokens(**tokens)  # type: ignore[arg-type]
        model = cls(**arguments)
        model.load_state_dict(weights)
        return model

    def on_grid(self, fields: Tensor, conditions: Tensor | None = None) -> Tensor:
        """Fields (B, in, n_1, ..., n_P) on the cells of a whole grid -> (B, out, n_1, ..., n_P)."""
        cells = tuple(fields.shape[2:])
        x, kept = self.patches.embed(fields)
        grid = self.patches.tokens(cells)
        x = self._through_blocks(x, conditions=conditions, **self._places(grid, x))
        return self.patches.project(pointwise(self.norm, x), kept, cells)

    def on_block(
        self, fields: Tensor, block: Ranges, cells: Sequence[int], conditions: Tensor | None, group: Group
    ) -> Tensor:
        """:meth:`on_grid` for a member's ``block`` (first and last cell along each axis) of a grid of ``cells``.

        Blocks begin and end at patches. A rim of the neighbours' cells, and later of their tokens, comes as far as the
        convolutions between cells and tokens see.
        """
        patch, rim, periodic = self.patches.patch, self.patches.rim, self.patches.periodic
        grid = self.patches.tokens(cells)
        if any(first % patch or (last % patch and last != n) for (first, last), n in zip(block, cells, strict=True)):
            raise ValueError(
                f"a grid of patches of {patch} is cut between patches: got the block {block} of {tuple(cells)} cells; "
                f"split_grid(cells, parts, {patch}) cuts it"
            )
        some = all(last > first for first, last in block)
        if not all(group.gather(some)):
            raise ValueError(f"{group.size} members are too many for {' x '.join(map(str, grid))} patches: use fewer")
        own = tuple((first // patch, -(-last // patch)) for first, last in block)
        cell_part = GridPart(group, block, cells, rim * patch, periodic)
        token_part = GridPart(group, own, grid, rim, periodic)
        x, kept = self.patches.embed(cell_part.extend(fields))
        x = token_part.crop(x.transpose(1, 2).unflatten(2, token_part.extended)).flatten(2).transpose(1, 2)
        places = self._places(grid, x)
        inside = torch.arange(math.prod(grid)).view(grid)[tuple(slice(*ends) for ends in own)].flatten()
        places["positions"] = places["positions"][inside.to(x.device)]
        x = pointwise(self.norm, self._through_blocks(x, conditions=conditions, group=group, **places))
        x = token_part.extend(x.transpose(1, 2).unflatten(2, token_part.shape)).flatten(2).transpose(1, 2)
        return cell_part.crop(self.patches.project(x, kept, cell_part.extended))

    def _on_points(
        self, features: Tensor, positions: Tensor, conditions: Tensor | None, group: Group | None = None
    ) -> Tensor:
        """:meth:`on_grid` for points of a regular grid, in any order that the batch shares."""
        if positions.ndim == 3:
            if not bool((positions == positions[:1]).all()):
                raise ValueError("patches need one grid for the whole batch, got positions that differ within it")
            positions = positions[0]
        if features.shape[1] != len(positions):
            raise ValueError(
                f"expected features at {len(positions)} points, as there are positions, got {features.shape[1]}"
            )
        whole = None if group is None else whole_grid(positions, self.cell_spacing, group)
        return self.on_cells(features, *grid_of(positions, self.cell_spacing), conditions, whole, group)

    def on_cells(
        self,
        features: Tensor,
        cells: tuple[int, ...],
        rows: Tensor,
        conditions: Tensor | None = None,
        whole: tuple[Ranges, tuple[int, ...]] | None = None,
        group: Group | None = None,
    ) -> Tensor:
        """:meth:`on_grid` for features (B, N, in) of all cells, each in the given row of a row-major grid.

        With a group the cells are this member's; ``whole`` says which block of which grid they are.
        """
        if group is None or whole is None:
            return apply_on_cells(functools.partial(self.on_grid, conditions=conditions), features, cells, rows)
        block, of = whole
        return apply_on_cells(lambda fields: self.on_block(fields, block, of, conditions, group), features, cells, rows)

    def _places(self, tokens: tuple[int, ...], like: Tensor) -> dict[str, Any]:
        """Where the tokens are, and after which lengths they repeat."""
        spacing, periodic = self.token_spacing, self.patches.periodic
        axes = [torch.arange(n, dtype=torch.float64) * s for n, s in zip(tokens, spacing, strict=True)]
        positions = torch.cartesian_prod(*axes).reshape(-1, len(tokens)).to(like.device)
        period = [n * s if p else None for n, s, p in zip(tokens, spacing, periodic, strict=True)]
        return {"positions": positions, "period": period if any(periodic) else None}

    def plan(
        self,
        positions: Tensor,
        key_positions: Tensor | None = None,
        *,
        batch: int = 1,
        period: Sequence[float | None] | None = None,
        group: Group | None = None,
    ) -> Plan:
        """What all blocks need to know about the points: which keys each query can see, or that all pairs are computed.

        ``forward`` makes it by itself, and keeps it as long as it is given the same points. With a group the points are
        those at hand, and a member with other weights is refused.
        """
        if group is not None:
            agree_on_model(group, self)
        if self.warns and positions.shape[-2]:
            head_dim = self._arguments["width"] // self.heads
            warn_of_wavelengths(self.encoding, positions if key_positions is None else key_positions, head_dim, 6)
        return plan_attention(
            positions,
            key_positions,
            encoding=self.encoding,
            tolerance=self.tolerance,
            backend=self.backend,
            period=period,
            heads=batch * self.heads,
            group=group,
        )

    def forward(
        self,
        features: Tensor,
        positions: Tensor,
        conditions: Tensor | None = None,
        *,
        query_positions: Tensor | None = None,
        period: Sequence[float | None] | None = None,
        plan: Plan | None = None,
        group: Group | None = None,
    ) -> Tensor:
        """(B, N, in), (N, P) or (B, N, P), conditions (B, K) -> (B, N, out).

        With ``query_positions`` (Nq, P) or (B, Nq, P), the output (B, Nq, out) at these instead: such points begin as
        ones whose features are all zero, read from the given ones in every block, and are read by none. So any number
        of them may be asked for in pieces; train the network with them, too.

        ``period`` is the length per axis after which the domain repeats, None for axes that do not (patches know
        theirs; RoPE, which is not local, cannot use it); ``plan`` that of these points, made here if not given. With a
        ``group`` the points are this member's part of the domain, perhaps none, and all members call together: the
        answer is what the whole domain would give at these points.
        """
        if features.ndim != 3 or features.shape[-1] != self.in_features:
            raise ValueError(
                f"features must have the shape (batch, points, {self.in_features}), got {tuple(features.shape)}"
            )
        if positions.shape[-1] != self.space_dim:
            raise ValueError(f"positions must have {self.space_dim} axes, got the shape {tuple(positions.shape)}")
        if self.tokens is not None:
            if query_positions is not None:
                raise ValueError("patches predict the cells of their grid: query_positions are for points as tokens")
            return self._on_points(features, positions, conditions, group)
        keys = None
        if query_positions is not None:
            if query_positions.shape[-1] != self.space_dim:
                raise ValueError(
                    f"query_positions must have {self.space_dim} axes, got the shape {tuple(query_positions.shape)}"
                )
            keys, asked = features.shape[1], query_positions.shape[-2]
            features = torch.cat([features, features.new_zeros(len(features), asked, self.in_features)], dim=1)
            where = (
                p if positions.ndim == query_positions.ndim or p.ndim == 3 else p.expand(len(features), -1, -1)
                for p in (positions, query_positions.to(positions))
            )
            positions = torch.cat(list(where), dim=-2)
        x = self._through_blocks(  # what is embedded gets no name here, which would keep it beside later blocks
            pointwise(lambda part: exactly(self.embed, part), features),
            positions,
            keys=keys,
            conditions=conditions,
            period=period,
            plan=plan,
            group=group,
        )
        return pointwise(lambda part: exactly(self.project, self.norm(part)), x[:, keys or 0 :])

    def _through_blocks(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        keys: int | None = None,
        conditions: Tensor | None = None,
        period: Sequence[float | None] | None = None,
        plan: Plan | None = None,
        group: Group | None = None,
    ) -> Tensor:
        """Tokens (B, N, W) through all blocks; with ``keys``, the first so many of them offer keys, the others read."""
        options: dict[str, Any] = {"tolerance": self.tolerance}
        given = None if conditions is None else tuple(conditions.shape)
        if self.conditions and given != (len(x), self.conditions):
            raise ValueError(f"conditions must have the shape ({len(x)}, {self.conditions}), got {given}")
        if not self.conditions and given is not None:
            raise ValueError(f"this network has no conditions, got some of the shape {given}")
        if conditions is not None:
            options["condition"] = exactly(self.condition, conditions)[:, None]
        if not self.encoding.local:  # it would see endless images of every key: to RoPE, a domain is what it is shown
            period = None
        positions = shared_positions(positions)
        key_positions = None if keys is None else positions[..., :keys, :]
        some = x.shape[0] and x.shape[1]
        if plan is None and (some or group is not None) and not torch.compiler.is_compiling():
            plan = self._plan_of(positions, keys, len(x), period, group)
            if not positions.requires_grad and positions.ndim == plan.cloud.query_positions.ndim:
                positions = plan.cloud.query_positions  # blocks see at once that these are the plan's own
                key_positions = None if keys is None else plan.cloud.key_positions
        options["key_positions"] = key_positions
        options |= {"period": period, "plan": plan, "backend": self.backend if plan is None else plan.backend}
        for block in self.blocks:
            if isinstance(plan, ShardedPlan):
                plan.group.set_aside(x)
            if self.checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, positions, use_reentrant=False, **options)
            else:
                x = block(x, positions, **options)
        return x

    def _plan_of(
        self,
        positions: Tensor,
        keys: int | None,
        batch: int,
        period: Sequence[float | None] | None,
        group: Group | None = None,
    ) -> Plan:
        """The plan of these points: the last one, if a rollout or a training set comes back to the same points."""
        wanted = (self.backend, self.tolerance, batch, keys, None if period is None else tuple(period), group)
        member = None if group is None else group.rank  # members in turn share this model
        last, known = self._last_plans.get(member), None
        if last is not None and last[0] == wanted:
            where = last[1].cloud.query_positions
            alike = (
                where.shape == positions.shape and where.dtype == positions.dtype and where.device == positions.device
            )
            if alike and torch.equal(where, positions.detach()):
                known = last[1]
        if group is not None and not all(group.gather(known is not None)):  # some other member has other points
            known = None
        if known is None:
            kept = positions.detach().clone()  # whatever becomes of the caller's
            own_keys = None if keys is None else kept[..., :keys, :]
            known = self.plan(kept, own_keys, batch=batch, period=period, group=group)
            self._last_plans[member] = (wanted, known)
        return known
