"""The sparse backends against the formula: random clouds, graded meshes, far queries, large logits, gradients."""

import math
import pickle
import re
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import NAMES, make_encoding, problems, relative_error

import farfield as ff
from farfield.attention import flex
from farfield.attention.plan import FLEX_BLOCK, typical_reach
from farfield.studies.kernels import draw_plan


def jittered_grid(per_side, spacing, space_dim=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    axes = torch.meshgrid(*[torch.arange(per_side)] * space_dim, indexing="ij")
    points = torch.stack(axes, -1).reshape(-1, space_dim).double()
    points = (points + 0.5 * (torch.rand(points.shape, generator=generator, dtype=torch.float64) - 0.5)) * spacing
    return points[torch.randperm(len(points), generator=generator)]


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(problems(names=NAMES, max_points=600))
def test_tiled_equals_the_formula_within_the_tolerance(problem):
    assert relative_error(problem.attend(backend="tiled"), problem.attend(backend="reference")) < 1e-4


@settings(max_examples=15)
@given(problems(names=NAMES, max_points=400), st.sampled_from([1e-2, 1e-3, 1e-6]))
def test_the_error_follows_the_tolerance(problem, tolerance):
    error = relative_error(problem.attend(backend="tiled", tolerance=tolerance), problem.attend(backend="reference"))
    assert error < max(tolerance, 3e-6)


@settings(max_examples=20)
@given(problems(names=NAMES, max_points=300, dtype=torch.float64))
def test_gradients_equal_those_of_the_formula(problem):
    leaves = [leaf.requires_grad_() for leaf in problem.leaves()]
    outputs = {backend: problem.attend(backend=backend, tolerance=1e-8) for backend in ("tiled", "reference")}
    direction = normal(*outputs["tiled"].shape).double()
    tiled, reference = (
        torch.autograd.grad((out * direction).sum(), leaves, allow_unused=True) for out in outputs.values()
    )
    for mine, expected in zip(tiled, reference, strict=True):
        if expected is not None:
            assert torch.allclose(mine, expected, rtol=1e-5, atol=1e-6)


def test_learned_decay_lengths_get_the_gradients_of_the_formula():
    points = jittered_grid(24, 20.0)
    encoding = ff.LAAPE(
        decay_length_plus=[[30.0, 20.0], [15.0, 40.0]],
        decay_length_minus=[[20.0, 20.0], [25.0, 10.0]],
        learned=True,
        max_decay_length=[[60.0, 60.0], [50.0, 60.0]],
    ).double()
    q, k, v = (normal(2, 2, len(points), 6, seed=s).double() for s in range(3))
    gradients = {}
    for backend in ("tiled", "reference"):
        out = ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, tolerance=1e-9)
        gradients[backend] = torch.autograd.grad((out * v).sum(), list(encoding.parameters()))
    for mine, expected in zip(gradients["tiled"], gradients["reference"], strict=True):
        assert torch.allclose(mine, expected, rtol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("encoding", [ff.LAAPE(60.0), ff.LASPE(60.0), ff.ALiBi(1 / 30)], ids=lambda e: type(e).__name__)
def test_large_logits_keep_the_error_within_the_tolerance(encoding, scale):
    """q and k scaled by 4 have logits with a standard deviation of 16: single far keys may win."""
    points = jittered_grid(64, 8.0).float()
    q, k, v = (normal(1, 1, len(points), 64, seed=s) for s in range(3))
    some = torch.arange(0, len(points), 3)
    q, k = scale * q, scale * k
    expected = ff.local_attention(q[:, :, some], k, v, points[some], points, encoding=encoding, backend="reference")
    result = ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled")[:, :, some]
    assert relative_error(result, expected) < 1e-4


@settings(max_examples=30)
@given(
    name=st.sampled_from(["laspe", "laape", "alibi"]),
    space_dim=st.integers(1, 2),
    per_side=st.integers(5, 22),
    cells=st.floats(0.7, 12.0),
    aside=st.integers(-5, 5),
    sharpness=st.floats(0.1, 6.0),
)
def test_grids_with_short_decay_lengths_and_layers_that_look_aside(name, space_dim, per_side, cells, aside, sharpness):
    """As trained layers do: a query seeks the key some cells away, however little the potential leaves of it.

    Tiles are many decay lengths wide here, and points lie on their very edges.
    """
    line = 8.0 * torch.arange(per_side if space_dim == 2 else 25 * per_side)
    points = torch.stack(torch.meshgrid(*[line] * space_dim, indexing="ij"), -1).reshape(-1, space_dim)
    lengths = [[8 * cells] * space_dim, [16 * cells] * space_dim]
    encoding = {
        "laspe": lambda: ff.LASPE(lengths, rotary=None),
        "laape": lambda: ff.LAAPE(lengths, rotary=None),
        "alibi": lambda: ff.ALiBi(1 / (8 * cells), rotary=None),
    }[name]()
    k, v = (normal(1, 2, len(points), 16, seed=s) for s in range(2))
    q = sharpness * k.roll(aside, dims=2)
    tiled, formula = (
        ff.local_attention(q, k, v, points, encoding=encoding, backend=backend) for backend in ("tiled", "reference")
    )
    assert relative_error(tiled, formula) < 1e-4


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_diverged_query_spoils_no_other(wrong):
    """Rollouts of a diverging model go on: its attention must end, and be right where its inputs are."""
    points = jittered_grid(24, 8.0).float()
    q, k, v = (normal(1, 1, len(points), 16, seed=s) for s in range(3))
    q[0, 0, 7, 3] = wrong
    sound = torch.arange(len(points)) != 7
    tiled, formula = (
        ff.local_attention(q, k, v, points, encoding=ff.LAAPE(20.0), backend=backend)[:, :, sound]
        for backend in ("tiled", "reference")
    )
    assert relative_error(tiled, formula) < 1e-4


def graded_cloud(points=3000, seed=0):
    """Like a CFD mesh around buildings: dense near a few spots, sparse far away, flat in z."""
    generator = torch.Generator().manual_seed(seed)
    spots = 1000 * torch.rand(5, 3, generator=generator)
    near = spots[torch.randint(5, (points,), generator=generator)]
    distance = 500 * torch.rand(points, 1, generator=generator) ** 4
    direction = torch.nn.functional.normalize(torch.randn(points, 3, generator=generator), dim=-1)
    return near + distance * direction * torch.tensor([1.0, 1.0, 0.3])


@pytest.mark.parametrize(
    "encoding",
    [
        ff.LAAPE(decay_length_plus=[40.0, 60.0, 80.0], decay_length_minus=[90.0, 60.0, 80.0]),
        ff.LASPE([40.0, 60.0, 80.0]),
        ff.LAAPE(torch.tensor([[10.0] * 3, [40.0] * 3, [40.0] * 3])),
    ],
    ids=["asymmetric", "gaussian", "per-head"],
)
def test_graded_meshes_and_anchors(encoding):
    points = graded_cloud()
    anchors = points[::6]
    q, k, v = (normal(1, 3, n, 16, seed=n) for n in (len(points), len(anchors), len(anchors)))
    expected = ff.local_attention(q, k, v, points, anchors, encoding=encoding, backend="reference")
    result = ff.local_attention(q, k, v, points, anchors, encoding=encoding, backend="tiled")
    assert relative_error(result, expected) < 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "points",
    [
        torch.tensor([[3.0, 4.0]]),
        torch.zeros(700, 2),
        torch.linspace(0, 5000, 1500)[:, None] * torch.tensor([1.0, -0.5]),
        torch.cat([torch.zeros(400, 2), torch.full((300, 2), 4000.0)]),
    ],
    ids=["one point", "all equal", "on a line", "two clusters"],
)
def test_awkward_clouds(name, points):
    generator = torch.Generator().manual_seed(0)
    encoding = make_encoding(name, 2, 2, 8, "head", True, generator)
    q, k, v = (normal(1, 2, len(points), 8, seed=s) for s in range(3))
    expected = ff.local_attention(q, k, v, points, encoding=encoding, backend="reference")
    assert relative_error(ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled"), expected) < 1e-4


@pytest.mark.parametrize("name", [n for n in NAMES if n != "rope"])
def test_queries_in_and_far_outside_the_keys_region_follow_the_formula(name):
    """Tiles of queries that reach from among the keys to hundreds of decay lengths away."""
    generator = torch.Generator().manual_seed(2)
    encoding = make_encoding(name, 2, 2, 8, "axis", False, generator).double()
    keys = 500 * torch.rand(900, 2, generator=generator, dtype=torch.float64)
    queries = torch.linspace(0, 1, 1200, dtype=torch.float64)[:, None] ** 3 * 1e5 * torch.ones(2, dtype=torch.float64)
    q, k, v = (normal(1, 2, n, 8, seed=n).double() for n in (1200, 900, 900))
    expected = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="reference")
    result = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="tiled")
    assert torch.isfinite(result).all()
    assert relative_error(result, expected) < 1e-4
    zeroed = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="tiled", empty="zero")
    expected = ff.local_attention(q, k, v, queries, keys, encoding=encoding, backend="reference", empty="zero")
    assert torch.equal(zeroed == 0, expected == 0)
    assert (zeroed[0, 0, -1] == 0).all()


