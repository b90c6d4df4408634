"""Files of buildings in, solids on flat ground out: STL, OBJ, PLY, GeoJSON footprints, CityJSON.

    city = read_buildings("city.geojson", default_height=9.0)
    city.mesh          # closed surfaces in metres: x east, y north, the ground at z = 0
    city.frame         # where x = y = 0 lies on the Earth, if the file has longitudes and latitudes

What can be mended without a guess is mended and said (a ground plane is taken off, missing floors are laid, inverted
surfaces are turned, broken and repeated footprints repaired); what would be a guess is refused with what to do.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import shapely
import trimesh
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import bodies_of, merged, overlapping_pairs
from farfield.problems.urban_wind.cityjson import read_cityjson
from farfield.problems.urban_wind.footprints import LocalFrame, read_footprints, triangulated

UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001, "km": 1000.0, "ft": 0.3048, "in": 0.0254}
SURFACES = (".stl", ".obj", ".ply")
DESCRIBED = (".geojson", ".json", ".cityjson")
CREDIBLE_HEIGHT = (1.0, 1000.0)  # m, of the tallest building
USUAL_MEDIAN_HEIGHT = 60.0  # m: half of the buildings are lower than that even among skyscrapers
LEVEL = 0.01  # m: what differs less is at the same height
STANDS = 0.1  # m: a building that ends so near to the ground stands on it


@dataclass(frozen=True)
class Buildings:
    """Closed surfaces on flat ground, in metres, x east, y north; and where on the Earth, where that is known."""

    mesh: trimesh.Trimesh
    frame: LocalFrame | None = None
    path: Path | None = None


def read_buildings(
    path: str | Path,
    *,
    unit: str = "m",
    ground: bool = False,
    default_height: float | None = None,
    height_attribute: str | None = None,
) -> Buildings:
    """Read buildings and check that a wind can be computed around them.

    Args:
        path: a file of :data:`SURFACES` or :data:`DESCRIBED`; a surface has its z axis upwards.
        unit: of :data:`UNITS`; of footprints in longitude and latitude, the unit of their heights.
        ground: set every building on the ground, wherever it stands in the file (heights above the sea, say).
        default_height: m, of footprints that have none.
        height_attribute: the footprints' property with the height, if it has an unusual name.
    """
    path = Path(path)
    if unit not in UNITS:
        raise ValueError(f"unknown unit {unit!r}; expected one of {', '.join(UNITS)}")
    if default_height is not None and not (np.isfinite(default_height) and default_height > 0):
        raise ValueError(f"the default height must be positive, got {default_height} m")
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    if path.suffix.lower() in SURFACES:
        if default_height is not None or height_attribute is not None:
            raise ValueError(f"{path}: a default height and a height attribute are for footprints, this is a surface")
        return Buildings(_solids(path, _read_surface(path, UNITS[unit]), ground), path=path)
    if path.suffix.lower() not in DESCRIBED:
        known = ", ".join((*SURFACES, *DESCRIBED))
        raise ValueError(f"{path.name}: expected buildings in a file that ends in {known}")
    described = _read_json(path)
    if described.get("type") == "CityJSON":
        mesh, frame = read_cityjson(path, described, UNITS[unit])
        return Buildings(_solids(path, mesh, ground), frame, path)
    mesh, frame = read_footprints(path, described, UNITS[unit], default_height, height_attribute)
    _check_size(path, mesh)
    return Buildings(mesh, frame, path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(described, dict):
        raise ValueError(f"{path} is neither GeoJSON nor CityJSON: it holds {type(described).__name__}")
    return described


def _read_surface(path: Path, metres: float) -> trimesh.Trimesh:
    kind = path.suffix.lower()[1:]
    try:
        mesh = trimesh.load_mesh(path, file_type=kind, skip_materials=True)
    except Exception as error:  # trimesh passes on whatever its parser met
        raise ValueError(f"{path} cannot be read as {kind.upper()}: {error}") from error
    if not isinstance(mesh, trimesh.Trimesh) or len(mesh.faces) == 0:
        raise ValueError(f"{path} has no triangles that can be read as {kind.upper()}")
    return merged(np.asarray(mesh.triangles) * metres)


def _solids(path: Path, mesh: trimesh.Trimesh, ground: bool) -> trimesh.Trimesh:
    """The surface without ground plane; its buildings closed (missing floors are laid), standing, looking outwards."""
    if not np.isfinite(mesh.vertices).all():
        raise ValueError(f"{path} has corners that are not finite numbers")
    _take_off_ground(path, mesh)
    mesh = _with_floors(mesh)
    bodies, of_face = bodies_of(mesh)
    _check_closed(path, bodies)
    mesh.fix_normals(multibody=True)  # outward: what is inside depends on it
    base = _bases(bodies)
    if ground:
        mesh.vertices[mesh.faces, 2] -= base[of_face][:, None]
        bodies, _ = bodies_of(mesh)
    else:
        _check_standing(path, bodies, base)
    _check_size(path, mesh)
    if overlapping := overlapping_pairs(bodies):
        a, b = (bodies[i].centroid for i in overlapping[0])
        warnings.warn(
            f"{path}: {len(overlapping)} pairs of buildings overlap (the first near x {a[0]:.1f}, "
            f"y {a[1]:.1f} and x {b[0]:.1f}, y {b[1]:.1f} m); they are treated as one",
            stacklevel=4,
        )
    return mesh


def _take_off_ground(path: Path, mesh: trimesh.Trimesh) -> None:
    """Remove what is no building: a flat ground, be it joined to the walls or not, and a slab below all buildings."""
    triangles = np.asarray(mesh.triangles)
    lowest = triangles[..., 2].max(1) < mesh.bounds[0, 2] + LEVEL
    if lowest.all():
        raise ValueError(f"{path} holds a flat sheet only, no buildings")
    sheet, rest = triangles[lowest][..., :2], triangles[~lowest][..., :2]
    wider = lowest.any() and (
        (sheet.min((0, 1)) < rest.min((0, 1)) - 1).any() or (sheet.max((0, 1)) > rest.max((0, 1)) + 1).any()
    )
    if wider:  # floors at the same level go with it: they may be missing
        mesh.update_faces(~lowest)
    bodies, of_face = bodies_of(mesh)
    low, high = (np.array([body.bounds[end] for body in bodies]) for end in (0, 1))
    left_out = high[:, 2] - low[:, 2] < LEVEL
    for i in np.flatnonzero(~left_out):
        others = ~left_out & (np.arange(len(bodies)) != i)
        if others.any() and high[i, 2] <= low[others, 2].min() + STANDS:
            left_out[i] = (low[i] <= low[others].min(0))[:2].all() and (high[i] >= high[others].max(0))[:2].all()
    if left_out.all():
        raise ValueError(f"{path} holds flat sheets only, no buildings")
    if wider or left_out.any():
        warnings.warn(f"{path}: a ground plane was taken off; the ground is flat, at z = 0", stacklevel=5)
    mesh.update_faces(~left_out[of_face])
    mesh.remove_unreferenced_vertices()


def _open_edges(mesh: trimesh.Trimesh) -> NDArray[np.integer]:
    """Edges (E, 2) that bound an odd number of triangles; two houses that share an edge have four there."""
    edges, uses = np.unique(mesh.edges_sorted, axis=0, return_counts=True)
    return edges[uses % 2 == 1]


def _with_floors(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    """The surface with floors where buildings are open below, and nowhere else.

    Neighbours that share walls get one floor together; courtyards get none.
    """
    floors = []
    for body in bodies_of(mesh)[0]:
        corners, edges = np.asarray(body.vertices), _open_edges(body)
        if not len(edges) or not _lies_below(corners[edges], body):
            continue
        used = np.unique(edges)
        places = {(x, y): i for i, (x, y) in zip(used.tolist(), corners[used, :2].tolist(), strict=True)}
        outlines = shapely.build_area(shapely.multilinestrings(shapely.linestrings(corners[edges][..., :2])))
        for outline in shapely.get_parts(outlines):
            rings = np.concatenate([shapely.get_coordinates(ring)[:-1] for ring in shapely.get_rings(outline)])
            ours = np.array([places[x, y] for x, y in rings.tolist()])
            floors.append(corners[ours[triangulated(outline, rings)[:, ::-1]]])
    return merged(np.concatenate([np.asarray(mesh.triangles), *floors])) if floors else mesh


def _lies_below(edges: NDArray[np.floating], body: trimesh.Trimesh) -> bool:
    """Whether all of some edges (E, 2, 3) lie where a building's floor does, or below the ground."""
    return bool((edges[..., 2] < max(body.bounds[0, 2], 0.0) + LEVEL).all())


