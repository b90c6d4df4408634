"""``farfield view``: pages of wind and of rollouts, as a browser has them, and files that cannot be shown."""

import json
import re

import h5py
import numpy as np
import pytest
import pyvista as pv
from browser import look, needs_chromium, read_page

from farfield.view.files import write_view
from farfield.view.volume import blocks, grid_for, resampled, streamlines


def air(scale=1.0, cells=(24, 16, 6)):
    """Wind along x over 240 m x 160 m x 30 m around a building, which is a hole in the mesh."""
    box = pv.ImageData(dimensions=[n + 1 for n in cells], spacing=(240 / cells[0], 160 / cells[1], 30 / cells[2]))
    x, y, z = box.cell_centers().points.T
    velocity = np.stack([scale * (2 + z / 10), 0 * x, 0 * x], axis=-1)
    box.cell_data["velocity"], box.cell_data["pressure"] = velocity.astype(np.float32), (scale * x).astype(np.float32)
    inside = (abs(x - 80) < 20) & (abs(y - 80) < 20) & (z < 15)
    return box.extract_cells(~inside)


@pytest.fixture(scope="module")
def wind(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wind")
    air().save(folder / "flow.vtu")
    air(0.9).save(folder / "truth.vtu")
    pv.Cube(center=(80, 80, 7.5), x_length=40, y_length=40, z_length=15).save(folder / "city.stl")
    return folder


def data_of(page):
    return json.loads(re.search(r'type="application/json">(.*?)</script>', page.read_text(), flags=re.DOTALL)[1])


def test_a_volume_holds_the_mesh_and_its_holes():
    mesh = air()
    volume = resampled(mesh, grid_for(mesh))
    assert volume.shape == (144, 96, 6) and volume.given == mesh.n_cells
    z = volume.z[2]
    assert np.allclose(volume.fields["velocity"][0, 0, 0, 2], 2 + z / 10)
    solid = np.isnan(volume.fields["velocity"][0])
    assert solid[:, :, 0].mean() == pytest.approx(40 * 40 / (240 * 160), rel=0.1) and not solid[:, :, 3:].any()
    triangles = blocks(volume)
    low, high = triangles.reshape(-1, 3).min(0), triangles.reshape(-1, 3).max(0)
    assert np.allclose([*low, *high], [60, 60, 0, 100, 100, 15], atol=2.0)


def test_streamlines_follow_the_wind():
    mesh = air()
    points, speeds = streamlines(resampled(mesh, grid_for(mesh)), "velocity")
    ahead = points[1::2] - points[::2]
    assert len(points) > 1000 and np.abs(ahead[:, 1:]).max() < 1e-3 * np.abs(ahead[:, 0]).max()
    away = np.abs(points[:, 1] - 80) > 25  # beside the building, the speed is that of the height
    assert np.allclose(speeds[away], 2 + points[away, 2] / 10, atol=0.6)


def test_scattered_points_are_shown_too(tmp_path):
    mesh = air()
    np.savez(tmp_path / "flow.npz", positions=mesh.cell_centers().points, velocity=mesh["velocity"])
    page, told = write_view(tmp_path / "flow.npz")
    assert page == tmp_path / "flow.html" and f"{mesh.n_cells:,} cells or points" in told
    assert [field["name"] for field in data_of(page)["fields"]] == ["wind speed"]


@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(900, 500), (390, 700)])
def test_the_scene_shows_truth_prediction_and_error_in_a_browser(wind, tmp_path, width, height):
    page, _ = write_view(wind / "flow.vtu", tmp_path / "flow.html", wind / "truth.vtu", wind / "city.stl")
    script = 'byId("mode").value = "error"; byId("height").value = 4; byId("height").dispatchEvent(new Event("input"));'
    seen = look(page, tmp_path, width, height, script)
    assert seen.errors == [] and seen.measured["wide"] == [] and seen.measured["width"] <= width
    for told in ("wind speed", "pressure", "truth", "prediction", "error", "22.5 m", "|error of wind speed| [m/s]"):
        assert told in seen.dom
    assert f"{air().n_cells:,} cells or points" in seen.dom
    colours = np.unique((seen.picture[height // 4 :, :, :3] * 15).astype(int).reshape(-1, 3), axis=0)
    assert len(colours) > 20, "the scene is drawn"


def test_the_error_is_of_the_vector(wind, tmp_path):
    page, _ = write_view(wind / "flow.vtu", tmp_path / "a.html", wind / "truth.vtu")
    assert read_page(page).wrong == []
    data = data_of(page)
    speed = data["fields"][0]
    assert set(speed["volumes"]) == {"prediction", "truth", "error"}
    assert np.allclose([np.min(data["outline"], 0), np.max(data["outline"], 0)], [[0, 0], [240, 160]], atol=1e-6)
    assert speed["error"][1] == pytest.approx(0.1 * speed["range"][1], rel=0.02)


def states(path, cells=(20, 12), count=5, names=("U", "V")):
    grid = np.stack(np.meshgrid(*map(np.arange, cells), indexing="ij"), axis=-1).reshape(-1, len(cells)) + 0.5
    order = np.random.default_rng(0).permutation(len(grid))  # the order of points does not matter
    values = {name: np.sin(grid.sum(1) / 5 + np.arange(count)[:, None]) for name in names}
    np.savez(path, positions=grid[order], time=0.5 * np.arange(count), **{n: v[:, order] for n, v in values.items()})
    return path


@needs_chromium
def test_a_rollout_is_played_beside_the_truth(tmp_path):
    page, told = write_view(states(tmp_path / "next.npz"), None, states(tmp_path / "truth.npz"))
    assert told == "5 states of U, V on 20 x 12 cells"
    script = 'byId("time").value = 3; byId("time").dispatchEvent(new Event("input"));'
    seen = look(page, tmp_path, 1000, 700, script)
    assert seen.errors == [] and seen.measured["wide"] == []
    assert re.findall("<figcaption>(.*?)</figcaption>", seen.dom) == ["truth", "prediction", "prediction, error"]
    assert ">1.5</output>" in seen.dom


@needs_chromium
def test_states_along_a_line_are_curves(tmp_path):
    page, _ = write_view(states(tmp_path / "next.npz", cells=(200,), names=("h",)))
    seen = look(page, tmp_path, 800, 600)
    assert seen.errors == [] and "x: 0 to 200" in seen.dom
    assert seen.picture[:, :, :3].min() < 0.3, "a curve is drawn"


def test_states_of_the_well_and_large_ones_are_thinned(tmp_path):
    with h5py.File(tmp_path / "well.hdf5", "w") as file:
        file["dimensions/x"], file["dimensions/y"] = np.arange(400.0), np.arange(30.0)
        file["t0_fields/T"] = np.random.default_rng(0).random((2, 7, 400, 30)).astype(np.float32)
    page, _ = write_view(tmp_path / "well.hdf5", simulation=1)
    data = data_of(page)
    assert read_page(page).wrong == []
    assert data["cells"] == [134, 30] and data["note"] == "Thinned: 134 x 30 of 400 x 30 cells, 7 of 7 states."
    with pytest.raises(ValueError, match="has 2 simulations, there is no 2"):
        write_view(tmp_path / "well.hdf5", simulation=2, force=True)


def test_many_cells_are_thinned_and_that_is_said(tmp_path):
    air(cells=(120, 80, 32)).save(tmp_path / "large.vtu")
    page, told = write_view(tmp_path / "large.vtu")
    data = data_of(page)
    assert told in data["note"] and "thinned to a grid of 144 x 96 x 20" in data["note"] and page.stat().st_size < 4e6


def test_what_cannot_be_shown_is_said(wind, tmp_path):
    bare = pv.Sphere()
    bare.clear_data()
    bare.save(tmp_path / "bare.vtp")
    (tmp_path / "notes.txt").write_text("no prediction")
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    np.savez(tmp_path / "alone.npz", positions=np.arange(3.0))
    np.savez(tmp_path / "points.npz", positions=np.random.default_rng(0).random((9, 2)), T=np.zeros((2, 9)))
    other = pv.read(wind / "flow.vtu")
    other.clear_data()
    other.cell_data["T"] = np.zeros(other.n_cells)
    other.save(tmp_path / "other.vtu")
    for message, name, options in (
        (r"bare.vtp has no fields to show: `farfield predict` writes velocity", "bare.vtp", {}),
        (r"cannot view notes.txt: expected a file that ends in \.vtu, ", "notes.txt", {}),
        (r"broken.npz is truncated, damaged or not a NumPy \.npz file", "broken.npz", {}),
        (r"alone.npz holds no states: expected 'positions' and a field", "alone.npz", {}),
        (r"its 9 points make no grid, which an animation needs", "points.npz", {}),
        (r"other.vtu has none of the fields of flow.vtu \(.*\), only T", "flow.vtu", {"truth": tmp_path / "other.vtu"}),
        (r"expected buildings in a file that ends in \.stl", "flow.vtu", {"buildings": tmp_path / "notes.txt"}),
        (r"ends in \.html for --out, got flow.png", "flow.vtu", {"out": tmp_path / "flow.png"}),
    ):
        source = wind / name if name == "flow.vtu" else tmp_path / name
        with pytest.raises(ValueError, match=message):
            write_view(source, **{"out": tmp_path / "page.html", **options})
        assert not (tmp_path / "page.html").exists()


def test_a_page_that_is_there_is_not_overwritten(tmp_path):
    source = states(tmp_path / "next.npz")
    (tmp_path / "next.html").write_text("a page of mine")
    with pytest.raises(ValueError, match=r"next.html exists: choose another --out, or overwrite with --force"):
        write_view(source)
    assert (tmp_path / "next.html").read_text() == "a page of mine"
    assert "a rollout" in write_view(source, force=True)[0].read_text()
