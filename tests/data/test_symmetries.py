"""Mirror images and turns of training items."""

import itertools

import numpy as np
import pytest
import torch

from farfield.data.samples import step_pairs


@pytest.fixture
def square(tmp_path):
    from small import generate, tiny_dataset

    config = tiny_dataset("gray-scott")
    generate(config.replace(cells=(12, 12), extent=(12.0, 12.0)), tmp_path / "square")
    return tmp_path / "square"


def test_an_item_is_one_of_the_squares_eight_images_and_each_is_shown(square):
    plain, turned = step_pairs(square, "train"), step_pairs(square, "train", symmetries=True)
    torch.manual_seed(0)
    features = plain[2].features[:, :2].T.reshape(2, 12, 12)
    images = [
        image
        for flips in itertools.product((False, True), repeat=2)
        for image in [features.flip([1 + axis for axis in range(2) if flips[axis]])]
        for image in (image, image.transpose(1, 2))
    ]
    seen = set()
    for _ in range(100):
        sample = turned[2]
        shown = sample.features[:, :2].T.reshape(2, 12, 12)
        matching = [index for index, image in enumerate(images) if torch.equal(shown, image)]
        assert matching
        seen.add(matching[0])
        assert torch.equal(sample.features[:, 2:], plain[2].features[:, 2:])  # the sides are their own images
        assert torch.equal(sample.positions, plain[2].positions)
        assert np.isclose(float(sample.targets.sum()), float(plain[2].targets.sum()), rtol=1e-3)
    assert len(seen) == 8


def test_unequal_sides_are_never_exchanged(dataset):
    config, folder = dataset
    cells = config.cells
    turned, plain = step_pairs(folder, "train", symmetries=True), step_pairs(folder, "train")
    for _ in range(20):
        shown, original = (data[0].features[:, 0].reshape(cells) for data in (turned, plain))
        for axis in range(len(cells)):
            others = [i for i in range(len(cells)) if i != axis]
            sums = [grid.sum(others) if others else grid for grid in (shown, original)]
            if len(set(cells)) == len(cells):
                assert torch.allclose(sums[0].sort().values, sums[1].sort().values, atol=1e-3)


def test_symmetries_are_of_whole_domains(square):
    with pytest.raises(ValueError, match="do not go with a crop"):
        step_pairs(square, "train", symmetries=True, crop=(6, 6))
