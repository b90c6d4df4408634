"""What every position encoding offers to the backends, and the decay lengths that most of them have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from farfield.attention.rotary import Rotary

Lengths = float | Sequence[float] | Sequence[Sequence[float]] | Tensor


class Encoding(nn.Module):
    """A relative position encoding: an optional rotation of q and k, and a potential Phi.

    ``potential`` is the formula. ``penalty`` is the same wherever exp(-Phi) can be represented, but finite and
    ordered by distance everywhere; attention uses it.
    """

    decomposes = True
    local = True  # whether far keys weigh nothing
    basis: Tensor | None

    def __init__(self, rotary: Rotary | None = None, basis: Tensor | Sequence[Sequence[float]] | None = None):
        super().__init__()
        self.rotary = rotary
        self.register_buffer("basis", None if basis is None else _checked_basis(basis))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        basis = self.basis
        super()._apply(fn, recurse)
        if basis is not None:  # a basis in half precision would not be orthonormal
            self.basis = _never_half(lambda _: self.basis, basis)
        return self

    def extra_repr(self) -> str:
        basis = [] if self.basis is None else [f"basis={self.basis.tolist()}"]
        return ", ".join([*self._numbers(), *basis, f"rotary={self.rotary}"])

    def _numbers(self) -> list[str]:
        """The plain numbers that define the encoding, for ``repr``."""
        return [f"{name}={value:g}" for name, value in vars(self).items() if type(value) is float]

    # --- the potential -------------------------------------------------------------------------------------------
    def potential(self, delta: Tensor) -> Tensor:
        """Phi of displacements (..., P). With decay lengths per head: (..., H or 1, Nq, Nk, P) -> (..., H, Nq, Nk)."""
        return self.penalty(delta)

    def penalty(self, delta: Tensor) -> Tensor:
        """``potential``, but finite and increasing with distance however far the key."""
        return self.combine(self.axis_penalty(self.coordinates(delta)).sum(-1))

    def axis_penalty(self, delta: Tensor) -> Tensor:
        """The summands of Phi, for displacements that are already in the basis' coordinates."""
        return self.axis_formula(delta, *(lengths(delta) for lengths in self.lengths()))

    def axis_formula(self, delta: Tensor, *lengths: Tensor) -> Tensor:
        """One summand, element by element, from the displacement along its axis and the ``lengths`` there."""
        return torch.zeros_like(delta)

    def combine(self, total: Tensor) -> Tensor:
        """The penalty from the sum over axes: the sum itself, but for Window."""
        return total

    def lengths(self) -> list[LengthParameter]:
        """The decay lengths that ``axis_formula`` takes."""
        return []

    def centre(self, space_dim: int) -> Tensor:
        """The displacement at which Phi is smallest, in the basis' coordinates: (P,), per head (H, 1, 1, P)."""
        return torch.zeros(space_dim, dtype=torch.float64)

    def floor(self, space_dim: int) -> Tensor:
        """The smallest value of Phi: a scalar, per head (H, 1, 1)."""
        return self.combine(self.axis_penalty(self.centre(space_dim)).sum(-1))

    def query_weight(self, q: Tensor) -> Tensor | None:
        """A factor (B, H, N) on Phi that depends on the query, or None."""
        return None

    # --- its decomposition ---------------------------------------------------------------------------------------
    def query_channels(self, positions: Tensor, head_dim: int) -> Tensor:
        """Channels (..., N, C) of positions (..., N, P); times ``key_channels``, over sqrt(D), they give -Phi."""
        return positions.new_zeros((*positions.shape[:-1], 0))

    def key_channels(self, positions: Tensor) -> Tensor:
        """The keys' side of ``query_channels``."""
        return positions.new_zeros((*positions.shape[:-1], 0))

    def channel_shift(self, offset: Tensor) -> Tensor:
        """(..., C, C), per head (H, ..., C, C): key_channels(x - offset) = channel_shift(offset) @ key_channels(x)."""
        return offset.new_zeros((*offset.shape[:-1], 0, 0))

    # --- helpers for the backends --------------------------------------------------------------------------------
    def coordinates(self, positions: Tensor) -> Tensor:
        """Positions in the basis e_i."""
        return positions if self.basis is None else positions @ self.basis.to(positions).T

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Apply the rotary embedding to x (B, H, N, D), if there is one."""
        return x if self.rotary is None else self.rotary.rotate(x, positions)

    def heads(self) -> int | None:
        """The number of heads that the parameters are made for, None where they serve any number."""
        return None

    def space_dim(self) -> int | None:
        """The number of axes that the parameters are made for, None where they serve any number."""
        return None if self.basis is None else self.basis.shape[0]

    def channel_range(self, dtype: torch.dtype, error: float) -> Tensor | None:
        """The widest domain per axis on which the channels' product is finite and exact to ``error``, None: any.

        It holds for keys that count, those with a small Phi. ``weight`` times Phi is off by ``weight`` times as much.
        """
        return None

    def head_groups(self) -> list[list[int]] | None:
        """Heads that share their decay lengths, or None if all do."""
        return None

    def select(self, heads: Sequence[int] | None, *, widest: bool = False) -> Encoding:
        """The same encoding for some of the heads (None: all), with learned lengths at their maximum if ``widest``."""
        return self

    def learns_lengths(self) -> bool:
        """Whether decay lengths change in training, below their maximum."""
        return False

    def identity(self) -> tuple:
        """What the set of keys in reach depends on; encodings of equal identity may share a plan.

        Everything that defines the encoding, found by itself, so that a new one cannot forget a part: the plain numbers
        and the buffers of all its modules. Parameters are left out: they only learn within their bounds.
        """
        parts: list[tuple] = [(type(self).__name__,)]
        for name, module in self.named_modules():
            numbers = {key: value for key, value in vars(module).items() if isinstance(value, bool | int | float)}
            numbers.pop("training")
            parts += [(name, key, value) for key, value in sorted(numbers.items())]
            parts += [
                (name, key, tuple(value.shape), tuple(value.detach().double().flatten().tolist()))
                for key, value in module.named_buffers(recurse=False)
            ]
        return tuple(parts)


class LengthParameter(nn.Module):
    """Decay lengths l: one number, one per axis, or one per head and axis; fixed, or learned below ``maximum``."""

    fixed: Tensor
    maximum: Tensor

    def __init__(self, name: str, lengths: Lengths, learned: bool, maximum: Lengths | None):
        super().__init__()
        value = _checked_lengths(name, lengths)
        if learned and maximum is None:
            raise ValueError(f"learned {name} needs max_decay_length, the bound that keeps attention local")
        bound = value if maximum is None else _checked_lengths("max_decay_length", maximum)
        if bool((value > bound).any()):
            raise ValueError(f"{name} must not exceed max_decay_length = {bound.tolist()}, got {value.tolist()}")
        value, bound = (t.clone() for t in torch.broadcast_tensors(value, bound))
        self.learned = learned
        self.chosen: list[int] | None = None  # see select
        self.widest = False
        self.register_buffer("maximum", bound)
        if learned:  # l = maximum * sigmoid(raw); start just below the bound where the bound itself was given
            self.raw = nn.Parameter(torch.logit((value / bound).clamp(max=0.99)))
        else:
            self.register_buffer("fixed", value)

    def forward(self, like: Tensor) -> Tensor:
        """The lengths as they broadcast against (..., P): (P,) or (), and (H, 1, 1, P) where per head."""
        if self.learned:
            value = self.maximum if self.widest else self.maximum * torch.sigmoid(self.raw)
        else:
            value = self.fixed
        if value.ndim == 2:
            value = (value if self.chosen is None else value[self.chosen])[:, None, None, :]
        return value.to(like)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        return super()._apply(lambda t: _never_half(fn, t), recurse)

    def extra_repr(self) -> str:
        value = self(torch.zeros(())).detach()
        shown = value[:, 0, 0] if value.ndim == 4 else value
        rounded = [
            [round(x, 4) for x in row] for row in shown.reshape(-1, shown.shape[-1] if shown.ndim else 1).tolist()
        ]
        text: Any = rounded if shown.ndim == 2 else rounded[0] if shown.ndim else rounded[0][0]
        return f"{text}, learned below {self.maximum.tolist()}" if self.learned else f"{text}"

    def select(self, heads: Sequence[int] | None, widest: bool) -> LengthParameter:
        """A view of some heads' lengths, or of their bounds; it shares the parameter with this one."""
        view = copy.copy(self)
        view.chosen, view.widest = None if heads is None else list(heads), widest
        return view


