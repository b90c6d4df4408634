"""The tolerance is a bound: adversarial clouds, gradients of everything, and what no input may break."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import NAMES, make_encoding, relative_error

import farfield as ff
from farfield.attention import flex, functional, rounds, tiled
from farfield.attention.kernel import weight_units, weights_from_above

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import adversarial_attention


def normal(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# 7: rows that read for themselves and with their tile; 161: weights of FlashBias near zero; 701: values a hundred times
# those of other queries of the tile; 1394: parts of a tile that have nothing left to look at
@torch.no_grad()
@pytest.mark.parametrize("seed", [7, 161, 701, 1394, *range(50_000, 50_025)])
def test_no_adversarial_cloud_is_above_the_tolerance(seed):
    case = adversarial_attention.draw_case(seed, 2000 if seed == 161 else 400)
    exact = adversarial_attention.exactly(case)
    for tolerance, dtype in adversarial_attention.TOLERANCES:
        for in_rounds in (False, True):
            assert adversarial_attention.ratio(case, exact, tolerance, dtype, in_rounds=in_rounds) <= 1


@torch.no_grad()
@pytest.mark.parametrize("encoding", [ff.LAAPE(30.0), ff.LASPE(30.0)], ids=["laape", "laspe"])
def test_a_few_spots_in_an_empty_field_are_not_lost(encoding):
    """What a sample of queries misses: six queries that look for six keys far away, where all others see nothing."""
    points = 10.0 * torch.stack(torch.meshgrid(*[torch.arange(80.0)] * 2, indexing="ij"), -1).reshape(-1, 2)
    q, k, v = (0.1 * normal(1, 1, 6400, 16, seed=s) for s in range(3))
    spots = torch.arange(300, 6300, 1000)
    k[:, :, spots], v[:, :, spots] = 6.0, 10.0
    q[:, :, spots + 8] = 6.0  # eight cells aside: Phi is 3.6 with LASPE, the logit 144
    out = ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled")
    q, k, v = q.double(), k.double(), v.double()
    exact = ff.local_attention(q, k, v, points, encoding=encoding, backend="dense")
    some = torch.cat([spots + 8, torch.arange(0, 6400, 100)])  # dense is the formula; the formula itself takes longer
    formula = ff.local_attention(q[:, :, some], k, v, points[some], points, encoding=encoding, backend="reference")
    assert (exact[:, :, some] - formula).abs().max() < 1e-12
    assert (out - exact).norm(dim=-1).max() <= 1e-4 * v.norm(dim=-1).max()
    assert (out[:, :, spots + 8] - v[:, :, spots]).abs().max() < 1e-3


@torch.no_grad()
def test_without_certificate_hardly_fewer_keys_are_read():
    points, encoding = 1000 * torch.rand(4000, 2, generator=torch.Generator().manual_seed(0)), ff.LASPE(60.0)
    q, k, v = (normal(1, 2, 4000, 32, seed=s) for s in range(3))
    plan = ff.plan_attention(points, encoding=encoding)
    exact = ff.local_attention(q, k, v, points, encoding=encoding, backend="reference")
    read = []
    for certify in (True, False):
        out = ff.local_attention(q, k, v, points, encoding=encoding, plan=plan, certify=certify)
        assert (out - exact).norm(dim=-1).max() <= 1e-4 * v.norm(dim=-1).max()
        read.append(plan.pairs_read)
    assert 0 < read[1] <= read[0] <= 1.2 * read[1] < 4000**2  # what certainty costs is only added up, not read


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masses_are_added_up_from_above(dtype):
    logits = 8 * normal(40, 500, dtype=dtype) - 20
    exact = logits.double().exp().sum(-1)
    unit, start = weight_units(dtype)
    found = weights_from_above(unit * logits + start, torch.empty_like(logits)).double().sum(-1)
    assert (found >= 0.9999 * exact).all() and (found <= 1.062 * exact).all()
    ends = unit * torch.tensor([[-1e4], [700.0]], dtype=dtype) + start
    huge = weights_from_above(ends, torch.empty_like(ends))
    assert huge[0] == 0 and huge[1] > 1e38


@torch.no_grad()
def test_a_far_key_that_one_query_points_at_is_found_by_sounding(monkeypatch):
    """What the estimate cannot know: only adding up the far keys one by one tells that these matter to that query."""
    points, encoding = torch.arange(4096.0)[:, None], ff.LASPE(60.0, rotary=None)
    q, k, v = (normal(1, 1, 4096, 32, seed=s) for s in range(3))
    query, far = 2047, slice(2047 + 290, 2047 + 330)  # Phi is 13.3 in their middle, the logit about 8
    q[:, :, query] *= 1.2
    k[:, :, far], v[:, :, far] = q[:, :, query], v[:, :, query]
    exact = ff.local_attention(
        q[:, :, query, None].double(), k.double(), v.double(), points[query, None], points, encoding=encoding,
        backend="reference",
    )  # fmt: skip
    plan = ff.plan_attention(points, encoding=encoding, query_tile=64, key_tile=16)
    monkeypatch.setattr(rounds, "WORTH_SOUNDING", 0)

    def error() -> float:
        out = ff.local_attention(q, k, v, points, encoding=encoding, plan=plan)
        return float((out[:, :, query, None] - exact).norm() / v.norm(dim=-1).max())

    assert error() <= 1e-4  # by the compiled kernel
    monkeypatch.setattr(tiled, "serves", lambda *_: False)
    assert error() <= 1e-4
    monkeypatch.setattr(rounds, "sound", lambda *_: ([], [], 0))
    assert error() > 1e-4


@pytest.mark.parametrize("fault", ["raises", "differs"])
def test_flex_is_not_trusted_where_it_fails(fault, monkeypatch, caplog):
    def broken(problem, plan, dtype):
        if fault == "raises":
            raise RuntimeError("no kernel image")
        return torch.zeros_like(problem.q)

    monkeypatch.setattr(functional, "flex", broken)
    assert not flex.agrees_with_tiled.__wrapped__(torch.device("cpu"))
    assert "attention takes backend='tiled' there instead" in caplog.text
    monkeypatch.setattr(functional, "flex", lambda problem, plan, dtype: functional.tiled(problem, plan))
    assert flex.agrees_with_tiled.__wrapped__(torch.device("cpu"))


@settings(max_examples=30)
@given(
    name=st.sampled_from([n for n in NAMES if n != "window"]),  # whose gradient in the positions is zero or infinite
    space_dim=st.integers(1, 3),
    cross=st.booleans(),
    batched=st.booleans(),
    backend=st.sampled_from(["tiled", "dense"]),
    width=st.sampled_from([300.0, 3000.0]),
    seed=st.integers(0, 1000),
)
def test_positions_get_the_gradients_of_the_formula(name, space_dim, cross, batched, backend, width, seed):
    generator = torch.Generator().manual_seed(seed)
    encoding = make_encoding(name, space_dim, 2, 8, "head", True, generator).double()
    if backend == "dense" and not encoding.decomposes:
        return
    shape = (2, 150, space_dim) if batched else (150, space_dim)
    queries, keys = (width * torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    leaves = [queries.requires_grad_(), *([keys.requires_grad_()] if cross else [])]
    q, k, v = (normal(2, 2, 150, 8, seed=seed + s, dtype=torch.float64) for s in range(3))
    slopes = []
    for used in (backend, "reference"):
        out = ff.local_attention(
            q, k, v, queries, keys if cross else None, encoding=encoding, backend=used, tolerance=1e-9
        )
        slopes.append(torch.autograd.grad((out * normal(*out.shape)).sum(), leaves))
    for mine, true in zip(*slopes, strict=True):
        assert (mine - true).norm() <= 1e-5 * true.norm() + 1e-12


@pytest.mark.filterwarnings("ignore")
def test_flex_has_the_gradients_of_the_formula(monkeypatch):
    """Uncompiled: torch refuses them on CPU, though it can compute them."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(functional, "flex", lambda *given: flex.flex(*given, compiled=False))
    points = (300 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0))).requires_grad_()
    encoding = ff.LAAPE([[40.0, 60.0], [30.0, 50.0]], learned=True, max_decay_length=100.0)
    leaves = [*(normal(1, 2, 300, 16, seed=s).requires_grad_() for s in range(3)), points, *encoding.parameters()]
    slopes = []
    for backend in ("flex", "reference"):
        out = ff.local_attention(*leaves[:4], encoding=encoding, backend=backend, tolerance=1e-6)
        slopes.append(torch.autograd.grad((out * normal(*out.shape)).sum(), leaves))
    for mine, true in zip(*slopes, strict=True):
        assert relative_error(mine, true) < 1e-5