def _check_closed(path: Path, bodies: list[trimesh.Trimesh]) -> None:
    """Refuse holes, but for those below the ground, where no wind blows."""
    holed = [body for body in bodies if not _lies_below(np.asarray(body.vertices)[_open_edges(body)], body)]
    if not holed:
        return
    where, extent = holed[0].centroid, np.ptp(holed[0].bounds, axis=0)
    if len(bodies) > 1 and extent[2] < 0.2 * extent[:2].max() and extent[:2].min() > 200:
        what = "it looks like terrain, and the models know flat ground only: leave it out and use --ground"
    else:
        what = "close the holes in the modeller (floors may be missing)"
    raise ValueError(
        f"{path}: {len(holed)} of {len(bodies)} buildings are not closed surfaces (the first near "
        f"x {where[0]:.1f}, y {where[1]:.1f} m, {extent[0]:.0f} x {extent[1]:.0f} x {extent[2]:.0f} m); {what}"
    )


def _check_standing(path: Path, bodies: list[trimesh.Trimesh], base: NDArray[np.float64]) -> None:
    """Refuse buildings that float or are buried."""
    if buried := sum(body.bounds[1, 2] <= 0 for body in bodies):
        raise ValueError(
            f"{path}: {buried} of {len(bodies)} buildings lie wholly below the ground, z = 0; "
            "--ground sets every building on the ground"
        )
    floating = base > STANDS
    if floating.any():
        raise ValueError(
            f"{path}: {floating.sum()} of {len(bodies)} buildings float above the ground, z = 0, by "
            f"{base[floating].min():.1f} to {base[floating].max():.1f} m; --ground sets every building on the ground"
        )
    if sunk := int((base < -STANDS).sum()):
        warnings.warn(f"{path}: {sunk} buildings reach below the ground; that part is ignored", stacklevel=5)


