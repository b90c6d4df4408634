"""The compiled kernel beside the rounds of the fused one, and the laws that it rests on."""

import copy
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import DECOMPOSING, make_encoding, problems

import farfield as ff
from farfield.attention import sweep, sweep_kernel, tiled
from farfield.attention.plan import FINEST


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def swept(problem, **options):
    """The tiled backend's answer, where it comes from the kernel: not where tiles are tens of decay lengths wide."""
    with mock.patch.object(tiled, "swept", wraps=tiled.swept) as kernel, torch.no_grad():
        out = problem.attend(backend="tiled", **options)
    assume(kernel.called)
    return out


def error_over_values(out, expected, problem):
    """The largest error of a query over the largest value; what is promised by query, the adversarial clouds test."""
    return float((out - expected).norm(dim=-1).max() / problem.v.norm(dim=-1).max())


@settings(max_examples=40)
@given(problems(names=DECOMPOSING, max_points=300, width=400.0), st.sampled_from([1e-2, 1e-4]))
def test_the_kernel_equals_the_formula_within_the_tolerance(problem, tolerance):
    with torch.no_grad():
        expected = problem.attend(backend="reference")
    assert error_over_values(swept(problem, tolerance=tolerance), expected, problem) < tolerance


@settings(max_examples=20)
@given(problems(names=DECOMPOSING, max_points=300, width=400.0))
def test_the_kernel_and_the_rounds_agree(problem):
    with mock.patch.object(tiled, "serves", return_value=False), torch.no_grad():
        in_rounds = problem.attend(backend="tiled", tolerance=1e-4)
    assert error_over_values(swept(problem, tolerance=1e-4), in_rounds, problem) < 2e-4


@settings(max_examples=30)
@given(
    st.sampled_from(DECOMPOSING),
    st.integers(1, 3),
    st.sampled_from(["one", "axis", "head"]),
    st.booleans(),
    st.integers(0, 2**16),
)
def test_key_channels_are_shifted_by_a_matrix(name, space_dim, per, rotated, seed):
    generator = torch.Generator().manual_seed(seed)
    encoding = make_encoding(name, space_dim, 2, 8, per, rotated, generator).double()
    places, offset = (200 * torch.randn(n, space_dim, generator=generator, dtype=torch.float64) for n in (7, 1))
    shift = encoding.channel_shift(offset[0])
    expected = encoding.key_channels(places - offset)
    assert torch.allclose(encoding.key_channels(places) @ shift.mT, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_far_tiles_are_weighed_but_not_read(scale):
    points = 60 * torch.rand(4096, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 4096, 32, seed=s) for s in range(3))
    encoding = ff.LASPE(4.0, rotary=None)
    plan = ff.plan_attention(points, encoding=encoding)
    with torch.no_grad():
        out = ff.local_attention(scale * q, k, v, points, encoding=encoding, plan=plan)
        expected = ff.local_attention(scale * q, k, v, points, encoding=encoding, backend="reference")
    assert plan.pairs_sounded > 0
    assert plan.pairs_read < 0.4 * 4096**2
    assert float((out - expected).norm(dim=-1).max()) < 1e-4 * float(v.norm(dim=-1).mean())


def over_allowed(q, k, v, *positions, encoding, tolerance=1e-4, in_rounds=False):
    """The largest error of a query over what the certificate promises it, against the formula in float64."""
    with torch.no_grad(), mock.patch.object(tiled, "serves", (lambda *_: False) if in_rounds else tiled.serves):
        out = ff.local_attention(q, k, v, *positions, encoding=encoding, backend="tiled", tolerance=tolerance).double()
        q, k, v = (t.double() for t in (q, k, v))
        sizes = v.norm(dim=-1, keepdim=True)
        exact = copy.deepcopy(encoding).double()
        both = ff.local_attention(q, k, torch.cat([v, sizes], -1), *positions, encoding=exact, backend="reference")
    allowed = tolerance * torch.maximum(both[..., -1], tolerance * sizes[..., 0].amax(-1, keepdim=True))
    return float(((out - both[..., :-1]).norm(dim=-1) / allowed.clamp(min=1e-300)).max())


def test_small_weights_of_many_keys_are_not_rounded_away():
    keys, queries = torch.rand(65536, 1, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.5]])
    q, k, v = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 65536, 4), torch.full((1, 1, 65536, 4), 0.1)
    assert over_allowed(q, k, v, queries, keys, encoding=ff.LASPE(100.0, rotary=None)) <= 1


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_weight_of_zero_on_the_potential_reads_every_key(in_rounds):
    points = 300 * torch.rand(700, 1, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 700, 8, seed=s) for s in range(3))
    encoding = ff.FlashBias(6.0, 2, 8, rotary=None)
    torch.nn.init.constant_(encoding.bias, -200.0)  # whose softplus is zero
    assert over_allowed(q, k, v, points, encoding=encoding, in_rounds=in_rounds) <= 1