@pytest.mark.parametrize("encoding", [ff.LAAPE(250.0), ff.LASPE(250.0)], ids=["LAAPE", "LASPE"])
def test_a_shift_by_ten_thousand_decay_lengths_changes_nothing_even_in_bfloat16(encoding):
    """Positions are multiples of 1/4: float32 holds them exactly at the origin and 2.5 million units away."""
    points = (jittered_grid(40, 1000 / 40) * 4).round().div(4).float()
    q, k, v = (normal(1, 2, len(points), 16, seed=s).bfloat16() for s in range(3))
    at_origin = ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled").float()
    far = ff.local_attention(q, k, v, points + 2_500_000.0, encoding=encoding, backend="tiled").float()
    exact = ff.local_attention(
        q.double(), k.double(), v.double(), points.double(), encoding=encoding, backend="reference"
    )
    assert torch.equal(far, at_origin)
    assert relative_error(at_origin.double(), exact) < 4e-3  # the output's own rounding to bfloat16


@pytest.mark.parametrize("encoding", [ff.LAAPE(1.0), ff.LASPE(1.0)], ids=["LAAPE", "LASPE"])
def test_domains_a_thousand_decay_lengths_wide_work(encoding):
    points = torch.linspace(0, 1000, 3000, dtype=torch.float64)[:, None]
    q, k, v = (normal(1, 1, 3000, 16, seed=s) for s in range(3))
    expected = ff.local_attention(q, k, v, points, encoding=encoding, backend="reference")
    assert relative_error(ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled"), expected) < 1e-4


SPARSE = {
    "laspe": ff.LASPE(1.0),
    "laape": ff.LAAPE(1.0),
    "per head": ff.LAAPE([[1.0], [3.0]]),
    "learned": ff.LASPE(1.0, learned=True, max_decay_length=2.0),
}


@pytest.mark.parametrize("backend", ["auto", "tiled"])
@pytest.mark.parametrize("encoding", SPARSE.values(), ids=SPARSE)
def test_points_so_sparse_that_a_tile_is_hundreds_of_decay_lengths_wide(encoding, backend):
    """Clusters far apart share a tile, whose centre is then as far an origin as any."""
    clusters = torch.tensor([-5e5, -700.0, -30.0, 0.0, 50.0, 900.0, 5e5], dtype=torch.float64)
    points = (clusters[:, None] + torch.linspace(0, 3, 40, dtype=torch.float64)).reshape(-1, 1)
    leaves = [normal(1, 2, len(points), 16, seed=i).requires_grad_() for i in range(3)] + list(encoding.parameters())
    q, k, v = leaves[:3]
    out = ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, tolerance=1e-5)
    exact = ff.local_attention(q.double(), k.double(), v.double(), points, encoding=encoding, backend="reference")
    assert relative_error(out, exact) < 1e-4
    direction = normal(*out.shape)
    ours, expected = (torch.autograd.grad((o * direction).sum(), leaves) for o in (out, exact))
    for mine, true in zip(ours, expected, strict=True):
        assert relative_error(mine, true) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    points = jittered_grid(30, 30.0)
    q, k, v = (normal(1, 2, len(points), 16, seed=s).to(dtype) for s in range(3))
    result = ff.local_attention(q, k, v, points, encoding=ff.LAAPE(60.0), backend="tiled")
    wide = [t.double() for t in (q, k, v)]
    expected = ff.local_attention(*wide, points, encoding=ff.LAAPE(60.0), backend="reference")
    assert result.dtype == dtype
    assert relative_error(result.double(), expected) < max(1e-4, torch.finfo(dtype).eps)


