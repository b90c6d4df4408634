import pytest

from farfield.training import benchmark


def test_both_ways_of_a_step_are_measured_and_do_nearly_the_same_operations(monkeypatch):
    """The plain way forms each logit once, the kernel forms them again in its backward pass and pads its channels."""
    monkeypatch.setitem(benchmark.CASES, "small", ((20, 20), 1, 4))
    rows = [benchmark.measure("small", variant, 1) for variant in benchmark.VARIANTS]
    fast, plain = (row["gflop_per_second"] * row["seconds_per_step"] for row in rows)
    assert plain < fast < 1.5 * plain
    for row in rows:
        assert row["gemm_fraction"] == pytest.approx(row["gflop_per_second"] / row["gemm_gflop_per_second"])
    table = benchmark.markdown({"torch": "2", "threads": 1, "rows": rows})
    assert "| small | plain |" in table and "| small | farfield |" in table