@pytest.mark.parametrize("in_rounds", [False, True])
def test_a_head_without_values_does_not_keep_others_from_longer_lists(in_rounds):
    points = torch.linspace(0, 400, 1600)[:, None]
    q, k, v = (normal(1, 2, 1600, 2, seed=s) for s in range(3))
    q[:, 0] *= 1000
    v[:, 0] = 0
    q[:, 1], k[:, 1, 1500] = torch.tensor([12.0, 0.0]), torch.tensor([40.0, 0.0])
    encoding = ff.LASPE(3.0, rotary=None)
    assert over_allowed(q, k, v, points, encoding=encoding, tolerance=0.1, in_rounds=in_rounds) <= 1


@pytest.mark.parametrize("in_rounds", [False, True])
@pytest.mark.parametrize("kind", [ff.LASPE, ff.LAAPE])
def test_learned_lengths_may_be_far_below_their_bound(kind, in_rounds):
    keys = 10 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 300, 8, seed=s) for s in range(3))
    for length in (10.0, 1.0):
        encoding = kind(length, learned=True, max_decay_length=100.0, rotary=None)
        assert (
            over_allowed(q, k, v, keys + torch.tensor([100.0, 0.0]), keys, encoding=encoding, in_rounds=in_rounds) <= 1
        )


def test_huge_values_do_not_overflow():
    points = torch.linspace(0, 10, 512)[:, None]
    q, k, v = (normal(1, 1, 512, 8, seed=s) for s in range(3))
    k[:, :, 256:], k[:, :, 400:] = 0.0, 20 * q[:, :, :1]
    with torch.no_grad():
        out = ff.local_attention(q, k, 1e14 * v, points, encoding=ff.LAAPE(5.0, rotary=None), backend="tiled")
    assert torch.isfinite(out).all()


def test_a_diverged_batch_entry_changes_no_other():
    points = 100 * torch.rand(1500, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(2, 2, 1500, 8, seed=s) for s in range(3))
    encoding = ff.FlashBias(4.0, 2, 8)
    broken = q.clone()
    broken[0] = torch.nan
    with torch.no_grad():
        out, whole = (
            ff.local_attention(some, k, v, points, encoding=encoding, backend="tiled") for some in (broken, q)
        )
    assert torch.allclose(out[1], whole[1], atol=1e-3)


def test_tangents_of_learned_lengths_are_refused_not_dropped():
    points, q = 100 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0)), normal(1, 2, 300, 8)
    encoding = ff.LASPE(10.0, learned=True, max_decay_length=20.0).requires_grad_(False)
    raw = encoding.decay_length.raw
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        encoding.decay_length._parameters["raw"] = torch.autograd.forward_ad.make_dual(raw, torch.ones_like(raw))
        ff.local_attention(q, q, q, points, encoding=encoding, backend="tiled")


def test_the_kernel_is_made_for_the_tiles_that_plans_make():
    assert sweep_kernel.ROWS == sweep_kernel.KEYS == sweep.KEYS == FINEST


def test_logits_that_rise_far_beyond_those_of_the_nearest_keys_do_not_overflow():
    points = torch.linspace(0, 10, 512)[:, None]
    q, k, v = (normal(1, 1, 512, 8, seed=s) for s in range(3))
    k[:, :, 400:] = 40 * q[:, :, :1]  # the first query's logits there are in the hundreds
    encoding = ff.LAAPE(5.0, rotary=None)
    with torch.no_grad():
        out, expected = (
            ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, tolerance=1e-2)
            for backend in ("tiled", "reference")
        )
    assert torch.isfinite(out).all()
    assert float((out - expected).norm(dim=-1).max()) < 1e-2 * float(v.norm(dim=-1).max())


def test_a_diverged_query_changes_no_other():
    points = 100 * torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 300, 16, seed=s) for s in range(3))
    broken = q.clone()
    broken[0, 0, 17] = torch.nan
    with torch.no_grad():
        out, whole = (
            ff.local_attention(some, k, v, points, encoding=ff.LAAPE(10.0), backend="tiled") for some in (broken, q)
        )
    others = torch.arange(300) != 17
    assert torch.isnan(out[0, 0, 17]).all()
    assert torch.allclose(out[:, :, others], whole[:, :, others], atol=1e-4)


def test_threads_change_nothing():
    points = 100 * torch.rand(2000, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = (normal(1, 2, 2000, 16, seed=s) for s in range(3))
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            with torch.no_grad():
                results.append(ff.local_attention(q, k, v, points, encoding=ff.LASPE(5.0), backend="tiled"))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_who_needs_gradients_or_float64_goes_by_rounds():
    points = 100 * torch.rand(200, 1, generator=torch.Generator().manual_seed(0))
    q = normal(1, 1, 200, 8)
    with mock.patch.object(tiled, "swept") as kernel:
        ff.local_attention(q.clone().requires_grad_(), q, q, points, encoding=ff.LASPE(5.0), backend="tiled")
        ff.local_attention(q.double(), q.double(), q.double(), points, encoding=ff.LASPE(5.0), backend="tiled")
    assert not kernel.called
