"""Files in The Well's layout: its reader opens them, damage is found, statistics are right."""

import shutil

import h5py
import numpy as np
import pytest
import yaml
from small import solve_split, spec_of
from the_well.data import WellDataset
from the_well.data.normalization import ZScoreNormalization

from farfield.data.generated import Split, open_split
from farfield.data.standardise import compute_statistics, read_statistics


def everything(split):
    return np.stack([split.grids(simulation) for simulation in range(len(split))])


def test_the_wells_reader_opens_every_split(dataset):
    config, folder = dataset
    for name, split in config.splits.items():
        well = WellDataset(path=str(folder / "data" / name), n_steps_input=1, n_steps_output=1)
        assert well.metadata.n_spatial_dims == len(config.cells)
        assert well.metadata.spatial_resolution == config.domain(split).cells
        assert well.metadata.field_names[0] == list(spec_of(config).fields)
        assert well.metadata.n_trajectories_per_file == [split.simulations]
        assert len(well) == split.simulations * (config.states - 1)
        item = well[config.states]  # simulation 1, from its state 1 to state 2
        expected = np.moveaxis(open_split(folder, name).grids(1, slice(1, 3)), 1, -1)
        np.testing.assert_array_equal(item["input_fields"], expected[:1])
        np.testing.assert_array_equal(item["output_fields"], expected[1:])
        assert set(well.metadata.constant_scalar_names) == set(config.constants)
        assert (item["boundary_conditions"] == (1 if config.problem == "swe" else 0)).all()  # open, wall
        x = item["space_grid"][..., 0]
        assert x.max() - x.min() == pytest.approx(config.domain(split).extent[0] - spec_of(config).spacing[0])


def test_the_wells_normalisation_reads_our_statistics(dataset):
    config, folder = dataset
    arguments = {"use_normalization": True, "normalization_type": ZScoreNormalization}
    train = WellDataset(path=str(folder), well_split_name="train", n_steps_output=config.states - 1, **arguments)
    values = np.concatenate([np.concatenate([item["input_fields"], item["output_fields"]]) for item in train])
    np.testing.assert_allclose(values.mean(axis=tuple(range(values.ndim - 1))), 0, atol=1e-4)
    np.testing.assert_allclose(values.std(axis=tuple(range(values.ndim - 1))), 1, atol=1e-4)


def test_a_file_holds_what_was_solved_and_says_how(dataset):
    config, folder = dataset
    split = open_split(folder, "s2")
    solved = solve_split(config, "s2", 0, 2).astype(np.float32)
    np.testing.assert_array_equal([split.grids(0), split.grids(1)], solved)
    as_points = split.read(1, slice(0, 4, 2))  # (T, N, F)
    np.testing.assert_array_equal(as_points, np.moveaxis(solved[1, :4:2], 1, -1).reshape(as_points.shape))
    assert split.spec == spec_of(config)
    assert split.scale == config.splits["s2"].scale
    assert split.domain == config.domain(config.splits["s2"])
    assert split.provenance["settings"]["constants"] == config.constants
    assert split.provenance["split"] == "s2"


def test_statistics_are_those_of_the_training_split(dataset):
    config, folder = dataset
    states = everything(open_split(folder, "train")).astype(np.float64)
    statistics = read_statistics(folder)
    for index, field in enumerate(spec_of(config).fields):
        values = states[:, :, index]
        change = values[:, 1:] - values[:, :-1]
        assert statistics["mean"][field] == pytest.approx(values.mean(), rel=1e-9)
        assert statistics["std"][field] == pytest.approx(values.std(), rel=1e-9)
        assert statistics["std_delta"][field] == pytest.approx(change.std(), rel=1e-9)
        assert statistics["mean_delta"][field] == pytest.approx(change.mean(), rel=1e-6, abs=1e-15)
        assert statistics["rms"][field] == pytest.approx(np.sqrt((values**2).mean()), rel=1e-9)
    stored = yaml.safe_load((folder / "stats.yaml").read_text())
    assert stored.pop("checksum") and statistics == stored
    assert statistics == compute_statistics(open_split(folder, "train"))


@pytest.mark.parametrize("dataset", ["swe"], indirect=True)
def test_statistics_from_before_there_were_checksums_are_read_if_they_are_the_datas(dataset, tmp_path):
    _, folder = dataset
    shutil.copytree(folder, tmp_path / "copy")
    stats = tmp_path / "copy" / "stats.yaml"
    stats.write_text(stats.read_text().split("checksum")[0])
    assert read_statistics(tmp_path / "copy") == read_statistics(folder)


@pytest.fixture
def file(dataset, tmp_path):
    _, folder = dataset
    original = open_split(folder, "train").path
    copy = tmp_path / "copy.hdf5"
    copy.write_bytes(original.read_bytes())
    return copy


def test_a_truncated_file_is_refused(file):
    content = file.read_bytes()
    for length in (0, 100, len(content) // 2, len(content) - 1):
        file.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"truncated, damaged or not HDF5.*delete it"):
            everything(Split(file))


def test_a_corrupted_file_is_found_out_when_it_is_read(file):
    with h5py.File(file) as opened:
        name = next(iter(opened["t0_fields"]))
        offset = opened["t0_fields"][name].id.get_chunk_info(1).byte_offset
    content = bytearray(file.read_bytes())
    content[offset + 10] ^= 1  # a single bit
    file.write_bytes(content)
    with pytest.raises(ValueError, match="truncated, damaged"):
        everything(Split(file))


def test_foreign_files_are_refused(file, tmp_path):
    (tmp_path / "text.hdf5").write_text("not a dataset")
    with pytest.raises(ValueError, match="not HDF5"):
        Split(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "other.hdf5", "w") as other:
        other["x"] = 1
    with pytest.raises(ValueError, match="not a dataset file of farfield"):
        Split(tmp_path / "other.hdf5")
    with h5py.File(file, "a") as opened:
        opened.attrs["farfield"] = opened.attrs["farfield"].replace("length_unit", "lenght_unit")
    with pytest.raises(ValueError, match="not a dataset file of farfield"):
        Split(file)
    with h5py.File(file, "a") as opened:
        opened.attrs["farfield"] = "{"
    with pytest.raises(ValueError, match="not a dataset file of farfield"):
        Split(file)


def test_unknown_splits_and_empty_folders_are_refused(dataset, tmp_path):
    _, folder = dataset
    with pytest.raises(ValueError, match=r"unknown split 's9'.*holds s2, test, train"):
        open_split(folder, "s9")
    with pytest.raises(FileNotFoundError, match=r"no dataset in .*farfield generate"):
        open_split(tmp_path, "train")
    with pytest.raises(FileNotFoundError, match="no dataset file at"):
        Split(tmp_path / "none.hdf5")
    with pytest.raises(FileNotFoundError, match="no statistics at"):
        read_statistics(tmp_path)
