"""A network of patches on blocks of a grid equals the network on the grid."""

import pytest
import torch

import farfield as ff
from farfield.attention import InTurn
from farfield.attention.bisection import split_grid
from farfield.models import PatchTokens


@pytest.mark.parametrize(
    ("cells", "periodic", "levels", "parts"),
    [((34, 24), False, (), 3), ((48, 32), (True, False), (6, 8), 2), ((61,), False, (4,), 3)],
)
def test_blocks_of_patches_equal_the_whole(cells, periodic, levels, parts):
    """Forward and backward, walls and periodic axes, domains that the patch does not divide, levels of a U-Net."""
    torch.manual_seed(0)
    axes = len(cells)
    tokens = PatchTokens(4, 1.0, periodic=periodic, levels=levels)
    encoding = ff.LAAPE(5.0, rotary=ff.RoPE(min_wavelength=8, max_wavelength=64))
    options = {"encoding": encoding, "tokens": tokens, "width": 16, "depth": 2, "heads": 2, "backend": "tiled"}
    model = ff.TransformerOperator(2, 1, axes, tolerance=1e-7, **options).double()
    for parameter in model.parameters():  # the last layer begins at zero
        torch.nn.init.normal_(parameter, std=0.2)
    where = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in cells)).reshape(-1, axes)
    index = torch.arange(len(where)).view(cells)
    mine = [index[block].flatten() for block in split_grid(cells, parts, 4)]
    features, slope = torch.randn(2, len(where), 2).double(), torch.randn(2, len(where), 1).double()

    def gradients(out, some):
        return torch.autograd.grad(out, list(model.parameters()), slope[:, some], allow_unused=True)

    def member(group):
        some = mine[group.rank]
        out = model(features[:, some], where[some], group=group)
        return out.detach(), gradients(out, some)

    whole = model(features, where)
    expected = gradients(whole, slice(None))
    found = InTurn(parts).run(member)
    for some, (out, _) in zip(mine, found, strict=True):
        torch.testing.assert_close(out, whole.detach()[:, some], atol=1e-5 * float(whole.detach().abs().max()), rtol=0)
    for i, one in enumerate(expected):
        if one is not None:
            total = sum(parts[i] for _, parts in found)
            torch.testing.assert_close(total, one, atol=1e-5 * float(one.abs().max()) + 1e-9, rtol=0)


def test_cuts_fall_between_patches():
    model = ff.TransformerOperator(1, 1, 1, tokens=PatchTokens(4, 1.0), width=8, heads=1, encoding=ff.LAAPE(5.0))
    where = torch.arange(32, dtype=torch.float64)[:, None]

    def member(group, at):
        some = slice(0, at) if group.rank == 0 else slice(at, 32)
        return model(torch.zeros(1, 32, 1)[:, some], where[some], group=group)

    with pytest.raises(ValueError, match="cut between patches"):
        InTurn(2).run(lambda group: member(group, 14))
    with pytest.raises(ValueError, match="has no cells"):
        InTurn(2).run(lambda group: member(group, 32))
