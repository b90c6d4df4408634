"""Wind around buildings as a dataset: the files of the RandomBuildingsDataset.

The layout is the published one (Zenodo record 19249906); ``farfield generate urban-wind`` writes the same:

    random_buildings_dataset.json         ids of the splits, z0 (m) and 1/L (1/m) of every case
    volume_{id}.vtk                       cells with velocity, pressure, pottemp, k, epsilon, node_type
    buildings_{id}.vtk, ground_{id}.vtk   the surfaces below the air
    *_ls_{i}.vtk, *_vls_{i}.vtk           cities twice and five times as wide, neutral air

Ours may have oblique wind: the index then lists its angles, and a case is read in wind axes, x downwind.

Letters: N cells, T triangles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
import trimesh
from numpy.typing import NDArray

from farfield.problems.urban_wind.buildings import UrbanDomain, inside_buildings, plan_area, walls_and_roofs
from farfield.problems.urban_wind.mesh import CartesianMesh

Array = NDArray[np.floating]

INDEX_FILE = "random_buildings_dataset.json"
SETTINGS_FILE, CARD_FILE = "generation.json", "README.md"  # of data made here
SPLIT_SCALES = {"train": 1.0, "val": 1.0, "test": 1.0, "ls": 2.0, "vls": 5.0}  # width of the city / 100 m
SPLIT_INDEX = {name: number for number, name in enumerate(SPLIT_SCALES)}
FIELD_WIDTHS = {"velocity": 3, "pressure": 1, "k": 1, "epsilon": 1, "pottemp": 1}
DEFAULT_FIELDS = ("velocity", "pressure", "k", "epsilon")


def case_name(split: str, number: int) -> str:
    """As in the names of the files: the large cities are numbered on their own."""
    return str(number) if SPLIT_SCALES[split] == 1 else f"{split}_{number}"


def channel_names(fields: Iterable[str]) -> tuple[str, ...]:
    """Names of the target channels: velocity_x, velocity_y, velocity_z, pressure, ..."""
    names: list[str] = []
    for name in fields:
        if name not in FIELD_WIDTHS:
            raise ValueError(f"unknown field {name!r}; the dataset has {', '.join(FIELD_WIDTHS)}")
        width = FIELD_WIDTHS[name]
        names += [name] if width == 1 else [f"{name}_{axis}" for axis in "xyz"]
    return tuple(names)


def turning(wind_angle: float) -> Array:
    """(3, 3): turns vectors of the files, whose wind is at this angle (degrees from +x), into wind axes."""
    angle = np.deg2rad(wind_angle)
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, sine, 0.0], [-sine, cosine, 0.0], [0.0, 0.0, 1.0]])


@dataclass(frozen=True)
class UrbanCase:
    """One simulation in physical units: metres, m/s, Pa, m²/s², m²/s³, K."""

    name: str
    scale: float
    roughness: float  # z0
    inverse_length: float  # 1/L
    positions: Array  # (N, 3) cell centres
    fields: dict[str, Array]  # (N,) or (N, 3)
    obstacles: Array  # (T, 3, 3) triangles of walls and roofs
    terrain: Array  # (T, 3, 3) triangles of the ground
    wind_angle: float = 0.0  # degrees by which the wind was turned, anticlockwise from the x axis of the files
    domain: UrbanDomain | None = None  # the box of air; None for that of a random city

    @classmethod
    def around(
        cls,
        buildings: trimesh.Trimesh,
        roughness: float,
        inverse_length: float = 0.0,
        cell: float = 4.0,
        ground_cell: float = 2.0,
    ) -> UrbanCase:
        """A city whose wind is not known yet, with points in the air as the training cases have them.

        The cells are those of the mesh that the ``cpu`` data are solved on (give the sizes of other data),
        less those whose centre is inside a building.
        """
        domain = UrbanDomain.around(buildings)
        mesh = CartesianMesh.around(domain, [], cell, ground_cell)
        centres = mesh.cell_centres()
        in_air = ~inside_buildings(buildings, centres)
        x, y = np.meshgrid(mesh.x, mesh.y)
        nodes = np.stack([x, y, np.zeros_like(x)], axis=-1)
        corners = [nodes[:-1, :-1], nodes[:-1, 1:], nodes[1:, 1:], nodes[1:, :-1]]
        first_layer = in_air[: x[1:, 1:].size].reshape(x[1:, 1:].shape)
        a, b, c, d = (corner[first_layer] for corner in corners)
        return cls(
            name="city",
            scale=domain.scale,
            roughness=roughness,
            inverse_length=inverse_length,
            positions=centres[in_air].astype(np.float32),
            fields={},
            obstacles=walls_and_roofs(buildings).astype(np.float32),
            terrain=np.concatenate([np.stack([a, b, c], axis=1), np.stack([a, c, d], axis=1)]).astype(np.float32),
            domain=domain,
        )

    def in_wind_axes(self, wind_angle: float) -> UrbanCase:
        """The case turned so that a wind at this angle (degrees, anticlockwise from +x) blows along +x."""
        if wind_angle == 0:
            return self
        turn = turning(wind_angle).astype(np.float32)
        fields = {name: values @ turn.T if values.ndim == 2 else values for name, values in self.fields.items()}
        return replace(
            self,
            positions=self.positions @ turn.T,
            fields=fields,
            obstacles=self.obstacles @ turn.T,
            terrain=self.terrain @ turn.T,
            wind_angle=wind_angle,
        )

    @property
    def box(self) -> UrbanDomain:
        """The box of air, along the axes of the files."""
        return self.domain or UrbanDomain.square(self.scale, self.wind_angle)

    @cached_property
    def in_square(self) -> NDArray[np.bool_]:
        """Which cells (N,) are in the building square, |x|, |y| < 50 s in the axes of the files."""
        along_files = self.positions @ turning(self.wind_angle).astype(np.float32)
        return np.asarray((np.abs(along_files[:, :2]) < 50.0 * self.scale).all(1))

    @cached_property
    def ground_area(self) -> float:
        """Area of the rectangle below the air, buildings included, m²."""
        return float(np.ptp(self.positions[:, 0]) * np.ptp(self.positions[:, 1]))

    @cached_property
    def building_height(self) -> float:
        """Of the tallest building, m."""
        return float(self.obstacles[..., 2].max())

    @cached_property
    def roof_area(self) -> float:
        """Seen from above, m²."""
        return plan_area(self.obstacles)

    @property
    def plan_density(self) -> float:
        """Share of the building square that is covered by roofs."""
        return self.roof_area / (100.0 * self.scale) ** 2


class UrbanWindFiles:
    """A folder in the published layout. Nothing but the index is read until a case is asked for."""

    def __init__(self, folder: str | Path, fields: Iterable[str] = DEFAULT_FIELDS, keep_in_memory: bool = False):
        self.folder = Path(folder)
        self.fields = tuple(fields)
        channel_names(self.fields)  # refuses unknown fields
        path = self.folder / INDEX_FILE
        if not path.exists():
            raise FileNotFoundError(
                f"{path} not found: not an urban-wind dataset, or its generation is not finished "
                "(the same `farfield generate urban-wind` command resumes it)"
            )
        self.index: dict[str, Any] = json.loads(path.read_text())
        missing = {"train_ids", "val_ids", "test_ids", "invlmo", "z0"} - self.index.keys()
        if missing:
            raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
        # Reading a case takes about 30 ms, so a second, converted copy on disk is not worth its space.
        self._memory: dict[tuple[str, int], UrbanCase] | None = {} if keep_in_memory else None

    def ids(self, split: str) -> list[int]:
        """The ids of a split, in order; those of `ls` and `vls` count the files that are there."""
        if split not in SPLIT_SCALES:
            raise ValueError(f"unknown split {split!r}; expected one of {', '.join(SPLIT_SCALES)}")
        if SPLIT_SCALES[split] == 1:
            return [int(number) for number in self.index[f"{split}_ids"]]
        roughnesses = self.index.get("ls_z0s", [])
        return [i for i in range(len(roughnesses)) if (self.folder / f"volume_{split}_{i}.vtk").exists()]

    def neutral_ids(self, split: str) -> list[int]:
        """The ids of the cases in neutral air."""
        return [number for number in self.ids(split) if self.conditions(split, number)[1] == 0]

    def conditions(self, split: str, number: int) -> tuple[float, float]:
        """z0 (m) and 1/L (1/m) of a case. The large cities of both scales share `ls_z0s` and are neutral."""
        if SPLIT_SCALES[split] == 1:
            return float(self.index["z0"][number]), float(self.index["invlmo"][number])
        return float(self.index["ls_z0s"][number]), 0.0

    def wind_angle(self, split: str, number: int) -> float:
        """Degrees, anticlockwise from +x, where the wind of a case blows to; 0 in the published layout."""
        angles = self.index.get("wind_angle" if SPLIT_SCALES[split] == 1 else "ls_wind_angles")
        return float(angles[number]) if angles else 0.0

    def volume(self, split: str, number: int) -> Any:
        """The mesh of the air with its cell data, as VTK holds it: in the axes of the files."""
        return _read_vtk(self.folder / f"volume_{case_name(split, number)}.vtk")

    def load(self, split: str, number: int) -> UrbanCase:
        """Read one case."""
        if self._memory is not None and (split, number) in self._memory:
            return self._memory[split, number]
        name = case_name(split, number)
        roughness, inverse_length = self.conditions(split, number)
        volume = self.volume(split, number)
        case = UrbanCase(
            name=name,
            scale=SPLIT_SCALES[split],
            roughness=roughness,
            inverse_length=inverse_length,
            positions=np.asarray(volume.cell_centers().points, dtype=np.float32),
            fields={field: _cell_field(volume, field, self.folder / f"volume_{name}.vtk") for field in self.fields},
            obstacles=_triangles(self.folder / f"buildings_{name}.vtk"),
            terrain=_triangles(self.folder / f"ground_{name}.vtk"),
        ).in_wind_axes(self.wind_angle(split, number))
        if self._memory is not None:
            self._memory[split, number] = case
        return case


def _read_vtk(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"{path} is listed in {INDEX_FILE} but not there")
    return pv.read(path)


def _cell_field(volume: Any, name: str, path: Path) -> Array:
    if name not in volume.cell_data:
        hint = " (it has it as point data; cell data is expected)" if name in volume.point_data else ""
        raise ValueError(f"{path} has no cell data {name!r}{hint}; it has {', '.join(volume.cell_data.keys())}")
    values = np.asarray(volume.cell_data[name], dtype=np.float32)
    expected = FIELD_WIDTHS[name]
    if values.reshape(len(values), -1).shape[1] != expected:
        raise ValueError(f"{path}: {name} has shape {values.shape}, expected {expected} numbers per cell")
    if not np.isfinite(values).all():
        raise ValueError(f"{path}: {name} has values that are not finite")
    return values


def _triangles(path: Path) -> Array:
    surface = _read_vtk(path)
    if not isinstance(surface, pv.PolyData):
        surface = surface.extract_surface(algorithm="dataset_surface")
    surface = surface.triangulate()
    return np.asarray(surface.points, dtype=np.float32)[surface.regular_faces]
