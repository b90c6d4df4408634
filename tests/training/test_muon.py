"""Muon against what its update is defined by."""

import pytest
import torch

from farfield.training.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(16, 16), (64, 16), (16, 64)])
def test_the_update_keeps_singular_vectors_and_levels_singular_values(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape, dtype=torch.float64)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    levelled = u.T @ orthogonal(matrix) @ v.T
    assert torch.allclose(levelled, torch.diag(levelled.diag()), atol=1e-8)
    largest = s / s.norm() > 0.02  # what five iterations lift to about one
    assert bool(((levelled.diag() > 0.5) & (levelled.diag() < 1.3))[largest].all())


def test_scaling_the_gradient_changes_nothing():
    torch.manual_seed(0)
    gradient, ends = torch.randn(20, 30), []
    for scale in (1.0, 1e-3):
        weight = torch.nn.Parameter(torch.ones(20, 30))
        optimiser = Muon([weight], lr=0.1, weight_decay=0.05)
        for _ in range(3):
            weight.grad = scale * gradient
            optimiser.step()
        ends.append(weight.detach().clone())
    assert torch.allclose(*ends, atol=1e-4)


def test_it_finds_the_least_squares_solution():
    torch.manual_seed(0)
    a, truth = torch.randn(200, 20), torch.randn(20, 16)
    weight = torch.nn.Parameter(torch.zeros(20, 16))
    optimiser = Muon([weight], lr=0.2)
    for step in range(300):
        optimiser.param_groups[0]["lr"] = 0.2 * (1 - step / 300)
        weight.grad = a.T @ (a @ weight.detach() - a @ truth) / 200
        optimiser.step()
    assert float((weight.detach() - truth).abs().max()) < 0.02


def test_only_matrices_are_taken():
    with pytest.raises(ValueError, match="Muon is for matrices"):
        Muon([torch.nn.Parameter(torch.zeros(3))], lr=0.1)
