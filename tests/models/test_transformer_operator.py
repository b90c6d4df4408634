import re
import warnings

import pytest
import torch

import farfield as ff
from farfield.attention import wavelengths
from farfield.models import blocks
from farfield.runs.run import SHIPPED


def make(encoding=None, **sizes):
    torch.manual_seed(0)
    sizes = {"width": 24, "depth": 2, "heads": 3, **sizes}
    return ff.TransformerOperator(3, 2, 1, encoding=encoding or ff.LAAPE(100.0), **sizes)


def test_the_papers_model_has_the_parameters_that_its_table_implies():
    """Width 192, 6 blocks, expansion 4, one hidden layer; shallow water: 3 features in, 2 out."""
    width, hidden = 192, 4 * 192
    attention = 4 * (width * width + width)  # query, key, value and output projections
    feedforward = (width * hidden + hidden) + (hidden * width + width)
    norms = 2 * (2 * width)
    block = attention + feedforward + norms
    total = (3 * width + width) + 6 * block + 2 * width + (width * 2 + 2)
    model = ff.TransformerOperator(in_features=3, out_features=2, space_dim=1, encoding=ff.LAAPE(250.0))
    assert sum(p.numel() for p in model.parameters()) == total == 2_670_722


@pytest.mark.parametrize("encoding", [ff.RoPE(), ff.LASPE(100.0), ff.LAAPE(100.0), ff.ALiBi(0.01), ff.Window(200.0)])
def test_translating_the_domain_leaves_the_operator_unchanged(encoding):
    model, features, positions = make(encoding), torch.randn(2, 50, 3), torch.arange(50.0)[:, None] * 20
    with torch.no_grad():
        assert torch.allclose(model(features, positions), model(features, positions + 2.0**18), atol=1e-4)


def test_enlarging_the_domain_leaves_the_interior_unchanged():
    model = make(ff.LAAPE(20.0))
    features, positions = torch.randn(1, 400, 3), torch.arange(400.0)[:, None] * 5
    with torch.no_grad():
        whole = model(features, positions)
        part = model(features[:, :200], positions[:200])
    # two layers see 2 x 4 decay lengths = 32 points beyond the cut
    assert torch.allclose(whole[:, :160], part[:, :160], atol=1e-5)
    assert not torch.allclose(whole[:, 190:200], part[:, 190:], atol=1e-3)


def test_points_may_come_in_any_order():
    model, features, positions = make(), torch.randn(1, 40, 3), 1000 * torch.rand(40, 1)
    order = torch.randperm(40)
    with torch.no_grad():
        assert torch.allclose(
            model(features, positions)[:, order], model(features[:, order], positions[order]), atol=1e-5
        )


def test_chunks_and_checkpoints_change_nothing(monkeypatch):
    model, features, positions = make(), torch.randn(2, 60, 3), 1000 * torch.rand(2, 60, 1)
    whole = model(features, positions)
    whole.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    monkeypatch.setattr(blocks, "_CHUNK", 7)
    with torch.no_grad():
        assert torch.allclose(model(features, positions), whole, atol=1e-5)
    model.zero_grad()
    model.checkpointing = True
    model(features, positions).square().sum().backward()
    assert all(
        torch.allclose(p.grad, g, rtol=1e-4, atol=1e-6) for p, g in zip(model.parameters(), gradients, strict=True)
    )


