"""Step pairs: what a model is given is what the solver made, standardised, at the right places."""

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from farfield.data.generated import open_split
from farfield.data.samples import collate, step_pairs
from farfield.data.spec import SampleSpec
from farfield.data.standardise import Standardiser


def test_a_pair_is_a_state_and_its_change_in_physical_units_after_the_inverse(dataset):
    config, folder = dataset
    pairs = step_pairs(folder, "s2")
    spec, dim = pairs.spec, len(config.cells)
    per_simulation = config.states - 1
    assert len(pairs) == 2 * per_simulation
    states = torch.from_numpy(open_split(folder, "s2").grids(1)).flatten(2).mT
    for time in range(per_simulation):
        sample = pairs[per_simulation + time]
        assert sample.features.shape[-1] == spec.in_features and sample.targets.shape[-1] == spec.out_features
        fields = pairs.standardise["states"].inverse(sample.features[:, : len(spec.fields)])
        torch.testing.assert_close(fields, states[time], rtol=1e-6, atol=1e-6)
        change = pairs.standardise["changes"].inverse(sample.targets)
        torch.testing.assert_close(change, states[time + 1] - states[time], rtol=1e-5, atol=1e-7)
        assert (sample.weights == 1).all()
    flags = sample.features[:, len(spec.fields) :].reshape(*pairs.source.domain.cells, dim)
    for axis in range(dim):
        along = flags[..., axis].movedim(axis, 0)
        assert (along[[0, -1]] == 1).all() and (along[1:-1] == 0).all()


def test_positions_are_normalised_by_the_training_domain_at_every_scale(dataset):
    config, folder = dataset
    for name, split in config.splits.items():
        positions = step_pairs(folder, name)[0].positions.numpy()
        half_cell = 500 / np.array(config.cells)
        np.testing.assert_allclose(positions.min(axis=0), half_cell, rtol=1e-6)
        np.testing.assert_allclose(positions.max(axis=0), 1000 * np.array(split.scale) - half_cell, rtol=1e-6)


def test_the_training_split_comes_out_with_mean_zero_and_deviation_one(dataset):
    _, folder = dataset
    pairs = step_pairs(folder, "train")
    targets = torch.cat([sample.targets for sample in pairs])
    torch.testing.assert_close(targets.mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(targets.std(0), torch.ones(2), atol=1e-2, rtol=0)


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(-10, 10))
def test_standardising_and_its_inverse_cancel(seed, std, mean):
    standardiser = Standardiser((mean, -mean), (std, 2 * std))
    values = torch.from_numpy(np.random.default_rng(seed).normal(mean, std, (50, 2)))
    torch.testing.assert_close(standardiser.inverse(standardiser(values)), values, rtol=1e-12, atol=1e-12)
    single = values.float()
    torch.testing.assert_close(standardiser.inverse(standardiser(single)), single, rtol=1e-5, atol=1e-5)


