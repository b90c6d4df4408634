"""Files of buildings: what is read, what is mended and said, what is refused and how."""

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
import trimesh

from farfield.problems.urban_wind.buildings import (
    Box,
    boxes_to_mesh,
    inside_buildings,
    plan_area,
    random_buildings,
    walls_and_roofs,
    write_stl,
)
from farfield.problems.urban_wind.footprints import LocalFrame, extruded, length
from farfield.problems.urban_wind.formats import read_buildings
from farfield.problems.urban_wind.lattice import LEVELS, solid_fractions

TWO = [Box(0, 10, 0, 10, 30), Box(20, 30, 0, 10, 5)]
INSIDE, OUTSIDE = [[5.0, 5, 10], [25, 5, 4]], [[15.0, 5, 1], [25, 5, 6], [5, 5, 31]]


def read_mesh(path: Path, **options) -> trimesh.Trimesh:
    return read_buildings(path, **options).mesh


def is_two(mesh: trimesh.Trimesh) -> bool:
    return inside_buildings(mesh, np.array(INSIDE)).all() and not inside_buildings(mesh, np.array(OUTSIDE)).any()


def without_floors(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    return trimesh.Trimesh(mesh.vertices, mesh.faces[mesh.triangles[..., 2].max(1) > 0], process=False)


def plane(x0: float, x1: float, z: float = 0.0) -> trimesh.Trimesh:
    corners = np.array([[x0, x0, z], [x1, x0, z], [x1, x1, z], [x0, x1, z]])
    return trimesh.Trimesh(corners, [[0, 1, 2], [0, 2, 3]], process=False)


@pytest.mark.parametrize("kind", ["stl", "obj", "ply", "STL"])
def test_surfaces_in_every_format(tmp_path, kind) -> None:
    boxes_to_mesh(TWO).export(tmp_path / f"city.{kind}", file_type=kind.lower())
    mesh = read_mesh(tmp_path / f"city.{kind}")
    assert mesh.is_watertight and mesh.volume == pytest.approx(3500) and is_two(mesh)


@pytest.mark.parametrize("kind", ["stl", "obj", "ply"])
def test_what_cannot_be_read_is_not_called_empty(tmp_path, kind) -> None:
    (tmp_path / f"city.{kind}").write_bytes(b"\x00\x01 no buildings here \xff" * 9)
    with pytest.raises(ValueError, match=f"can(not)? be read as {kind.upper()}"):
        read_mesh(tmp_path / f"city.{kind}")


def court() -> list[trimesh.Trimesh]:
    """A block around a courtyard, a row of two houses that share a wall, a house alone."""
    block = extruded(square(0, 0, 40) - square(10, 10, 20), 15.0)
    return [
        block,
        boxes_to_mesh([Box(60, 70, 0, 10, 12), Box(70, 80, 0, 10, 9)]),
        boxes_to_mesh([Box(60, 72, 25, 40, 30)]),
    ]


@pytest.mark.parametrize("inverted", [False, True], ids=["outward", "inverted"])
@pytest.mark.parametrize("base", [0.0, -4.0, 43.0], ids=["on the ground", "sunk", "above the sea"])
def test_missing_floors_are_laid(tmp_path, base, inverted) -> None:
    """As a city model of detail 1 is often exported: the same solids as with floors; a hole in a wall still is one."""
    whole = trimesh.util.concatenate(court()).apply_translation([0, 0, base])
    lacking = trimesh.Trimesh(whole.vertices, whole.faces[whole.triangles[..., 2].max(1) > base], process=False)
    if inverted:
        lacking.invert()
    assert 0 < len(lacking.faces) < len(whole.faces)
    meshes = []
    for name, mesh in (("whole", whole), ("lacking", lacking)):
        write_stl(tmp_path / f"{name}.stl", mesh)
        meshes.append(read_mesh(tmp_path / f"{name}.stl", ground=base > 0))
    expected, read = meshes
    assert read.volume == pytest.approx(expected.volume, rel=1e-9)
    assert read.volume == pytest.approx(whole.volume, rel=1e-6)
    points = np.random.default_rng(0).uniform([-10, -10, 0], [90, 50, 40], (4000, 3))
    inside = inside_buildings(read, points)
    assert 100 < inside.sum() < 3000
    np.testing.assert_array_equal(inside, inside_buildings(expected, points))
    solids = [
        solid_fractions(np.asarray(mesh.triangles), (-10.0, -10.0), (15, 25), LEVELS, 4.0) for mesh in (read, expected)
    ]
    np.testing.assert_array_equal(*solids)
    assert np.abs(solids[0]).sum() > 10 and not solids[0][:, 8, 8].any(), "the courtyard is open"
    np.testing.assert_allclose(plan_area(walls_and_roofs(read)), plan_area(walls_and_roofs(expected)), rtol=1e-9)


@pytest.mark.parametrize("ground", ["sheet", "joined", "slab", "higher"])
def test_a_ground_plane_is_taken_off(tmp_path, ground) -> None:
    city = without_floors(boxes_to_mesh(TWO))
    if ground == "joined":  # a plate with holes whose corners are those of the walls
        plate = shapely.box(-50, -50, 80, 60) - shapely.union_all([shapely.box(*b[::2][:2], *b[1::2][:2]) for b in TWO])
        whole = extruded(plate, 9.0)
        parts = [city, trimesh.Trimesh(whole.vertices, whole.faces[whole.triangles[..., 2].max(1) == 0], process=False)]
    elif ground == "slab":
        parts = [boxes_to_mesh(TWO), trimesh.creation.box(bounds=[[-50, -50, -1], [80, 60, 0]])]
    elif ground == "higher":  # foundations reach below it
        parts = [boxes_to_mesh(TWO, foundation=2), plane(-50, 80)]
    else:
        parts = [boxes_to_mesh(TWO), plane(-50, 80)]
    write_stl(tmp_path / "city.stl", trimesh.util.concatenate(parts))
    with pytest.warns(UserWarning, match="a ground plane was taken off"):
        mesh = read_mesh(tmp_path / "city.stl")
    assert is_two(mesh) and mesh.bounds[:, :2].tolist() == [[0, 0], [30, 10]]


def test_a_ground_plane_alone_is_no_city(tmp_path) -> None:
    write_stl(tmp_path / "flat.stl", plane(0, 50))
    with pytest.raises(ValueError, match="holds a flat sheet only, no buildings"):
        read_mesh(tmp_path / "flat.stl")


def test_terrain_is_named(tmp_path) -> None:
    x, y = np.meshgrid(np.linspace(-200, 200, 9), np.linspace(-200, 200, 9))
    hills = shapely.delaunay_triangles(shapely.multipoints(np.c_[x.ravel(), y.ravel()]))
    corners = shapely.get_coordinates(shapely.get_parts(hills)).reshape(-1, 4, 2)[:, :3].reshape(-1, 2)
    land = trimesh.Trimesh(
        np.c_[corners, 5 + np.sin(corners).sum(1)], np.arange(len(corners)).reshape(-1, 3), process=True
    )
    write_stl(tmp_path / "land.stl", trimesh.util.concatenate([boxes_to_mesh(TWO), land]))
    with pytest.raises(ValueError, match="it looks like terrain, and the models know flat ground only"):
        read_mesh(tmp_path / "land.stl")


def test_buildings_at_their_height_above_the_sea_are_set_on_the_ground(tmp_path) -> None:
    """Each by its own base; what stands on another building stays there."""
    tower = boxes_to_mesh([Box(2, 8, 2, 8, 10)]).apply_translation([0, 0, 73])
    parts = [boxes_to_mesh(TWO[:1]).apply_translation([0, 0, 43]), boxes_to_mesh(TWO[1:]), tower]
    parts[1].apply_translation([0, 0, 47])
    write_stl(tmp_path / "sea.stl", trimesh.util.concatenate(parts))
    with pytest.raises(ValueError, match=r"3 of 3 buildings float above the ground, z = 0, by 43.0 to 47.0 m"):
        read_mesh(tmp_path / "sea.stl")
    mesh = read_mesh(tmp_path / "sea.stl", ground=True)
    inside = inside_buildings(mesh, np.array([[5.0, 5, 1], [25, 5, 4], [5, 5, 39], [5, 5, 41], [25, 5, 6]]))
    assert inside.tolist() == [True, True, True, False, False]


def test_heights_in_feet_are_noticed(tmp_path) -> None:
    box = boxes_to_mesh([Box(0, 10, 0, 10, 30)])
    write_stl(tmp_path / "feet.stl", box.copy().apply_scale(1 / 0.3048))
    with pytest.warns(UserWarning, match="half of the buildings are higher than 98 m; if these are feet, say --unit"):
        read_mesh(tmp_path / "feet.stl")
    assert read_mesh(tmp_path / "feet.stl", unit="ft").bounds[1] == pytest.approx([10, 10, 30], rel=1e-5)
    write_stl(tmp_path / "kilometres.stl", box.copy().apply_scale(1e-3))
    with pytest.raises(ValueError, match=r"is only 0.03 m high; say by --unit"):
        read_mesh(tmp_path / "kilometres.stl")


def test_terraced_houses_in_an_stl_are_solid(tmp_path) -> None:
    """Neighbours share corners and edges, which then have four faces."""
    row = boxes_to_mesh([Box(x, x + 10, 0, 10, 12) for x in (0, 10, 20)])
    row.invert()
    write_stl(tmp_path / "row.stl", row)
    points = np.array([[5.0, 5, 6], [10.5, 5, 6], [29, 1, 1], [15, 5, 13], [31, 5, 6]])
    assert inside_buildings(read_mesh(tmp_path / "row.stl"), points).tolist() == [True, True, True, False, False]


def test_surfaces_that_are_inside_out_are_turned(tmp_path) -> None:
    mesh = boxes_to_mesh([Box(0, 10, 0, 10, 30), Box(20, 30, 0, 10, 5)])
    mesh.invert()
    write_stl(tmp_path / "inverted.stl", mesh)
    turned = read_mesh(tmp_path / "inverted.stl")
    assert turned.volume == pytest.approx(3500)
    assert inside_buildings(turned, np.array([[5.0, 5, 10], [15, 5, 10]])).tolist() == [True, False]


def test_stl_round_trip(tmp_path) -> None:
    boxes = random_buildings(np.random.default_rng(1))
    write_stl(tmp_path / "city.stl", boxes_to_mesh(boxes))
    mesh = read_mesh(tmp_path / "city.stl")
    assert mesh.is_watertight
    volume = sum((b.x_max - b.x_min) * (b.y_max - b.y_min) * b.height for b in boxes)
    assert mesh.volume == pytest.approx(volume, rel=1e-5)


def test_an_empty_stl_is_refused(tmp_path) -> None:
    (tmp_path / "empty.stl").write_text("solid nothing\nendsolid nothing\n")
    with pytest.raises(ValueError, match=r"can(not)? be read as STL"):
        read_mesh(tmp_path / "empty.stl")
    (tmp_path / "zero.stl").write_bytes(b"")
    with pytest.raises(ValueError, match=r"can(not)? be read as STL"):
        read_mesh(tmp_path / "zero.stl")
    with pytest.raises(FileNotFoundError, match="no such file"):
        read_mesh(tmp_path / "missing.stl")


def test_an_open_surface_is_refused(tmp_path) -> None:
    box = boxes_to_mesh([Box(0, 10, 0, 10, 30), Box(20, 30, 0, 10, 5)])
    write_stl(tmp_path / "open.stl", trimesh.Trimesh(box.vertices, box.faces[1:], process=False))
    with pytest.raises(ValueError, match="1 of 2 buildings are not closed"):
        read_mesh(tmp_path / "open.stl")


def test_millimetres_are_noticed_and_can_be_read(tmp_path) -> None:
    box = boxes_to_mesh([Box(0, 10, 0, 10, 30)])
    write_stl(tmp_path / "mm.stl", box.copy().apply_scale(1000))
    with pytest.raises(ValueError, match="millimetres"):
        read_mesh(tmp_path / "mm.stl")
    assert read_mesh(tmp_path / "mm.stl", unit="mm").bounds[1] == pytest.approx([10, 10, 30])
    with pytest.raises(ValueError, match="unknown unit"):
        read_mesh(tmp_path / "mm.stl", unit="furlong")


def test_buildings_below_the_ground(tmp_path) -> None:
    box = boxes_to_mesh([Box(0, 10, 0, 10, 30)])
    write_stl(tmp_path / "buried.stl", box.copy().apply_translation([0, 0, -40]))
    with pytest.raises(ValueError, match="below the ground"):
        read_mesh(tmp_path / "buried.stl")
    write_stl(tmp_path / "sunk.stl", box.copy().apply_translation([0, 0, -5]))
    with pytest.warns(UserWarning, match="reach below the ground"):
        read_mesh(tmp_path / "sunk.stl")
    write_stl(tmp_path / "floating.stl", box.copy().apply_translation([0, 0, 5]))
    with pytest.raises(ValueError, match=r"1 of 1 buildings float above the ground, z = 0, by 5.0 to 5.0 m; --ground"):
        read_mesh(tmp_path / "floating.stl")
    assert read_mesh(tmp_path / "floating.stl", ground=True).bounds[:, 2].tolist() == [0, 30]


@pytest.mark.parametrize(
    ("other", "overlaps"),
    [
        (Box(5, 15, 5, 15, 10), True),
        (Box(-20, 30, 4, 6, 40), True),  # a slab through it: no corner of either is inside the other
        (Box(10, 20, 0, 10, 30), False),  # a shared wall
        (Box(20, 30, 0, 10, 30), False),
    ],
)
def test_overlapping_buildings_are_reported(tmp_path, recwarn, other: Box, overlaps: bool) -> None:
    write_stl(tmp_path / "pair.stl", boxes_to_mesh([Box(0, 10, 0, 10, 30), other]))
    read_mesh(tmp_path / "pair.stl")
    assert any("overlap" in str(warning.message) for warning in recwarn) == overlaps


FRAME = LocalFrame(13.4, 52.5)


def square(x: float, y: float, side: float = 20.0) -> shapely.Polygon:
    return shapely.box(x, y, x + side, y + side)


def geojson(path: Path, shapes: list, crs: str | None = None, degrees: bool = True) -> Path:
    """Shapes in metres around Berlin, with their properties; in longitude and latitude unless told otherwise."""
    features = []
    for shape, properties in shapes:
        there = shapely.transform(shape, FRAME.to_degrees) if degrees else shape
        features.append({"type": "Feature", "geometry": shapely.geometry.mapping(there), "properties": properties})
    described = {"type": "FeatureCollection", "features": features}
    if crs:
        described["crs"] = {"type": "name", "properties": {"name": crs}}
    path.write_text(json.dumps(described))
    return path


def test_footprints_in_degrees_become_metres(tmp_path) -> None:
    court = square(100, 50, 40) - square(110, 60, 20)
    path = geojson(tmp_path / "city.geojson", [(square(-200, -100), {"height": 15}), (court, {"Height": "22.5 m"})])
    city = read_buildings(path)
    mesh, low = city.mesh, city.mesh.bounds[0]
    assert mesh.is_watertight and mesh.volume == pytest.approx(400 * 15 + 1200 * 22.5, rel=1e-4)
    np.testing.assert_allclose(np.ptp(mesh.bounds, axis=0), [340, 190, 22.5], rtol=1e-4)
    assert city.frame is not None
    np.testing.assert_allclose(
        city.frame.to_degrees(low[None, :2])[0], FRAME.to_degrees([[-200.0, -100]])[0], atol=1e-8
    )
    beside = low + np.array([[10.0, 10, 5], [330, 180, 5], [320, 170, 5]])
    assert inside_buildings(mesh, beside).tolist() == [True, True, False], "a courtyard is open"


def test_coordinate_systems_of_older_geojson(tmp_path) -> None:
    shapes = [(shapely.transform(square(0, 0), lambda at: at + np.array([3_500_000, 5_800_000])), {"height": 9})]
    metres = read_buildings(geojson(tmp_path / "a.json", shapes, "urn:ogc:def:crs:EPSG::31467", degrees=False))
    assert metres.frame is None and metres.mesh.bounds[0, 0] == 3_500_000
    feet = read_mesh(geojson(tmp_path / "b.json", shapes, "EPSG:2263", degrees=False))
    assert np.ptp(feet.bounds, axis=0) == pytest.approx([20 * 0.3048, 20 * 0.3048, 9], rel=1e-3)
    with pytest.warns(UserWarning, match="that cannot be longitudes and latitudes of a city; taken as metres"):
        assert read_mesh(geojson(tmp_path / "c.json", shapes, degrees=False)).volume == pytest.approx(3600)
    with pytest.raises(ValueError, match="coordinate system 'EPSG:99999999' is not known"):
        read_mesh(geojson(tmp_path / "d.json", shapes, "EPSG:99999999", degrees=False))


def test_footprints_without_heights_are_counted_or_get_the_default(tmp_path) -> None:
    shapes = [(square(30 * i, 0), {"height": height}) for i, height in enumerate([12, None, "unknown", -3, "0"])]
    path = geojson(tmp_path / "city.geojson", [*shapes, (square(0, 50), {"building:levels": "4"})])
    with (
        pytest.warns(UserWarning, match="1 of 6 heights are storeys times 3 m"),
        pytest.raises(
            ValueError, match=r"4 of 6 footprints have no height .*--default-height.*building:levels, height"
        ),
    ):
        read_mesh(path)
    with pytest.warns(UserWarning, match="4 of 6 footprints get 7 m"):
        assert read_mesh(path, default_height=7.0).volume == pytest.approx(400 * (12 + 4 * 7 + 12), rel=1e-4)
    other = geojson(tmp_path / "other.geojson", [(square(0, 0), {"Eaves": 31})])
    with pytest.raises(ValueError, match="their properties are Eaves"):
        read_mesh(other)
    assert read_mesh(other, height_attribute="Eaves").bounds[1, 2] == 31
    assert read_mesh(other, height_attribute="Eaves", unit="ft").bounds[1, 2] == pytest.approx(31 * 0.3048)
    with pytest.raises(ValueError, match="default height must be positive"):
        read_mesh(path, default_height=-1.0)


def test_lengths_as_people_write_them() -> None:
    for text, metres in (
        ("12", 12),
        (12.5, 12.5),
        ("12,5 m", 12.5),
        ("40 ft", 12.192),
        ("7'6\"", 2.286),
        ("10'", 3.048),
    ):
        assert length(text) == pytest.approx(metres)
    assert np.isnan([length(value) for value in (None, True, "tall", "-4", float("inf"), [])]).all()


def test_broken_and_repeated_footprints_are_mended_and_said(tmp_path) -> None:
    bow_tie = shapely.Polygon([(0, 0), (20, 20), (20, 0), (0, 20)])
    shapes = [
        (bow_tie, {"height": 10}),
        (square(40, 0), {"height": 10}),
        (square(40, 0), {"height": 14}),
        (square(100, 0), {"height": 10}),
        (square(110, 10), {"height": 10}),
        (square(200, 0, 0.2), {"height": 10}),
        (shapely.Point(0, 0), {"name": "a tree"}),
    ]
    with pytest.warns(UserWarning, match="footprints") as said:
        mesh = read_mesh(geojson(tmp_path / "city.geojson", shapes))
    text = "; ".join(str(warning.message) for warning in said)
    for expected in (
        "1 features that are no polygons",
        "1 footprints cross themselves and were repaired",
        "1 footprints are repeated; the highest",
        "1 pairs of footprints overlap",
        "1 footprints smaller than 1 m²",
    ):
        assert expected in text
    assert mesh.volume == pytest.approx(200 * 10 + 400 * 14 + 800 * 10, rel=1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "neither GeoJSON nor CityJSON"),
        ('{"type": "Topology"}', "its type is 'Topology'"),
        ('{"type": "FeatureCollection", "features": []}', "has no footprints .* no features"),
        ('{"type": "FeatureCollection", "features": 3}', "its features are no list"),
        (
            '{"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}, "properties": {}}',
            "it has 1 Point",
        ),
        ('{"type": "Feature", "geometry": {"type": "Polygon", "coordinates": [[1]]}}', "feature 0 is damaged"),
        ('{"type": "CityJSON", "CityObjects": {"a": {"type": "Road"}}, "vertices": []}', "no buildings .* Road"),
        ('{"type": "CityJSON", "vertices": []}', "is damaged CityJSON: KeyError 'CityObjects'"),
    ],
)
def test_other_json_is_named(tmp_path, content, message) -> None:
    (tmp_path / "city.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_mesh(tmp_path / "city.json")


def cityjson(mesh: trimesh.Trimesh, kind: str) -> dict:
    """A city model with whole numbers for corners, as the format has them, 43 m above the sea."""
    whole = np.round(np.asarray(mesh.vertices) * 1000).astype(int).tolist()
    surfaces = [[face] for face in mesh.faces.tolist()]
    boundaries = {"Solid": [surfaces], "MultiSurface": surfaces, "MultiSolid": [[surfaces]]}[kind]
    coarse = {"type": "MultiSurface", "lod": "0", "boundaries": [[[0, 1, 2]]]}
    geometry = [coarse, {"type": kind, "lod": "1.2", "boundaries": boundaries}]
    return {
        "type": "CityJSON",
        "version": "2.0",
        "transform": {"scale": [0.001] * 3, "translate": [100_000.0, 400_000.0, 43.0]},
        "metadata": {"referenceSystem": "https://www.opengis.net/def/crs/EPSG/0/28992"},
        "CityObjects": {"house": {"type": "Building", "geometry": geometry}, "road": {"type": "Road"}},
        "vertices": whole,
    }


@pytest.mark.parametrize("kind", ["Solid", "MultiSurface", "MultiSolid"])
def test_cityjson(tmp_path, kind) -> None:
    mesh = boxes_to_mesh(TWO)
    (tmp_path / "city.json").write_text(json.dumps(cityjson(mesh, kind)))
    with pytest.raises(ValueError, match="2 of 2 buildings float"):
        read_mesh(tmp_path / "city.json")
    read = read_mesh(tmp_path / "city.json", ground=True)
    assert read.volume == pytest.approx(3500)
    assert is_two(read.apply_translation([-100_000, -400_000, 0]))


def test_cityjson_surfaces_have_holes_and_any_number_of_corners(tmp_path) -> None:
    """A block around a courtyard, its roof and floor one surface each."""
    ring, court = [(0, 0), (30, 0), (30, 30), (0, 30)], [(10, 10), (10, 20), (20, 20), (20, 10)]
    vertices = [[x, y, z] for z in (0, 12) for x, y in ring + court]
    walls = [[[i, (i + 1) % 4, (i + 1) % 4 + 8, i + 8]] for i in range(4)]
    walls += [[[4 + i, 4 + (i + 1) % 4, 12 + (i + 1) % 4, 12 + i]] for i in range(4)]
    caps = [[[8, 9, 10, 11], [12, 13, 14, 15]], [[3, 2, 1, 0], [7, 6, 5, 4]]]
    described = cityjson(boxes_to_mesh(TWO), "Solid") | {"vertices": vertices, "metadata": {}}
    described["transform"] = {"scale": [1, 1, 1], "translate": [1000, 0, 0]}
    described["CityObjects"]["house"]["geometry"] = [{"type": "Solid", "lod": 2, "boundaries": [walls + caps]}]
    (tmp_path / "block.city.json").write_text(json.dumps(described))
    with pytest.warns(UserWarning, match="taken as metres"):
        mesh = read_mesh(tmp_path / "block.city.json")
    assert mesh.is_watertight and mesh.volume == pytest.approx(800 * 12)
    assert inside_buildings(mesh, np.array([[1005.0, 5, 3], [1015, 15, 3]])).tolist() == [True, False]


def test_other_files_are_refused_by_their_ending(tmp_path) -> None:
    (tmp_path / "city.dwg").write_bytes(b"AC1032")
    with pytest.raises(ValueError, match=r"city.dwg: expected buildings in a file that ends in .stl, .obj"):
        read_mesh(tmp_path / "city.dwg")
    write_stl(tmp_path / "city.stl", boxes_to_mesh(TWO))
    with pytest.raises(ValueError, match="are for footprints, this is a surface"):
        read_mesh(tmp_path / "city.stl", default_height=9.0)
