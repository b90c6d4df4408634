"""Footprints with heights, as GeoJSON has them, into solids; and longitudes and latitudes into metres.

Footprints reach from the ground to their height: a part that OpenStreetMap lets begin higher up (``min_height``) is
deliberately a whole building here, since whether anything stands below it is not said.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import shapely
import trimesh
from numpy.typing import NDArray
from pyproj import CRS, Transformer
from pyproj.exceptions import CRSError

Array = NDArray[np.floating]

HEIGHT_NAMES = (
    "height", "building:height", "building_height", "measuredheight", "render_height", "height_m", "height_ft",
    "hoehe", "höhe", "hoogte", "hauteur", "altura",
)  # fmt: skip
STOREY_NAMES = ("building:levels", "levels", "storeys", "stories", "num_floors")
STOREY_HEIGHT = 3.0  # m
FOOT = 0.3048  # m
SMALLEST_FOOTPRINT = 1.0  # m²
WIDEST_CITY = 2.0  # degrees: what is wider as longitudes and latitudes is metres
GRID = 1e-3  # m: corners are rounded to it, which removes slivers between neighbours


@dataclass(frozen=True)
class LocalFrame:
    """Metres east and north of a place on the Earth (transverse Mercator around it: true to scale over tens of km)."""

    longitude: float  # degrees
    latitude: float

    def __str__(self) -> str:
        return f"+proj=tmerc +lon_0={self.longitude:.9f} +lat_0={self.latitude:.9f} +k=1 +datum=WGS84 +units=m"

    @cached_property
    def _there(self) -> Transformer:
        return Transformer.from_crs("EPSG:4326", CRS.from_proj4(str(self)), always_xy=True)

    def to_metres(self, degrees: Array) -> Array:
        """Longitudes and latitudes (N, 2) -> x, y (N, 2)."""
        longitude, latitude = np.asarray(degrees, dtype=float).T
        return np.stack(self._there.transform(longitude, latitude), axis=-1)

    def to_degrees(self, metres: Array) -> Array:
        """The inverse."""
        x, y = np.asarray(metres, dtype=float).T
        return np.stack(self._there.transform(x, y, direction="INVERSE"), axis=-1)


def plan_frame(path: Path, low: Array, high: Array, crs: str | None, metres: float) -> tuple[LocalFrame | None, float]:
    """How coordinates between ``low`` and ``high`` become metres: by a frame on the Earth, or by a factor."""
    system = None
    if crs:
        try:
            system = CRS.from_user_input(crs)
        except CRSError as error:
            raise ValueError(f"{path}: its coordinate system {crs!r} is not known: {error}") from None
    degrees_possible = bool((np.abs([low, high]) <= [180, 90]).all() and (high - low < WIDEST_CITY).all())
    if system is not None and not system.is_geographic:
        factor = {axis.unit_conversion_factor for axis in system.axis_info[:2]}
        return None, factor.pop() if len(factor) == 1 else 1.0
    if degrees_possible:
        middle = (low + high) / 2
        return LocalFrame(float(middle[0]), float(middle[1])), 1.0
    if system is not None and (np.abs([low, high]) <= [180, 90]).all():
        wide = high - low
        raise ValueError(f"{path} spans {wide[0]:.1f} x {wide[1]:.1f} degrees: a city is expected")
    warnings.warn(
        f"{path}: coordinates that cannot be longitudes and latitudes of a city; taken as metres", stacklevel=6
    )
    return None, metres


def read_footprints(
    path: Path, described: dict[str, Any], metres: float, default_height: float | None, height_attribute: str | None
) -> tuple[trimesh.Trimesh, LocalFrame | None]:
    """GeoJSON into closed surfaces; ``metres`` is the unit of heights, and of coordinates that are not on the Earth."""
    features = _features(path, described)
    found = [(shape, properties) for shape, properties in features if shape.geom_type in ("Polygon", "MultiPolygon")]
    if not found:
        kinds = Counter(shape.geom_type for shape, _ in features)
        has = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "no features"
        raise ValueError(f"{path} has no footprints (Polygon or MultiPolygon), it has {has}")
    if others := len(features) - len(found):
        warnings.warn(f"{path}: {others} features that are no polygons are left out", stacklevel=4)
    heights = _heights(path, [properties for _, properties in found], metres, default_height, height_attribute)

    shapes = np.array([shape for shape, _ in found], dtype=object)
    low, high = shapely.total_bounds(shapes).reshape(2, 2)
    if not np.isfinite([low, high]).all():
        raise ValueError(f"{path} has coordinates that are not finite numbers")
    named = (described.get("crs") or {}).get("properties", {}).get("name")
    frame, factor = plan_frame(path, low, high, named, metres)
    shapes = shapely.transform(shapes, frame.to_metres if frame else lambda at: at * factor)
    polygons, tops = _repaired(path, shapes, heights)
    solids = [extruded(polygon, top) for polygon, top in zip(polygons, tops, strict=True)]
    return cast(trimesh.Trimesh, trimesh.util.concatenate(solids)), frame


def _features(path: Path, described: dict[str, Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Geometry and properties of whatever GeoJSON it is."""
    if described.get("type") == "FeatureCollection":
        entries = described.get("features")
    elif described.get("type") == "Feature":
        entries = [described]
    else:
        raise ValueError(
            f"{path} is neither GeoJSON (a FeatureCollection of footprints) nor CityJSON: "
            f"its type is {described.get('type')!r}"
        )
    if not isinstance(entries, list):
        raise ValueError(f"{path} is damaged: its features are no list")
    features = []
    for number, entry in enumerate(entries):
        try:
            if entry["geometry"] is None:
                continue
            features.append(
                (shapely.force_2d(shapely.geometry.shape(entry["geometry"])), entry.get("properties") or {})
            )
        except (shapely.errors.GEOSException, AttributeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"{path}: feature {number} is damaged: {error}") from None
    return features


