"""What a wind engineer asks for, with a column network that has learned nothing: files, comfort, errors, OpenFOAM."""

import csv
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import pyvista as pv
import shapely
import torch
from matplotlib.image import imread
from small import NORMALISATION
from typer.testing import CliRunner

from farfield.attention import InTurn
from farfield.cli import app
from farfield.problems.urban_wind.buildings import Box, UrbanDomain, boxes_to_mesh, write_stl
from farfield.problems.urban_wind.city import CHANNELS
from farfield.problems.urban_wind.city_files import predict_city
from farfield.problems.urban_wind.column_config import ColumnRun
from farfield.problems.urban_wind.column_prediction import ColumnPredictor
from farfield.problems.urban_wind.comfort_files import predict_comfort
from farfield.problems.urban_wind.files import UrbanWindFiles
from farfield.problems.urban_wind.footprints import LocalFrame
from farfield.problems.urban_wind.inflow_profiles import AIR_DENSITY
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.openfoam_case import SolverSettings, write_case
from farfield.problems.urban_wind.openfoam_start import FieldFile, cell_centres, start_fields, start_folder, write_start
from farfield.problems.urban_wind.pictures import fastest_shown, raster_of_wakes
from farfield.problems.urban_wind.uncertainty import FILE, Calibration, calibrate
from farfield.runs.run import Run
from farfield.runs.weights import save_weights

BOXES = [Box(-20, -4, -8, 8, 20), Box(10, 22, -20, 4, 12)]
FRAME = LocalFrame(13.4, 52.5)
FIELDS = ("velocity", "pressure", "k", "epsilon")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    run = Run(tmp_path_factory.mktemp("runs") / "columns")
    tiny = {"width": 16, "heads": 2, "depth": 1, "decoder_depth": 1, "level_features": 4, "query_width": 8}
    config = ColumnRun(dataset="data").changed({f"model.{name}": value for name, value in tiny.items()})
    corrections = {"mean": [0.0] * 6, "spread": [0.3] * 6}
    normalisation = NORMALISATION.to_dict() | {"building_height": [5.0, 40.0], "plan_density": [0.05, 0.6]}
    known = {"corrections": corrections, "normalisation": normalisation, "channels": list(CHANNELS)}
    run.create(config, {"problem": "urban-columns"} | known)
    torch.manual_seed(0)
    save_weights(run.best_path, config.build())
    return run


@pytest.fixture(scope="module")
def predictor(run) -> ColumnPredictor:
    predictor = ColumnPredictor.load(run, "cpu")
    predictor.oblique = True
    return predictor


