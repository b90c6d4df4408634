import pytest
import torch

import farfield as ff
from farfield.models import blocks
from farfield.models.ab_swift import METRES_PER_UNIT, AbSwift, SupernodePooling, ab_swift_encodings

KINDS = ["rope", "laspe", "laape"]
UNITS = torch.tensor(METRES_PER_UNIT)


def make(kind="laape", factor=1.0, **options):
    """A small network whose weights are large enough for points to matter to one another."""
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 2, "obstacle_radius": 20.0, "terrain_radius": 40.0, "profile_shape": (5, 4)}
    model = AbSwift(ab_swift_encodings(kind, factor=factor), **{**sizes, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(1.5)
    return model


def cloud(points, batch=1, low=(0.0, 0.0, 0.0), high=(1000.0, 1000.0, 1000.0)):
    """Points on a fine grid, so that shifts by whole numbers are exact in float32."""
    low, high = torch.tensor(low), torch.tensor(high)
    return torch.round(64 * (low + (high - low) * torch.rand(batch, points, 3))) / 64


def make_city(batch=1, seed=1, points=50, supernodes=20, anchors=60):
    torch.manual_seed(seed)
    return {
        "obstacle_points": cloud(points, batch, (100, 300, 0), (400, 700, 500)),
        "obstacle_supernodes": torch.stack([torch.randperm(points)[:supernodes] for _ in range(batch)]),
        "terrain_points": cloud(points, batch, high=(1000, 1000, 0)),
        "terrain_supernodes": torch.stack([torch.randperm(points)[:supernodes] for _ in range(batch)]),
        "terrain_features": torch.randn(batch, 2),
        "profile": torch.randn(batch, 5, 4),
        "anchors": cloud(anchors, batch),
    }


def placed(city, move):
    """The same city with every position moved."""
    clouds = ("obstacle_points", "terrain_points", "anchors")
    return {name: move(tensor) if name in clouds else tensor for name, tensor in city.items()}


def spread(fields):
    """How much the fields differ from point to point."""
    return fields.std(dim=1).mean()


def close(a, b, tolerance):
    """Equal, measured by how much the fields differ from point to point."""
    return (a - b).abs().max() < tolerance * spread(b)


# --- the network is its equations ------------------------------------------------------------------------------------
def written_out(model, city):
    """The docstring's equations, every attention in full, every branch in every block."""

    def read(block, x, where, y, there):
        return block.read(x, *block.keys_values(y), where, there, backend="reference")

    def take(points, index):
        return torch.stack([p[i] for p, i in zip(points, index, strict=True)])

    features = city["terrain_features"][:, None].expand(-1, city["terrain_points"].shape[1], -1)
    o = model.pool_obstacles(city["obstacle_points"], None, city["obstacle_supernodes"])
    t = model.pool_terrain(city["terrain_points"], features, city["terrain_supernodes"])
    at_o = take(city["obstacle_points"], city["obstacle_supernodes"])
    at_t = take(city["terrain_points"], city["terrain_supernodes"])
    among, between = model.geometry
    o, t = read(among, o, at_o, o, at_o), read(among, t, at_t, t, at_t)
    o, t = read(between, o, at_o, t, at_t), read(between, t, at_t, o, at_o)
    g, at_g, at_v = torch.cat([o, t], 1), torch.cat([at_o, at_t], 1), city["anchors"]
    v = model.embed_profile(city["profile"].flatten(1))[:, None].expand(-1, at_v.shape[1], -1)
    for among, between in zip(model.processor[::2], model.processor[1::2], strict=True):
        g, v = read(among, g, at_g, g, at_g), read(among, v, at_v, v, at_v)
        g, v = read(between, g, at_g, v, at_v), read(between, v, at_v, g, at_g)
    for block in model.decoder:
        v = read(block, v, at_v, v, at_v)
    return torch.cat([head(model.norm(v)) for head in model.project.values()], dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_network_equals_its_equations_written_out(kind):
    model, city = make(kind), make_city(batch=2)
    with torch.no_grad():
        assert close(model(**city), written_out(model, city), 1e-3)


def test_the_papers_model_has_the_parameters_that_its_table_implies():
    """Width 192, 1 + 3 pairs of blocks and 4 more, expansion 4; four fields of 3 + 1 + 1 + 1 components."""
    width, hidden = 192, 4 * 192
    attention = 4 * (width * width + width)
    feedforward = (width * hidden + hidden) + (hidden * width + width)
    block = attention + feedforward + 2 * (2 * width)
    waves = 2 * 8 * (3 + 1)  # sine and cosine, 8 wavelengths, three axes and the distance
    pooling = sum((waves + f) * width + width + width * width + width for f in (0, 2))
    profile = 64 * 4 * width + width + width * width + width
    fields = sum((width * hidden + hidden) + (hidden * c + c) for c in (3, 1, 1, 1))
    total = pooling + profile + (2 * 1 + 2 * 3 + 4) * block + 2 * width + fields
    model = AbSwift(ab_swift_encodings("laape"))
    assert sum(p.numel() for p in model.parameters()) == total == 6_122_118


def test_encodings_have_the_papers_decay_lengths():
    laape, laspe = ab_swift_encodings("laape"), ab_swift_encodings("laspe")
    for part in (laape.geometry, laape.processor):
        assert part.decay_length_plus.fixed.tolist() == part.decay_length_minus.fixed.tolist() == [111, 250, 500]
    assert laape.decoder.decay_length_plus.fixed.tolist() == [111, 250, 500]
    assert laape.decoder.decay_length_minus.fixed.tolist() == [225, 250, 500]
    assert laspe.processor.decay_length.fixed.tolist() == [111, 250, 500]
    assert laspe.decoder.decay_length.fixed.tolist() == [168, 250, 500]
    assert all(isinstance(part, ff.RoPE) for part in ab_swift_encodings("rope"))
    assert ab_swift_encodings("laape", factor=2).geometry.decay_length_plus.fixed.tolist() == [222, 500, 1000]
    with pytest.raises(ValueError, match="'laape', got 'absolute'"):
        ab_swift_encodings("absolute")


def test_gradients_reach_every_parameter():
    model, city = make(), make_city(batch=2)
    model(**city, queries=cloud(10, 2)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


# --- anchors and queries ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_on_an_anchor_gives_the_anchors_prediction(kind):
    model, city = make(kind), make_city(batch=2)
    with torch.no_grad():
        encoded = model.encode(**city)
        assert close(model.decode(encoded, city["anchors"]), model.at_anchors(encoded), 1e-3)


def test_queries_in_chunks_equal_queries_at_once(monkeypatch):
    model, city, queries = make(), make_city(batch=2), cloud(53, 2)
    with torch.no_grad():
        whole = model(**city, queries=queries)
        encoded = model.encode(**city)
        assert close(model.decode(encoded, queries, chunk=7), whole[:, 60:], 1e-3)
        monkeypatch.setattr(blocks, "_CHUNK", 11)  # point-wise layers in pieces as well
        assert close(model(**city, queries=queries), whole, 1e-3)


def test_queries_are_seen_by_nobody():
    model, city, queries = make(), make_city(), cloud(40)
    with torch.no_grad():
        alone = model(**city)
        together = model(**city, queries=queries)
        assert torch.equal(together[:, :60], alone)
        assert close(model(**city, queries=queries[:, :5])[:, 60:], together[:, 60:65], 1e-3)
        assert model(**city, queries=queries[:, :0]).shape == alone.shape


def test_a_batch_equals_its_cases_one_by_one():
    model, city, queries = make(), make_city(batch=3), cloud(9, 3)
    with torch.no_grad():
        together = model(**city, queries=queries)
        for i in range(3):
            alone = model(**{name: tensor[i : i + 1] for name, tensor in city.items()}, queries=queries[i : i + 1])
            assert close(together[i : i + 1], alone, 1e-3)


def test_points_may_come_in_any_order():
    model, city = make(), make_city()
    order, anchor_order = torch.randperm(50), torch.randperm(60)
    shuffled = {
        **city,
        "obstacle_points": city["obstacle_points"][:, order],
        "obstacle_supernodes": order.argsort()[city["obstacle_supernodes"]].flip(1),
        "anchors": city["anchors"][:, anchor_order],
    }
    with torch.no_grad():
        assert close(model(**shuffled), model(**city)[:, anchor_order], 1e-3)


# --- symmetries and locality -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_translating_the_city_leaves_predictions_unchanged(kind):
    model, city = make(kind), make_city()
    shift = torch.tensor([65_536.0, -4096.0, 512.0])
    with torch.no_grad():
        assert close(model(**placed(city, lambda p: p + shift)), model(**city), 1e-3)


def change_inside(kind):
    """What a city that goes on downstream, twice as far again, changes in the first fifth; over the fields' spread."""
    model, city = make(kind), make_city(points=80, supernodes=40, anchors=80)
    more = placed(make_city(seed=2, points=160, supernodes=80, anchors=160), lambda p: p * torch.tensor([2.0, 1, 1]))
    more = placed(more, lambda p: p + torch.tensor([1000.0, 0, 0]))
    enlarged = dict(city)
    for surface in ("obstacle", "terrain"):
        enlarged[f"{surface}_points"] = torch.cat([city[f"{surface}_points"], more[f"{surface}_points"]], 1)
        moved = more[f"{surface}_supernodes"] + 80
        enlarged[f"{surface}_supernodes"] = torch.cat([city[f"{surface}_supernodes"], moved], 1)
    enlarged["anchors"] = torch.cat([city["anchors"], more["anchors"]], 1)
    queries = cloud(40, high=(200, 1000, 1000))
    with torch.no_grad():
        small, large = (model.decode(model.encode(**c), queries) for c in (city, enlarged))
    return ((large - small).abs().mean() / spread(small)).item()


def test_enlarging_the_city_far_away_leaves_the_interior_unchanged():
    changes = {kind: change_inside(kind) for kind in KINDS}
    assert changes["laape"] < 1e-3
    assert changes["laspe"] < 1e-2
    assert changes["rope"] > 0.1


# --- pooling ---------------------------------------------------------------------------------------------------------
def test_a_supernode_is_the_mean_message_of_the_ball_around_it():
    torch.manual_seed(0)
    units = (0.5, 2.0, 0.25)
    pool = SupernodePooling(16, 2, radius=160.0, max_neighbours=1000, metres_per_unit=units)
    points, features, supernodes = cloud(200, 2), torch.randn(2, 200, 2), torch.randint(200, (2, 30))
    with torch.no_grad():
        tokens = pool(points, features, supernodes)
    for b, s in [(0, 0), (1, 7), (1, 29)]:
        relative = (points[b] - points[b, supernodes[b, s]]) * torch.tensor(units) / 160
        near = relative.norm(dim=-1) < 1
        assert near.sum() > 1
        coordinates = torch.cat([relative, relative.norm(dim=-1, keepdim=True)], dim=-1)[near]
        phases = (coordinates[..., None] * pool.frequencies).flatten(-2)
        with torch.no_grad():
            messages = pool.message(torch.cat([phases.sin(), phases.cos(), features[b, near]], dim=-1))
        assert torch.allclose(tokens[b, s], messages.mean(0), atol=1e-5)


def test_of_many_neighbours_the_nearest_are_kept():
    pool = SupernodePooling(8, 0, radius=100.0, max_neighbours=3, metres_per_unit=(1.0, 1.0, 1.0))
    points = torch.tensor([[5.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 9], [0, 3, 0], [500, 0, 0]])[None]
    index, found = pool.neighbours(points, points[:, [1, 5]])
    assert index[0, 0].tolist() == [1, 2, 4]
    assert found[0].tolist() == [[True, True, True], [True, False, False]]
    assert index[0, 1, 0] == 5


def test_supernodes_without_neighbours_and_on_top_of_each_other_are_fine():
    model, city = make(obstacle_radius=1e-6, terrain_radius=1e-6), make_city()
    city["obstacle_points"][:] = city["obstacle_points"][:, :1]
    out = model(**city)
    out.sum().backward()
    assert out.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_memory_of_the_search_does_not_grow_with_the_square_of_the_points():
    pool = SupernodePooling(8, 0, radius=0.1, max_neighbours=32, metres_per_unit=METRES_PER_UNIT)
    points = cloud(100_000)  # all pairs would be 80 GB
    index, found = pool.neighbours(points, points)
    assert index.shape[-1] <= 32 and found[..., 0].all()


# --- precision and wrong input ---------------------------------------------------------------------------------------
def test_bfloat16_is_close_to_float32():
    model, city = make(), make_city()
    with torch.no_grad():
        exact = model(**city)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = model(**city)
    assert (rounded - exact).abs().mean() < 0.1 * spread(exact)


def test_fields_are_free():
    model = make(fields={"pottemp": 1, "velocity": 3})
    assert model(**make_city()).shape == (1, 60, 4)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("anchors", lambda t: t[..., :2], r"anchors must have the shape \(2, 60, 3\), got \(2, 60, 2\)"),
        ("anchors", lambda t: t[0], r"anchors must have the shape \(batch, points, axes\)"),
        ("anchors", lambda t: t / 0, "anchors must be finite"),
        ("obstacle_points", lambda t: t[:, :0], "obstacle_points must have the shape .* at least 1 points"),
        ("terrain_points", lambda t: t[:1], "terrain_points must have the shape"),
        ("terrain_features", lambda t: t[:, :1], r"terrain_features must have the shape \(2, 50, 2\)"),
        ("profile", lambda t: t[:, 1:], r"profile must have the shape \(2, 5, 4\), got \(2, 4, 4\)"),
        ("obstacle_supernodes", lambda t: t + 50, "obstacle_supernodes must lie in 0 .. 49"),
        ("terrain_supernodes", lambda t: t.float(), "terrain_supernodes must be int64"),
        ("terrain_supernodes", lambda t: t[0], "terrain_supernodes must be int64 of the shape"),
    ],
)
def test_wrong_input_is_named(name, change, message):
    city = make_city(batch=2)
    with pytest.raises(ValueError, match=message):
        make()(**{**city, name: change(city[name])})


def test_wrong_queries_are_named():
    model, city = make(), make_city()
    with pytest.raises(ValueError, match="queries must have the shape"):
        model(**city, queries=cloud(5)[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 25}, "multiple of heads"),
        ({"decoder_depth": 0}, "decoder_depth must be at least 1"),
        ({"terrain_radius": -1.0}, "terrain_radius must be positive"),
        ({"fields": {}}, "number of fields must be at least 1"),
        ({"fields": {"velocity": 1}}, "velocity must have 3 components"),
        ({"metres_per_unit": (0.5, 0.5)}, "geometry encoding is for 3 axes, there are 2"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