def _heights(
    path: Path,
    properties: list[dict[str, Any]],
    metres: float,
    default_height: float | None,
    height_attribute: str | None,
) -> Array:
    """Of every footprint, m; refused where some have none and no default is given."""
    names = HEIGHT_NAMES if height_attribute is None else (height_attribute.lower(),)
    heights = np.array([_named(entry, names, metres) for entry in properties])
    from_storeys = np.array([_named(entry, STOREY_NAMES) for entry in properties])
    storeys = np.isnan(heights) & (from_storeys > 0) & (height_attribute is None)
    heights = np.where(storeys, from_storeys * STOREY_HEIGHT, heights)
    if storeys.any():
        warnings.warn(
            f"{path}: {storeys.sum()} of {len(heights)} heights are storeys times {STOREY_HEIGHT:g} m", stacklevel=5
        )
    missing = int(np.isnan(heights).sum())
    if missing and default_height is None:
        there = sorted({str(name) for entry in properties for name in entry})
        raise ValueError(
            f"{path}: {missing} of {len(heights)} footprints have no height (a positive number as property "
            f"{height_attribute or 'height'!r}); name the property by --height-attribute, or give --default-height in "
            f"metres; their properties are {', '.join(there[:12]) or 'none'}"
        )
    if missing:
        warnings.warn(f"{path}: {missing} of {len(heights)} footprints get {default_height:g} m", stacklevel=5)
    return np.where(np.isnan(heights), default_height or 0.0, heights)


def _named(entry: dict[str, Any], names: tuple[str, ...], metres: float = 1.0) -> float:
    """The first positive length under one of these names (in whatever case), NaN if there is none."""
    lower = {str(name).lower(): value for name, value in entry.items()}
    units = {"height_ft": FOOT, "height_m": 1.0}
    values = (length(lower.get(name), units.get(name, metres)) for name in names)
    return next((value for value in values if value > 0), float("nan"))


def length(value: Any, metres: float = 1.0) -> float:
    """A number, or text such as ``12.5 m``, ``40 ft`` or ``7'6"``, in metres; NaN for anything else."""
    if isinstance(value, bool) or value is None:
        return float("nan")
    if isinstance(value, int | float):
        return float(value) * metres if np.isfinite(value) else float("nan")
    text = str(value).strip().lower().replace(",", ".")
    if feet := re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:'|ft|feet|foot)\s*(?:(\d+(?:\.\d+)?)\s*(?:\"|in)?)?", text):
        return FOOT * (float(feet[1]) + float(feet[2] or 0) / 12)
    number = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(m|metres|meters)?", text)
    return float("nan") if number is None else float(number[1]) * (1.0 if number[2] else metres)