@pytest.fixture(scope="module")
def stl(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("stl") / "city.stl"
    write_stl(path, boxes_to_mesh(BOXES))
    return path


@pytest.fixture
def probes(tmp_path) -> Path:
    (tmp_path / "probes.csv").write_text("name,x,y,z\ndoor,-30,0,1.5\ncourt,0,0,2\ninside,-10,0,5\n")
    return tmp_path / "probes.csv"


@pytest.fixture
def weather(tmp_path) -> Path:
    rows = [f"{direction},{speed},{8 - speed / 2}" for direction in range(0, 360, 30) for speed in range(1, 15)]
    (tmp_path / "rose.csv").write_text("\n".join(["direction,speed,frequency", *rows]))
    return tmp_path / "rose.csv"


def test_a_city_in_parts_equals_the_whole(predictor, stl, probes, tmp_path, monkeypatch) -> None:
    """The mesh in pieces, arrays and tables; points in the air and inside buildings, members that have no points."""
    monkeypatch.setattr(predictor, "_fast", predictor.model)  # float32
    monkeypatch.setattr(predictor.model, "tolerance", 1e-7)

    def predicted(name: str, parts: int = 0, **options: object) -> Path:
        together = {"parts": InTurn(parts, tmp_path).run} if parts else {}
        options = {"roughness": 0.3, "wind_direction": 250.0, **options, **together}
        return predict_city(predictor, stl, tmp_path / name, **options)[0]

    whole, pieces = pv.read(predicted("whole.vtu", spacing=16.0)), pv.read(predicted("pieces.pvtu", 3, spacing=16.0))
    assert len(list((tmp_path / "pieces").glob("*.vtu"))) == 3 and pieces.points.dtype == whole.points.dtype
    assert pieces.n_cells == whole.n_cells > 500 and set(pieces.cell_data) == set(whole.cell_data)
    places = [np.round(mesh.cell_centers().points, 3) for mesh in (whole, pieces)]
    order = [np.lexsort(place.T) for place in places]
    np.testing.assert_allclose(places[1][order[1]], places[0][order[0]], atol=1e-2)
    for name in FIELDS:
        np.testing.assert_allclose(pieces[name][order[1]], whole[name][order[0]], rtol=1e-4, atol=1e-5)
    pictures = [imread(tmp_path / f"{name}.png") for name in ("pieces", "whole")]
    assert np.abs(pictures[0] - pictures[1]).mean() < 1e-3

    with pytest.warns(UserWarning, match="1 of 3 points lie inside buildings"):
        rows = rows_of(predicted("parts.csv", 4, points=probes))
    together = rows_of(predicted("whole.csv", points=probes))
    assert [row.keys() for row in rows] == [row.keys() for row in together]
    for row, other in zip(rows, together, strict=True):
        assert row.pop("name") == other.pop("name")
        # six digits are written, the last of which may be rounded to either side
        numbers = [[float(value or "nan") for value in r.values()] for r in (row, other)]
        np.testing.assert_allclose(*numbers, rtol=1e-4, atol=1e-5)
    np.save(tmp_path / "points.npy", np.random.default_rng(0).uniform([-60, -60, 1], [60, 60, 40], (50, 3)))
    one, many = (np.load(predicted(f"{n}.npz", n, points=tmp_path / "points.npy")) for n in (0, 2))
    for name in (*FIELDS, "positions"):
        np.testing.assert_allclose(many[name], one[name], rtol=1e-4, atol=1e-5)
    assert pv.read(predicted("few.pvtu", 4, points=tmp_path / "points.npy")).n_points == 50
    left = {path.name for path in tmp_path.iterdir() if path.suffix == ".partial" or "waiting" in path.name}
    assert not left


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_several_directions_give_a_file_and_a_picture_each(predictor, stl, tmp_path) -> None:
    written = predict_city(
        predictor, stl, tmp_path / "flow.vtu", roughness=0.3, wind_direction=[0.0, 90.0], spacing=20.0, wind_speed=9.0
    )
    assert [path.name for path in written] == ["flow-000.vtu", "flow-090.vtu", "flow-000.png", "flow-090.png"]
    for path, direction, along in zip(written, (0.0, 90.0), ([0, -1, 0], [-1, 0, 0]), strict=False):
        flow = pv.read(path)
        expected = predictor.predict(stl, roughness=0.3, wind_direction=direction, spacing=20.0, wind_speed=9.0)
        np.testing.assert_allclose(flow["velocity"], expected["velocity"], atol=1e-3)
        assert (flow["velocity"] @ along).mean() > 1
        said = {name: flow.field_data[name][0] for name in flow.field_data}
        assert said["wind_direction"] == direction and said["wind_speed"] == 9 and said["roughness"] == 0.3
        assert said["model"] == "columns" and "pressure Pa" in said["units"] and said["farfield"]
    with pytest.raises(ValueError, match=r"flow-090.vtu exists|and \d more exist"):
        predict_city(predictor, stl, tmp_path / "flow.vtu", roughness=0.3, wind_direction=[90.0, 180.0])


def test_probes_get_a_row_per_direction(predictor, stl, probes, tmp_path) -> None:
    with pytest.warns(UserWarning, match="1 of 3 points lie inside buildings"):
        predict_city(
            predictor, stl, tmp_path / "wind.csv", roughness=0.3, wind_direction=[270.0, 10.0], points=probes
        )  # fmt: skip
    rows = rows_of(tmp_path / "wind.csv")
    assert [(row["name"], row["wind_direction"]) for row in rows[2:4]] == [("inside", "270"), ("door", "10")]
    expected = predictor.predict(stl, roughness=0.3, wind_direction=270.0, points=[[-30.0, 0, 1.5]])
    assert float(rows[0]["velocity_x"]) == pytest.approx(float(expected["velocity"][0, 0]), rel=1e-4)
    assert rows[2]["k"] == "nan"


def test_maps_show_the_wake_and_have_no_white_corners(predictor, stl) -> None:
    sites = predictor.sites(boxes_to_mesh(BOXES), [225.0], 0.3)
    raster = raster_of_wakes(sites)
    assert raster.x[-1] > 22 + 140 * np.sqrt(0.5) and raster.y[-1] > 8 + 140 * np.sqrt(0.5)
    asked = raster.asked(sites[0])
    assert sites[0].in_domain(sites[0].to_wind(asked)).all() and len(asked) == raster.shown.sum()
    beyond = np.linalg.norm(asked - raster.positions, axis=1) > 1e-6
    assert not sites[0].in_domain(sites[0].to_wind(raster.positions))[beyond].all()
    still = raster.faded(sites[0], np.zeros((len(asked), 3)))
    assert beyond.any() and np.abs(still[~beyond]).max() < 1e-6, "what was predicted is shown as it is"
    assert (still[beyond] @ sites[0].basis[0] > 0).all(), "beyond it the wind becomes the inflow"
    image = raster.image(np.arange(len(asked), dtype=float))
    assert np.isfinite(image).all() and (image[raster.shown] == np.arange(len(asked))).all()
    assert not raster.shown.all(), "pixels in buildings are not asked for"
    assert fastest_shown([np.full((10, 3), 2.0), np.full((10, 3), 3.1)]) == 5.5


def test_more_city_than_memory_is_refused(predictor, tmp_path) -> None:
    far = boxes_to_mesh([BOXES[0], BOXES[1]._replace(x_min=4e5, x_max=4e5 + 20, y_min=4e5, y_max=4e5 + 20)])
    write_stl(tmp_path / "far.stl", far)
    np.save(tmp_path / "points.npy", np.array([[50.0, 0, 5]]))
    options = {"points": tmp_path / "points.npy", "fields": ["k"], "roughness": 0.3, "wind_direction": 270.0}
    with pytest.raises(MemoryError, match=r"the wind over 400,\d+ x 400,\d+ m claims .* GB, this machine has"):
        predict_city(predictor, tmp_path / "far.stl", tmp_path / "k.npz", **options)
    assert not (tmp_path / "k.npz").exists()


def footprints(path: Path) -> Path:
    """The two boxes around Berlin, in longitude and latitude."""
    features = []
    for box in BOXES:
        outline = shapely.transform(shapely.box(box.x_min, box.y_min, box.x_max, box.y_max), FRAME.to_degrees)
        features.append({"type": "Feature", "geometry": shapely.geometry.mapping(outline),
                         "properties": {"height": box.height}})  # fmt: skip
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def test_comfort_of_footprints_as_map_table_and_picture(predictor, weather, tmp_path) -> None:
    city = footprints(tmp_path / "city.geojson")
    written = predict_comfort(predictor, city, weather, tmp_path / "comfort.vtu", roughness=0.5, directions=8)
    assert [path.name for path in written] == ["comfort.vtu", "comfort.png", "comfort.csv", "comfort.md"]
    map_ = pv.read(written[0])
    assert map_.bounds[4:] == (1.75, 1.75) and set(map_["nen_comfort"]) <= set(range(5))
    above = [map_[f"hours_above_{speed}"] for speed in (4, 6, 8, 10)]
    assert all((fast <= slow + 1e-6).all() for slow, fast in itertools.pairwise(above))
    assert map_.field_data["longitude"][0] == pytest.approx(13.4, abs=1e-3)
    assert "4 E" in str(map_.field_data["nen_comfort"][0])
    rows = rows_of(written[2])
    by_scale = {row["scale"] for row in rows}
    assert len(by_scale) == 4
    for scale in by_scale:
        assert sum(float(r["share of open ground [%]"]) for r in rows if r["scale"] == scale) == pytest.approx(
            100, abs=1
        )
    area = sum(float(row["area [m²]"]) for row in rows if row["scale"] == "Comfort, NEN 8100")
    hull = shapely.union_all([shapely.box(*box[:4:2], *box[1:4:2]) for box in BOXES]).convex_hull.buffer(40)
    assert area == pytest.approx(hull.area - 16 * 16 - 12 * 24, rel=0.03)
    assert "NEN 8100:2006" in written[3].read_text() and written[1].read_bytes()[:4] == b"\x89PNG"


def test_comfort_at_probes(predictor, stl, weather, probes, tmp_path) -> None:
    with pytest.warns(UserWarning, match="lie inside buildings"):
        predict_comfort(predictor, stl, weather, tmp_path / "c.csv", roughness=0.5, directions=8, points=probes)
    rows = rows_of(tmp_path / "c.csv")
    assert (
        rows[0]["name"] == "door" and rows[0]["nen_comfort"] in "ABCDE" and 0 <= float(rows[0]["hours_above_5"]) <= 100
    )
    assert rows[2]["nen_comfort"] == "" and rows[2]["mean_speed"] == "nan"


@pytest.mark.parametrize(
    ("out", "options", "message"),
    [
        ("comfort.vtk", {}, r"a map of comfort .* ends in \.vtu, got comfort\.vtk"),
        ("comfort.vtu", {"directions": 3}, "judged by 8 to 360 directions, got 3"),
        ("comfort.vtu", {"speed_height": -1.0}, "height of the wind must be positive"),
        ("rose.csv", {"points": "probes.csv"}, "is the input itself"),
    ],
)
def test_impossible_comfort_is_refused_before_anything_is_computed(
    predictor, stl, weather, probes, tmp_path, monkeypatch, out, options, message
) -> None:
    monkeypatch.setattr(predictor, "at", lambda *a, **k: pytest.fail("computed"))
    if "points" in options:
        options = {"points": probes}
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=message):
        predict_comfort(predictor, stl, weather, tmp_path / out, **{"roughness": 0.5, **options})
    assert {path.name for path in tmp_path.iterdir()} == before