def test_the_weight_of_flashbias_gets_its_gradient_where_tiles_are_formed_pair_by_pair():
    points = torch.cat([torch.linspace(0, 3, 50), torch.linspace(5000, 5003, 50)])[:, None].double()
    encoding = ff.FlashBias(1.0, 2, 8).double()
    torch.nn.init.normal_(encoding.weight, std=0.5, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 100, 8, seed=s, dtype=torch.float64) for s in range(3))
    slopes = []
    for backend in ("tiled", "reference"):
        out = ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, tolerance=1e-9)
        slopes.append(torch.autograd.grad((out * v).sum(), list(encoding.parameters())))
    for mine, true in zip(*slopes, strict=True):
        assert relative_error(mine, true) < 1e-7


@pytest.mark.parametrize("width", [1e3, 1e5])
def test_flashbias_is_right_or_refused_on_wide_domains(width):
    points = width * torch.rand(400, 2, generator=torch.Generator().manual_seed(0))
    encoding = ff.FlashBias(width / 1000, 2, 8)
    q, k, v = (normal(1, 2, 400, 8, seed=s) for s in range(3))
    exact = ff.local_attention(q.double(), k.double(), v.double(), points, encoding=encoding, backend="reference")
    for backend in ("tiled", "auto"):
        out = ff.local_attention(q, k, v, points, encoding=encoding, backend=backend)
        assert (out - exact).norm(dim=-1).max() < 1e-4 * v.norm(dim=-1).max()
    with pytest.raises(ValueError, match="loses its bias to rounding"):
        ff.local_attention(q, k, v, points, encoding=encoding, backend="dense")