def test_cost_per_query_does_not_grow_with_the_domain():
    small, large = (ff.plan_attention(jittered_grid(n, 10.0), encoding=ff.LAAPE(25.0)) for n in (150, 300))
    assert large.keys_per_query() < 1.15 * small.keys_per_query()
    assert large.density() < 0.3 * small.density()


def test_tiles_are_little_larger_than_the_kernel_asks():
    """Pairs computed against pairs whose potential is within the cut."""
    points = jittered_grid(256, 1000 / 127)
    for encoding in (ff.LAAPE(250.0), ff.LASPE(250.0)):
        plan = ff.plan_attention(points, encoding=encoding)
        cut = typical_reach(plan.tolerance)
        excess = encoding.penalty(points[::991, None] - points[None]) - encoding.floor(2)
        within = (excess <= cut).double().sum(-1).mean()
        assert 1.0 <= plan.keys_per_query() / float(within) < 1.7


def test_a_plan_can_be_reused_pickled_printed_and_drawn(tmp_path):
    points = jittered_grid(60, 20.0)
    encoding = ff.LAAPE(50.0)
    plan = pickle.loads(pickle.dumps(ff.plan_attention(points, encoding=encoding)))
    q, k, v = (normal(1, 2, len(points), 8, seed=s) for s in range(3))
    expected = ff.local_attention(q, k, v, points, encoding=encoding, backend="reference")
    result = ff.local_attention(q, k, v, points, encoding=encoding, backend="tiled", plan=plan)
    assert relative_error(result, expected) < 1e-4
    assert "3600 queries" in str(plan) and "keys per query" in str(plan)
    assert draw_plan(plan, points, tmp_path / "plan.png").stat().st_size > 10_000
    ff.local_attention(q, k, v, points.clone(), encoding=encoding, plan=plan)  # clouds are told apart by content