class Off:
    """A predictor whose errors are known: normal, twice as wide in every second cell."""

    fields = ("velocity", "pressure", "k", "epsilon")

    def from_case(self, case, points, rng):
        spread = np.where(np.arange(len(points)) % 2, 0.2, 0.1)
        where = {tuple(at): i for i, at in enumerate(case.positions.tolist())}
        cells = [where[tuple(at)] for at in points.tolist()]
        truth = np.concatenate([case.fields[name][cells].reshape(len(cells), -1) for name in self.fields], axis=1)
        return truth + rng.normal(size=truth.shape) * spread[:, None]

    columns = ColumnPredictor.columns


def test_ninety_per_cent_of_new_cells_are_within_the_errors(urban_data, run) -> None:
    files = UrbanWindFiles(urban_data)
    found = calibrate(Off(), run, [files] * 6, "test")  # type: ignore[arg-type]
    assert found.cities == 12 and set(found.held_out) == set(Off.fields)
    assert all(0.86 < share < 0.94 for share in found.held_out.values()), found.held_out
    case, rng = files.load("ls", 0), np.random.default_rng(7)
    predicted = Off.columns(Off(), Off().from_case(case, case.positions, rng))  # type: ignore[arg-type]
    errors = found.errors(case.roughness, case.positions, predicted)
    within = np.linalg.norm(predicted["velocity"] - case.fields["velocity"], axis=1) <= errors["velocity"]
    assert within.mean() > 0.8