def _repaired(path: Path, shapes: NDArray[Any], heights: Array) -> tuple[list[Any], list[float]]:
    """Simple polygons with their heights: self-intersections undone, repetitions and slivers left out; and said."""
    broken = ~shapely.is_valid(shapes)
    shapes = shapely.set_precision(shapely.make_valid(shapes), GRID)
    parts, of = shapely.get_parts(shapes, return_index=True)
    parts, inner = shapely.get_parts(parts, return_index=True)  # mended ones are collections with collections inside
    polygons = shapely.get_type_id(parts) == 3
    parts, of = parts[polygons], of[inner][polygons]
    large = shapely.area(parts) >= SMALLEST_FOOTPRINT
    vanished = len(shapes) - len(np.unique(of[large]))
    parts, of = parts[large], of[large]
    if len(parts) == 0:
        raise ValueError(f"{path}: none of its {len(shapes)} footprints covers {SMALLEST_FOOTPRINT:g} m²")
    highest: dict[bytes, int] = {}  # the highest of every set of equal footprints
    for number in np.argsort(heights[of], kind="stable"):
        highest[shapely.to_wkb(shapely.normalize(parts[number]))] = int(number)
    kept = sorted(highest.values())
    repeated = len(parts) - len(kept)
    parts, of = parts[kept], of[kept]
    first, second = shapely.STRtree(parts).query(parts, predicate="intersects")
    pairs = first < second
    shared = shapely.area(shapely.intersection(parts[first[pairs]], parts[second[pairs]]))
    overlapping = int((shared > SMALLEST_FOOTPRINT).sum())
    for count, what in (
        (int(broken.sum()), "footprints cross themselves and were repaired"),
        (vanished, f"footprints smaller than {SMALLEST_FOOTPRINT:g} m² are left out"),
        (repeated, "footprints are repeated; the highest of equal ones counts"),
        (overlapping, "pairs of footprints overlap; they are treated as one"),
    ):
        if count:
            warnings.warn(f"{path}: {count} {what}", stacklevel=5)
    return list(parts), heights[of].tolist()


def extruded(polygon: Any, height: float) -> trimesh.Trimesh:
    """A closed prism on the ground over a polygon, which may have courtyards."""
    polygon = shapely.orient_polygons(polygon)  # outlines anticlockwise, courtyards clockwise: walls look outwards
    rings = [np.asarray(ring.coords)[:-1] for ring in (polygon.exterior, *polygon.interiors)]
    corners = np.concatenate(rings)
    roof = triangulated(polygon, corners)
    count, walls, start = len(corners), [], 0
    for ring in rings:
        a = start + np.arange(len(ring))
        b = start + np.roll(np.arange(len(ring)), -1)
        walls += [np.stack([a, b, b + count], axis=1), np.stack([a, b + count, a + count], axis=1)]
        start += len(ring)
    vertices = np.concatenate([np.c_[corners, np.zeros(count)], np.c_[corners, np.full(count, height)]])
    return trimesh.Trimesh(vertices, np.concatenate([roof[:, ::-1], roof + count, *walls]), process=False)


def triangulated(polygon: Any, corners: Array) -> NDArray[np.integer]:
    """Triangles (T, 3), anticlockwise, of a polygon with these corners (N, 2): indices into them, nothing added."""
    number = {tuple(corner): i for i, corner in enumerate(corners.tolist())}
    triangles = shapely.get_parts(shapely.constrained_delaunay_triangles(polygon))
    points = shapely.get_coordinates(triangles).reshape(-1, 4, 2)[:, :3]
    faces = np.array([[number[tuple(corner)] for corner in triangle] for triangle in points.tolist()]).reshape(-1, 3)
    a, b, c = corners[faces[:, 0]], corners[faces[:, 1]], corners[faces[:, 2]]
    clockwise = (b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0] < 0
    faces[clockwise] = faces[clockwise, ::-1]
    return faces
