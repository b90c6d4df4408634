"""What a problem is: all that the engines (training, prediction, evaluation, report) are told about one.

    name, spec          what it is called, and what its data is
    generation          how its data is made; None where the data is the user's
    presets             named settings of its runs
    task                model, data and loss, for training
    predictor           a trained model at work, and its files
    subject             how a prediction is scored
    shown               which table and pictures it gets

Nothing heavy is imported before it is asked for: loading a model needs neither the training loop nor a solver.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, get_args

from rich.console import Console

from farfield.data.spec import SampleSpec
from farfield.evaluation.evaluate import Amount, Subject
from farfield.models.config import EncodingName
from farfield.problems.share import WHOLE, Share
from farfield.report.saved import Presentation
from farfield.runs.config import RunConfig, SteppingRun
from farfield.runs.run import Run
from farfield.runs.weights import Device

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset
    from farfield.prediction.stepping import Predictor
    from farfield.training.loop import Task


class Generation(Protocol):
    """How the data of a problem is made."""

    @property
    def default_preset(self) -> str:
        """What ``farfield generate`` makes unless told otherwise."""

    def configure(self, preset: str, seed: int = 0, scales: str | None = None, changes: Sequence[str] = ()) -> Any:
        """All settings of a dataset; ``scales`` and ``changes`` are as a user types them."""

    def make(
        self,
        settings: Any,
        out: str | Path,
        workers: int | None = None,
        console: Console | None = None,
        share: Share = WHOLE,
    ) -> str:
        """Make what is missing of it, or of a share of it, in a folder; returns what was done, in words."""

    def is_whole(self, out: str | Path) -> bool:
        """Whether nothing need be looked at: the data is there, wherever it is from."""


class Imported:
    """Something of a module, which is imported when it is first asked for: to predict, nobody needs a generator."""

    def __init__(self, module: str, name: str):
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # such as pickle asks for, of one that has no module yet
            raise AttributeError(attribute)
        return getattr(getattr(importlib.import_module(self._module), self._name), attribute)


@dataclass(frozen=True)
class Preset:
    """One size of a problem: its runs, how far they are evaluated, and how long that takes."""

    run: Callable[[EncodingName, str, int], RunConfig]
    """The configuration of a run, from encoding, dataset folder and seed."""
    minutes: float
    """Roughly, for training and evaluating one run on two cores."""
    scales: tuple[str, ...] = ("1", "2", "3", "7", "10")
    data_scales: str | None = None
    """Larger domains to make data of for these scales, where its generation's preset has others."""
    amounts: Mapping[str, Amount] = field(default_factory=dict)
    """How much is evaluated, by scale; everything where not given."""
    dense_amounts: Mapping[str, Amount] = field(default_factory=dict)
    """The same for RoPE, whose cost grows with the square of the points; no samples: the scale is left out."""


@dataclass(frozen=True)
class Problem(ABC):
    """One problem; :class:`SteppingProblem` is what those have in common in which a state is stepped on."""

    name: str
    shown: Presentation
    spec: SampleSpec | None = None
    generation: Generation | Imported | None = None
    presets: Mapping[str, Preset] = field(default_factory=dict)

    run_type: ClassVar[type[RunConfig]]

    def config(self, run: Run) -> RunConfig:
        """The configuration of a run of this problem."""
        return self.run_type.parse(run.settings(), str(run.config_path))

    def preset(self, name: str) -> Preset:
        """A preset by the name that a user types."""
        if name not in self.presets:
            known = ", ".join(self.presets) or "none: its data is the user's"
            raise ValueError(f"{self.name} has no preset {name!r}: expected one of {known}")
        return self.presets[name]

    def run(self, preset: str, encoding: str, dataset: str, seed: int = 0) -> RunConfig:
        """The configuration of one run of a preset, from names as a user types them."""
        chosen = self.preset(preset)
        if encoding not in get_args(EncodingName):
            raise ValueError(f"unknown encoding {encoding!r}: expected one of {', '.join(get_args(EncodingName))}")
        return chosen.run(cast(EncodingName, encoding), dataset, seed)

    @abstractmethod
    def task(self, config: Any) -> Task:
        """Model, data and loss of a run."""

    @abstractmethod
    def predictor(self, run: Run, device: Device = None) -> Any:
        """The best weights of a run, ready to predict in physical units."""

    @abstractmethod
    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        """A run and its test data, in the folder ``data`` or in that which it was trained on."""

    def trained(self, run: Run, config: Any) -> None:
        """What is left to do when a run has been trained to its end."""
        return

    def calibrate(self, run: Run, data: str | Path | None = None, device: Device = None) -> str:
        """``farfield calibrate``: measure how large a run's errors are, for its predictions to say so; in words."""
        raise ValueError(f"predictions of {self.name} come without an estimate of their errors")

    @abstractmethod
    def predict_file(self, run: Run, options: Mapping[str, Any], out: Path, device: Device = None) -> str:
        """``farfield predict``: from the options that were given to a file; returns what was done, in words."""


def require(run: Run, options: Mapping[str, Any], needed: str, what: str, known: Sequence[str]) -> None:
    """Refuse a prediction without the option that it starts from, or with options that have no effect."""
    problem = run.settings()["problem"]
    if needed not in options:
        raise ValueError(f"{run.folder.name} is a model of {problem}: it needs --{needed} with {what}")
    if given := [f"--{name.replace('_', '-')}" for name in options if name not in (needed, "force", *known)]:
        raise ValueError(f"a model of {problem} has no use for {', '.join(given)}")


def folder_of(run: Run, data: Dataset | str | Path | None) -> Path:
    """The folder of test data: the given one, or that which the run was trained on."""
    if data is not None and not isinstance(data, str | Path):
        raise ValueError(f"a run of {run.settings()['problem']} is tested on a folder that `farfield generate` made")
    return Path(data or run.settings()["dataset"])


@dataclass(frozen=True)
class SteppingProblem(Problem):
    """State -> change over one saved step, learned by a transformer operator: built-in, or a user's data."""

    run_type: ClassVar[type[RunConfig]] = SteppingRun

    def task(self, config: SteppingRun) -> Task:
        from farfield.training.tasks import generated_task

        return generated_task(config)

    def predictor(self, run: Run, device: Device = None) -> Predictor:
        from farfield.prediction.stepping import Predictor

        return Predictor.load(run, device)

    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        from farfield.evaluation.stepping import generated_subject

        return generated_subject(run, folder_of(run, data), device)

    def predict_file(self, run: Run, options: Mapping[str, Any], out: Path, device: Device = None) -> str:
        return predict_states(self, run, options, out, device)


def predict_states(problem: Problem, run: Run, options: Mapping[str, Any], out: Path, device: Device) -> str:
    """``farfield predict`` of what is given as states, or as the inputs of a steady problem."""
    spec = SampleSpec.model_validate(run.dataset()["spec"])
    require(run, options, "input", "data", ("parts", *(("steps", "start") if spec.kind == "stepping" else ())))
    from farfield.prediction.files import predict_file

    others = {name: value for name, value in options.items() if name != "input"}
    return predict_file(problem.predictor(run, device), options["input"], out, **others)
