"""All-pairs attention: the formula written out (``reference``) and one call of the fast kernel (``dense``)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from farfield.attention.encoding import Encoding


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    weight: Tensor | None,
) -> Tensor:
    """softmax(q^T k / sqrt(D) - weight * Phi) v with the matrix of logits in full: slow, and what all else must equal.

    q and k are rotated already, positions are (B or 1, 1, N, P) and centred; ``weight`` (B, H, Nq) multiplies Phi
    where the encoding has one.
    """
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    logits = logits - penalty_matrix(query_positions, key_positions, encoding, weight).to(logits.dtype)
    return torch.softmax(logits, dim=-1) @ v


def penalty_matrix(query_positions: Tensor, key_positions: Tensor, encoding: Encoding, weight: Tensor | None) -> Tensor:
    """weight * Phi of every pair, (B or 1, H or 1, Nq, Nk), from positions (B or 1, 1, N, P)."""
    penalty = encoding.penalty(query_positions[..., :, None, :] - key_positions[..., None, :, :])
    return penalty if weight is None else weight[..., None].to(penalty.dtype) * penalty


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_positions: Tensor,
    key_positions: Tensor,
    encoding: Encoding,
    weight: Tensor | None,
) -> Tensor:
    """The same through extra channels of q and k: no matrix of logits is ever stored."""
    head_dim = q.shape[-1]
    extra_q = encoding.query_channels(query_positions, head_dim).to(q.dtype)
    extra_k = encoding.key_channels(key_positions).to(k.dtype)
    if weight is not None:
        extra_q = extra_q * weight[..., None].to(extra_q.dtype)
    q = torch.cat([q, extra_q.expand(*q.shape[:-1], -1)], dim=-1)
    k = torch.cat([k, extra_k.expand(*k.shape[:-1], -1)], dim=-1)
    return kernel(q, k, v, scale=1 / math.sqrt(head_dim))


def kernel(q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None) -> Tensor:
    """The one place that calls the fused attention kernel.

    Fused kernels want q, k and v of one width, a multiple of 8: a narrower v costs three times the time on CPU, and
    flash kernels on CUDA refuse it. Zero padding changes nothing.
    """
    value_dim = v.shape[-1]
    width = -(-max(q.shape[-1], value_dim) // 8) * 8
    q, k, v = (F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)[..., :value_dim]