def test_errors_are_written_beside_the_fields_and_scale_with_them(run, urban_data, stl, tmp_path, monkeypatch) -> None:
    found = calibrate(ColumnPredictor.load(run, "cpu"), run, [UrbanWindFiles(urban_data)], "train")
    try:
        found.write(run)
        known = ColumnPredictor.load(run, "cpu")
        known.oblique = True
        slow, fast = (known.predict(stl, roughness=0.3, points=[[30.0, 0, 5]], wind_speed=6.0 * r) for r in (1, 2))
        assert slow["velocity_error"][0] > 0 and "validation cities" in slow.field_data["errors"][0]
        for name, factor in (("velocity", 2), ("pressure", 4), ("k", 4), ("epsilon", 8)):
            assert fast[f"{name}_error"][0] == pytest.approx(factor * slow[f"{name}_error"][0], rel=1e-5)
        other = json.loads((run.folder / FILE).read_text()) | {"weights": "0"}
        (run.folder / FILE).write_text(json.dumps(other))
        with pytest.raises(ValueError, match="about other weights than the run's"):
            Calibration.of(run)
        (run.folder / FILE).write_text("{}")
        with pytest.raises(ValueError, match="is damaged"):
            Calibration.of(run)
    finally:
        (run.folder / FILE).unlink()


def test_the_command_measures_errors(run, urban_data) -> None:
    result = CliRunner().invoke(app, ["calibrate", str(run.folder), "--data", str(urban_data)])
    assert "at least two cities in neutral air, 'val' has 1" in str(result.exception)
    result = CliRunner().invoke(app, ["calibrate", "swe-laape"])
    assert "swe come without an estimate of their errors" in str(result.exception)


@pytest.fixture(params=["ascii", "binary"])
def case(request, tmp_path) -> Path:
    """A case of OpenFOAM with a mesh of its own; its fields uniform in text, or listed in binary."""
    folder = tmp_path / "case"
    domain = UrbanDomain.around(boxes_to_mesh(BOXES))
    mesh = CartesianMesh.around(domain, [], 20.0, 10.0)  # knows nothing of the buildings
    mesh.write(folder)
    heights = mesh.cell_centres()[:, 2] if request.param == "binary" else None
    write_case(folder, 0.3, float(mesh.z[1]), domain.height, SolverSettings(), cell_heights=heights)
    if request.param == "ascii":
        for path in (folder / "0").iterdir():
            text = path.read_bytes().replace(b"format binary", b"format ascii")
            path.write_bytes(text.replace(b"internalField", b"// internalField uniform 7;\ninternalField", 1))
    return folder


