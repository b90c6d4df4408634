"""Attention over the members of a group equals attention in one; members take turns here, processes have a test of
their own (tests/test_processes.py)."""

import contextlib

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from strategies import make_encoding

import farfield as ff
from farfield.attention import InTurn, functional, local_attention, plan_attention, sharded
from farfield.attention.bisection import split_points
from farfield.attention.group import _Member
from farfield.attention.plan import typical_reach

LOOSE, TIGHT = 1e-4, 1e-7  # tolerances: what is dropped is seen with the one, gradients to 1e-5 with the other


def spread(problem, parts, queries, keys, **options):
    """The parts' outputs, gradients and plans; ``queries`` and ``keys`` say who holds which."""
    q, k, v, where_q, where_k, encoding, slope = problem

    def member(group):
        mine, theirs = queries[group.rank], keys[group.rank]
        here = (where_q[mine], None if where_k is None else where_k[theirs])
        plan = plan_attention(*here, encoding=encoding, group=group, **options)
        leaves = [t.detach()[:, :, i].clone().requires_grad_() for t, i in ((q, mine), (k, theirs), (v, theirs))]
        out = local_attention(*leaves, *here, encoding=encoding, plan=plan, **options)
        leaves += encoding.parameters()
        grads = torch.autograd.grad(out, leaves, slope[:, :, mine], allow_unused=True)
        return out.detach(), grads, plan

    return InTurn(parts).run(member)


def assert_equal_to_one(problem, parts, queries, keys, tolerance=TIGHT, **options):
    """Outputs to the tolerance; with the tight one, which is for double precision, gradients to 1e-5."""
    if tolerance == TIGHT:
        problem = [t.double() if isinstance(t, torch.Tensor) else t for t in problem]
    q, k, v, where_q, where_k, encoding, slope = problem
    options["tolerance"], exact = tolerance, 1e-5 if tolerance == TIGHT else 2e-3
    leaves = [t.detach().clone().requires_grad_() for t in (q, k, v)]
    expected = local_attention(*leaves, where_q, where_k, encoding=encoding, backend="tiled", **options)
    leaves += encoding.parameters()
    slopes = torch.autograd.grad(expected, leaves, slope, allow_unused=True)
    found = spread(problem, parts, queries, keys, **options)
    worst = float(torch.linalg.vector_norm(v, dim=-1).max())
    for rank, (out, grads, _) in enumerate(found):
        error = torch.linalg.vector_norm(out - expected.detach()[:, :, queries[rank]], dim=-1)
        assert error.numel() == 0 or float(error.max()) <= 2 * tolerance * worst  # either side may be off by one
        for mine, whole, index in zip(grads, slopes, (queries[rank], keys[rank], keys[rank]), strict=False):
            most = exact * float(whole.abs().max()) + tolerance
            torch.testing.assert_close(mine, whole[:, :, index], atol=most, rtol=0)
    for i, whole in enumerate(slopes[3:], start=3):
        total = sum(grads[i] for _, grads, _ in found if grads[i] is not None)
        torch.testing.assert_close(total, whole, atol=exact * float(whole.abs().max()) + tolerance, rtol=0)
    return [plan for *_, plan in found]


@st.composite
def problems(draw):
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16), "seed"))
    space_dim, heads, head_dim = draw(st.integers(1, 3), "axes"), draw(st.integers(1, 2), "heads"), 8
    name = draw(st.sampled_from(["laspe", "laape", "laape-asymmetric", "flashbias", "alibi", "window"]), "encoding")
    per = draw(st.sampled_from(["one", "axis", "head"]), "per")
    encoding = make_encoding(name, space_dim, heads, head_dim, per, draw(st.booleans(), "rotated"), generator)
    cross = draw(st.booleans(), "cross")
    queries = draw(st.integers(1, 150), "queries")
    keys = draw(st.integers(1, 150), "keys") if cross else queries
    width = draw(st.sampled_from([300.0, 4000.0]), "width")

    def graded(count):  # many points near one corner, few elsewhere
        return width * torch.rand(count, space_dim, generator=generator, dtype=torch.float64) ** 2

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    where_q, where_k = graded(queries), graded(keys) if cross else None
    size = draw(st.sampled_from([1.0, 3.0]), "size of the logits")
    q, k, v = size * normal(1, heads, queries, head_dim), normal(1, heads, keys, head_dim), normal(1, heads, keys, 8)
    problem = (q, k, v, where_q, where_k, encoding, normal(1, heads, queries, 8))
    periodic = name not in ("flashbias",) and not cross and draw(st.booleans(), "periodic")
    return problem, {"period": [width * 1.1, *[None] * (space_dim - 1)]} if periodic else {}