def _bases(bodies: list[trimesh.Trimesh]) -> NDArray[np.float64]:
    """Height at which every building begins; of what stands on another, where that one begins."""
    low, high = (np.array([body.bounds[end] for body in bodies]) for end in (0, 1))
    base = low[:, 2].copy()
    plan = (high - low)[:, :2].prod(1)
    for i in np.argsort(low[:, 2], kind="stable"):  # from below, so that a carrier's own base is known
        shared = np.clip(np.minimum(high[i], high) - np.maximum(low[i], low), 0, None)[:, :2].prod(1)
        carries = (low[:, 2] < low[i, 2] - LEVEL) & (high[:, 2] > low[i, 2] - STANDS) & (shared > plan[i] / 2)
        if carries.any():
            base[i] = base[carries].min()
    return base


def _check_size(path: Path, mesh: trimesh.Trimesh) -> None:
    """Notice heights that are only credible in another unit."""
    height = float(mesh.bounds[1, 2])
    lowest, highest = CREDIBLE_HEIGHT
    if height > highest:
        raise ValueError(f"{path} is {height:.0f} m high, so it is probably in millimetres; say --unit mm (or cm)")
    if height < lowest:
        raise ValueError(
            f"{path} is only {height:.2g} m high; say by --unit what it is in ({', '.join(UNITS)}), "
            "and give longitudes and latitudes as GeoJSON"
        )
    median = float(np.median([body.bounds[1, 2] for body in bodies_of(mesh)[0]]))
    if median > USUAL_MEDIAN_HEIGHT:
        warnings.warn(
            f"{path}: half of the buildings are higher than {median:.0f} m; if these are feet, say --unit ft",
            stacklevel=4,
        )