def test_every_parameter_learns():
    model = make(ff.LAAPE(100.0, learned=True, max_decay_length=250.0))
    model(torch.randn(1, 30, 3), 1000 * torch.rand(30, 1)).square().sum().backward()
    assert all(
        p.grad is not None and p.grad.abs().sum() > 0 for n, p in model.named_parameters() if "to_key.bias" not in n
    )


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="width must be a multiple of heads, got width 25 and 3 heads"):
        make(width=25)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        make(depth=0)
    with pytest.raises(ValueError, match="the encoding is for 2 axes, space_dim is 1"):
        make(ff.LASPE([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"features must have the shape \(batch, points, 3\), got \(1, 5, 4\)"):
        make()(torch.randn(1, 5, 4), torch.rand(5, 1))
    with pytest.raises(ValueError, match="positions must have 1 axes"):
        make()(torch.randn(1, 5, 3), torch.rand(5, 2))


# --- outputs elsewhere than inputs -----------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", ["dense", "tiled"])
def test_queries_read_and_are_read_by_none(backend):
    model, features = make(ff.LAAPE(100.0), backend=backend, conditions=1), torch.randn(2, 50, 3)
    positions, queries, condition = 1000 * torch.rand(50, 1), 1000 * torch.rand(2, 20, 1), torch.randn(2, 1)
    with torch.no_grad():
        whole = model(features, positions, condition, query_positions=queries)
        assert whole.shape == (2, 20, 2)
        pieces = [model(features, positions, condition, query_positions=part) for part in queries.split([3, 17], dim=1)]
        assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-4)
        # what the formula says: a query is a point of zero features that no key comes from
        x = model.embed(torch.cat([features, torch.zeros(2, 20, 3)], dim=1))
        where = torch.cat([positions.expand(2, -1, -1), queries], dim=1)
        seen = torch.arange(70)[None] < 50
        for block in model.blocks:
            scale, shift, *then = block.modulate(model.condition(condition)[:, None]).chunk(4, dim=-1)
            normed = block.norm_attention(x) * (1 + scale) + shift
            q, (k, v) = block.attention.queries(normed), block.attention.keys_values(normed)
            x = x + block.attention.read(q, k, v, where, backend="reference", key_mask=seen.expand(2, -1))
            x = x + block.mlp(block.norm_mlp(x) * (1 + then[0]) + then[1])
        assert torch.allclose(model.project(model.norm(x))[:, 50:], whole, atol=1e-4)
    with pytest.raises(ValueError, match="query_positions must have 1 axes"):
        model(features, positions, condition, query_positions=torch.rand(4, 2))


# --- one file --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "encoding",
    [
        ff.RoPE(500.0, 20.0),
        ff.LASPE([[100.0], [50.0], [20.0]], rotary=None),
        ff.LAAPE(decay_length_plus=50.0, decay_length_minus=[80.0], learned=True, max_decay_length=250.0),
        ff.FlashBias(100.0, 3, 8),
        ff.ALiBi(0.01),
        ff.Window(200.0),
    ],
)
def test_a_saved_operator_comes_back(tmp_path, encoding):
    model, features, positions = make(encoding), torch.randn(1, 30, 3), 20.0 * torch.arange(30)[:, None]
    with torch.no_grad():
        for parameter in model.parameters():  # as if trained
            parameter += 0.05 * torch.randn_like(parameter)
        model.save(tmp_path / "model.safetensors")
        again = ff.TransformerOperator.load(tmp_path / "model.safetensors")
        assert torch.equal(again(features, positions), model(features, positions))


def test_patches_and_conditions_are_saved_too(tmp_path):
    tokens = ff.PatchTokens(2, spacing=10.0, periodic=True)
    model = ff.TransformerOperator(1, 1, 2, encoding=ff.LAAPE(40.0), width=12, depth=1, conditions=2, tokens=tokens)
    model.save(tmp_path / "model.safetensors")
    again = ff.TransformerOperator.load(tmp_path / "model.safetensors")
    assert again.tokens == tokens
    fields, conditions = torch.randn(1, 1, 8, 8), torch.randn(1, 2)
    with torch.no_grad():
        assert torch.equal(again.on_grid(fields, conditions), model.on_grid(fields, conditions))


def test_what_is_no_saved_operator_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no model at"):
        ff.TransformerOperator.load(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"no")
    with pytest.raises(ValueError, match="truncated, damaged or not a file"):
        ff.TransformerOperator.load(tmp_path / "bad")
    with pytest.raises(ValueError, match="holds weights, but not what builds their model"):
        ff.TransformerOperator.load(SHIPPED / "swe-laape/best.safetensors")

    class Own(ff.LAAPE):
        pass

    with pytest.raises(ValueError, match="cannot save the encoding Own"):
        make(Own(10.0)).save(tmp_path / "own")


# --- wavelengths that cannot fit -------------------------------------------------------------------------------------
def warned(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wavelengths._judged.clear()
        call()
        call()
    return [str(warning.message) for warning in caught]


def test_wavelengths_that_cannot_fit_are_named_with_the_fix():
    features = torch.randn(1, 40, 3)
    close, far = torch.linspace(0, 0.9, 40)[:, None], 25.0 * torch.arange(40)[:, None]
    (said,) = warned(lambda: make(ff.LAAPE(0.2))(features, close))
    assert "all positions lie within 0.9, but the shortest rotary wavelength is 6.28" in said
    (fix,) = re.findall(r"RoPE\(min_wavelength=([\d.]+), max_wavelength=([\d.]+)\)", said)
    fitted = ff.RoPE(min_wavelength=float(fix[0]), max_wavelength=float(fix[1]))
    assert warned(lambda: make(ff.LAAPE(0.2, rotary=fitted))(features, close)) == []
    (said,) = warned(lambda: make(ff.RoPE())(features, far))
    assert "the points lie 25 apart, more than the shortest rotary wavelength, 6.28" in said
    q = torch.randn(1, 2, 40, 8)
    assert len(warned(lambda: ff.local_attention(q, q, q, far, encoding=ff.RoPE()))) == 1
    assert warned(lambda: ff.local_attention(q, q, q, far, encoding=ff.LAAPE(100.0, rotary=None))) == []
    assert warned(lambda: make(ff.RoPE())(features, far / 25)) == []
