"""Peers: trained and scored by the code that trains and scores ours."""

import io

import pytest
import torch
from rich.console import Console
from small import spec_of

from farfield.bench.peers import UNet, benchmark_peers, build_peer, markdown
from farfield.cli.bench import _pairs
from farfield.data.spec import SampleSpec
from farfield.problems import problem_named
from farfield.runs.run import Run
from farfield.runs.weights import load_weights, save_weights


def test_a_peer_is_trained_and_scored_beside_ours(reproduced, tmp_path):
    plan, out, _ = reproduced
    ours = Run(out / "laape-seed0")
    config = plan.problem.config(ours).changed({"training.optimiser": "muon", "training.validate_every": 2})
    console = Console(file=io.StringIO())
    some = {"peers": ["unet"], "minutes": 0.01, "scales": ["1", "2"], "pairs": {"1": 3, "2": 2}}
    results = benchmark_peers(ours, config, plan.data, tmp_path, console=console, **some)
    again = benchmark_peers(ours, config, plan.data, tmp_path, console=console, **some)  # nothing is trained twice
    assert [row["network"] for row in results["rows"]] == ["ours, laape", "unet"]
    for one, other in zip(results["rows"], again["rows"], strict=True):
        assert one["2"]["l1"] == other["2"]["l1"]
        assert one["1"]["pairs"] == 3 and all(error > 0 for error in one["1"]["l1"].values())
        assert one["minutes"] > 0
    assert markdown(results).count("\n| ") == 3


@pytest.mark.parametrize("cells", [(20,), (19, 26), (9, 10, 11)])
def test_a_unet_takes_domains_of_any_size(cells):
    torch.manual_seed(0)
    network = UNet(3, 2, len(cells), features=8)
    assert network(torch.randn(1, 3, *cells)).shape == (1, 2, *cells)


def test_a_fourier_operator_is_built_learns_and_is_kept(tmp_path):
    pytest.importorskip("neuralop", reason="a dependency of the benchmark only")
    spec = spec_of(problem_named("gray-scott").generation.configure("paper"))
    assert isinstance(spec, SampleSpec)
    model = build_peer("fno", spec)
    positions = torch.cartesian_prod(torch.arange(32), torch.arange(32)) * spec.normalised_spacing[0]
    model(torch.randn(1, 1024, 4), positions).square().mean().backward()
    assert any(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters())
    save_weights(tmp_path / "best.safetensors", model)
    again = build_peer("fno", spec)
    load_weights(tmp_path / "best.safetensors", again)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_unknown_peers_are_named():
    with pytest.raises(ValueError, match="unknown peer 'resnet': expected one of unet, fno"):
        build_peer("resnet", spec_of(problem_named("swe").generation.configure("paper")))


@pytest.mark.parametrize("limit", ["10", "10,5,1", "10,none", "10,0"])
def test_a_limit_that_does_not_match_the_scales_is_named(limit):
    with pytest.raises(ValueError, match="--limit must be one number for each of the scales 1,3, got"):
        _pairs(["1", "3"], limit)
