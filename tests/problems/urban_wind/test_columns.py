"""The column network: equivariance, locality, any extent; and the cities it is told about."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from farfield.attention import LAAPE, Encoding, Group, InTurn, RoPE
from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.city import (
    CHANNELS,
    OUTPUTS,
    POINT_FEATURES,
    PROFILE,
    City,
    CorrectionScale,
    base_fields,
    true_fields,
)
from farfield.problems.urban_wind.column_part import ColumnPart
from farfield.problems.urban_wind.column_spread import Spread
from farfield.problems.urban_wind.columns import ColumnNetwork, from_patches, to_patches
from farfield.problems.urban_wind.files import UrbanCase
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.lattice import LEVELS, SPACING, Lattice

LEVEL_COUNT = len(LEVELS) - 1
PATCH = 4


def network(encoding: Encoding | None = None, **sizes: Any) -> ColumnNetwork:
    torch.manual_seed(0)
    small = {"width": 16, "depth": 2, "heads": 2, "columns": 8, "decoder_depth": 1, "level_features": 4}
    return ColumnNetwork(
        channels=len(CHANNELS),
        levels=LEVEL_COUNT,
        profile=PROFILE,
        point_features=POINT_FEATURES,
        outputs=len(OUTPUTS),
        encoding=encoding,
        **(small | sizes),
    ).eval()


def local() -> LAAPE:
    return LAAPE(
        decay_length_plus=[[12.0, 14.0], [6.0, 7.0]],
        decay_length_minus=[[24.0, 14.0], [12.0, 7.0]],
        rotary=RoPE(max_wavelength=400.0, min_wavelength=32.0),
    )


def case_of(boxes: list[Box], scale: float = 1.0) -> UrbanCase:
    triangles = np.asarray(boxes_to_mesh(boxes).triangles, dtype=np.float32)
    points = np.random.default_rng(0).uniform([-100, -80, 0.5], [200, 80, 50], (200, 3)).astype(np.float32)
    fields = {"velocity": np.ones((200, 3)), "pressure": np.ones(200), "k": np.ones(200), "epsilon": np.ones(200)}
    return UrbanCase("city", scale, 0.3, 0.0, points, {k: v.astype(np.float32) for k, v in fields.items()}, triangles,
                     np.zeros((0, 3, 3), np.float32))  # fmt: skip


@pytest.fixture(scope="module")
def city() -> City:
    return City.around(case_of(random_buildings(np.random.default_rng(5), 1.0, SPACING)))


def framed(cells: torch.Tensor, frame: tuple[int, int, int, int]) -> torch.Tensor:
    """With so many empty columns before and behind along x, then y."""
    return torch.nn.functional.pad(cells, (0, 0, 0, 0, *frame))


@torch.no_grad()
def volume(model: ColumnNetwork, cells: torch.Tensor, city: City, **options: object) -> torch.Tensor:
    air = torch.ones(cells.shape[:2])
    flat = model.volume(cells[None], air[None], city.profile()[None], **options)[0]
    return flat.view(*cells.shape[:2], LEVEL_COUNT, -1)


@pytest.mark.parametrize("encoding", [None, local(), RoPE(max_wavelength=400.0, min_wavelength=32.0)])
def test_moving_a_city_by_a_token_moves_the_answer(city: City, encoding: Encoding | None) -> None:
    """With an empty frame around both, so that only the place within the lattice differs."""
    model = network(encoding)
    cells = city.cells()[:40, :40]
    first = framed(cells, (60, 68, 60, 68))
    second = framed(cells, (64, 64, 68, 60))
    a, b = volume(model, first, city)[60:100, 60:100], volume(model, second, city)[68:108, 64:104]
    # Attention sees how far the frame reaches unless it is local: RoPE alone is not, and has no such promise.
    if not isinstance(encoding, RoPE):
        assert torch.allclose(a, b, atol=2e-4)
    phased = volume(model, framed(cells, (59, 69, 60, 68)), city, phase=(0, 1))[60:100, 59:99]
    if not isinstance(encoding, RoPE):
        assert torch.allclose(phased, a, atol=2e-4), "a phase of one column makes up for a shift by one"


def test_blocks_on_two_by_two_columns_add_nothing_at_first(city: City) -> None:
    small, grown = network(local()), network(local(), coarser_depth=2, coarser_width=12)
    grown.load_state_dict(small.state_dict(), strict=False)
    cells = city.cells()[:38, :61]
    assert torch.equal(volume(small, cells, city), volume(grown, cells, city))
    patches = to_patches(cells.flatten(2)[None, :36, :60], 4)
    assert patches.shape[1:3] == (9, 15)
    assert torch.equal(from_patches(patches, 4), cells.flatten(2)[None, :36, :60])


def test_enlarging_the_domain_leaves_the_interior_unchanged(city: City) -> None:
    model = network(local())
    cells = city.cells()[:40, :40]
    small = framed(cells, (40, 40, 40, 40))
    large = framed(cells, (120, 40, 80, 80))
    a = volume(model, small, city)[40:80, 40:80]
    b = volume(model, large, city)[80:120, 120:160]
    assert torch.allclose(a, b, atol=1e-3)
    spread = network(RoPE(max_wavelength=400.0, min_wavelength=32.0))
    a, b = volume(spread, small, city)[40:80, 40:80], volume(spread, large, city)[80:120, 120:160]
    assert (a - b).abs().max() > 1e-2, "attention without locality notices the larger domain"


def test_a_domain_too_wide_for_all_pairs_gives_the_same(city: City) -> None:
    """Eighty decay lengths of the shortest head are beyond what the channels of the dense backend can hold."""
    model = network(local())
    cells = framed(city.cells()[:8, :40], (20, 120, 4, 4))  # 720 m, the shortest length is 6 m
    wide = volume(model, cells, city)
    model.backend = "tiled"
    assert torch.allclose(wide, volume(model, cells, city), atol=1e-3)
    model.backend = "dense"
    with pytest.raises(ValueError, match="overflows"):
        volume(model, cells, city)


@pytest.mark.parametrize("encoding", [None, local()])
def test_blocks_of_columns_equal_the_whole(city: City, encoding: Encoding | None) -> None:
    """Two, three and five members; the city's columns are no multiple of a token's."""
    model = network(encoding, decoder_depth=2, coarser_depth=2, coarser_width=12, tolerance=1e-7).double()
    torch.nn.init.normal_(model.coarser.hand_back.weight, std=0.3)  # at first it adds nothing
    cells, profile = city.cells()[:38, :61].double(), city.profile()[None].double()
    air = (torch.rand(cells.shape[:2]) > 0.1).double()

    def member(group: Group) -> tuple[ColumnPart, torch.Tensor]:
        part = ColumnPart(group, tuple(cells.shape[:2]), PATCH)
        with torch.no_grad():
            found = model.volume(cells[part.own][None], air[part.own][None], profile, part=part)
        return part, found[0]

    with torch.no_grad():
        whole = model.volume(cells[None], air[None], profile)[0]
    shape = (*cells.shape[:2], LEVEL_COUNT)
    index = torch.arange(whole.shape[0]).view(shape)
    for members in (2, 3, 5):
        for part, found in InTurn(members).run(member):
            seen = index[part.seen].flatten()
            torch.testing.assert_close(found, whole[seen], atol=1e-5 * float(whole.abs().max()), rtol=0)
            own = index[part.own].flatten()
            assert torch.equal(seen[part.cells(own, shape[1], LEVEL_COUNT)], own)
    with pytest.raises(ValueError, match="200 members are too many for the 10 x 16 tokens"):
        InTurn(200).run(member)


def test_any_extent_is_taken(city: City) -> None:
    model = network(local())
    for across, along in ((5, 9), (18, 31)):
        assert volume(model, city.cells()[:across, :along], city).shape[:2] == (across, along)


def test_gradients_reach_every_weight(city: City) -> None:
    model = network(local(), coarser_depth=1, coarser_width=12).train()
    torch.nn.init.normal_(model.coarser.hand_back.weight, std=0.3)  # at first nothing reaches what is before it
    query = city.query(np.array([[0.0, 0.0, 45.0], [20.0, 10.0, 2.0]], dtype=np.float32))
    out, _ = model(city.cells(), city.air(), city.profile(), query.cells, query.weights, query.features)
    out.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())


def test_physics_alone_is_the_inflow_over_open_ground() -> None:
    empty = City.of(Lattice.around(np.zeros((0, 3, 3)), UrbanDomain.square(1)), 0.3)
    points = np.random.default_rng(1).uniform([-140, -100, 0.3], [300, 100, 54], (300, 3))
    query = empty.query(points)
    flat = empty.cells().reshape(-1, len(CHANNELS))
    fields = base_fields((flat[query.cells] * query.weights[..., None]).sum(1), query).numpy()
    expected = inflow_profile(0.3, heights=points[:, 2])
    assert np.allclose(fields[:, 0], expected[:, 0], rtol=2e-3)
    assert np.allclose(fields[:, 1:4], 0, atol=1e-4)
    assert np.allclose(np.exp(fields[:, 4:]), expected[:, 2:], rtol=1e-2)


def test_a_mirrored_city_is_the_city_of_mirrored_buildings() -> None:
    boxes = random_buildings(np.random.default_rng(2), 1.0, SPACING)
    mirror = [Box(b.x_min, b.x_max, -b.y_max, -b.y_min, b.height) for b in boxes]
    one, other = City.around(case_of(boxes)).mirrored(), City.around(case_of(mirror))
    assert one.lattice.origin == other.lattice.origin
    # Two solutions to within the tolerance of the projection, in half precision.
    assert np.abs(one.channels.astype(float) - other.channels.astype(float)).mean() < 2e-3
    assert np.allclose(one.channels[..., :7], other.channels[..., :7], atol=2e-3)


def test_cropping_keeps_what_is_near_the_buildings(city: City) -> None:
    part = city.near_buildings(margin=20.0)
    assert part.lattice.shape[1] < city.lattice.shape[1]
    assert part.lattice.solid.sum() == pytest.approx(city.lattice.solid.sum())
    points = np.array([[3.0, 5.0, 10.0], [40.0, -22.0, 30.0]])
    for whole, some in ((city, part),):
        a, b = whole.query(points), some.query(points)
        flat = [c.cells().reshape(-1, len(CHANNELS)) for c in (whole, some)]
        values = [(f[q.cells] * q.weights[..., None]).sum(1) for f, q in zip(flat, (a, b), strict=True)]
        assert torch.allclose(*values)


def test_corrections_come_back_as_they_went() -> None:
    correction = torch.randn(500, 6) * torch.tensor([1.0, 0.3, 0.2, 5.0, 0.3, 0.7]) + 1
    scale = CorrectionScale.fit([correction[:200], correction[200:]])
    assert scale.mean[:3] == (0, 0, 0)
    encoded = scale.encode(correction)
    assert torch.allclose(scale.decode(encoded), correction, atol=1e-5)
    assert encoded[:, 3:].mean().abs() < 1e-4
    assert CorrectionScale.from_dict(scale.to_dict()) == scale


def test_true_fields_are_those_of_the_case() -> None:
    case = case_of([Box(-10, 10, -10, 10, 20)])
    fields = true_fields(case)
    assert fields.shape == (200, 6) and torch.equal(fields[:, :4], torch.ones(200, 4))
    assert torch.equal(fields[:, 4:], torch.zeros(200, 2)), "logarithms of one"
    assert len(true_fields(case, np.arange(7))) == 7


def test_the_spreading_convolution_has_the_gradients_of_torch() -> None:
    """Its backward pass is our own: held to that of the convolution which it is, on two samples of odd sizes."""
    torch.manual_seed(0)
    ours = Spread(5, 7)
    theirs = torch.nn.Conv2d(5, 5, 7, padding=3, groups=5)
    theirs.load_state_dict(ours.state_dict())
    x, outer = torch.randn(2, 9, 4, 5), torch.randn(2, 9, 4, 5)
    found = []
    for layer, order in ((ours, (0, 1, 2, 3)), (theirs, (0, 3, 1, 2))):
        given = x.clone().requires_grad_(True)
        out = layer(given.permute(order))
        (out * outer.permute(order)).sum().backward()
        found.append([given.grad, layer.weight.grad, layer.bias.grad])
    for mine, right in zip(*found, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-5)
