"""Training on domains that fit no single device: the processes of a group share the points of every item.

Processes form a grid of two axes, (data, domain): those along the second share the points of an item, those along the
first have different items. Every process is given the whole item and computes the loss of the whole prediction, which
is small beside the activations; only the network itself is spread. The gradient of a loss that each of n members
computes arrives n times at every member's part, and the mean over all processes, which data parallelism takes anyhow,
turns the n partial gradients of the weights into that of one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from farfield.attention import Group, Processes
from farfield.attention.sharded import exchange
from farfield.models.grid_part import domain_parts
from farfield.models.transformer_operator import TransformerOperator


def domain_group(processes: int, per_domain: int, device_type: str) -> Group | None:
    """The processes that share this one's domain; None where each has its own."""
    if per_domain == 1:
        return None
    mesh = init_device_mesh(device_type, (processes // per_domain, per_domain), mesh_dim_names=("data", "domain"))
    return Processes(mesh.get_group("domain"))


def check_per_domain(model: nn.Module, processes: int, per_domain: int) -> None:
    """Refuse what cannot be shared, before any process is started."""
    if processes % per_domain:
        raise ValueError(
            f"--per-domain {per_domain} does not divide the {processes} processes (--devices times --nodes)"
        )
    if per_domain > 1 and not isinstance(model, TransformerOperator):
        raise ValueError(f"--per-domain is for the transformer operator, this run trains {type(model).__name__}")


class OverDomain(nn.Module):
    """A network (perhaps wrapped for data parallelism) whose points are spread over a group: whole in, whole out."""

    def __init__(self, network: nn.Module, operator: TransformerOperator, group: Group):
        super().__init__()
        self.network, self.operator, self.group = network, operator, group
        self._cut: tuple[Tensor, list[Tensor]] | None = None

    def forward(self, features: Tensor, positions: Tensor, conditions: Tensor | None = None, **options: Any) -> Tensor:
        """(B, N, in), (N, P), conditions (B, K) -> (B, N, out), on every member."""
        if positions.ndim == 3:
            raise ValueError("--per-domain is for whole domains, one for the batch: train without sampling.crop")
        parts = self._parts(positions)
        mine = parts[self.group.rank]
        given = {} if conditions is None else {"conditions": conditions}
        out = self.network(features[:, mine], positions[mine], group=self.group, **given, **options)
        rows = out.transpose(0, 1).flatten(1)
        everyone = exchange(
            rows.repeat(self.group.size, 1), self.group, [len(mine)] * self.group.size, [len(part) for part in parts]
        )
        whole = everyone[torch.cat(parts).argsort()]
        return whole.unflatten(1, (len(features), -1)).transpose(0, 1)

    def _parts(self, positions: Tensor) -> list[Tensor]:
        """Who has which points; that of the last cloud is kept."""
        if self._cut is None or self._cut[0].shape != positions.shape or not torch.equal(self._cut[0], positions):
            parts = domain_parts(self.operator, positions, self.group.size)
            self._cut = positions, [torch.from_numpy(np.asarray(part)).to(positions.device) for part in parts]
        return self._cut[1]
