"""Encodings and models as torch modules: printing, casting, compiling, exporting, plans made once."""

import copy

import pytest
import torch

import farfield as ff
from farfield.attention import plan as plans


def model_and_input(points=200, **options):
    torch.manual_seed(0)
    encoding = options.pop("encoding", ff.LAAPE(60.0))
    model = ff.TransformerOperator(3, 2, 2, encoding=encoding, width=16, depth=3, heads=2, **options).eval()
    return model, torch.randn(1, points, 3), 1000 * torch.rand(points, 2)


def test_an_encodings_repr_shows_its_lengths():
    assert "decay_length): LengthParameter(250.0)" in repr(ff.LASPE(250.0))
    assert "[[1.0, 2.0], [3.0, 4.0]]" in repr(ff.LASPE([[1.0, 2.0], [3.0, 4.0]]))
    assert "learned below" in repr(ff.LAAPE(1.0, learned=True, max_decay_length=2.0))
    assert "slope=0.5" in repr(ff.ALiBi(0.5)) and "max_wavelength=2000" in repr(ff.RoPE(2000.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casting_a_model_leaves_lengths_and_axes_exact(dtype):
    basis = torch.linalg.qr(torch.randn(2, 2, dtype=torch.float64))[0]
    encoding = ff.LAAPE([[123.456, 7.89]], basis=basis, learned=True, max_decay_length=200.0)
    cast = copy.deepcopy(encoding).to(dtype)
    for name, tensor in cast.state_dict().items():
        assert torch.equal(tensor, encoding.state_dict()[name]), name
    model = ff.TransformerOperator(3, 2, 2, encoding=ff.LASPE(123.456), width=16, depth=1, heads=2).to(dtype)
    assert model.embed.weight.dtype == dtype
    assert model.blocks[0].attention.encoding.decay_length.fixed.dtype == torch.float32


def test_a_new_encodings_identity_needs_no_care():
    class Steep(ff.ALiBi):
        def __init__(self, slope, power):
            super().__init__(slope)
            self.power = power

    assert Steep(1.0, 2).identity() == Steep(1.0, 2).identity()
    assert len({Steep(1.0, 2).identity(), Steep(1.0, 3).identity(), Steep(2.0, 2).identity()}) == 3
    assert ff.ALiBi(1.0).identity() != ff.Window(1.0).identity()
    assert ff.LASPE(1.0).identity() != ff.LASPE(1.0, learned=True, max_decay_length=1.0).identity()


@torch.no_grad()
@pytest.mark.parametrize("backend", ["tiled", "auto"])
def test_a_model_plans_its_points_once(backend, monkeypatch):
    built = []
    whole = plans._planned
    monkeypatch.setattr(plans, "_planned", lambda *given: built.append(1) or whole(*given))
    model, features, positions = model_and_input(4000 if backend == "auto" else 200, backend=backend)
    out = model(features, positions)
    assert len(built) == 1
    again = model(features, positions.clone())  # a rollout comes back to the same points
    assert len(built) == 1 and torch.equal(out, again)
    positions += 1000 * torch.rand_like(positions)  # in place: the plan must notice
    moved = model(features, positions)
    assert len(built) == 2
    fresh = copy.deepcopy(model)
    fresh._last_plans = {}
    assert torch.equal(moved, fresh(features, positions))


@torch.no_grad()
def test_a_model_on_a_periodic_domain_has_no_edge():
    model, features, positions = model_and_input(400, encoding=ff.LAAPE(60.0, rotary=None), tolerance=1e-6)
    moved = positions.clone()
    moved[::2, 0] += 1000.0
    one, other = (model(features, p, period=[1000.0, None]) for p in (positions, moved))
    assert (one - other).abs().max() < 1e-4 * one.abs().max()
    assert (one - model(features, positions)).abs().max() > 1e-3 * one.abs().max()


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "encoding", [ff.LAAPE(60.0), ff.LASPE([60.0, 70.0]), ff.RoPE()], ids=["laape", "laspe", "rope"]
)
def test_the_dense_path_compiles_without_graph_breaks_and_exports(encoding):
    model, features, positions = model_and_input(encoding=encoding, backend="dense")
    expected = model(features, positions)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(features, positions), expected, atol=1e-5)
    exported = torch.export.export(model, (features, positions)).module()
    assert torch.allclose(exported(features, positions), expected, atol=1e-5)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_the_tiled_path_compiles_and_plans_nothing_again(monkeypatch):
    model, features, positions = model_and_input(backend="tiled")
    expected = model(features, positions)
    plan = model.plan(positions)
    built = []
    whole = plans._planned
    monkeypatch.setattr(plans, "_planned", lambda *given: built.append(1) or whole(*given))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        assert torch.allclose(compiled(features, positions, plan=plan), expected, atol=1e-5)
    assert not built
