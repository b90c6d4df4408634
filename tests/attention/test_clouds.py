"""Periodic axes, masks and packed clouds: each equals the formula on what it stands for, in every backend."""

import itertools

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import make_encoding, relative_error

import farfield as ff
from farfield.attention import flex, functional

BACKENDS = ["reference", "dense", "tiled", "auto"]
LOCAL = ["laspe", "laape", "laape-asymmetric"]


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def uniform(*shape, seed=1):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_explicit_images(q, k, v, queries, keys, period, encoding, images):
    """The formula on keys that are written out once for each of their images."""
    steps = [range(-images, images + 1) if length else [0] for length in period]
    shifts = torch.tensor(list(itertools.product(*steps)), dtype=torch.float64)
    shifts = shifts * torch.tensor([length or 0.0 for length in period], dtype=torch.float64)
    around = (keys[None] + shifts[:, None]).flatten(0, 1)
    k, v = (t.repeat(1, 1, len(shifts), 1) for t in (k, v))
    return ff.local_attention(q, k, v, queries, around, encoding=encoding, backend="reference")


@example(name="laspe", space_dim=1, cross=False, over_period=0.8, seed=18, rotated=True)  # a period not in float32
@settings(max_examples=25)
@given(
    name=st.sampled_from([*LOCAL, "alibi", "window"]),
    space_dim=st.integers(1, 2),
    cross=st.booleans(),
    over_period=st.sampled_from([0.1, 0.3, 0.8]),
    seed=st.integers(0, 1000),
    rotated=st.booleans(),
)
def test_periodic_axes_equal_the_formula_with_explicit_images(name, space_dim, cross, over_period, seed, rotated):
    """Also where the reach is longer than the period, so that a key is seen several times."""
    generator = torch.Generator().manual_seed(seed)
    encoding = make_encoding(name, space_dim, 2, 8, "one", rotated, generator).double()
    length = 150.0 if not hasattr(encoding, "decay_length") else float(encoding.decay_length.maximum)
    if name in ("alibi", "window"):
        length = 50.0
    period = [length / over_period] + [None] * (space_dim - 1)
    keys = 300 * uniform(40, space_dim, seed=seed)
    queries = 300 * uniform(30, space_dim, seed=seed + 1) if cross else keys
    q, k, v = (0.7 * normal(1, 2, n, 8, seed=n) for n in (len(queries), 40, 40))
    images = 4 + int(14 * over_period * (3 if name == "alibi" else 1)) + int(300 / period[0])
    expected = with_explicit_images(q, k, v, queries, keys, period, encoding, images)
    for backend in ("reference", "tiled", "dense" if encoding.decomposes else "tiled"):
        out = ff.local_attention(
            q, k, v, queries, keys if cross else None, encoding=encoding, backend=backend, tolerance=1e-7, period=period
        )
        assert relative_error(out, expected) < 1e-6


def test_a_periodic_domain_has_no_edge():
    """Points moved across the edge are the same points."""
    points, encoding = 1000 * uniform(900, 2), ff.LAAPE(80.0, rotary=None)
    q, k, v = (normal(1, 2, 900, 8, seed=s) for s in range(3))
    moved = points.clone()
    moved[::3] += torch.tensor([1000.0, -2000.0])
    for backend in ("tiled", "dense"):
        one, other = (
            ff.local_attention(q, k, v, p, encoding=encoding, backend=backend, period=1000.0 * torch.ones(2))
            for p in (points, moved)
        )
        assert (one - other).norm(dim=-1).max() < 2e-4 * v.norm(dim=-1).max()


@settings(max_examples=20)
@given(
    name=st.sampled_from(["rope", "flashbias", *LOCAL, "alibi"]),
    batch=st.integers(1, 3),
    shared=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_masked_keys_are_as_if_they_were_not_there(name, batch, shared, seed):
    generator = torch.Generator().manual_seed(seed)
    encoding = make_encoding(name, 2, 2, 8, "one", False, generator).double()
    queries = 1000 * uniform(90, 2, seed=seed)
    keys = 1000 * (uniform(150, 2, seed=seed + 1) if shared else uniform(batch, 150, 2, seed=seed + 1))
    q, k, v = (normal(batch, 2, n, 8, seed=seed + n) for n in (90, 150, 150))
    mask = torch.rand(batch, 150, generator=generator) < 0.5
    mask[:, 0] = True
    expected = torch.cat(
        [
            ff.local_attention(
                q[b : b + 1], k[b : b + 1, :, mask[b]], v[b : b + 1, :, mask[b]], queries,
                (keys if shared else keys[b])[mask[b]], encoding=encoding, backend="reference",
            )
            for b in range(batch)
        ]
    )  # fmt: skip
    where = queries if shared else queries.expand(batch, -1, -1)
    for backend in BACKENDS if encoding.decomposes else ("reference", "tiled"):
        out = ff.local_attention(
            q, k, v, where, keys, encoding=encoding, backend=backend, tolerance=1e-8, key_mask=mask
        )
        assert relative_error(out, expected) < 1e-6


def test_a_mask_that_leaves_nothing_follows_empty():
    points, encoding = 100 * uniform(20, 2), ff.LAAPE(20.0)
    q, k, v = (normal(2, 1, 20, 8, seed=s) for s in range(3))
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1] = False
    for backend in BACKENDS:
        with pytest.raises(ValueError, match="key_mask leaves the queries of 1 batch entries no key at all"):
            ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, key_mask=mask)
        out = ff.local_attention(q, k, v, points, encoding=encoding, backend=backend, key_mask=mask, empty="zero")
        assert (out[1] == 0).all() and (out[0] != 0).all()


