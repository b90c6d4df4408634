"""Attention on a grid of tokens against the formula written out, on awkward grids."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import farfield as ff
from farfield.attention.grid import grid_attention, grid_plan, reach_of


def points(tokens, spacing):
    axes = [torch.arange(n, dtype=torch.float64) * s for n, s in zip(tokens, spacing, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(tokens))


def qkv(tokens, heads=2, width=12, batch=2, dtype=torch.float32):
    n = int(torch.tensor(tokens).prod())
    return [torch.randn(batch, heads, n, width, dtype=dtype, requires_grad=True) for _ in range(3)]


ENCODINGS = {
    "laape": lambda rotary: ff.LAAPE([[1.5], [2.0]], rotary=rotary),
    "asymmetric": lambda rotary: ff.LAAPE(decay_length_plus=1.2, decay_length_minus=2.4, rotary=rotary),
    "laspe": lambda rotary: ff.LASPE(1.0, rotary=rotary),
}
GRIDS = st.one_of(
    st.tuples(st.integers(80, 130)),
    st.tuples(st.integers(20, 45), st.integers(20, 45)),
    st.tuples(st.integers(17, 22), st.integers(17, 22), st.integers(17, 22)),
)


def small_blocks(monkeypatch):
    """Blocks so small that three axes have windows worth making on grids that a test can afford."""
    from farfield.attention import grid

    monkeypatch.setattr(grid, "_BLOCK", {1: 8, 2: 4, 3: 3})
    grid_plan.cache_clear()


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("tokens", [(97,), (31, 40), (13, 14, 15)])
def test_it_equals_the_reference_with_gradients(name, tokens, monkeypatch):
    small_blocks(monkeypatch)
    torch.manual_seed(0)
    encoding = ENCODINGS[name](ff.RoPE(40.0, 2.0))
    if name == "laape":
        encoding = ff.LAAPE([[1.5] * len(tokens), [2.0] * len(tokens)], rotary=ff.RoPE(40.0, 2.0))
    spacing = (2.0, 1.5, 2.5)[: len(tokens)]
    plan = grid_plan(tokens, spacing, (False,) * len(tokens), reach_of(encoding, spacing, 1e-7))
    assert plan is not None
    q, k, v = qkv(tokens)
    got = grid_attention(q, k, v, plan, encoding)
    expected = ff.local_attention(q, k, v, points(tokens, spacing), encoding=encoding, backend="reference")
    assert torch.allclose(got, expected, atol=1e-4)
    upstream = torch.randn_like(got)
    for a, b in zip(
        torch.autograd.grad(got, (q, k, v), upstream), torch.autograd.grad(expected, (q, k, v), upstream), strict=True
    ):
        assert torch.allclose(a, b, atol=1e-3)
    grid_plan.cache_clear()


@settings(max_examples=15, deadline=None)
@given(tokens=GRIDS, seed=st.integers(0, 1000), learned=st.booleans())
def test_any_grid_equals_the_reference(tokens, seed, learned):
    torch.manual_seed(seed)
    dim = len(tokens)
    encoding = ff.LAAPE(
        [[1.0] * dim, [1.4] * dim],
        learned=learned,
        max_decay_length=1.4 if learned else None,
        rotary=ff.RoPE(30.0, 4.0),
    )
    spacing = (2.0,) * dim
    plan = grid_plan(tokens, spacing, (False,) * dim, reach_of(encoding, spacing, 1e-7))
    assert plan is not None or dim == 3
    if plan is None:
        return
    q, k, v = qkv(tokens, batch=1)
    with torch.no_grad():
        got = grid_attention(q, k, v, plan, encoding)
        some = torch.randperm(q.shape[2])[:200]  # the whole matrix of a cube would not fit
        where = points(tokens, spacing)
        expected = ff.local_attention(q[:, :, some], k, v, where[some], where, encoding=encoding, backend="reference")
    assert torch.allclose(got[:, :, some], expected, atol=1e-4)


@pytest.mark.parametrize("periodic", [(True, False), (False, True), (True, True)])
def test_a_periodic_axis_is_the_endlessly_repeated_domain(periodic):
    torch.manual_seed(1)
    tokens, spacing = (11, 18), (1.0, 1.0)
    encoding = ff.LAAPE(1.0, rotary=ff.RoPE(17.0, 2.0))  # wavelengths that do not divide the period
    plan = grid_plan(tokens, spacing, periodic, reach_of(encoding, spacing, 1e-7))
    assert plan is not None
    q, k, v = (t.detach() for t in qkv(tokens, batch=1))
    times = [3 if wraps else 1 for wraps in periodic]
    wide = tuple(n * t for n, t in zip(tokens, times, strict=True))
    repeated = [t.unflatten(2, tokens).repeat(1, 1, *times, 1).flatten(2, 3) for t in (q, k, v)]
    expected = ff.local_attention(*repeated, points(wide, spacing), encoding=encoding, backend="reference")
    expected = expected.unflatten(2, wide)
    for axis, (n, wraps) in enumerate(zip(tokens, periodic, strict=True)):
        expected = expected.narrow(axis + 2, n if wraps else 0, n)
    assert torch.allclose(grid_attention(q, k, v, plan, encoding).unflatten(2, tokens), expected, atol=1e-4)


def test_bfloat16_is_the_same_to_its_own_rounding():
    torch.manual_seed(2)
    encoding = ff.LASPE([[1.0, 1.0], [1.5, 1.5]], rotary=ff.RoPE(40.0, 2.0))
    plan = grid_plan((40, 40), (1.0, 1.0), (False, False), reach_of(encoding, (1.0, 1.0), 1e-5))
    q, k, v = (t.detach() for t in qkv((40, 40)))
    whole = grid_attention(q, k, v, plan, encoding)
    half = grid_attention(*(t.bfloat16() for t in (q, k, v)), plan, encoding)
    assert half.dtype == torch.bfloat16
    assert float((half - whole).norm() / whole.norm()) < 0.01


def test_what_is_left_out_is_below_the_tolerance():
    """The first key beyond the reach has a kernel below the tolerance, the last one within it above."""
    for encoding in (ff.LAAPE(3.0), ff.LASPE(3.0), ff.LAAPE(decay_length_plus=2.0, decay_length_minus=5.0)):
        (reach,) = reach_of(encoding, (1.0,), 1e-3)
        steps = torch.arange(-60, 61, dtype=torch.float64)
        kernel = torch.exp(-(encoding.penalty(steps[:, None]) - encoding.floor(1)))
        beyond = steps.abs() > reach
        assert float(kernel[beyond].max()) < 1e-3 <= float(kernel[steps.abs() == reach].max())


def test_encodings_without_a_reach_have_no_plan():
    assert reach_of(ff.RoPE(), (1.0, 1.0), 1e-3) is None
    assert grid_plan((16, 16), (1.0, 1.0), (False, False), (8, 8)) is None
