"""The fused attention kernel with its log-sum-exp, forward and backward.

    out = softmax(scale q k^T + bias) v,      lse = log sum_j exp(scale q k_j + bias_j)

The log-sum-exp is what makes the tiled backend work: it tells how much mass the keys read so far hold (the certificate
compares with it), it joins the results of two sets of keys (``join``), and it spares the backward pass the forward one.
torch's flash kernel for CPU returns it; elsewhere the formula is written out, tile by tile.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def fused(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """softmax(scale q k^T + bias) v in one call that autograd, ``torch.compile`` and ``torch.export`` know.

    Fused kernels want q, k and v of one width, a multiple of 8: a narrower v costs three times the time on CPU, and
    flash kernels on CUDA refuse it. Zero padding changes nothing.
    """
    value_dim = v.shape[-1]
    width = padded_width(q.shape[-1], value_dim)
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)[..., :value_dim]


def padded_width(*widths: int) -> int:
    """The common width that fused kernels like best: the next multiple of 8."""
    return -(-max(widths) // 8) * 8


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """q (B, H, nq, W), k and v (B, H, nk, W) -> out (B, H, nq, W), lse (B, H, nq); nothing is recorded for autograd."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, attn_mask=_whole(bias, q, k), scale=scale
        )
    logits = scale * (q @ k.mT)
    logits = logits if bias is None else logits + bias
    lse = logits.logsumexp(-1)
    return torch.exp(logits - lse[..., None]) @ v, lse


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v, from those of ``out``; k and v may be a part of the keys that out and lse know."""
    if q.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad, q, k, v, out, lse, 0.0, False, attn_mask=_whole(bias, q, k), scale=scale
        )
    shares, slope = logit_gradient(grad, q, k, v, out, lse, scale, bias)
    return scale * (slope @ k), scale * (slope.mT @ q), shares.mT @ grad


def logit_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The weights p (B, H, nq, nk) and the gradient of the logits, p (grad . v - grad . out), written out."""
    logits = scale * (q @ k.mT)
    logits = logits if bias is None else logits + bias
    shares = torch.exp(logits - lse[..., None])
    return shares, shares * (grad @ v.mT - (grad * out).sum(-1, keepdim=True))


def weights_from_above(logits: Tensor, room: Tensor) -> Tensor:
    """exp(logits), at most 6.2 % too large, never too small but for rounding; ``room`` is overwritten, as are logits.

    In float32 the logits come in units of 2^-23 log 2, from -127 log 2 on: as whole numbers they are then the bits of
    float32 numbers which equal the exponential where it is a power of two, and run along a straight line between, above
    the convex curve. No exponential is computed.
    """
    if logits.dtype != torch.float32:
        return torch.exp(logits, out=room)
    room.view(torch.int32).copy_(logits.clamp_(0, 255 * 2**23))
    return room


def weight_units(dtype: torch.dtype) -> tuple[float, float]:
    """(unit, start) such that logits go into :func:`weights_from_above` as unit * logit + start."""
    return (2**23 / math.log(2), 127.0 * 2**23) if dtype == torch.float32 else (1.0, 0.0)


def join(out: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two sets of keys from attention over each: out (..., W) and lse (...)."""
    both = torch.logaddexp(lse, more_lse)
    old, new = torch.exp(lse - both), torch.exp(more_lse - both)
    return out * old[..., None] + more * new[..., None], both


def _whole(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """torch's kernel reads a bias of full or broadcast leading axes, not of broadcast rows."""
    return None if bias is None else bias.expand(*bias.shape[:-2], q.shape[-2], k.shape[-2])