def test_a_case_starts_from_the_prediction(predictor, stl, case) -> None:
    before = {path.name: path.read_bytes() for path in (case / "0").iterdir()}
    changed = write_start(predictor, stl, case, roughness=0.3, wind_direction=270.0, wind_speed=9.0)
    assert [path.name for path in changed] == ["U", "p", "k", "epsilon"]
    centres = cell_centres(case)
    with pytest.warns(UserWarning, match="lie inside buildings"):
        expected = predictor.predict(stl, roughness=0.3, wind_direction=270.0, wind_speed=9.0, points=centres)
    air = np.isfinite(expected["k"])
    (case / "case.foam").touch()
    reader = pv.OpenFOAMReader(str(case / "case.foam"))
    reader.cell_to_point_creation = False
    start = reader.read()["internalMesh"]
    np.testing.assert_allclose(start["U"][air], expected["velocity"][air], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(start["p"][air] * AIR_DENSITY, expected["pressure"][air], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(start["epsilon"][air], expected["epsilon"][air], rtol=1e-4)
    assert (start["U"][~air] == 0).all() and not air.all()
    for name, content in before.items():
        after = (case / "0" / name).read_bytes()
        assert after[after.index(b"boundaryField") :] == content[content.index(b"boundaryField") :]
    again = {name: FieldFile.read(case / "0" / name).filled(np.ones(len(centres))) for name in ("p", "k")}
    assert all(content.count(b"boundaryField") == 1 for content in again.values())


def test_cells_far_away_start_from_the_inflow_and_those_in_walls_at_rest(predictor, stl, case) -> None:
    with (case / "system" / "controlDict").open("a") as file:
        file.write("\n// startTime 17;\n")
    assert start_folder(case).name == "0"
    (site,) = predictor.sites(boxes_to_mesh(BOXES), [270.0], 0.3)
    found = start_fields(predictor, site, np.array([[-900.0, 0, 80], [-10, 0, 5], [30, 0, 5]]), 2.0)
    np.testing.assert_allclose(found["velocity"][:2], [[12, 0, 0], [0, 0, 0]], atol=1e-9)
    assert all(np.isfinite(values).all() for values in found.values()) and (found["k"] > 0).all()
    with pytest.raises(ValueError, match="none of the cells lies in the air around the buildings"):
        start_fields(predictor, site, np.array([[1e6, 0, 1]]), 1.0)


def test_cases_that_cannot_be_started_are_named(predictor, stl, case, tmp_path) -> None:
    def refused(message: str, folder: Path = case, **options: object) -> None:
        held = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=message):
            write_start(predictor, stl, folder, **{"roughness": 0.3, "wind_direction": 270.0, **options})
        assert held == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    refused("is not an OpenFOAM case: it has no system/controlDict", tmp_path)
    refused("give one --wind-direction", wind_direction=[0.0, 90.0])
    pressure = (case / "0" / "p").read_bytes()
    (case / "0" / "p").write_bytes(pressure.replace(b"[0 2 -2 0 0 0 0]", b"[0 1 0 0 0 0 0]"))
    refused("expected a pressure in m2/s2")
    (case / "0" / "p").write_bytes(pressure)
    (case / "0" / "k").write_bytes(b"nothing")
    refused("k is not a field of OpenFOAM")
    (case / "0" / "U").unlink()
    refused("has no files U and p to be filled")
    (case / "0").rename(case / "3")
    refused("no folder of its start time 0")


def predict(*arguments: object):
    return CliRunner().invoke(app, ["predict", *map(str, arguments)])


def test_the_command_knows_comfort_and_roses(run, stl, weather, probes, tmp_path) -> None:
    out = tmp_path / "rose.vtu"
    city = ("--model", run.folder, "--buildings", stl, "--roughness", 0.3)
    result = predict(*city, "--wind-directions", 2, "--spacing", 25, "--fields", "k", "--out", out)
    assert result.exit_code == 0 and "rose-000.vtu and" in result.output, result.output
    for message, *options in (
        ("give --out FILE", "--wind-direction", 10),
        ("has no use with --weather", "--weather", weather, "--spacing", 4, "--out", out),
        ("--wind-direction expects numbers, e.g. `225 250`, got 'west'", "--wind-direction", "west", "--out", out),
        ("not both", "--wind-direction", 10, "--wind-directions", 4, "--out", out),
        ("a number from 1 to 360, got 0", "--wind-directions", 0, "--out", out),
        ("needs --roughness (z0 in metres) and --wind-direction", "--out", out),
        ("from 0 to 360 degrees", "--wind-direction", "10,361", "--out", tmp_path / "other.vtu"),
    ):
        result = predict(*city, *options)
        assert message in str(result.exception), (message, result.exception)
