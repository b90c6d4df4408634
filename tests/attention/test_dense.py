import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import DECOMPOSING, NAMES, make_encoding, problems, relative_error

import farfield as ff


@given(problems(names=DECOMPOSING))
def test_dense_equals_the_formula(problem):
    assert relative_error(problem.attend(backend="dense"), problem.attend(backend="reference")) < 1e-5


@settings(max_examples=12)
@given(problems(names=DECOMPOSING, dtype=torch.float64, max_points=5), st.sampled_from(["dense", "reference"]))
def test_gradients_are_those_of_finite_differences(problem, backend):
    leaves = [leaf.detach().requires_grad_() for leaf in problem.leaves()[:3]]

    def attend(q, k, v):
        problem.q, problem.k, problem.v = q, k, v
        return problem.attend(backend=backend)

    assert torch.autograd.gradcheck(attend, leaves)


@given(problems(names=NAMES, dtype=torch.float64), st.integers(-10_000, 10_000))
def test_a_common_shift_leaves_attention_unchanged(problem, shift):
    """Up to 10^4 decay lengths; positions are multiples of 1/4 so that the shifted ones are exact in float32."""
    problem.encoding.to(torch.float32)
    problem.q, problem.k, problem.v = problem.q.float(), problem.k.float(), problem.v.float()
    backend = "dense" if problem.encoding.decomposes else "reference"

    def attend_at(offset):
        moved = [None if p is None else ((p * 4).round() / 4 + offset).float() for p in positions]
        problem.query_positions, problem.key_positions = moved
        return problem.attend(backend=backend)

    positions = (problem.query_positions, problem.key_positions)
    at_origin = attend_at(0.0)
    # the shift by 250 units per step stays a multiple of 1/4 below 2^24 / 4: representable
    assert relative_error(attend_at(250.0 * shift), at_origin) < 1e-4
    assert torch.isfinite(at_origin).all()


@pytest.mark.parametrize(("name", "local"), [("laspe", True), ("laape", True), ("rope", False)])
@pytest.mark.parametrize("space_dim", [1, 2, 3])
def test_enlarging_the_domain_leaves_the_interior_unchanged_only_if_attention_is_local(name, local, space_dim):
    generator = torch.Generator().manual_seed(0)
    encoding = {"laspe": ff.LASPE(50.0), "laape": ff.LAAPE(50.0), "rope": ff.RoPE()}[name]
    inner = 1000 * torch.rand(300, space_dim, generator=generator)
    direction = torch.nn.functional.normalize(torch.randn(300, space_dim, generator=generator), dim=-1)
    far = 500 + direction * (1200 + 4000 * torch.rand(300, 1, generator=generator))
    q, k, v = torch.randn(3, 1, 2, 600, 16, generator=generator)
    both = torch.cat([inner, far])
    small = ff.local_attention(q[:, :, :300], k[:, :, :300], v[:, :, :300], inner, encoding=encoding)
    large = ff.local_attention(q, k, v, both, encoding=encoding)[:, :, :300]
    assert (relative_error(large, small) < 1e-4) is local


@given(problems(names=NAMES))
def test_half_precision_inputs_are_computed_in_float32(problem):
    rounded = [t.bfloat16() for t in (problem.q, problem.k, problem.v)]
    backend = "dense" if problem.encoding.decomposes else "reference"
    problem.q, problem.k, problem.v = (t.float() for t in rounded)
    expected = problem.attend(backend=backend)
    problem.q, problem.k, problem.v = rounded
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = problem.attend(backend=backend)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, expected.bfloat16())


@pytest.mark.parametrize("name", [n for n in NAMES if n != "rope"])
def test_a_query_far_from_all_keys_attends_to_the_nearest(name):
    generator = torch.Generator().manual_seed(3)
    encoding = make_encoding(name, 2, 2, 8, "one", False, generator)
    keys = torch.tensor([[0.0, 0.0], [900.0, 0.0], [0.0, 900.0]])
    queries = torch.tensor([[1e6, 0.0], [10.0, 10.0]])
    q, k, v = torch.randn(1, 2, 2, 8), torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3, 8)
    out = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="reference")
    assert torch.allclose(out[:, :, 0], v[:, :, 1], atol=1e-6)
    zeroed = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="reference", empty="zero")
    assert torch.equal(zeroed[:, :, 0], torch.zeros(1, 2, 8))
    assert torch.equal(zeroed[:, :, 1], out[:, :, 1])


def test_laape_too_wide_for_dense_says_so_and_works_on_reference():
    points = torch.tensor([[0.0], [1e5]])
    q, k, v = torch.randn(3, 1, 1, 2, 8)
    with pytest.raises(ValueError, match=r"overflows in torch.float32 beyond .* use backend="):
        ff.local_attention(q, k, v, points, encoding=ff.LAAPE(250.0), backend="dense")
    out = ff.local_attention(q, k, v, points, encoding=ff.LAAPE(250.0), backend="reference")
    assert torch.allclose(out, v)


def _call(**changes):
    arguments = {
        "q": torch.randn(2, 3, 5, 8),
        "k": torch.randn(2, 3, 7, 8),
        "v": torch.randn(2, 3, 7, 8),
        "query_positions": torch.rand(5, 2),
        "key_positions": torch.rand(7, 2),
        "encoding": ff.LAAPE(1.0),
        "backend": "dense",
    }
    return ff.local_attention(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": torch.randn(3, 5, 8)}, r"q must have the shape .* got \(3, 5, 8\)"),
        ({"q": torch.ones(2, 3, 5, 8, dtype=torch.int64)}, "q must hold floating-point"),
        ({"k": torch.randn(2, 3, 7, 4)}, "must agree in batch, heads, keys and width"),
        ({"k": torch.randn(2, 3, 0, 8), "v": torch.randn(2, 3, 0, 8)}, "at least one key"),
        ({"query_positions": torch.rand(6, 2)}, r"query_positions must have the shape \(5, space axes\)"),
        ({"key_positions": torch.rand(3, 7, 2)}, "key_positions has a batch of 3, q has 2"),
        ({"key_positions": torch.rand(7, 3)}, "query_positions have 2 axes, key_positions have 3"),
        ({"query_positions": torch.full((5, 2), math.nan)}, "query_positions must be finite"),
        ({"key_positions": torch.full((7, 2), math.inf)}, "key_positions must be finite"),
        ({"encoding": "laape"}, "encoding must be one of farfield's encodings"),
        ({"encoding": ff.LASPE([1.0, 2.0, 3.0])}, "the encoding is for 3 axes, the positions have 2"),
        ({"encoding": ff.LASPE(torch.ones(4, 2))}, "the encoding is for 4 heads, q has 3"),
        ({"encoding": ff.FlashBias(1.0, 3, 16)}, "this FlashBias is for 3 heads of 16"),
        ({"encoding": ff.ALiBi(1.0)}, "ALiBi does not: use backend='reference'"),
        ({"backend": "flash"}, "backend must be one of auto, reference, dense"),
        ({"tolerance": 1.0}, "tolerance must lie between 0 and 1"),
        ({"empty": "nan"}, "empty must be 'nearest' or 'zero'"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        _call(**changes)
