"""A run on a user's own data, with its test simulations or any other dataset of the same kind.

The scale of a dataset is how many times as wide as the training domain it is. Steps are scored as in
:mod:`farfield.evaluation.stepping`; of steady problems, the fields themselves are.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from farfield.data.dataset import Dataset
from farfield.data.generated import scale_text
from farfield.data.opening import open_dataset
from farfield.data.source import Source
from farfield.evaluation.evaluate import Advance, Amount, Numbers, Pictures, Subject
from farfield.evaluation.metrics import ErrorsByName, relative_errors, variance_scaled_error
from farfield.evaluation.stepping import SteppingSubject
from farfield.files import fingerprint
from farfield.prediction.steady import SteadyPredictor
from farfield.prediction.stepping import Predictor
from farfield.runs.run import Run
from farfield.runs.weights import Device


def own_subject(run: Run, data: Dataset | str | Path | None, device: Device) -> Subject:
    """A run and what it is to be tested on: its own test simulations, or all of ``data``."""
    steady = run.dataset()["spec"].get("kind", "stepping") == "steady"
    predictor = (SteadyPredictor if steady else Predictor).load(run, device)
    if data is None:
        source, scale = test_simulations(run), "1"
    else:
        opened = data if isinstance(data, Dataset) else open_dataset(data, like=predictor.spec)
        predictor.spec.require_same(opened.spec, str(run))
        source, scale = opened.source, scale_of(opened, predictor.spec.training_extent)

    def find(scales: list[str]) -> dict[str, Source]:
        if scales != [scale]:
            raise ValueError(f"this data is at s = {scale}: leave out --scales, got {', '.join(scales)}")
        return {scale: source}

    if isinstance(predictor, SteadyPredictor):
        return SteadySubject(predictor, find([scale]))
    return SteppingSubject(predictor, find, (scale,))


def test_simulations(run: Run) -> Source:
    """Those that no training of the run has seen; of a fine-tuned one, those of the run that it starts from."""
    settings = run.settings()
    while settings.get("starts_from"):
        settings = Run.find(settings["starts_from"]).settings()
    own = open_dataset(settings["dataset"])
    if not len(own.split("test")):
        raise ValueError(f"{own.folder} has no test simulations: give data to evaluate on")
    return own.split("test")


def scale_of(data: Dataset, trained: tuple[float, ...]) -> str:
    """How many times as wide as in training, along each axis: "1", "3" or "3x1"; to a tenth, as meshes differ a bit."""
    extents = [data.source.cloud(i).extent for i in range(min(len(data), 8))]
    ratios = np.median(np.asarray(extents), axis=0) / np.asarray(trained)
    return scale_text(tuple(float(round(r)) if abs(r - round(r)) < 0.1 * r else float(f"{r:.2g}") for r in ratios))


class SteadySubject:
    """A trained model of steady fields, and its test data."""

    shown: tuple[str, ...] = ("l1",)

    def __init__(self, predictor: SteadyPredictor, sources: dict[str, Source]):
        self.predictor, self.sources = predictor, sources
        self.default_scales = tuple(sources)

    def open(self, scales: list[str]) -> None:
        if unknown := sorted(set(scales) - set(self.sources)):
            raise ValueError(f"this data is at s = {', '.join(self.sources)}: leave out --scales, got {unknown[0]}")

    def data(self, scale: str) -> str:
        source = self.sources[scale]
        return fingerprint(f"{len(source)} {len(source.cloud(0))}".encode(), source.read(0).tobytes())

    def wanted(self, scale: str, amount: Amount) -> dict[str, int]:
        every = len(self.sources[scale])
        return {"samples": every if amount.samples is None else min(every, amount.samples)}

    def predictions(self, scale: str, wanted: dict[str, int]) -> int:
        return wanted["samples"]

    def measure(self, scale: str, wanted: dict[str, int], advance: Advance) -> tuple[list[Numbers], Pictures]:
        source = self.sources[scale]
        errors = ErrorsByName(self.predictor.fields)
        for simulation in range(wanted["samples"]):
            truth = torch.from_numpy(source.read(simulation).astype(np.float64))
            cloud = source.cloud(simulation)
            given = self.predictor.given(source.inputs(simulation), source.parameters(simulation))
            found = self.predictor.predict(cloud.points, extent=cloud.extent, boundary=cloud.flags, **given)
            columns = [np.asarray(values).reshape(len(cloud), -1) for values in found.values()]
            predicted = torch.from_numpy(np.concatenate(columns, axis=-1)).double()[None]
            errors.add(relative_errors(predicted, truth) | {"vrmse": variance_scaled_error(predicted, truth)})
            advance(1)
        return list(errors.means("{}", 1)), dict
