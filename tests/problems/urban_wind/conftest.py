"""A model of urban wind as a run's folder, with a network too small to have learned anything."""

from pathlib import Path

import pytest
import torch

from farfield.problems.urban_wind.buildings import Box, boxes_to_mesh
from farfield.problems.urban_wind.sampling import UrbanNormalisation
from farfield.runs.config import UrbanRun
from farfield.runs.run import Run, save_weights

NORMALISATION = UrbanNormalisation(
    fields=("velocity", "pressure", "k", "epsilon"),
    target_mean=(4.0, 0.1, -0.2, -1.0, -0.5, -3.0),
    target_std=(2.0, 1.0, 0.5, 5.0, 1.0, 1.5),
    profile_mean=(4.0, 293.15, 0.8, 0.1),
    profile_std=(1.5, 1.0, 0.4, 0.2),
    terrain_mean=(-1.5, 0.0),
    terrain_std=(0.9, 1.0),  # ln z0 varied, 1/L never did
    cells=2500.0,
    ground_area=99_000.0,
    building_height=(10.0, 38.0),
    plan_density=(0.05, 0.3),
)


@pytest.fixture(scope="session")
def urban_run(tmp_path_factory) -> Path:
    """Weights large enough for points to matter to one another."""
    run = Run(tmp_path_factory.mktemp("runs") / "urban")
    config = UrbanRun(case="urban-wind", dataset="data").changed(
        {
            "model.width": 24,
            "model.heads": 2,
            "model.processor_depth": 1,
            "model.decoder_depth": 2,
            "model.obstacle_radius": 20.0,
            "model.terrain_radius": 40.0,
            "points.obstacles": 64,
            "points.terrain": 64,
            "points.obstacle_supernodes": 24,
            "points.terrain_supernodes": 24,
            "points.anchors": 80,
        }
    )
    run.create(config, {"case": "urban-wind", "normalisation": NORMALISATION.to_dict()})
    torch.manual_seed(0)
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(1.5)
    save_weights(run.best_path, model)
    return run.folder


@pytest.fixture(scope="session")
def city():
    """Four blocks on a hectare, without any symmetry."""
    boxes = [Box(-45, -25, -40, -15, 20), Box(5, 25, -45, -30, 33), Box(-30, -5, 15, 45, 12), Box(20, 45, 5, 20, 25)]
    return boxes_to_mesh(boxes)