class LocalEncoding(Encoding):
    """What LASPE, LAAPE and FlashBias share: decay lengths and their bookkeeping."""

    def lengths(self) -> list[LengthParameter]:
        return [m for m in self.children() if isinstance(m, LengthParameter)]

    def heads(self) -> int | None:
        per_head = [m.maximum.shape[0] for m in self.lengths() if m.maximum.ndim == 2]
        return per_head[0] if per_head else None

    def space_dim(self) -> int | None:
        given = [m.maximum.shape[-1] for m in self.lengths() if m.maximum.ndim > 0]
        return given[0] if given else super().space_dim()

    def _channel_lengths(self, lengths: LengthParameter, positions: Tensor) -> Tensor:
        """Lengths that broadcast against positions (..., N, P); per head the result gains the axis H before N."""
        value = lengths(positions)
        return value[:, 0] if value.ndim == 4 else value

    def _check(self) -> None:
        """Heads and axes must agree between the parameters."""
        shapes = {tuple(m.maximum.shape) for m in self.lengths() if m.maximum.ndim > 0}
        axes = {s[-1] for s in shapes} | ({self.basis.shape[0]} if self.basis is not None else set())
        if len(axes) > 1 or len({s[0] for s in shapes if len(s) == 2}) > 1:
            raise ValueError(f"decay lengths and basis must agree in heads and axes, got shapes {sorted(shapes)}")

    def head_groups(self) -> list[list[int]] | None:
        heads = self.heads()
        per_head = [m.maximum for m in self.lengths() if m.maximum.ndim == 2]
        if not per_head or heads is None:
            return None
        groups: dict[tuple, list[int]] = {}
        for head in range(heads):
            groups.setdefault(tuple(v for m in per_head for v in m[head].tolist()), []).append(head)
        return list(groups.values())

    def select(self, heads: Sequence[int] | None, *, widest: bool = False) -> Encoding:
        view = copy.copy(self)
        view._modules = {
            name: m.select(heads, widest) if isinstance(m, LengthParameter) else m for name, m in self._modules.items()
        }
        return view

    def learns_lengths(self) -> bool:
        return any(m.learned for m in self.lengths())

    @staticmethod
    def _per_head(positions: Tensor, lengths: Tensor) -> Tensor:
        # (B, N, P) gains a head axis if the lengths have one: (B, 1, N, P) against (H, 1, P)
        return positions.unsqueeze(-3) if lengths.ndim == 3 and positions.ndim == 3 else positions