@settings(max_examples=20)
@given(
    name=st.sampled_from(["rope", "flashbias", *LOCAL, "window"]),
    sizes=st.lists(st.integers(0, 200), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0),
    batch=st.integers(1, 2),
    periodic=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_packed_clouds_equal_the_loop_over_them(name, sizes, batch, periodic, seed):
    generator = torch.Generator().manual_seed(seed)
    encoding = make_encoding(name, 2, 2, 8, "head", False, generator).double()
    total = sum(sizes)
    points = 1000 * uniform(total, 2, seed=seed)
    q, k, v = (normal(batch, 2, total, 8, seed=seed + s).requires_grad_() for s in range(3))
    period = [1000.0, None] if periodic and name not in ("rope", "flashbias") else None
    expected = torch.cat(
        [
            ff.local_attention(q_, k_, v_, p, encoding=encoding, backend="reference", period=period, tolerance=1e-9)
            for q_, k_, v_, p in zip(*(t.split(sizes, 2) for t in (q, k, v)), points.split(sizes), strict=True)
            if len(p)
        ],
        dim=2,
    )
    direction = normal(*expected.shape, seed=5)
    slopes = torch.autograd.grad((expected * direction).sum(), (q, k, v))
    for backend in BACKENDS if encoding.decomposes else ("reference", "tiled"):
        out = ff.local_attention(
            q, k, v, points, encoding=encoding, backend=backend, lengths=sizes, tolerance=1e-9, period=period
        )
        assert relative_error(out, expected) < 1e-6
        for mine, true in zip(torch.autograd.grad((out * direction).sum(), (q, k, v)), slopes, strict=True):
            assert (mine - true).norm() <= 1e-5 * true.norm() + 1e-12


def test_a_batch_of_different_clouds_is_planned_in_one(monkeypatch):
    from farfield.attention import plan

    built = []
    whole = plan._planned
    monkeypatch.setattr(plan, "_planned", lambda *given: built.append(1) or whole(*given))
    points = 1000 * uniform(9, 300, 2)
    q, k, v = (normal(9, 2, 300, 8, seed=s) for s in range(3))
    out = ff.local_attention(q, k, v, points, encoding=ff.LAAPE(60.0), backend="tiled")
    expected = ff.local_attention(q, k, v, points, encoding=ff.LAAPE(60.0), backend="reference")
    assert len(built) == 1
    assert (out - expected).norm(dim=-1).max() < 1e-4 * v.norm(dim=-1).max()


def test_packed_cross_attention():
    sizes, key_sizes = [3, 80, 0, 41], [70, 5, 20, 90]
    queries, keys = 500 * uniform(124, 2), 500 * uniform(185, 2, seed=2)
    q, k, v = normal(1, 2, 124, 8), normal(1, 2, 185, 8), normal(1, 2, 185, 8, seed=3)
    encoding = ff.LASPE(60.0).double()
    one_by_one = [
        ff.local_attention(q_, k_, v_, p, x, encoding=encoding, backend="reference")
        for q_, p, k_, v_, x in zip(
            q.split(sizes, 2), queries.split(sizes), k.split(key_sizes, 2), v.split(key_sizes, 2),
            keys.split(key_sizes), strict=True,
        )
    ]  # fmt: skip
    for backend in BACKENDS:
        out = ff.local_attention(
            q, k, v, queries, keys, encoding=encoding, backend=backend, lengths=sizes, key_lengths=key_sizes
        )
        assert (out - torch.cat(one_by_one, 2)).norm(dim=-1).max() < 1e-4 * v.norm(dim=-1).max()


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("cross", [False, True])
def test_nested_tensors_equal_the_loop_over_their_clouds(layout, cross):
    sizes, key_sizes = [30, 7, 90], [64, 120, 5]
    key_sizes = key_sizes if cross else sizes
    encoding = ff.LAAPE(60.0).double()

    def clouds(sizes, *shape, seed):
        return [normal(n, *shape, seed=seed + i).requires_grad_() for i, n in enumerate(sizes)]

    def nest(parts):
        return torch.nested.as_nested_tensor(parts, layout=layout)

    q, k, v = clouds(sizes, 2, 8, seed=1), clouds(key_sizes, 2, 8, seed=10), clouds(key_sizes, 2, 8, seed=20)
    where = [100 * uniform(n, 2, seed=n) for n in sizes]
    where_k = [100 * uniform(n, 2, seed=n) for n in key_sizes] if cross else None
    heads = (
        (nest(t).transpose(1, 2) for t in (q, k, v))
        if layout == torch.jagged
        else (nest([part.transpose(0, 1) for part in t]) for t in (q, k, v))
    )
    keys = None if where_k is None else nest(where_k)
    out = ff.local_attention(*heads, nest(where), keys, encoding=encoding, backend="tiled", tolerance=1e-8)
    assert out.is_nested and out.layout == layout
    one_by_one = [
        ff.local_attention(*(t.transpose(0, 1)[None] for t in part), p, x, encoding=encoding, backend="reference")
        for *part, p, x in zip(q, k, v, where, where_k or [None] * 3, strict=True)
    ]
    for mine, true in zip(out.unbind(), one_by_one, strict=True):
        assert relative_error(mine, true[0]) < 1e-6
    slopes = torch.autograd.grad(sum(o.square().sum() for o in out.unbind()), [*q, *v])
    expected = torch.autograd.grad(sum(o.square().sum() for o in one_by_one), [*q, *v])
    assert all(relative_error(a, b) < 1e-6 for a, b in zip(slopes, expected, strict=True))


def test_half_nested_arguments_are_named():
    points, q = [uniform(5, 2), uniform(3, 2)], [normal(1, 5, 8), normal(1, 3, 8)]
    nested = torch.nested.as_nested_tensor(q)
    with pytest.raises(ValueError, match="so query_positions must be one too"):
        ff.local_attention(nested, nested, nested, torch.cat(points), encoding=ff.LAAPE(1.0))
    with pytest.raises(ValueError, match="leave out lengths"):
        where = torch.nested.as_nested_tensor(points)
        ff.local_attention(nested, nested, nested, where, encoding=ff.LAAPE(1.0), lengths=[5, 3])


@pytest.mark.parametrize("name", ["laape", "flashbias"])
def test_flex_takes_clouds_of_any_size(name, monkeypatch):
    """Uncompiled: what is tested is that blocks which are not full are filled up, and nobody reads what fills them."""
    monkeypatch.setattr(functional, "flex", lambda *given: flex.flex(*given, compiled=False))
    sizes, encoding = [130, 1, 300], make_encoding(name, 2, 2, 8, "one", False, torch.Generator().manual_seed(0))
    points = 500 * uniform(431, 2)
    q, k, v = (normal(1, 2, 431, 8, seed=s) for s in range(3))
    out, exact = (
        ff.local_attention(q, k, v, points, encoding=encoding.double(), backend=backend, lengths=sizes, tolerance=1e-5)
        for backend in ("flex", "reference")
    )
    assert (out - exact).norm(dim=-1).max() < 1e-5 * v.norm(dim=-1).max()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [10, 20]}, "lengths add up to 30, there are 20 points"),
        ({"lengths": [25, -5]}, "none negative"),
        ({"lengths": [2.5, 17.5]}, "one whole number per cloud"),
        ({"lengths": [10, 10], "key_lengths": [20]}, "lengths name 2 clouds, key_lengths 1"),
        ({"key_lengths": [20]}, "key_lengths needs lengths"),
        ({"period": [100.0]}, "one length per axis, 2, got"),
        ({"period": [100.0, 0.0]}, "period must be positive along every periodic axis"),
        ({"period": [100.0, None], "encoding": ff.RoPE()}, "RoPE is not local"),
        ({"period": [100.0, None], "encoding": ff.FlashBias(20.0, 1, 8)}, "FlashBias' learned weight may fall"),
        ({"period": [1e-3, 1e-3]}, "so short for this encoding that more than"),
        ({"key_mask": torch.ones(1, 7, dtype=torch.bool)}, r"key_mask must be boolean of the shape \(batch, 20\)"),
        ({"key_mask": torch.ones(1, 20)}, "key_mask must be boolean"),
    ],
)
def test_bad_clouds_are_named(changes, message):
    q = normal(1, 1, 20, 8)
    given = {"encoding": ff.LAAPE(20.0), "backend": "tiled", **changes}
    with pytest.raises(ValueError, match=message):
        ff.local_attention(q, q, q, 100 * uniform(20, 2), **given)


def test_a_plan_for_another_mask_or_period_is_refused():
    points, q, encoding = 100 * uniform(20, 2), normal(1, 1, 20, 8), ff.LAAPE(20.0)
    mask = torch.arange(20)[None] < 15
    plans = {
        "period": ff.plan_attention(points, encoding=encoding, period=[100.0, None]),
        "key_mask": ff.plan_attention(points, encoding=encoding, key_mask=mask),
        "lengths": ff.plan_attention(points, encoding=encoding, lengths=[5, 15]),
    }
    for name, plan in plans.items():
        with pytest.raises(ValueError, match=f"the plan was built for {name}=.*, this call has none: build another"):
            ff.local_attention(q, q, q, points, encoding=encoding, plan=plan)
    same = ff.local_attention(q, q, q, points, encoding=encoding, plan=plans["period"], period=[100.0, None])
    assert torch.isfinite(same).all()
