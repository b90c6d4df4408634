"""Nested tensors, torch's own batches of clouds of different sizes, go through attention as packed clouds.

q (B, H, N_b, D), k (B, H, M_b, D), v (B, H, M_b, Dv), positions (B, N_b, P), all nested along their points
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def pack_nested(
    attend: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, queries: Any, keys: Any, options: dict[str, Any]
) -> Tensor:
    """``attend`` with nested q, k, v and positions as packed clouds; the result is nested like q."""
    given = {"q": q, "k": k, "v": v, "query_positions": queries}
    given |= {} if keys is None else {"key_positions": keys}
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor) or not tensor.is_nested:
            raise ValueError(
                f"q is a nested tensor, so {name} must be one too: {'(B, N, P)' if 'pos' in name else '(B, H, N, D)'}, "
                f"nested along its points, got {type(tensor).__name__}"
            )
    for name in ("lengths", "key_lengths", "key_mask", "plan"):
        if options.get(name) is not None:
            raise ValueError(f"nested tensors know their own sizes and have no plan: leave out {name}")
    parts = {name: list(tensor.unbind()) for name, tensor in given.items()}
    sizes, key_sizes = ([part.shape[-2] for part in parts[name]] for name in ("q", "k"))
    packed = {name: torch.cat(p, dim=-2) for name, p in parts.items()}
    heads = (packed[name][None] for name in ("q", "k", "v"))
    cross = {} if keys is None else {"key_lengths": key_sizes}
    out = attend(*heads, packed["query_positions"], packed.get("key_positions"), **options | {"lengths": sizes} | cross)
    return _nested_like(q, out[0].split(sizes, dim=-2))


def _nested_like(q: Tensor, parts: Sequence[Tensor]) -> Tensor:
    if q.layout != torch.jagged:
        return torch.nested.as_nested_tensor(list(parts))
    by_point = [part.transpose(0, 1) for part in parts]  # jagged ones are ragged in front
    return torch.nested.as_nested_tensor(by_point, layout=torch.jagged).transpose(1, 2)
