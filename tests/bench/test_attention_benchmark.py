import torch

from farfield.bench import attention as benchmark


def test_the_benchmark_measures_tables_and_draws(monkeypatch, tmp_path):
    """The real measurement, on clouds small enough for a test; only the sizes are changed."""
    cloud, graded = benchmark.jittered_cloud, benchmark.graded_cloud
    monkeypatch.setattr(benchmark, "jittered_cloud", lambda scale: cloud(1)[: 3000 * scale] * 3)
    monkeypatch.setattr(benchmark, "graded_cloud", lambda points: graded(points // 20))
    monkeypatch.setattr(benchmark, "MOST_PAIRS", 9_000_000)
    said = []
    with torch.no_grad():
        results = benchmark.benchmark_attention((1, 2), said.append)
    assert said[0] == "s = 1, LAAPE ..."
    for row in results["rows"]:
        assert 0 < row["error_over_tolerance"] < 1
        assert row["certified_over_estimated_pairs"] > 0.8  # sounding may leave out more than the estimate
        assert row["tiled_seconds"] > 0 and row["dense_seconds"] > 0
        assert 0 < row["least_by_query"] < row["least_by_tiles"] <= row["pairs_over_all"] <= 1
        assert row["tiled_queries_measured"] <= row["points"]
    assert any(row["tiled_queries_measured"] < row["points"] for row in results["rows"])
    assert all(max(row["errors"].values()) < 1e-3 for row in results["gradients"])
    assert all(row["error"] < 1e-4 for row in [*results["large_logits"], results["graded_3d"]])
    table = benchmark.markdown(results)
    assert table.count("LAAPE") >= 4 and "3D, 10000 points" in table
    assert benchmark.draw(results, tmp_path / "attention.png").stat().st_size > 10_000
