"""Patches as tokens: the laws that cells obey, and what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import farfield as ff
from farfield.models import tokens
from farfield.models.tokens import Patches, PatchTokens, grid_of


def operator(space_dim=2, patch=4, width=16, seed=0, depth=2, encoding=None, **tokens):
    torch.manual_seed(seed)
    model = ff.TransformerOperator(
        3, 2, space_dim, encoding=encoding or ff.LAAPE(2.0, rotary=ff.RoPE(40.0, 8.0)), width=width, depth=depth,
        heads=2, tokens=PatchTokens(patch, 1.0, **tokens), tolerance=1e-6,
    )  # fmt: skip
    for parameter in model.parameters():  # the last layer starts at zero, and a map to zero has every law
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def points(cells, spacing=1.0):
    return torch.cartesian_prod(*(torch.arange(n) * spacing for n in cells)).reshape(-1, len(cells))


@settings(max_examples=12, deadline=None)
@given(
    space_dim=st.integers(1, 3), patch=st.sampled_from([1, 2, 3, 4]), levels=st.sampled_from([(), (5,), (4, 6)]),
    data=st.data(),
)  # fmt: skip
def test_shifting_by_whole_patches_shifts_the_result(space_dim, patch, levels, data):
    """On periodic axes, where a shift loses nothing."""
    levels = levels[: {1: 0, 2: 1, 3: 0, 4: 2}[patch]]
    model = operator(space_dim, patch, periodic=True, levels=levels, encoding=ff.LAAPE(1.0, rotary=None))
    tokens = [data.draw(st.integers(6, 12 if space_dim < 3 else 7)) for _ in range(space_dim)]
    x = torch.randn(1, 3, *(patch * n for n in tokens))
    shift = [patch * data.draw(st.integers(-3, 3)) for _ in range(space_dim)]
    axes = list(range(2, 2 + space_dim))
    moved = model.on_grid(x.roll(shift, axes))
    assert torch.allclose(moved, model.on_grid(x).roll(shift, axes), atol=2e-4)


@pytest.mark.parametrize("levels", [(), (6, 8)])
@pytest.mark.parametrize("cells", [(96, 64), (97, 66)])
def test_enlarging_the_domain_leaves_the_interior_unchanged(levels, cells):
    """Also with a patch that does not divide the domain."""
    model = operator(levels=levels)
    x = torch.randn(1, 3, 160, cells[1])
    small, large = model.on_grid(x[:, :, : cells[0]]), model.on_grid(x)
    # two layers see twice the reach of three tokens beyond their block, the patches one more: 40 cells are enough
    assert torch.allclose(small[:, :, :56], large[:, :, :56], atol=1e-4)
    assert not torch.allclose(small[:, :, cells[0] - 4 :], large[:, :, cells[0] - 4 : cells[0]], atol=1e-2)


@settings(max_examples=10, deadline=None)
@given(cells=st.tuples(st.integers(8, 30), st.integers(8, 30)), seed=st.integers(0, 99))
def test_points_of_a_grid_may_come_in_any_order(cells, seed):
    model = operator()
    torch.manual_seed(seed)
    x = torch.randn(2, 3, *cells)
    expected = model.on_grid(x).flatten(2).transpose(1, 2)
    order = torch.randperm(cells[0] * cells[1])
    features, positions = x.flatten(2).transpose(1, 2)[:, order], points(cells)[order] + 1000.0
    assert torch.allclose(model(features, positions), expected[:, order], atol=1e-5)
    assert torch.allclose(model(features, positions.expand(2, -1, -1)), expected[:, order], atol=1e-5)


def test_windows_equal_all_pairs():
    model = operator()
    x = torch.randn(1, 3, 100, 90)
    near = model.on_grid(x)
    model.backend = "reference"
    assert torch.allclose(near, model.on_grid(x), atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(size=st.integers(4, 40), patch=st.integers(1, 5))
def test_a_constant_field_stays_constant_through_the_patches(size, patch):
    """Repeating the outermost cells makes a wall invisible to a field that does not change."""
    if size < patch + 2 * (patch // 2):
        return
    torch.manual_seed(size)
    tokens = Patches(2, 1, 8, patch, 1)
    torch.nn.init.normal_(tokens.scatter.weight)
    x, kept = tokens.embed(torch.ones(1, 2, size))
    assert torch.allclose(x, x[:, :1].expand_as(x), atol=1e-5)
    out = tokens.project(x, kept, (size,))
    assert torch.allclose(out[..., : size - size % patch], out[..., :patch].repeat(1, 1, size // patch), atol=1e-4)


def test_every_parameter_learns():
    torch.manual_seed(0)
    model = ff.TransformerOperator(
        3, 2, 2, encoding=ff.LAAPE(2.0, rotary=ff.RoPE(40.0, 8.0)), width=16, depth=1, heads=2,
        tokens=PatchTokens(4, 1.0, levels=(4, 6)),
    )  # fmt: skip
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    model.on_grid(torch.randn(1, 3, 64, 64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and (parameter.grad.abs().sum() > 0 or "to_key.bias" in name), name


def test_grids_are_recognised_and_others_refused():
    cells, rows = grid_of(torch.tensor([[1.0, 5.0], [0.0, 5.0], [0.0, 6.0], [1.0, 6.0]]), (1.0, 1.0))
    assert cells == (2, 2) and rows.tolist() == [2, 0, 1, 3]
    grid = points((5, 4))
    with pytest.raises(ValueError, match=r"regular grid with the spacing .* point 7 .* lies 0.3 spacings off"):
        bent = grid.clone()
        bent[7, 0] += 0.3
        grid_of(bent, (1.0, 1.0))
    with pytest.raises(ValueError, match=r"span 5 x 4 cells .* which are 20, and there are 19 points"):
        grid_of(grid[grid.ne(grid[7]).any(1)], (1.0, 1.0))
    with pytest.raises(ValueError, match="several points share a cell"):
        grid_of(torch.cat([grid[:7], grid[6:7], grid[8:]]), (1.0, 1.0))
    with pytest.raises(ValueError, match="which are 63, and there are 20 points"):
        grid_of(grid * 2, (1.0, 1.0))
    with pytest.raises(ValueError, match="spacings off"):
        grid_of(grid * 0.8, (1.0, 1.0))


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="the domain has 7 cells along axis 2, fewer than the 8"):
        operator().on_grid(torch.randn(1, 3, 16, 7))
    with pytest.raises(ValueError, match="periodic axis 1 has 18 cells, no multiple of the patch of 4"):
        operator(periodic=(True, False)).on_grid(torch.randn(1, 3, 18, 16))
    with pytest.raises(ValueError, match=r"patch must be a multiple of 4 for 2 levels, .* got 6"):
        operator(patch=6, levels=(4, 4))
    with pytest.raises(ValueError, match="overlap must be 0 to 4 cells"):
        operator(overlap=5)
    with pytest.raises(ValueError, match="patch must be at least 1"):
        operator(patch=0)
    with pytest.raises(ValueError, match="one grid for the whole batch"):
        operator()(torch.randn(2, 256, 3), torch.stack([points((16, 16)), points((16, 16)).flip(0)]))


@pytest.mark.parametrize("periodic", [False, (True, False), True])
def test_strips_change_nothing(periodic, monkeypatch):
    model = operator(patch=4, levels=(5, 6), periodic=periodic)
    x = torch.randn(1, 3, 44, 32)
    with torch.no_grad():
        whole = model.on_grid(x)
        monkeypatch.setattr(tokens, "_STRIP", 300)
        assert torch.allclose(model.on_grid(x), whole, atol=1e-5)
