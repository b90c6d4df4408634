"""The problems: one folder each, and this list of them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from farfield.data.spec import SampleSpec
from farfield.problems.problem import Problem, SteppingProblem
from farfield.report.saved import Presentation
from farfield.runs.run import Run

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset

# A problem, or the module that defines it as PROBLEM, which is imported when it is asked for.
PROBLEMS: dict[str, Problem | str] = {
    "swe": "farfield.problems.swe.recipe",
    "gray-scott": "farfield.problems.gray_scott.recipe",
    "urban-wind": "farfield.problems.urban_wind.recipe",
    "urban-columns": "farfield.problems.urban_wind.column_recipe",
}


def problem_named(name: str) -> Problem:
    """A built-in problem."""
    if name not in PROBLEMS:
        raise ValueError(f"unknown problem {name!r}: expected one of {', '.join(sorted(PROBLEMS))}")
    found = PROBLEMS[name]
    return found if isinstance(found, Problem) else importlib.import_module(found).PROBLEM


def problem_of(run: Run) -> Problem:
    """The problem of a run's folder: a built-in one by its name, else what its data says that it is."""
    settings = run.settings()
    if settings["problem"] in PROBLEMS:
        return problem_named(settings["problem"])
    return _unnamed(settings, SampleSpec.model_validate(run.dataset()["spec"]))


def problem_for(settings: Mapping[str, Any]) -> Problem:
    """The problem of a run that has yet to begin, from its settings."""
    if settings["problem"] in PROBLEMS:
        return problem_named(settings["problem"])
    from farfield.data.opening import open_dataset

    opened = open_dataset(settings["dataset"])
    return _unnamed(settings, opened.spec, opened)


def _unnamed(settings: Mapping[str, Any], spec: SampleSpec, data: Dataset | None = None) -> Problem:
    """A problem that is not built in: a user's data (its runs may start from another), or one of an own generator."""
    if "starts_from" in settings:
        from farfield.problems.own import own_problem

        return own_problem(spec, data)
    return SteppingProblem(settings["problem"], Presentation(settings["problem"]), spec)


__all__ = ["PROBLEMS", "Problem", "SteppingProblem", "problem_for", "problem_named", "problem_of"]
