import pytest
import torch

import farfield as ff
from farfield.models import transformer_operator


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
    monkeypatch.setattr(transformer_operator, "_CHUNK", 7)
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
