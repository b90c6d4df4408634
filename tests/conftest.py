import os
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest
import torch
from hypothesis import HealthCheck, settings

matplotlib.use("agg")
# One thread per worker, also in the processes that tests start: more would wait for one another's cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

# Examples are drawn the same way in every run: a failure is reproducible, and no run is luckier than another.
settings.register_profile(
    "farfield", max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("farfield")


def pytest_collection_modifyitems(items):
    """Users of an experiment that takes long come first, together: one of the workers makes it, once."""
    costly = ("urban_reproduced", "reproduced")
    items.sort(key=lambda item: next((i for i, name in enumerate(costly) if name in item.fixturenames), len(costly)))


TINY_MODEL = {
    "encoding.decay_length": 250.0,  # the presets' own are shorter than these few cells
    "model.width": 24,
    "model.depth": 1,
    "model.heads": 3,
    "training.optimiser": "adamw",
    "training.learning_rate": 3e-3,
    "training.batch_size": 4,
    "training.steps": 20,
    "training.validate_every": 10,
}


def tiny_experiment(problem: str, folder: Path):
    """A preset's experiment in a second: few cells, few states, a tiny network."""
    from farfield.studies.reproduce import experiment

    whole = experiment(problem, "quick", folder / "data", TINY_MODEL)
    small = {"cells": (40,), "extent": (50.0,), "states": 6}
    if problem == "gray-scott":
        small = {"cells": (12, 8), "extent": (12.0, 8.0), "save_every": 40, "states": 4}
        whole = replace(whole, settings={**TINY_MODEL, "model.tokens.patch": 4, "model.tokens.levels": [6]})
    splits = {
        name: {"simulations": 2 + 2 * (name == "train"), "scale": whole.dataset.splits[name].scale}
        for name in ("train", "validation", "test", "s2", "s3")
    }
    dataset = whole.dataset.replace(splits=splits, **small)
    preset = replace(whole.preset, scales=("1", "2", "3"), amounts={}, dense_amounts={}, minutes=0.1)
    return replace(whole, dataset=dataset, preset=preset)


@pytest.fixture
def tiny_swe(tmp_path):
    """The quick experiment of shallow water in seconds; not yet run."""
    return tiny_experiment("swe", tmp_path)


@pytest.fixture(scope="session", params=["swe", "gray-scott"])
def reproduced(request, tmp_path_factory):
    """A tiny experiment from end to end: its description, its folder and what was said (tests must not change it)."""
    import io

    from rich.console import Console

    from farfield.studies.reproduce import reproduce

    folder = tmp_path_factory.mktemp(request.param)
    plan, said = tiny_experiment(request.param, folder), io.StringIO()
    reproduce(plan, ["laspe", "laape"], [0], folder / "out", console=Console(file=said, width=200))
    return plan, folder / "out", said.getvalue()


@pytest.fixture
def run_copy(reproduced, tmp_path):
    """A run of the tiny experiment that a test may spoil."""
    import shutil

    return Path(shutil.copytree(reproduced[1] / "laape-seed0", tmp_path / "run"))


@pytest.fixture(scope="session")
def urban_data(tmp_path_factory) -> Path:
    """Seven small cities, one of those for tests stratified, and two large, of 96 cells (tests must not change it)."""
    from urban_layout import write_dataset

    folder = tmp_path_factory.mktemp("urban") / "data"
    index = {"train_ids": [0, 1, 2], "val_ids": [3], "test_ids": [4, 5, 6], "z0": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]}
    stability = {"invlmo": [0.0, 0.02, 0.0, 0.0, 0.0, 0.01, 0.0], "ls_z0s": [0.5]}
    write_dataset(folder, {"total_size": 7, **index, **stability})
    return folder


@pytest.fixture(scope="session")
def urban_reproduced(urban_data, tmp_path_factory):
    """A tiny experiment on urban wind: its description, its folder and what was said (tests must not change it)."""
    import io

    from rich.console import Console
    from urban_layout import TINY_AB_SWIFT

    from farfield.evaluation.evaluate import Amount
    from farfield.studies.reproduce import experiment, reproduce

    out, said = tmp_path_factory.mktemp("urban-runs"), io.StringIO()
    plan = experiment("urban-wind", "quick", urban_data, TINY_AB_SWIFT)
    amounts = dict.fromkeys(plan.preset.scales, Amount(draws=2))
    plan = replace(plan, preset=replace(plan.preset, amounts=amounts, minutes=0.1))
    reproduce(plan, ["rope", "laape"], [0], out, console=Console(file=said, width=200))
    return plan, out, said.getvalue()


@pytest.fixture(scope="session", params=["swe", "gray-scott"])
def dataset(request, tmp_path_factory):
    """A tiny dataset of each problem: its configuration and its folder (tests must not change it)."""
    from small import generate, tiny_dataset

    config = tiny_dataset(request.param)
    folder = tmp_path_factory.mktemp("datasets") / request.param
    generate(config, folder)
    return config, folder


@pytest.fixture(scope="session")
def small_data(tmp_path_factory) -> Path:
    """Sixteen cells, 40 training items."""
    from small import generate

    from farfield.problems.generation import SplitConfig
    from farfield.problems.swe.generation import settings as swe

    folder = tmp_path_factory.mktemp("data") / "small"
    splits = {name: SplitConfig(simulations=count, scale=(1,)) for name, count in {"train": 8, "validation": 2}.items()}
    base = swe("quick")
    generate(base.model_copy(update={"cells": (16,), "save_every": 2, "states": 6, "splits": splits}), folder)
    return folder


@pytest.fixture
def tiny(small_data):
    """Thirty steps of a tiny model."""
    from farfield.runs.config import SteppingRun

    config = SteppingRun(problem="swe", dataset=str(small_data))
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
            "training.precision": "float32",  # exact laws; other precisions are asked for by name
        }
    )


@pytest.fixture(scope="session")
def paper_data(tmp_path_factory) -> Path:
    """The paper's shallow water with few simulations: 128 cells, a state every 0.3 s."""
    from small import generate

    from farfield.problems.generation import SplitConfig
    from farfield.problems.swe.generation import settings as swe

    folder = tmp_path_factory.mktemp("data") / "paper"
    splits = {name: SplitConfig(simulations=count, scale=(1,)) for name, count in {"train": 2, "validation": 1}.items()}
    generate(swe("paper").model_copy(update={"splits": splits}), folder)
    return folder


@pytest.fixture(scope="session")
def urban_run(tmp_path_factory) -> Path:
    """A model of urban wind, too small to have learned anything; its weights let points matter to one another."""
    from small import NORMALISATION

    from farfield.problems.urban_wind.config import UrbanRun
    from farfield.runs.run import Run
    from farfield.runs.weights import save_weights

    run = Run(tmp_path_factory.mktemp("runs") / "urban")
    config = UrbanRun(dataset="data").changed(
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
    run.create(config, {"problem": "urban-wind", "normalisation": NORMALISATION.to_dict()})
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
    from farfield.problems.urban_wind.buildings import Box, boxes_to_mesh

    boxes = [Box(-45, -25, -40, -15, 20), Box(5, 25, -45, -30, 33), Box(-30, -5, 15, 45, 12), Box(20, 45, 5, 20, 25)]
    return boxes_to_mesh(boxes)