def _never_half(fn: Callable[[Tensor], Any], tensor: Tensor) -> Tensor:
    """``fn`` of a tensor, which may move it, but not round it to half precision: lengths and axes stay exact."""
    moved = fn(tensor)
    if moved.is_floating_point() and moved.dtype.itemsize < 4 <= tensor.dtype.itemsize:
        return tensor.to(moved.device)
    return moved


def _checked_lengths(name: str, lengths: Lengths) -> Tensor:
    value = torch.as_tensor(lengths, dtype=torch.float32).detach().clone()
    if value.ndim > 2 or value.numel() == 0:
        raise ValueError(
            f"{name} must be one number, one per axis (P,) or one per head and axis (H, P), "
            f"got shape {tuple(value.shape)}"
        )
    if not bool((torch.isfinite(value) & (value > 0)).all()):
        raise ValueError(f"{name} must be positive and finite, got {value.tolist()}")
    return value


def _checked_basis(basis: Tensor | Sequence[Sequence[float]]) -> Tensor:
    rows = torch.as_tensor(basis, dtype=torch.float64).detach().clone()
    if rows.ndim != 2 or rows.shape[0] != rows.shape[1]:
        raise ValueError(f"basis must hold P orthonormal rows of length P, got shape {tuple(rows.shape)}")
    if not torch.allclose(rows @ rows.T, torch.eye(len(rows), dtype=rows.dtype), atol=1e-5):
        raise ValueError(f"basis must be orthonormal (rows of length 1, at right angles), got {rows.tolist()}")
    return rows
