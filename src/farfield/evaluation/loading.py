"""``farfield.load``: a trained model of any case, ready to predict.

It stands here, above the models, because a model of urban wind needs the datasets' sampling of points to be used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from farfield.files import read_description
from farfield.models.predictor import Predictor, model_folder
from farfield.models.predictor import load as load_academic

if TYPE_CHECKING:
    from farfield.evaluation.urban_prediction import UrbanPredictor


def load(name_or_run: str | Path, *, device: str | torch.device | None = None) -> Predictor | UrbanPredictor:
    """Load a shipped model by name, or the best weights of a run's folder; its case decides what it can do.

    ``load("swe-laape").step({"v": v, "h": h}, positions)``, ``load("urban-wind-laape").predict("city.stl", ...)``;
    ``device`` is CUDA where there is one, unless given.
    """
    folder = model_folder(name_or_run)
    if read_description(folder / "config.yaml").get("case") == "urban-wind":
        from farfield.evaluation.urban_prediction import UrbanPredictor  # VTK takes a second to import

        return UrbanPredictor.load(folder, device)
    return load_academic(folder, device=device)