def test_a_plan_for_something_else_is_refused():
    points, q = jittered_grid(10, 10.0), normal(1, 1, 100, 8)
    plan = ff.plan_attention(points, encoding=ff.LAAPE(50.0))
    for encoding in (ff.LAAPE(51.0), ff.LASPE(50.0)):
        with pytest.raises(ValueError, match="the plan was built for the encoding"):
            ff.local_attention(q, q, q, points, encoding=encoding, plan=plan)
    with pytest.raises(ValueError, match="the plan was built for other query_positions"):
        ff.local_attention(q, q, q, points + 1, encoding=ff.LAAPE(50.0), plan=plan)
    with pytest.raises(ValueError, match="the plan was built for other query_positions"):
        different = torch.stack([points, points + 1])
        ff.local_attention(*[q.expand(2, -1, -1, -1)] * 3, different, encoding=ff.LAAPE(50.0), plan=plan)
    with pytest.raises(ValueError, match="tolerance must lie between 0 and 1, got 0"):
        ff.plan_attention(points, encoding=ff.LAAPE(50.0), tolerance=0)
    with pytest.raises(ValueError, match="query_positions must be finite"):
        ff.plan_attention(points * math.nan, encoding=ff.LAAPE(50.0))


@pytest.mark.parametrize(
    ("encoding", "per_side", "expected"),
    [
        (ff.RoPE(), 10, "dense: RoPE alone is not local"),
        (ff.LAAPE(50.0), 10, "dense: 10000 pairs are so few"),
        (ff.ALiBi(0.1), 10, "reference: ALiBi does not decompose"),
        (ff.LAAPE(50.0), 80, "tiled: .* of all pairs are in reach"),
        (ff.LAAPE(1000.0), 80, "tiled: 100 % of all pairs are in reach, and a compiled kernel"),
        (ff.LAAPE(0.5), 10, "tiled: .* of all pairs are in reach"),
    ],
)
def test_auto_says_what_it_picks_and_why(encoding, per_side, expected):
    points = jittered_grid(per_side, 10.0)
    q = normal(1, 1, len(points), 8)
    assert re.match(expected, ff.explain_backend(q, points, encoding=encoding))