@contextlib.contextmanager
def overlapping():
    """Members in turn that serve what they can before the keys of the others arrive, as processes do. None may look at
    these before: they are NaN until the exchange is finished. What happens is noted."""
    noted = []

    def begin_exchange(group, rows, send, receive):
        real = group.exchange(rows, send, receive)
        out = torch.full_like(real, torch.nan)
        noted.append("begun")

        def finish():
            noted.append("arrived")
            out.data.copy_(real)  # as a network card would: autograd does not see it

        return out, finish

    def noting(problem, plan, serve=functional.tiled):
        noted.append("tiles")
        return serve(problem, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Member, "overlaps", True)
        patch.setattr(_Member, "begin_exchange", begin_exchange)
        patch.setattr(sharded, "_WORTH_OVERLAP", 0.0)
        patch.setattr(functional, "tiled", noting)
        yield noted


def test_tiles_are_served_while_keys_are_under_way():
    # a strip, of which each half has tiles out of reach of the other
    where = torch.rand(2000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    points = where * torch.tensor([6000.0, 300.0])
    parts = split_points(points, 2)
    with overlapping() as noted:
        assert_equal_to_one(random_problem(ff.LAAPE(20.0), points), 2, parts, parts)
    # the whole; then, of each member, the inner tiles and those at the cut
    assert noted == ["tiles", *["begun", "tiles", "arrived", "tiles"] * 2]


@given(problems(), st.integers(1, 4), st.booleans(), st.sampled_from([LOOSE, TIGHT]), st.booleans())
@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
def test_a_group_equals_one(drawn, parts, compact, tolerance, overlap):
    problem, options = drawn
    where_q, where_k, encoding = problem[3:6]

    def divided(points):
        if compact:
            return split_points(points, parts, encoding)
        return [torch.arange(len(points))[rank::parts] for rank in range(parts)]  # as bad as it gets

    queries = divided(where_q)
    keys = queries if where_k is None else divided(where_k)
    with overlapping() if overlap else contextlib.nullcontext():
        assert_equal_to_one(problem, parts, queries, keys, tolerance, **options)


def random_problem(encoding, where_q, where_k=None, size=1.0):
    torch.manual_seed(0)
    queries, keys = len(where_q), len(where_q if where_k is None else where_k)
    q, k, v = size * torch.randn(2, 2, queries, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)
    return q, k, v, where_q, where_k, encoding, torch.randn(2, 2, queries, 8)


def test_only_keys_in_reach_are_sent():
    points = torch.rand(1200, 1, dtype=torch.float64) * 3e4
    parts = split_points(points, 4)
    plans = assert_equal_to_one(random_problem(ff.LAAPE(100.0), points), 4, parts, parts)
    assert all(0 < plan.received < 300 for plan in plans)


def test_large_logits_call_for_more_keys_and_all_members_hear_of_it():
    points = torch.rand(600, 2, dtype=torch.float64) * 2000
    points[0] = 1900.0  # one query with large logits is enough
    problem = random_problem(ff.LASPE(60.0), points)
    problem[0][:, :, 0] *= 20
    parts = split_points(points, 3)
    plans = assert_equal_to_one(problem, 3, parts, parts)
    assert len({plan.limit for plan in plans}) == 1 and plans[0].limit > typical_reach(TIGHT) + 16


def test_members_whose_keys_are_all_far_away_send_what_counts():
    """Queries far from their own keys, near to another's, and out of everyone's reach."""
    where_q = torch.cat([torch.rand(60, 1) * 100, 5000 + torch.rand(60, 1) * 100, torch.tensor([[9000.0]])]).double()
    where_k = torch.cat([5000 + torch.rand(80, 1) * 100, torch.rand(80, 1) * 100]).double()
    queries = [torch.arange(60), torch.arange(60, 120), torch.arange(120, 121)]
    keys = [torch.arange(80), torch.arange(80, 160), torch.arange(0)]
    plans = assert_equal_to_one(random_problem(ff.LAAPE(40.0), where_q, where_k), 3, queries, keys)
    assert [plan.received for plan in plans][:2] == [80, 80]


def test_members_out_of_reach_of_one_another_on_a_circle():
    points = 100 * torch.rand(80, 1, dtype=torch.float64) + torch.arange(80).double()[:, None] // 40 * 2000
    parts = [torch.arange(40), torch.arange(40, 80)]
    plans = assert_equal_to_one(random_problem(ff.LAAPE(10.0), points), 2, parts, parts, period=[4000.0])
    assert [plan.received for plan in plans] == [0, 0]


def test_learned_lengths_and_batches():
    points = torch.rand(300, 2, dtype=torch.float64) * 1000
    encoding = ff.LAAPE([[60.0, 40.0], [30.0, 50.0]], learned=True, max_decay_length=90.0)
    parts = split_points(points, 3, encoding)
    assert_equal_to_one(random_problem(encoding, points), 3, parts, parts)


def test_parts_are_compact_and_equally_costly():
    points = torch.rand(20_000, 2, dtype=torch.float64) ** 3 * 3000  # dense in a corner
    parts = split_points(points, 3, ff.LAAPE(50.0))
    assert sorted(torch.cat([torch.from_numpy(p) for p in parts]).tolist()) == list(range(20_000))
    from farfield.attention.bisection import predicted_cost

    cost = predicted_cost(points.numpy(), ff.LAAPE(50.0))
    shares = [cost[p].sum() / cost.sum() for p in parts]
    assert max(shares) < 0.34 and max(map(len, parts)) > 1.2 * min(map(len, parts))


def test_more_members_than_points():
    points = torch.rand(2, 2, dtype=torch.float64)
    parts = split_points(points, 5)
    assert sorted(map(len, parts)) == [0, 0, 0, 1, 1]
    assert_equal_to_one(random_problem(ff.LAAPE(1.0), points), 5, parts, parts)


@pytest.mark.parametrize("folder", [False, True])
def test_a_network_in_parts_equals_the_whole(tmp_path, folder):
    torch.manual_seed(0)
    model = ff.TransformerOperator(3, 2, 2, width=24, depth=2, heads=2, encoding=ff.LAAPE(50.0), backend="tiled")
    points, features = torch.rand(900, 2, dtype=torch.float64) * 1000, torch.randn(2, 900, 3)
    parts = split_points(points, 3, ff.LAAPE(50.0))
    with torch.no_grad():
        whole = model(features, points)
        found = InTurn(3, tmp_path if folder else None).run(
            lambda group: model(features[:, parts[group.rank]], points[parts[group.rank]], group=group)
        )
    for part, out in zip(parts, found, strict=True):
        torch.testing.assert_close(out, whole[:, part], atol=2e-4, rtol=0)
    assert not list(tmp_path.iterdir())


def test_a_member_that_differs_is_refused():
    def refused(match, member, parts=2):
        with pytest.raises(ValueError, match=match):
            InTurn(parts).run(member)

    points = torch.rand(20, 2, dtype=torch.float64)
    refused("RoPE alone is not local", lambda group: plan_attention(points, encoding=ff.RoPE(), group=group))
    refused(
        "same encoding, tolerance",
        lambda group: plan_attention(points, encoding=ff.LAAPE(1.0 + group.rank), group=group),
    )
    models = [ff.TransformerOperator(1, 1, 2, width=8, heads=1, depth=d, encoding=ff.LAAPE(1.0)) for d in (1, 2)]
    refused("same model", lambda group: models[group.rank](torch.zeros(1, 20, 1), points, group=group))

    def other_dtype(group):
        x = torch.zeros(1, 1, 20, 4, dtype=(torch.float32, torch.float64)[group.rank])
        plan = plan_attention(points, encoding=ff.LAAPE(1.0), group=group)
        return local_attention(x, x, x, points, encoding=ff.LAAPE(1.0), plan=plan)

    refused("same dtype", other_dtype)


def test_an_error_of_one_part_ends_all():
    def member(group):
        if group.rank == 1:
            raise OSError("no room")
        return group.gather(1)

    with pytest.raises(OSError, match="no room"):
        InTurn(3).run(member)