@pytest.mark.parametrize("away", [9.0, 20.0, 36.0, 150.0])
@pytest.mark.parametrize("name", ["laspe", "laape", "flashbias", "alibi"])
@pytest.mark.parametrize("backend", ["reference", "dense", "tiled"])
def test_queries_far_from_every_key_are_right(name, away, backend):
    encoding = make_encoding(name, 2, 2, 8, "one", False, torch.Generator().manual_seed(0))
    length = float(encoding.decay_length.maximum) if name in ("laspe", "flashbias") else 100.0
    if name == "laape":
        length = float(encoding.decay_length_plus.maximum)
    if backend == "dense" and (not encoding.decomposes or away > (30 if name == "flashbias" else 40)):
        pytest.skip("refused there")
    keys = length * torch.rand(200, 2, generator=torch.Generator().manual_seed(1))
    queries = length * (torch.rand(100, 2, generator=torch.Generator().manual_seed(2)) + torch.tensor([away, 0.0]))
    queries[:50] -= length * torch.tensor([away, 0.0])  # half of them are at home
    q, k, v = normal(1, 2, 100, 8), normal(1, 2, 200, 8, seed=2), normal(1, 2, 200, 8, seed=3)
    exact = ff.local_attention(
        q.double(), k.double(), v.double(), queries.double(), keys.double(), encoding=encoding, backend="reference"
    )
    out = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend=backend)
    assert (out - exact).norm(dim=-1).max() < 1e-4 * v.norm(dim=-1).max()


