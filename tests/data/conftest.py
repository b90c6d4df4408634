import pytest

from farfield.problems.generation import DatasetConfig, configure, generate


def tiny(case: str, seed: int = 0) -> DatasetConfig:
    """Three splits with two or three simulations, on a few cells, of a few steps."""
    config = configure(case, "quick", seed)
    scales = {"train": (1, 1), "test": (1, 1), "s2": (2, 1)}  # along x, y
    splits = {
        name: {"simulations": 3 if name == "train" else 2, "scale": scale[: len(config.cells)]}
        for name, scale in scales.items()
    }
    if case == "swe":
        return config.replace(cells=(40,), extent=(50.0,), states=6, splits=splits)
    return config.replace(cells=(24, 16), extent=(24.0, 16.0), save_every=40, states=4, splits=splits)


@pytest.fixture(scope="session", params=["swe", "gray-scott"])
def dataset(request, tmp_path_factory):
    """A tiny dataset of each case: its configuration and its folder (tests must not change it)."""
    config = tiny(request.param)
    folder = tmp_path_factory.mktemp("datasets") / request.param
    generate(config, folder)
    return config, folder
