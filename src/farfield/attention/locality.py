"""The locality biases: what makes attention independent of how large the domain is.

With a query at c, a key at xi and delta = c - xi, the attention weight is

    softmax over xi of  ( q^T R(delta)^T k / sqrt(D)  -  Phi(delta) )

    RoPE       Phi = 0
    LASPE      Phi = 1/2 sum_i (delta_i / l_i)^2
    LAAPE      Phi = 1/2 sum_i [ exp(delta_i / l_i-) + exp(-delta_i / l_i+) ]
    FlashBias  Phi = alpha(c) |delta|_2^2,  alpha a learned non-negative weight per query
    ALiBi      Phi = m |delta|_1
    Window     Phi = 0 where |delta|_1 <= r, infinite elsewhere

where delta_i = delta . e_i along an orthonormal basis e_i. Every potential is a sum over axes of a convex function
of delta_i alone (``axis_penalty``). The first four *decompose*: -Phi is an inner product of a few channels of the
query's position with a few channels of the key's (``query_channels``, ``key_channels``), which any attention
kernel takes as extra head dimensions. Everything depends on c - xi only, so callers may shift all positions by a
common origin, and do: far from the origin LASPE's channels cancel badly and LAAPE's overflow.

Run ``python -m farfield.attention.locality`` to draw the kernels exp(-Phi).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from farfield.attention.encoding import Encoding, LengthParameter, Lengths, LocalEncoding
from farfield.attention.rotary import Rotary

# Beyond this exponent exp() is continued linearly: the weight is zero either way, but keys stay ordered by
# distance and nothing overflows, so a query far from all keys still attends to the nearest one.
_STEEPEST = 60.0


def _ordered_exp(x: Tensor) -> Tensor:
    """exp(x), continued linearly beyond ``_STEEPEST``: finite and increasing for every finite x."""
    return torch.exp(x.clamp(max=_STEEPEST)) * (1 + (x - _STEEPEST).clamp(min=0))


class RoPE(Encoding):
    """Rotary embedding alone: translation-equivariant, but not local (the paper's baseline)."""

    local = False

    def __init__(self, max_wavelength: float = 10_000.0, min_wavelength: float | None = None):
        super().__init__(Rotary(max_wavelength, min_wavelength))


class GaussianEncoding(LocalEncoding):
    """What LASPE and FlashBias share: Phi = 1/2 sum_i (delta_i / l_i)^2, and its channels."""

    decay_length: LengthParameter

    def axis_formula(self, delta: Tensor, *lengths: Tensor) -> Tensor:
        return 0.5 * (delta / lengths[0]).square()

    # -1/2 (a - b)^2 = -1/2 [a^2, -2a, 1] . [1, b, b^2] with a = c / l, b = xi / l, for each axis
    def query_channels(self, positions: Tensor, head_dim: int) -> Tensor:
        lengths = self._channel_lengths(self.decay_length, positions)
        a = self._per_head(self.coordinates(positions), lengths) / lengths
        return -0.5 * math.sqrt(head_dim) * torch.cat([a.square(), -2 * a, torch.ones_like(a)], dim=-1)

    def key_channels(self, positions: Tensor) -> Tensor:
        lengths = self._channel_lengths(self.decay_length, positions)
        b = self._per_head(self.coordinates(positions), lengths) / lengths
        return torch.cat([torch.ones_like(b), b, b.square()], dim=-1)

    # with d = offset / l, for each axis: [1, b - d, (b - d)^2] = [[1, 0, 0], [-d, 1, 0], [d^2, -2d, 1]] [1, b, b^2]
    def channel_shift(self, offset: Tensor) -> Tensor:
        d = _over_lengths(self.coordinates(offset), self.decay_length)
        axes = d.shape[-1]
        shift = d.new_zeros((*d.shape[:-1], 3 * axes, 3 * axes))
        shift.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        shift.diagonal(-axes, -2, -1).copy_(torch.cat([-d, -2 * d], -1))
        shift.diagonal(-2 * axes, -2, -1).copy_(d.square())
        return shift

    def channel_range(self, dtype: torch.dtype, error: float) -> Tensor | None:
        # At x from the middle the channels' squares cancel, and leave an error of eps / 2 (x / l)^2 in the logits:
        # 48 decay lengths for 3.5e-5 in float32.
        return 2 * _shortest(self.decay_length) * math.sqrt(2 * error / torch.finfo(dtype).eps)


class LASPE(GaussianEncoding):
    """Gaussian locality, symmetric: Phi = 1/2 sum_i (delta_i / l_i)^2."""

    def __init__(
        self,
        decay_length: Lengths,
        *,
        basis: Tensor | Sequence[Sequence[float]] | None = None,
        learned: bool = False,
        max_decay_length: Lengths | None = None,
        rotary: Rotary | RoPE | str | None = "default",
    ):
        super().__init__(_rotary(rotary), basis)
        self.decay_length = LengthParameter("decay_length", decay_length, learned, max_decay_length)
        self._check()


class LAAPE(LocalEncoding):
    """Locality with its own reach in each direction: Phi = 1/2 sum_i [exp(delta_i / l_i-) + exp(-delta_i / l_i+)].

    ``decay_length_minus`` governs delta_i > 0 (the query lies downstream of the key), ``decay_length_plus`` governs
    delta_i < 0. Give either ``decay_length`` (symmetric) or both of these.
    """

    def __init__(
        self,
        decay_length: Lengths | None = None,
        *,
        decay_length_plus: Lengths | None = None,
        decay_length_minus: Lengths | None = None,
        basis: Tensor | Sequence[Sequence[float]] | None = None,
        learned: bool = False,
        max_decay_length: Lengths | None = None,
        rotary: Rotary | RoPE | str | None = "default",
    ):
        super().__init__(_rotary(rotary), basis)
        one_sided = (decay_length_plus is not None) + (decay_length_minus is not None)
        if (decay_length is None) != (one_sided == 2) or one_sided == 1:
            raise ValueError(
                "LAAPE takes either decay_length, or both decay_length_plus and decay_length_minus; got "
                f"{decay_length=}, {decay_length_plus=}, {decay_length_minus=}"
            )
        plus = decay_length if decay_length is not None else decay_length_plus
        minus = decay_length if decay_length is not None else decay_length_minus
        assert plus is not None and minus is not None
        self.decay_length_plus = LengthParameter("decay_length_plus", plus, learned, max_decay_length)
        self.decay_length_minus = LengthParameter("decay_length_minus", minus, learned, max_decay_length)
        self._check()

    def potential(self, delta: Tensor) -> Tensor:
        x = self.coordinates(delta)
        rising, falling = x / self.decay_length_minus(x), -x / self.decay_length_plus(x)
        return 0.5 * (rising.exp() + falling.exp()).sum(-1)

    def axis_formula(self, delta: Tensor, *lengths: Tensor) -> Tensor:
        plus, minus = lengths
        return 0.5 * (_ordered_exp(delta / minus) + _ordered_exp(-delta / plus))

    def centre(self, space_dim: int) -> Tensor:
        """delta* = ln(l- / l+) / (1 / l- + 1 / l+)."""
        zero = torch.zeros(space_dim, dtype=torch.float64, device=self.decay_length_plus.maximum.device)
        minus, plus = self.decay_length_minus(zero), self.decay_length_plus(zero)
        return zero + torch.log(minus / plus) / (1 / minus + 1 / plus)

    def query_channels(self, positions: Tensor, head_dim: int) -> Tensor:
        x, plus, minus = self._scaled(positions)
        return -0.5 * math.sqrt(head_dim) * _side_by_side(torch.exp(-x / plus), torch.exp(x / minus))

    def key_channels(self, positions: Tensor) -> Tensor:
        x, plus, minus = self._scaled(positions)
        return _side_by_side(torch.exp(x / plus), torch.exp(-x / minus))

    def channel_shift(self, offset: Tensor) -> Tensor:
        x = self.coordinates(offset)
        plus, minus = _over_lengths(x, self.decay_length_plus), _over_lengths(x, self.decay_length_minus)
        return torch.diag_embed(_side_by_side(torch.exp(-plus), torch.exp(minus)))

    def _scaled(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        plus = self._channel_lengths(self.decay_length_plus, positions)
        minus = self._channel_lengths(self.decay_length_minus, positions)
        x = self._per_head(self.coordinates(positions), plus if plus.ndim == 3 else minus)
        return x, plus, minus

    def channel_range(self, dtype: torch.dtype, error: float) -> Tensor | None:
        # The product of two channels is exp(width / l); sqrt(D) P / 2 in front of it costs less than 6 e-folds. Where
        # Phi is small so is its error, on any domain: each product of two channels is exact to its own rounding.
        shortest = torch.minimum(_shortest(self.decay_length_plus), _shortest(self.decay_length_minus))
        return shortest * (math.log(torch.finfo(dtype).max) - 6)


class FlashBias(GaussianEncoding):
    """Phi = alpha(c) |delta|_2^2 with alpha = softplus(w . q(c) + b) / (2 l^2), w and b learned per head.

    The query is a linear map of the token, so alpha is a learned function of the token; it starts at 1 / (2 l^2),
    where FlashBias equals an isotropic LASPE.
    """

    def __init__(self, decay_length: float, heads: int, head_dim: int, rotary: Rotary | RoPE | str | None = "default"):
        super().__init__(_rotary(rotary))
        if heads < 1 or head_dim < 1:
            raise ValueError(f"heads and head_dim must be positive, got {heads=}, {head_dim=}")
        self.decay_length = LengthParameter("decay_length", float(decay_length), False, None)
        self.weight = nn.Parameter(torch.zeros(heads, head_dim))
        self.bias = nn.Parameter(torch.full((heads,), math.log(math.e - 1)))  # softplus of it is 1

    def heads(self) -> int:
        return self.weight.shape[0]

    def query_weight(self, q: Tensor) -> Tensor:
        if q.shape[1] != self.weight.shape[0] or q.shape[-1] != self.weight.shape[1]:
            raise ValueError(
                f"this FlashBias is for {self.weight.shape[0]} heads of {self.weight.shape[1]}, "
                f"q has {q.shape[1]} heads of {q.shape[-1]}"
            )
        score = torch.einsum("bhnd,hd->bhn", q, self.weight.to(q.dtype)) + self.bias[:, None].to(q.dtype)
        return nn.functional.softplus(score)


class ALiBi(Encoding):
    """A penalty linear in the 1-norm: Phi = slope |delta|_1. Does not decompose."""

    decomposes = False

    def __init__(self, slope: float, rotary: Rotary | RoPE | str | None = "default"):
        super().__init__(_rotary(rotary))
        self.slope = _positive("slope", slope)

    def axis_formula(self, delta: Tensor, *lengths: Tensor) -> Tensor:
        return self.slope * delta.abs()


class Window(Encoding):
    """Attention within |delta|_1 <= radius only. Does not decompose."""

    decomposes = False

    def __init__(self, radius: float, rotary: Rotary | RoPE | str | None = "default"):
        super().__init__(_rotary(rotary))
        self.radius = _positive("radius", radius)

    def potential(self, delta: Tensor) -> Tensor:
        outside = delta.abs().sum(-1) > self.radius
        return torch.where(outside, torch.inf, torch.zeros_like(delta[..., 0]))

    def axis_formula(self, delta: Tensor, *lengths: Tensor) -> Tensor:
        return delta.abs()

    def combine(self, total: Tensor) -> Tensor:
        # 1e20 drowns any logit, and still orders keys by distance for a query with none inside
        return torch.where(total > self.radius, 1e20 * total / self.radius, torch.zeros_like(total))


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    """Channels of both; one of them may be per head, and the other not."""
    return torch.cat(torch.broadcast_tensors(a, b), dim=-1)


def _over_lengths(x: Tensor, lengths: LengthParameter) -> Tensor:
    """x (..., P) in decay lengths: (..., P), and (H, ..., P) where they are per head."""
    value = lengths(x)
    return x / value if value.ndim < 4 else x / value.reshape(-1, *(1,) * (x.ndim - 1), value.shape[-1])


def _shortest(lengths: LengthParameter) -> Tensor:
    """The decay lengths of the head that has the shortest: () or (P,), in float64."""
    value = lengths(torch.zeros((), dtype=torch.float64, device=lengths.maximum.device)).detach()
    return value.amin(dim=0).flatten() if value.ndim == 4 else value


def _rotary(rotary: Rotary | RoPE | str | None) -> Rotary | None:
    if rotary == "default":
        return Rotary()
    if isinstance(rotary, RoPE):  # the same wavelengths, without the encoding around them
        return rotary.rotary
    if rotary is None or isinstance(rotary, Rotary):
        return rotary
    raise ValueError(f"rotary must be a RoPE or None, got {rotary!r}")


def _positive(name: str, value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be positive and finite, got {value}")
    return float(value)