def test_a_crop_is_a_window_of_the_whole_with_its_own_positions_and_flags(dataset):
    config, folder = dataset
    crop = tuple(cells // 2 for cells in config.cells)
    whole, cropped = step_pairs(folder, "train")[4], step_pairs(folder, "train", crop=crop, rim=2)
    lookup = {tuple(place.tolist()): i for i, place in enumerate(whole.positions)}
    seen_starts = set()
    for _ in range(20):
        sample = cropped[4]
        rows = [lookup[tuple(place.tolist())] for place in sample.positions]
        seen_starts.add(rows[0])
        assert len(rows) == np.prod(crop)
        torch.testing.assert_close(sample.features, whole.features[rows], rtol=0, atol=0)
        torch.testing.assert_close(sample.targets, whole.targets[rows], rtol=0, atol=0)
        weights = sample.weights.reshape(crop)
        flags = sample.features[:, len(cropped.spec.fields) :].reshape(*crop, -1)
        for axis in range(len(crop)):
            for side in (0, -1):  # weight 0 within two cells of a cut, 1 at the domain's own side
                is_side = bool(flags.movedim(axis, 0)[side, ..., axis].all())
                if not is_side:
                    assert (weights.movedim(axis, 0)[[side, side + 1 + 2 * side]] == 0).all()
        assert weights.reshape(-1)[weights.numel() // 2 + crop[-1] // 2 if len(crop) > 1 else crop[0] // 2] == 1
    assert len(seen_starts) > 3


def test_point_subsampling_draws_without_replacement_and_anew_each_time(dataset):
    _, folder = dataset
    pairs = step_pairs(folder, "train", points=17)
    torch.manual_seed(0)
    first, second = pairs[0], pairs[0]
    assert first.features.shape[0] == first.positions.shape[0] == first.weights.shape[0] == 17
    assert len(np.unique(first.positions.numpy(), axis=0)) == 17
    assert not torch.equal(first.positions, second.positions)
    torch.manual_seed(0)
    assert torch.equal(pairs[0].positions, first.positions)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_several_worker_processes_read_what_one_reads(dataset, context):
    _, folder = dataset
    pairs = step_pairs(folder, "train")
    alone = [pairs[i] for i in range(len(pairs))]  # the file is open in this process before the workers start
    loader = DataLoader(pairs, batch_size=2, num_workers=2, multiprocessing_context=context, collate_fn=collate)
    groups = [group for batch in loader for group in batch]
    assert all(torch.equal(group.positions, alone[0].positions) for group in groups)  # one grid, stacked once
    for name in ("features", "targets", "weights"):
        read = torch.cat([getattr(group, name) for group in groups])
        assert torch.equal(read, torch.stack([getattr(sample, name) for sample in alone])), name


def test_windows_of_one_size_are_one_group_with_positions_of_their_own(dataset):
    config, folder = dataset
    pairs = step_pairs(folder, "train", crop=(4,) * len(config.cells))
    items = [pairs[i] for i in range(3)]
    (group,) = collate(items)
    assert torch.equal(group.positions, torch.stack([item.positions for item in items]))
    assert torch.equal(group.features[2], items[2].features)


def test_reading_an_item_does_not_read_the_file(dataset, tmp_path):
    _, folder = dataset
    pairs = step_pairs(folder, "train")
    pairs[0]
    tracemalloc.start()
    pairs[1]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    state = 4 * len(pairs.spec.fields) * int(np.prod(pairs.source.domain.cells))
    assert peak < 8 * state + 60_000  # a few copies of two states, not of all simulations
    assert pickle.loads(pickle.dumps(pairs))[1].targets.equal(pairs[1].targets)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "s9"}, "unknown split 's9'"),
        ({"points": 0}, "expected 1 to"),
        ({"points": 10**6}, "expected 1 to"),
        ({"crop": (0, 0)}, "expected a crop of 1 to"),
        ({"crop": (1000, 1000)}, "expected a crop of 1 to"),
        ({"crop": (5, 5, 5)}, "expected a crop of 1 to"),
        ({"rim": 100}, "expected a rim"),
        ({"rim": -1}, "expected a rim"),
    ],
)
def test_impossible_samples_are_refused(dataset, arguments, message):
    config, folder = dataset
    if "crop" in arguments and len(arguments["crop"]) == 2:
        arguments = {"crop": arguments["crop"][: len(config.cells)]}
    with pytest.raises(ValueError, match=message):
        step_pairs(folder, **arguments)


def test_a_field_that_never_changes_cannot_be_standardised():
    with pytest.raises(ValueError, match="never changes"):
        Standardiser((0.0,), (0.0,))


def test_the_contract_refuses_what_does_not_fit(dataset):
    spec = open_split(dataset[1], "train").spec
    assert SampleSpec.model_validate_json(spec.model_dump_json()) == spec
    for change in ({"field_units": ("m",)}, {"spacing": ()}, {"time_step": 0.0}, {"colour": "blue"}):
        with pytest.raises(ValueError, match="SampleSpec"):
            SampleSpec.model_validate({**spec.model_dump(), **change})


def test_of_several_windows_the_liveliest_is_kept(dataset):
    config, folder = dataset

    def change(candidates: int) -> float:
        torch.manual_seed(0)
        pairs = step_pairs(folder, "train", crop=(4,) * len(config.cells), candidates=candidates)
        return sum(float(pairs.standardise["changes"].inverse(pairs[0].targets).abs().sum()) for _ in range(20))

    assert change(8) > 1.2 * change(1)
    with pytest.raises(ValueError, match="at least one candidate"):
        step_pairs(folder, "train", candidates=0)