@pytest.mark.parametrize("backend", ["reference", "dense", "tiled", "auto"])
def test_nothing_asked_is_answered_with_nothing(backend):
    points, encoding = torch.rand(7, 2), ff.LAAPE(1.0)
    k = normal(2, 3, 7, 8)
    assert ff.local_attention(
        normal(2, 3, 0, 8), k, k, torch.rand(0, 2), points, encoding=encoding, backend=backend
    ).shape == (2, 3, 0, 8)
    none = normal(0, 3, 7, 8)
    assert ff.local_attention(none, none, none, points, encoding=encoding, backend=backend).shape == (0, 3, 7, 8)
    from_numpy = ff.local_attention(k, k, k, np.asarray(points), encoding=encoding, backend=backend)
    assert torch.equal(from_numpy, ff.local_attention(k, k, k, points, encoding=encoding, backend=backend))


@pytest.mark.parametrize("broken", ["q", "k"])
def test_nan_in_one_point_neither_hangs_nor_spreads_beyond_its_reach(broken):
    points = torch.arange(3000.0)[:, None]
    q, k, v = (normal(1, 1, 3000, 8, seed=s) for s in range(3))
    {"q": q, "k": k}[broken][0, 0, 1500, 3] = torch.nan
    out = ff.local_attention(q, k, v, points, encoding=ff.LASPE(5.0), backend="tiled")
    exact = ff.local_attention(q, k, v, points, encoding=ff.LASPE(5.0), backend="reference")
    far = (points[:, 0] - 1500).abs() > 1200
    assert torch.isfinite(out[:, :, far]).all()
    if broken == "q":
        assert (out - exact)[:, :, far].norm(dim=-1).max() < 1e-4 * v.norm(dim=-1).max()


def test_second_derivatives_and_forward_mode_are_refused_with_a_sentence():
    points = torch.rand(50, 2)
    q = normal(1, 1, 50, 8).requires_grad_()
    out = ff.local_attention(q, q, q, points, encoding=ff.LAAPE(0.1), backend="tiled")
    with pytest.raises(NotImplementedError, match="no second derivatives: take backend='reference'"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
        ff.local_attention(dual, dual, dual, points, encoding=ff.LAAPE(0.1), backend="tiled")

    out = ff.local_attention(q, q, q, points, encoding=ff.LAAPE(0.1), backend="dense")
    with pytest.raises(NotImplementedError, match="the dense backend has no second derivatives"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
    tangents = []
    for backend in ("dense", "reference"):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
            out = ff.local_attention(dual, dual, dual, points, encoding=ff.LAAPE(0.1), backend=backend)
            tangents.append(torch.autograd.forward_ad.unpack_dual(out).tangent)
    assert relative_error(*tangents) < 1e-5

    def formula(q):
        return ff.local_attention(q, q, q, points.double(), encoding=ff.LAAPE(0.1), backend="reference")

    small = normal(1, 1, 50, 4, dtype=torch.float64).requires_grad_()
    slope = torch.autograd.grad(formula(small).square().sum(), small, create_graph=True)[0]
    assert torch.isfinite(torch.autograd.grad(slope.square().sum(), small)[0]).all()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(small.detach(), torch.ones_like(small))
        assert torch.autograd.forward_ad.unpack_dual(formula(dual)).tangent is not None


def test_empty_zero_takes_linear_time():
    """Twenty thousand queries and keys, most out of reach of one another: the matrix would take minutes."""
    keys = torch.arange(20_000.0)[:, None] * 10
    queries = keys + 3000 * (torch.arange(20_000)[:, None] % 2)
    queries[1::2] += 1e6
    encoding, x = ff.LAAPE(5.0), normal(1, 1, 20_000, 4)
    out = ff.local_attention(x, x, x, queries, keys, encoding=encoding, backend="tiled", empty="zero")
    assert (out[0, 0, 1::2] == 0).all() and (out[0, 0, ::2] != 0).any(-1).all()
    some = torch.arange(0, 20_000, 501)
    part = ff.local_attention(
        x[:, :, some], x, x, queries[some], keys, encoding=encoding, backend="reference", empty="zero"
    )
    assert torch.equal(part == 0, out[:, :, some] == 0)
