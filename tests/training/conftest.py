"""A tiny shallow water dataset and a tiny run on it; a step takes milliseconds."""

from pathlib import Path

import pytest
import torch

from farfield.problems.generation import SplitConfig, generate, shallow_water_config
from farfield.runs.config import AcademicRun


@pytest.fixture(autouse=True)
def _one_thread():
    """The suite runs in two processes on two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> Path:
    """Sixteen cells, 40 training items."""
    folder = tmp_path_factory.mktemp("data") / "small"
    splits = {name: SplitConfig(simulations=count, scale=(1,)) for name, count in {"train": 8, "validation": 2}.items()}
    base = shallow_water_config("quick")
    generate(base.model_copy(update={"cells": (16,), "save_every": 2, "states": 6, "splits": splits}), folder)
    return folder


@pytest.fixture
def tiny(small_data) -> AcademicRun:
    """Thirty steps of a tiny model."""
    config = AcademicRun(case="swe", dataset=str(small_data))
    return config.changed(
        {
            "model.width": 24,
            "model.depth": 2,
            "model.heads": 3,
            "training.optimiser": "adamw",
            "training.learning_rate": 3e-3,
            "training.batch_size": 8,
            "training.steps": 30,
            "training.validate_every": 7,
            "training.checkpoint_every": 4,
        }
    )


@pytest.fixture(scope="session")
def paper_data(tmp_path_factory) -> Path:
    """The paper's shallow water with few simulations: 128 cells, a state every 0.3 s."""
    folder = tmp_path_factory.mktemp("data") / "paper"
    splits = {name: SplitConfig(simulations=count, scale=(1,)) for name, count in {"train": 2, "validation": 1}.items()}
    generate(shallow_water_config("paper").model_copy(update={"splits": splits}), folder)
    return folder
