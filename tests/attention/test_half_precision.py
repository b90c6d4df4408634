"""Half precision, forced on every machine: q, k and v may be rounded, positions and the bias are not."""

import warnings

import pytest
import torch

import farfield as ff
from farfield.attention import checks
from farfield.attention.checks import make_cloud

HALF = [torch.bfloat16, torch.float16]
ENCODINGS = {
    "rope": ff.RoPE(),
    "laspe": ff.LASPE([40.0, 60.0]),
    "laape": ff.LAAPE(decay_length_plus=[40.0, 50.0], decay_length_minus=[80.0, 60.0]),
    "alibi": ff.ALiBi(slope=0.05),
    "window": ff.Window(radius=90.0),
}
BACKENDS = ["reference", "dense", "tiled"]


def problem(points: int = 300):
    generator = torch.Generator().manual_seed(0)
    where = 1000 * torch.rand(points, 2, generator=generator)
    return where, *(torch.randn(1, 2, points, 16, generator=generator) for _ in range(3))


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("name", "backend"), [(n, b) for n in ENCODINGS for b in BACKENDS if b != "dense" or ENCODINGS[n].decomposes]
)
def test_autocast_rounds_neither_positions_nor_bias(name, backend, dtype):
    encoding = ENCODINGS[name]
    where, q, k, v = problem()
    q.requires_grad_()
    expected = ff.local_attention(q, k, v, where, encoding=encoding, backend="reference")
    slope = torch.autograd.grad(expected.square().sum(), q)[0]
    with torch.autocast("cpu", dtype=dtype):
        out = ff.local_attention(q, k, v, where, encoding=encoding, backend=backend, tolerance=1e-5)
    torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), q)[0], slope, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", HALF)
def test_half_positions_are_raised_and_pointed_out_once(dtype, monkeypatch):
    monkeypatch.setattr(checks, "_said_half", False)
    where, q, k, v = problem()
    rounded, encoding = where.to(dtype), ENCODINGS["laape"]
    with pytest.warns(UserWarning, match=rf"positions came in {dtype}, which rounds a coordinate of 1000"):
        ff.local_attention(q, k, v, rounded, encoding=encoding)
    with warnings.catch_warnings(action="error"):  # said once
        for backend in BACKENDS:
            out = ff.local_attention(q, k, v, rounded, encoding=encoding, backend=backend)
            assert torch.equal(out, ff.local_attention(q, k, v, rounded.float(), encoding=encoding, backend=backend))


@pytest.mark.filterwarnings("ignore:positions came in")
@pytest.mark.parametrize("dtype", [*HALF, torch.float32, torch.float64])
def test_points_of_any_dtype_have_a_plan(dtype):
    where, encoding = problem()[0].to(dtype), ENCODINGS["laape"]
    plan = ff.plan_attention(where, encoding=encoding)
    plan.check(make_cloud(where.clone(), None, encoding), encoding)
    with pytest.raises(ValueError, match="the plan was built for other query_positions"):
        plan.check(make_cloud(where + 8, None, encoding), encoding)
