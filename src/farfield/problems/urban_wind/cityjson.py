"""The buildings of a CityJSON file (version 1 and 2) as triangles: of each, the geometry with the highest level of
detail; of a solid, its outer shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import shapely
import trimesh
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import merged
from farfield.problems.urban_wind.footprints import LocalFrame, plan_frame, triangulated

Array = NDArray[np.floating]

BUILDINGS = ("Building", "BuildingPart", "BuildingInstallation")


def read_cityjson(path: Path, described: dict[str, Any], metres: float) -> tuple[trimesh.Trimesh, LocalFrame | None]:
    """All buildings in metres, as they stand in the file; ``metres`` is the unit of heights."""
    try:
        vertices = np.asarray(described["vertices"], dtype=float).reshape(-1, 3)
        if "transform" in described:
            vertices = vertices * described["transform"]["scale"] + described["transform"]["translate"]
        objects = described["CityObjects"].values()
        buildings = [entry for entry in objects if entry.get("type") in BUILDINGS]
        surfaces = [surface for entry in buildings for surface in _surfaces(entry)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is damaged CityJSON: {type(error).__name__} {error}") from None
    if not surfaces:
        kinds = ", ".join(sorted({str(entry.get("type")) for entry in described["CityObjects"].values()})) or "nothing"
        raise ValueError(f"{path} has no buildings with surfaces, it has {kinds}")
    used = np.unique(np.concatenate([ring for surface in surfaces for ring in surface]))
    if used.min() < 0 or used.max() >= len(vertices):
        raise ValueError(f"{path} is damaged CityJSON: corner {used.max()} of {len(vertices)} is used")
    crs = described.get("metadata", {}).get("referenceSystem")
    low, high = vertices[used, :2].min(0), vertices[used, :2].max(0)
    frame, factor = plan_frame(path, low, high, crs, metres)
    plan = vertices[:, :2] * factor if frame is None else frame.to_metres(vertices[:, :2])
    corners = np.c_[plan, vertices[:, 2] * metres]
    return merged(np.concatenate([_triangles(corners, surface) for surface in surfaces])), frame


def _surfaces(entry: dict[str, Any]) -> Iterator[list[Any]]:
    """Every surface as its rings of corners, the outline first."""
    geometries = [geometry for geometry in entry.get("geometry", ()) if float(geometry.get("lod", 0)) >= 1]
    if not geometries:
        return
    best = max(geometries, key=lambda geometry: float(geometry["lod"]))
    boundaries, kind = best["boundaries"], best["type"]
    if kind in ("MultiSurface", "CompositeSurface"):
        yield from boundaries
    elif kind == "Solid":
        yield from boundaries[0]
    elif kind in ("MultiSolid", "CompositeSolid"):
        for solid in boundaries:
            yield from solid[0]


def _triangles(corners: Array, surface: list[Any]) -> Array:
    """(T, 3, 3) of a planar surface with holes, looking where its outline, seen anticlockwise, looks."""
    rings = [corners[np.asarray(ring, dtype=int)] for ring in surface]
    outline = rings[0]
    following = np.roll(outline, -1, axis=0)
    normal = np.cross(outline - outline[0], following - outline[0]).sum(0)  # Newell's: twice the area
    if np.linalg.norm(normal) < 1e-9:
        return np.empty((0, 3, 3))
    flat = [axis for axis in range(3) if axis != np.abs(normal).argmax()]  # seen along the axis that it faces most
    if normal[np.abs(normal).argmax()] * (1 if flat != [0, 2] else -1) < 0:
        flat.reverse()
    together = np.concatenate(rings)
    polygon = shapely.Polygon(rings[0][:, flat], [ring[:, flat] for ring in rings[1:]])
    faces = triangulated(polygon, together[:, flat])
    return together[faces]
