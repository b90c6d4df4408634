"""What a step costs beside the solver's."""

from farfield.bench.steps import benchmark_steps, markdown
from farfield.prediction.stepping import Predictor
from farfield.runs.run import Run


def test_network_and_solver_take_the_same_step(reproduced):
    plan, out, _ = reproduced
    run = Run(out / "laape-seed0")
    predictor, solver = Predictor.load(run, "cpu"), plan.problem.generation
    results = benchmark_steps(predictor, run, solver, plan.data, scales=["1", "2"], repeats=1, say=lambda _: None)
    assert [row["scale"] for row in results["rows"]] == ["1", "2"]
    for row in results["rows"]:
        assert row["network"]["wall"] > 0 and row["solver"]["wall"] > 0 and row["peak_bytes"] > 0
        assert set(row["l1"]) == set(predictor.spec.fields)
    assert markdown(results).count("\n| ") == 3
