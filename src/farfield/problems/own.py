"""A user's own data as a problem: it needs no folder, no preset and no name of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from farfield.data.spec import SampleSpec
from farfield.evaluation.evaluate import Amount, Subject
from farfield.files import write_table
from farfield.models.config import EncodingName
from farfield.problems.problem import Problem, predict_states
from farfield.report.saved import Presentation
from farfield.runs.config import OwnRun, RunConfig
from farfield.runs.run import Run
from farfield.runs.weights import Device

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset
    from farfield.training.loop import Task

_HEADS = 4
_TOKENS, _LARGEST_PATCH = 512, 4  # of a grid with more cells, patches are the tokens


def own_problem(spec: SampleSpec, data: Dataset | None = None) -> OwnProblem:
    """The problem that a user's data is; ``data`` is what is open already, so that it is not opened again."""
    return OwnProblem(spec.problem, Presentation(spec.problem), spec, data=data)


@dataclass(frozen=True)
class OwnProblem(Problem):
    """Steps or steady fields of a user's data, learned by a transformer operator."""

    run_type: ClassVar[type[RunConfig]] = OwnRun
    data: Dataset | None = None

    def task(self, config: OwnRun) -> Task:
        from farfield.training.tasks import own_task

        return own_task(config, self.data)

    def predictor(self, run: Run, device: Device = None) -> Any:
        assert self.spec is not None
        if self.spec.kind == "steady":
            from farfield.prediction.steady import SteadyPredictor

            return SteadyPredictor.load(run, device)
        from farfield.prediction.stepping import Predictor

        return Predictor.load(run, device)

    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        from farfield.evaluation.own import own_subject

        return own_subject(run, data, device)

    def trained(self, run: Run, config: OwnRun) -> None:
        """After fine-tuning, the errors on old and new data, before and after: ``RUN/finetune.csv``."""
        if config.starts_from is None:
            return
        from farfield.data.dataset import Dataset
        from farfield.data.opening import open_dataset
        from farfield.evaluation.own import test_simulations

        base, rows = Run.find(config.starts_from), []
        sizes = {"own": Dataset(test_simulations(base)), "new": self.data or open_dataset(config.dataset)}
        for stage, subject_of in (("before", base), ("after", run)):
            for size, tested in sizes.items():
                subject = self.subject(subject_of, tested)
                (scale,) = subject.default_scales
                subject.open([scale])
                found, _ = subject.measure(scale, subject.wanted(scale, Amount(rollouts=0)), lambda _: None)
                rows += [(stage, size, scale, *numbers) for numbers in found]
        columns = ("stage", "data", "scale", "field", "metric", "horizon", "value", "samples")
        write_table(run.finetune_path, columns, rows)

    def predict_file(self, run: Run, options: Mapping[str, Any], out: Path, device: Device = None) -> str:
        return predict_states(self, run, options, out, device)


def default_run(
    data: Dataset, folder: str, encoding: EncodingName, seed: int = 0, changes: Mapping[str, Any] | None = None
) -> OwnRun:
    """What is learned from a dataset unless ``changes`` say otherwise: all follows from its spacing, extent and size.

    The widest head's decay length is what :meth:`Dataset.decay_lengths` proposes, the others' half, a quarter and an
    eighth of that, but at least two spacings; rotary wavelengths run from two spacings to twice the widest support. On
    a grid of many cells, patches of them are the tokens.

    Where the domain is periodic, the wavelengths are its period, half of it, a quarter, and so on: RoPE, which cannot
    see endless images of every key, then knows that the domain closes on itself.
    """
    changes = changes or {}
    spec, cloud = data.spec, data.source.cloud(0)
    scale, axes = spec.position_scale, spec.space_dim
    spacing = max(spec.normalised_spacing)
    quarter = [length * factor for length, factor in zip(data.decay_lengths(), scale, strict=True)]
    patch = 1
    if cloud.cells:
        while patch < _LARGEST_PATCH and len(cloud) > _TOKENS * patch**axes and min(cloud.cells) >= 8 * patch:
            patch *= 2
    width, heads = changes.get("model.width", 64), changes.get("model.heads", _HEADS)
    # no wider than what every axis allows, no narrower than two tokens
    lengths = [[max(q / 2**head, min(q, 2 * spacing * patch)) for q in quarter] for head in range(heads)]
    local = {"laspe": lengths, "laape": lengths}.get(encoding, None if encoding == "rope" else min(quarter))
    shortest, longest = 2 * spacing * patch, max(4 * max(quarter), 8 * spacing * patch)
    periods = {length for length in spec.period(spec.training_extent) or () if length is not None}
    harmonics = width // heads // (2 * axes)
    if len(periods) == 1 and harmonics > 1:
        (longest,) = periods
        shortest = longest / 2 ** (harmonics - 1)
    settings: dict[str, Any] = {
        "problem": spec.problem,
        "dataset": folder,
        "seed": seed,
        "encoding": {
            "name": encoding,
            "decay_length": local,
            "rotary": {"min_wavelength": shortest, "max_wavelength": longest},
        },
        "model": {
            "width": width,
            "depth": 4,
            "heads": heads,
            "tokens": {"patch": patch} if patch > 1 else None,
        },
        "training": {
            "optimiser": "adamw",
            "learning_rate": 2e-3,
            "final_learning_rate": 1e-5,
            "gradient_clip": 1.0,
            "batch_size": max(1, min(16, 8192 * patch**axes // len(cloud), _items(data))),
            "average": 0.99,
            "steps": 1000,
        },
    }
    return OwnRun.parse(settings).changed(changes)


def _items(data: Dataset) -> int:
    steps = 1 if data.spec.kind == "stepping" else 0
    return sum(data.source.states(i) - steps for i in data.splits["train"])
