"""From an STL to files that ParaView and NumPy read, by the library and by the command."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv
from typer.testing import CliRunner
from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

from farfield.attention import InTurn
from farfield.cli import app
from farfield.data import vtk as vtk_files
from farfield.problems.urban_wind.buildings import write_stl
from farfield.problems.urban_wind.city_files import predict_city
from farfield.problems.urban_wind.prediction import UrbanPredictor
from farfield.runs.run import Run

WIND = {"roughness": 0.3, "wind_direction": 250.0}
FIELDS = {"velocity": (3,), "pressure": (), "k": (), "epsilon": ()}


@pytest.fixture(scope="module")
def predictor(urban_run) -> UrbanPredictor:
    return UrbanPredictor.load(Run(urban_run), "cpu")


@pytest.fixture(scope="module")
def stl(city, tmp_path_factory):
    path = tmp_path_factory.mktemp("stl") / "city.stl"
    write_stl(path, city)
    return path


def test_a_mesh_around_the_buildings_opens_with_its_fields(predictor, stl, tmp_path) -> None:
    written = predict_city(predictor, stl, tmp_path / "flow.vtu", spacing=12.5, **WIND)
    assert [path.name for path in written] == ["flow.vtu", "flow.png"]
    flow = pv.read(tmp_path / "flow.vtu")
    assert isinstance(flow, pv.UnstructuredGrid) and flow.n_cells > 500
    expected = predictor.predict(stl, spacing=12.5, **WIND)
    for name, shape in FIELDS.items():
        assert flow.cell_data[name].shape == (flow.n_cells, *shape)
        np.testing.assert_allclose(flow.cell_data[name], expected[name], rtol=1e-3, atol=1e-3)
    assert (tmp_path / "flow.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "flow.png").stat().st_size > 20_000
    assert {path.name for path in tmp_path.iterdir()} == {"flow.vtu", "flow.png"}


@pytest.mark.parametrize("source", ["points.npy", "points.npz", "points.vtp", "points.vtu", "points.vtk"])
@pytest.mark.parametrize("out", ["flow.vtp", "flow.vtk", "flow.vtu", "flow.npz"])
def test_own_points_in_every_format_and_out_in_every_format(predictor, stl, tmp_path, source, out) -> None:
    points = np.array([[0.0, 0, 2], [10, -50, 3], [-20, 0, 40]])
    if source.endswith(".npy"):
        np.save(tmp_path / source, points)
    elif source.endswith(".npz"):
        np.savez(tmp_path / source, positions=points)
    elif source.endswith(".vtu"):
        pv.PolyData(points).cast_to_unstructured_grid().save(tmp_path / source)
    else:
        pv.PolyData(points).save(tmp_path / source)
    if (source, out) == ("points.vtu", "flow.vtp"):
        with pytest.raises(ValueError, match=r"a mesh of the air needs \.vtu or \.vtk"):
            predict_city(predictor, stl, tmp_path / out, points=tmp_path / source, **WIND)
        return
    predict_city(predictor, stl, tmp_path / out, points=tmp_path / source, fields=["pressure"], **WIND)
    expected = predictor.predict(stl, points=points, fields=["pressure"], **WIND)["pressure"]
    written = np.load(tmp_path / out) if out.endswith(".npz") else pv.read(tmp_path / out)
    np.testing.assert_allclose(written["pressure"], expected, rtol=1e-3)
    positions = written["positions"] if out.endswith(".npz") else written.points
    np.testing.assert_allclose(positions, points, atol=1e-5)
    assert not (tmp_path / "flow.png").exists(), "no velocity was asked for, so there is nothing to draw"


def test_bad_input_is_named_and_nothing_is_written(predictor, stl, city, tmp_path) -> None:
    out = tmp_path / "out" / "flow.vtu"

    def refused(message: str, buildings=stl, to=out, **options) -> None:
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            predict_city(predictor, buildings, to, **{**WIND, **options})
        assert not to.exists() and not to.with_suffix(".png").exists() and not list(tmp_path.rglob("*.partial"))

    refused("expected an output that ends in .vtu, .vtk, .vtp, .npz, .csv, got flow.txt", to=tmp_path / "flow.txt")
    refused("a table is written of points: give --points", to=tmp_path / "flow.csv")
    refused("is AB-SWIFT, .* predicts in one process", parts=InTurn(2).run)
    refused("wind direction must be from 0 to 360", wind_direction=400.0)
    refused("directions must differ", wind_direction=[10.0, 10.0])
    refused("the model does not predict vorticity", fields=["vorticity"])
    refused("no such file", buildings=tmp_path / "none.stl")
    refused("roughness length must be positive", roughness=-1.0)
    refused("spacing must be from", spacing=0.01)
    write_stl(tmp_path / "mm.stl", city.copy().apply_scale(1000))
    refused("probably in millimetres", buildings=tmp_path / "mm.stl")
    write_stl(tmp_path / "buried.stl", city.copy().apply_translation([0, 0, -60]))
    refused("below the ground", buildings=tmp_path / "buried.stl")
    (tmp_path / "empty.stl").write_text("solid\nendsolid\n")
    refused("can(not)? be read as STL", buildings=tmp_path / "empty.stl")
    holed = city.copy()
    holed.update_faces(np.arange(len(holed.faces)) > 0)
    write_stl(tmp_path / "holed.stl", holed)
    refused("1 of 4 buildings are not closed", buildings=tmp_path / "holed.stl")
    refused("no file", points=tmp_path / "none.npy")
    (tmp_path / "points.txt").write_text("0,0,0")
    refused("expected points in a file that ends in", points=tmp_path / "points.txt")
    np.savez(tmp_path / "other.npz", places=np.zeros((2, 3)))
    refused("has no array 'positions', it has places", points=tmp_path / "other.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)})
    with zipfile.ZipFile(tmp_path / "vast.npz", "w") as archive:
        archive.writestr("positions.npy", header.getvalue())
    refused("positions.npy claims", points=tmp_path / "vast.npz")
    (tmp_path / "vast.npy").write_bytes(header.getvalue())
    refused("does not hold points", points=tmp_path / "vast.npy")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    refused("does not hold points", points=tmp_path / "broken.npy")
    np.save(tmp_path / "flat.npy", np.zeros((5, 2)))
    refused(r"points must have the shape \(points, 3\)", points=tmp_path / "flat.npy")
    (tmp_path / "broken.vtu").write_text("<VTKFile>")
    refused("holds no points, or is damaged", points=tmp_path / "broken.vtu")


def test_a_failure_while_writing_leaves_the_old_file(predictor, stl, tmp_path, monkeypatch) -> None:
    out = tmp_path / "flow.vtu"
    out.write_text("from before")

    class FullDisk(vtkXMLUnstructuredGridWriter):
        def Write(self) -> int:
            Path(self.GetFileName()).write_text("half of it")
            return 0

    monkeypatch.setattr(vtk_files, "vtkXMLUnstructuredGridWriter", FullDisk)
    with pytest.raises(OSError, match="VTK could not write"):
        predict_city(predictor, stl, out, spacing=20.0, force=True, **WIND)
    assert out.read_text() == "from before"
    assert [path.name for path in tmp_path.iterdir()] == ["flow.vtu"]


def run(*arguments):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_command_predicts_a_city(urban_run, stl, tmp_path) -> None:
    out = tmp_path / "flow.vtu"
    options = ("--roughness", 0.3, "--wind-direction", 250, "--spacing", 20, "--out", out)
    result = run("--model", urban_run, "--buildings", stl, *options)
    assert result.exit_code == 0, result.output
    assert f"wrote {out} and {out.with_suffix('.png')}" in result.output
    assert set(pv.read(out).cell_data.keys()) == set(FIELDS)


def test_the_command_says_what_is_missing(urban_run, stl, tmp_path) -> None:
    out = ("--out", tmp_path / "flow.vtu")
    for message, *arguments in (
        ("give either --input FILE (states) or --buildings FILE", "--model", urban_run),
        ("give either", "--model", urban_run, "--buildings", stl, "--input", "state.npz"),
        ("needs --roughness (z0 in metres) and --wind-direction", "--model", urban_run, "--buildings", stl),
        ("it needs --buildings with a file of buildings", "--model", urban_run, "--input", stl),
        ("a model of swe: it needs --input with data", "--model", "swe-laape", "--buildings", stl),
    ):
        result = run(*arguments, *out)
        assert isinstance(result.exception, ValueError) and message in str(result.exception)
    assert list(tmp_path.iterdir()) == []
