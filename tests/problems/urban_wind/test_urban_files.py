"""The published layout, written with VTK's own classes, not by our writer; normalisation; sampling."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from urban_layout import write_dataset, write_volume

from farfield.problems.urban_wind.buildings import UrbanDomain, boxes_to_mesh, random_buildings
from farfield.problems.urban_wind.files import UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.inflow_profiles import inflow_profile
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.sampling import (
    PointCounts,
    UrbanNormalisation,
    UrbanSample,
    UrbanWindDataset,
    draw_sample,
    mirror_image,
)

INDEX = {
    "total_size": 4,
    "train_ids": [0, 2],
    "val_ids": [1],
    "test_ids": [3],
    "invlmo": [0.0, 0.02, -0.05, 0.01],
    "z0": [0.1, 0.2, 0.3, 0.4],
    "ls_z0s": [0.5],
    "node_type_classes": ["a", "b"],
}


@pytest.fixture
def published(tmp_path: Path) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    return tmp_path, write_dataset(tmp_path, INDEX)


def test_every_field_of_a_published_case_is_read(published) -> None:
    folder, written = published
    files = UrbanWindFiles(folder, fields=("velocity", "pressure", "k", "epsilon", "pottemp"))
    assert [files.ids(split) for split in ("train", "val", "test", "ls", "vls")] == [
        [0, 2],
        [1],
        [3],
        [0],
        [0],
    ]
    for split, number, name in (("train", 2, "2"), ("val", 1, "1"), ("ls", 0, "ls_0"), ("vls", 0, "vls_0")):
        case = files.load(split, number)
        assert case.name == name
        assert np.allclose(case.positions, written[name]["centres"], atol=1e-3)
        for field in files.fields:
            assert np.allclose(case.fields[field], written[name][field], rtol=1e-6)
        assert case.obstacles.shape == (10, 3, 3) and case.terrain.shape == (2, 3, 3)
        assert case.building_height == 20
        assert case.plan_density == pytest.approx(400 / (100 * case.scale) ** 2)


def test_stratified_cases_keep_their_stability(published) -> None:
    files = UrbanWindFiles(published[0])
    assert files.conditions("train", 2) == (0.3, -0.05)
    assert files.conditions("val", 1) == (0.2, 0.02)
    assert files.conditions("vls", 0) == (0.5, 0.0), "both large scales share ls_z0s and are neutral"
    normalisation = UrbanNormalisation.fit(files)
    sample = UrbanWindDataset(files, "val", normalisation, PointCounts(64, 64, 16, 16, 32, 16))[0]
    expected = normalisation.encode_profile(torch.from_numpy(inflow_profile(0.2, 0.02))).float()
    assert torch.allclose(sample.profile, expected)
    neutral = UrbanWindDataset(files, "train", normalisation, neutral_only=True)
    assert neutral.ids == [0]
    with pytest.raises(ValueError, match="no cases"):
        UrbanWindDataset(files, "val", normalisation, neutral_only=True)


def test_nothing_is_read_before_it_is_needed(published) -> None:
    folder, _ = published
    for path in folder.glob("*.vtk"):
        path.write_text("not VTK")
    files = UrbanWindFiles(folder, keep_in_memory=True)
    assert len(files.ids("train")) == 2


def test_a_case_kept_in_memory_is_read_once(published) -> None:
    kept = UrbanWindFiles(published[0], keep_in_memory=True)
    assert kept.load("train", 0) is kept.load("train", 0)
    fresh = UrbanWindFiles(published[0])
    assert fresh.load("train", 0) is not fresh.load("train", 0)


def test_a_missing_field_is_named(published) -> None:
    folder, _ = published
    write_volume(folder / "volume_0.vtk", 1.0, 0, leave_out="epsilon")
    with pytest.raises(ValueError, match=r"volume_0\.vtk has no cell data 'epsilon'; it has velocity, pressure"):
        UrbanWindFiles(folder).load("train", 0)
    assert "pressure" in UrbanWindFiles(folder, fields=("velocity", "pressure")).load("train", 0).fields


def test_missing_files_and_wrong_names(published, tmp_path_factory) -> None:
    folder, _ = published
    with pytest.raises(FileNotFoundError, match="not an urban-wind dataset"):
        UrbanWindFiles(tmp_path_factory.mktemp("empty"))
    with pytest.raises(ValueError, match="unknown field 'vorticity'"):
        UrbanWindFiles(folder, fields=("vorticity",))
    with pytest.raises(ValueError, match="unknown split 'large'"):
        UrbanWindFiles(folder).ids("large")
    (folder / "volume_3.vtk").unlink()
    with pytest.raises(FileNotFoundError, match=r"volume_3\.vtk"):
        UrbanWindFiles(folder).load("test", 3)
    (folder / "random_buildings_dataset.json").write_text("{}")
    with pytest.raises(ValueError, match="lacks invlmo"):
        UrbanWindFiles(folder)


def test_normalisation_inverts_exactly(published) -> None:
    files = UrbanWindFiles(published[0], fields=("velocity", "pressure", "k", "epsilon", "pottemp"))
    normalisation = UrbanNormalisation.fit(files)
    assert normalisation.channels == (
        *("velocity_x", "velocity_y", "velocity_z"),
        *("pressure", "k", "epsilon", "pottemp"),
    )
    physical = torch.cat(
        [
            torch.tensor(case.fields[name], dtype=torch.float64).reshape(96, -1)
            for case in [files.load("train", 0)]
            for name in files.fields
        ],
        dim=1,
    )
    encoded = normalisation.encode_targets(physical)
    assert torch.allclose(normalisation.decode_targets(encoded), physical, rtol=1e-12)
    assert torch.allclose(
        encoded[:, 4] * normalisation.target_std[4] + normalisation.target_mean[4], physical[:, 4].log()
    )
    every = torch.cat(
        [
            UrbanWindDataset(files, "train", normalisation, PointCounts(8, 8, 4, 4, 8, None))[i].query_targets
            for i in range(2)
        ]
    )
    assert torch.allclose(every.mean(0), torch.zeros(7), atol=1e-4)
    assert torch.allclose(every.std(0, correction=0), torch.ones(7), atol=1e-3)
    again = UrbanNormalisation.from_dict(json.loads(json.dumps(normalisation.to_dict())))
    assert again == normalisation


def test_a_field_that_never_changes_becomes_zero(published) -> None:
    folder, _ = published
    INDEX_NEUTRAL = {**INDEX, "invlmo": [0.0] * 4}
    (folder / "random_buildings_dataset.json").write_text(json.dumps(INDEX_NEUTRAL))
    normalisation = UrbanNormalisation.fit(UrbanWindFiles(folder))
    profile = normalisation.encode_profile(torch.from_numpy(inflow_profile(0.2)))
    assert torch.allclose(profile[:, 1], torch.zeros(64, dtype=torch.float64), atol=1e-9)
    assert normalisation.encode_terrain(0.2, 0.0)[1] == 0


def test_positions_keep_their_scale_in_larger_cities(published) -> None:
    normalisation = UrbanNormalisation.fit(UrbanWindFiles(published[0]))
    corners = torch.tensor([[-150.0, -120, 0], [320, 120, 60], [790, 360, 60]], dtype=torch.float64)
    encoded = normalisation.encode_positions(corners)
    assert torch.allclose(encoded, torch.tensor([[0.0, 0, 0], [1000, 1000, 1000], [2000, 2000, 1000]]).double())
    assert torch.allclose(normalisation.decode_positions(encoded), corners)


def test_point_counts_grow_with_the_area() -> None:
    assert PointCounts().grown(square=25, ground=5.0, cells=8.0) == PointCounts(
        obstacles=4096 * 25,
        terrain=4096 * 5,
        obstacle_supernodes=1024 * 25,
        terrain_supernodes=1024 * 5,
        anchors=8192 * 8,
        queries=0,
    )


def test_samples_hold_what_they_say(published) -> None:
    files = UrbanWindFiles(published[0])
    normalisation = UrbanNormalisation.fit(files)
    dataset = UrbanWindDataset(files, "ls", normalisation, PointCounts(64, 64, 16, 8, 32, 16), seed=5)
    sample = dataset[0]
    assert sample.scale == 2 and sample.obstacle_points.shape == (256, 3)
    assert sample.obstacle_supernodes.shape == (64,) and len(set(sample.obstacle_supernodes.tolist())) == 64
    assert sample.anchors.shape == (32, 3) and sample.anchor_targets.shape == (32, 6)
    assert sample.queries.shape == (16, 3) and sample.terrain_features.shape == (2,)
    cells = {tuple(row) for row in torch.cat([sample.anchors, sample.queries]).tolist()}
    assert len(cells) == 48, "no cell is both an anchor and a query"
    case = files.load("ls", 0)
    metres = normalisation.decode_positions(sample.anchors)
    nearest = np.linalg.norm(case.positions[None] - metres.numpy()[:, None], axis=2).argmin(1)
    physical = normalisation.decode_targets(sample.anchor_targets).numpy()
    assert np.allclose(physical[:, :3], case.fields["velocity"][nearest], rtol=1e-4)
    assert np.allclose(physical[:, 5], case.fields["epsilon"][nearest], rtol=1e-4)
    assert torch.equal(sample.anchor_in_square, (metres[..., :2].abs() < 100.0).all(-1))
    obstacle = normalisation.decode_positions(sample.obstacle_points)
    assert obstacle[:, 2].max() <= 20.001 and obstacle[:, :2].abs().max() <= 10.001


def test_samples_of_the_training_size_stack_to_a_batch(published) -> None:
    files = UrbanWindFiles(published[0])
    normalisation = UrbanNormalisation.fit(files)
    counts = PointCounts(64, 64, 16, 16, 32)
    dataset = UrbanWindDataset(files, "train", normalisation, counts)
    batch = UrbanSample.stack([dataset[0], dataset[1]])
    assert batch.anchors.shape == (2, 32, 3) and batch.profile.shape == (2, 64, 4)
    assert batch.queries.shape == (2, 0, 3) and batch.query_targets.shape == (2, 0, 6), "none asked for"
    assert torch.equal(batch.anchor_targets[1], dataset[1].anchor_targets)
    large = UrbanWindDataset(files, "ls", normalisation, counts)[0]
    with pytest.raises(ValueError, match="cannot stack"):
        UrbanSample.stack([dataset[0], large])


def test_draws_are_reproducible_and_differ(published) -> None:
    files = UrbanWindFiles(published[0])
    normalisation = UrbanNormalisation.fit(files)
    dataset = UrbanWindDataset(files, "train", normalisation, PointCounts(64, 64, 16, 16, 32, 16))
    first, again = dataset[1], dataset[1]
    assert torch.equal(first.anchors, again.anchors) and torch.equal(first.terrain_points, again.terrain_points)
    dataset.draw = 1
    assert not torch.equal(first.anchors, dataset[1].anchors)


def test_a_city_without_fields_can_be_sampled(published) -> None:
    files = UrbanWindFiles(published[0])
    normalisation = UrbanNormalisation.fit(files)
    boxes = random_buildings(np.random.default_rng(0), 2, module=4.0)
    city = UrbanCase.around(boxes_to_mesh(boxes), roughness=0.3)
    solved = CartesianMesh.around(UrbanDomain.around(boxes_to_mesh(boxes)), boxes, 4.0, 2.0)
    assert city.scale == pytest.approx(2, rel=0.1)
    assert len(city.positions) == pytest.approx(solved.cell_count, rel=0.02), "as many points as a mesh has cells"
    footprints = sum((b.x_max - b.x_min) * (b.y_max - b.y_min) for b in boxes)
    edges = city.terrain[:, 1:] - city.terrain[:, :1]
    area = np.linalg.norm(np.cross(edges[:, 0], edges[:, 1]), axis=1).sum() / 2
    assert area == pytest.approx(UrbanDomain.around(boxes_to_mesh(boxes)).ground_area - footprints, rel=0.02)
    assert city.plan_density == pytest.approx(footprints / (100 * city.scale) ** 2, rel=1e-3)
    sample = draw_sample(city, normalisation, PointCounts(8, 8, 4, 4, 8, None), np.random.default_rng(0))
    assert sample.queries.shape == (len(city.positions), 3)
    assert sample.query_targets.shape == (len(city.positions), 0)


def test_building_square_and_wake_share_all_points() -> None:
    points = np.array([[0.0, 0, 5], [49, -49, 50], [51, 0, 5], [0, 60, 5], [99, 99, 1]], dtype=np.float32)
    none = np.zeros((0, 3, 3), dtype=np.float32)
    case = UrbanCase("city", 1.0, 0.3, 0.0, points, {"k": np.ones(5, dtype=np.float32)}, none, none)
    assert case.in_square.tolist() == [True, True, False, False, False]
    assert replace(case, scale=2.0).in_square.all()
    turned = case.in_wind_axes(30.0)
    assert turned.in_square.tolist() == [True, True, False, False, False]
    assert np.allclose(turned.positions[2], [51 * np.cos(np.pi / 6), -51 * np.sin(np.pi / 6), 5])


def test_a_mirrored_city_is_the_same_case_with_y_reversed(published) -> None:
    files = UrbanWindFiles(published[0])
    case = files.load("train", 0)
    mirrored = mirror_image(case)
    assert np.allclose(mirrored.positions, case.positions * [1, -1, 1])
    assert np.allclose(mirrored.obstacles[..., 1], -case.obstacles[..., 1])
    assert np.allclose(mirrored.fields["velocity"], case.fields["velocity"] * [1, -1, 1])
    assert np.array_equal(mirrored.fields["k"], case.fields["k"])
    twice = mirror_image(mirrored)
    assert np.array_equal(twice.terrain, case.terrain) and np.array_equal(
        twice.fields["velocity"], case.fields["velocity"]
    )


def test_half_of_the_draws_are_mirrored_when_asked_for(published) -> None:
    files = UrbanWindFiles(published[0])
    counts = PointCounts(obstacles=8, terrain=8, obstacle_supernodes=2, terrain_supernodes=2, anchors=4)
    data = UrbanWindDataset(files, "train", UrbanNormalisation.fit(files), counts, mirrored=True)
    crosswind = []  # +3 m/s on average in these cases
    for data.draw in range(40):
        crosswind.append(data.normalisation.decode_targets(data[0].anchor_targets)[:, 1].mean())
    assert 5 < sum(v < 0 for v in crosswind) < 35
