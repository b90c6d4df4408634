"""The compiled kernel beside the rounds of the fused one, and the laws that it rests on."""

from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import DECOMPOSING, make_encoding, problems

import farfield as ff
from farfield.attention import tiled


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def swept(problem, **options):
    """The tiled backend's answer, where it comes from the kernel: not where tiles are tens of decay lengths wide."""
    with mock.patch.object(tiled, "swept", wraps=tiled.swept) as kernel, torch.no_grad():
        out = problem.attend(backend="tiled", **options)
    assume(kernel.called)
    return out


def error_over_values(out, expected, problem):
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
