"""Training on a domain that several processes share equals training on the whole domain."""

import copy

import pytest
import torch

import farfield as ff
from farfield.attention import InTurn
from farfield.models import PatchTokens
from farfield.training.domain import OverDomain, check_per_domain


@pytest.mark.parametrize("tokens", [None, PatchTokens(4, 30.0)])
def test_a_shared_domain_has_the_loss_and_the_gradients_of_the_whole(tokens):
    """The mean over the members of what each finds, as data parallelism takes it."""
    torch.manual_seed(0)
    encoding = ff.LAAPE(120.0, rotary=ff.RoPE(min_wavelength=60, max_wavelength=900))
    options = {"encoding": encoding, "tokens": tokens, "width": 16, "depth": 2, "heads": 2, "backend": "tiled"}
    model = ff.TransformerOperator(2, 1, 2, tolerance=1e-7, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model = model.double()
    points = torch.cartesian_prod(torch.arange(20.0), torch.arange(14.0)).double() * 30
    features, target = torch.randn(3, 280, 2).double(), torch.randn(3, 280, 1).double()

    def learned(network, operator):
        error = (network(features, points) - target).abs().sum(1) / target.abs().sum(1)  # no sum over points alone
        grads = torch.autograd.grad(error.mean(), list(operator.parameters()), allow_unused=True)
        return error.mean().detach(), grads

    loss, expected = learned(model, model)

    def member(group):
        mine = copy.deepcopy(model)
        return learned(OverDomain(mine, mine, group), mine)

    for size in (2, 3):
        found = InTurn(size).run(member)
        assert all(torch.isclose(one, loss, rtol=1e-6) for one, _ in found)
        for i, whole in enumerate(expected):
            if whole is not None:
                mean = sum(grads[i] for _, grads in found) / size
                torch.testing.assert_close(mean, whole, atol=1e-5 * float(whole.abs().max()) + 1e-9, rtol=0)


def test_what_cannot_be_shared_is_refused():
    model = ff.TransformerOperator(1, 1, 1, width=8, heads=1, encoding=ff.LAAPE(1.0))
    with pytest.raises(ValueError, match="does not divide the 3 processes"):
        check_per_domain(model, 3, 2)
    with pytest.raises(ValueError, match="for the transformer operator"):
        check_per_domain(torch.nn.Linear(1, 1), 2, 2)
    windows = torch.rand(2, 20, 1)
    with pytest.raises(ValueError, match="whole domains"):
        InTurn(2).run(lambda group: OverDomain(model, model, group)(torch.zeros(2, 20, 1), windows))
