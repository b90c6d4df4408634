import numpy as np
import pytest

from farfield.bench import training as benchmark


def test_both_ways_of_a_step_are_measured_and_do_nearly_the_same_operations():
    """The plain way forms each logit once, the kernel forms them again in its backward pass and pads its channels."""
    setup = next(iter(benchmark.SETUPS))
    np.ones(1 << 27)  # this process' peak of 1 GB must not be taken for theirs
    rows = [benchmark.measure_alone(setup, variant, steps=1) for variant in benchmark.VARIANTS]
    fast, plain = (row["gflop_per_second"] * row["seconds_per_step"] for row in rows)
    assert plain < fast < 1.5 * plain
    for row in rows:
        assert row["gemm_fraction"] == pytest.approx(row["gflop_per_second"] / row["gemm_gflop_per_second"])
        assert row["memory_megabytes"] > 10
    table = benchmark.markdown({"torch": "2", "threads": 1, "rows": rows})
    assert f"| {setup} | plain |" in table and f"| {setup} | farfield |" in table
