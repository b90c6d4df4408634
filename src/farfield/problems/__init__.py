"""The problems: one folder each, and this list of them."""

from __future__ import annotations

import importlib
from typing import Any

from farfield.problems.problem import Problem, SteppingProblem
from farfield.report.saved import Presentation
from farfield.runs.run import Run

# A problem, or the module that defines it as PROBLEM, which is imported when it is asked for.
PROBLEMS: dict[str, Problem | str] = {
    "swe": "farfield.problems.swe.recipe",
    "gray-scott": "farfield.problems.gray_scott.recipe",
    "urban-wind": "farfield.problems.urban_wind.recipe",
}


def problem_named(name: str) -> Problem:
    """A built-in problem."""
    if name not in PROBLEMS:
        raise ValueError(f"unknown problem {name!r}: expected one of {', '.join(sorted(PROBLEMS))}")
    found = PROBLEMS[name]
    return found if isinstance(found, Problem) else importlib.import_module(found).PROBLEM


def problem_of(run: Run) -> Problem:
    """The problem of a run's folder: a built-in one by its name, else what its data says that it is."""
    name = run.settings()["problem"]
    return problem_named(name) if name in PROBLEMS else own_problem(run.dataset())


def own_problem(description: dict[str, Any]) -> Problem:
    """The problem that a user's data is, from its description in a run's ``dataset.json``."""
    from farfield.data.spec import SampleSpec

    spec = SampleSpec.model_validate(description["spec"])
    return SteppingProblem(spec.problem, Presentation(spec.problem), spec)


__all__ = ["PROBLEMS", "Problem", "SteppingProblem", "own_problem", "problem_named", "problem_of"]