def test_where_gradients_are_needed_auto_takes_tiles_only_if_they_skip_enough():
    points, q = jittered_grid(80, 10.0), normal(1, 1, 6400, 8).requires_grad_()
    explained = ff.explain_backend(q, points, encoding=ff.LAAPE(1000.0))
    assert re.match("dense: .* so skipping the rest would not pay", explained)
    assert ff.explain_backend(q, points, encoding=ff.LAAPE(50.0)).startswith("tiled")


@pytest.fixture
def flex_problem():
    points, keys = jittered_grid(36, 30.0).float(), jittered_grid(40, 27.0, seed=3).float()
    encoding = ff.LAAPE(torch.tensor([[20.0, 40.0], [60.0, 30.0]]), basis=torch.linalg.qr(normal(2, 2))[0])
    q, k, v = normal(2, 2, len(points), 16), normal(2, 2, len(keys), 16), normal(2, 2, len(keys), 16, seed=4)
    return q, k, v, points, keys, encoding


@pytest.mark.skipif(shutil.which("g++") is None, reason="FlexAttention on CPU is compiled with g++")
def test_flex_equals_the_formula_and_skips_what_the_plan_skips(flex_problem, monkeypatch):
    q, k, v, points, keys, encoding = flex_problem
    plan = ff.plan_attention(points, keys, encoding=encoding, query_tile=FLEX_BLOCK, key_tile=FLEX_BLOCK)
    counts = [reach.counts(typical_reach(1e-4)) for reach in plan.reaches]
    mask = flex._block_mask(plan, 2, counts, torch.device("cpu"))
    assert int(mask.kv_num_blocks.sum()) == int(mask.q_num_blocks.sum()) < 2 * len(plan.queries) * len(plan.keys)
    with torch.no_grad():
        expected = ff.local_attention(q, k, v, points, keys, encoding=encoding, backend="reference")
        result = ff.local_attention(q, k, v, points, keys, encoding=encoding, backend="flex", plan=plan)
        assert relative_error(result, expected) < 1e-4
        # a mask that lists too little must show in the result
        monkeypatch.setattr(flex, "_needed", lambda *_: ([torch.ones_like(c) for c in counts], 0.0))
        other = ff.local_attention(q, k, v, points, keys, encoding=encoding, backend="flex", plan=plan)
        assert not relative_error(other, expected) < 1e-2
    with pytest.raises(ValueError, match="backend='flex' needs a plan with query_tile=128"):
        other = ff.plan_attention(points, keys, encoding=encoding)
        ff.local_attention(q, k, v, points, keys, encoding=encoding, backend="flex", plan=other)
