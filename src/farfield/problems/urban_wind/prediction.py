"""A trained network with its normalisation: a user's buildings in, the wind around them out, in physical units.

Letters: N points.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
import torch
import trimesh
from numpy.typing import ArrayLike, NDArray
from torch import nn

from farfield.attention import Group
from farfield.attention.tiles import build_tiles
from farfield.models.ab_swift import AbSwift
from farfield.problems.urban_wind.config import UrbanRun
from farfield.problems.urban_wind.files import FIELD_WIDTHS, UrbanCase
from farfield.problems.urban_wind.formats import read_buildings
from farfield.problems.urban_wind.inflow_profiles import REFERENCE_HEIGHT, REFERENCE_SPEED, speed_ratio
from farfield.problems.urban_wind.sampling import PointCounts, UrbanNormalisation, UrbanSample, draw_sample
from farfield.problems.urban_wind.site import Site
from farfield.problems.urban_wind.uncertainty import Calibration
from farfield.runs.run import Run
from farfield.runs.weights import Device, chosen_device
from farfield.version import __version__

Fields = dict[str, NDArray[np.float32]]
Advance = Callable[[float], None]  # hears of every share of a draw that is done
# How fields scale with the wind's speed in neutral air; temperatures do not.
SPEED_POWERS = {"velocity": 1, "pressure": 2, "k": 2, "epsilon": 3, "pottemp": 0}
UNITS = {"velocity": "m/s", "pressure": "Pa", "k": "m2/s2", "epsilon": "m2/s3", "pottemp": "K"}  # VTK has ASCII only
_CHUNK = 16_384  # queries at a time: memory stays bounded


class WindPredictor(ABC):
    """The wind around buildings, at any points.

        predictor = farfield.load("urban-wind-laape")
        wind = predictor.predict("city.stl", roughness=0.3, wind_direction=250)
        wind["velocity"]                       # (cells, 3) in m/s, along the axes of the STL
        wind.save("flow.vtu")                  # a pyvista dataset

    Args:
        normalisation: of the data that the network was trained on.
        encoding: its name, for display.
        problem: of the run.
        device: where the network is.
    """

    model: nn.Module
    name = ""  # of the shipped model or the run's folder
    oblique = False  # whether walls at an angle to the wind were among the training data
    calibration: Calibration | None = None  # how large its errors are

    def __init__(self, normalisation: UrbanNormalisation, encoding: str, problem: str, device: torch.device):
        self.normalisation = normalisation
        self.encoding = encoding
        self.problem = problem
        self.device = device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.encoding}: {', '.join(self.fields)} of the wind around buildings)"

    @abstractmethod
    def from_case(
        self, case: UrbanCase, points: NDArray, rng: np.random.Generator, advance: Advance = lambda share: None
    ) -> NDArray[np.float32]:
        """All channels (N, F) at points (N, 3), in wind axes; where points stand for the city, ``rng`` draws them."""

    def from_site(
        self, site: Site, points: NDArray, rng: np.random.Generator, advance: Advance = lambda share: None
    ) -> NDArray[np.float32]:
        """The same around a user's buildings."""
        return self.from_case(site.case, points, rng, advance)

    def parts(self, site: Site, points: NDArray, members: int) -> list[NDArray[np.int64]]:
        """Which of the points (N, 3), in the user's coordinates, each of so many members of a group asks for."""
        raise ValueError(
            f"{self.name or type(self).__name__} is AB-SWIFT, whose anchors stand for a whole city: it predicts in one "
            "process. Leave out --devices, --nodes and --parts, or take a column network, e.g. urban-wind-laape"
        )

    def described_by(self, run: Run) -> None:
        """Take over what a run's folder says beside its weights: its name, and its errors if they were measured."""
        self.name = run.folder.resolve().name
        self.calibration = Calibration.of(run)

    @property
    def fields(self) -> tuple[str, ...]:
        """What it predicts."""
        return self.normalisation.fields

    def wanted(self, fields: Sequence[str] | None = None) -> Sequence[str]:
        """These fields, or all that there are."""
        unknown = [name for name in fields or () if name not in self.fields]
        if unknown:
            raise ValueError(f"the model does not predict {', '.join(unknown)}; it has {', '.join(self.fields)}")
        return fields or self.fields

    def predict(
        self,
        buildings: trimesh.Trimesh | str | Path,
        *,
        roughness: float,
        wind_direction: float = 270.0,
        inverse_length: float = 0.0,
        wind_speed: float = REFERENCE_SPEED,
        speed_height: float = REFERENCE_HEIGHT,
        points: ArrayLike | pv.DataSet | None = None,
        spacing: float | None = None,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        draws: int = 1,
    ) -> pv.DataSet:
        """The wind, as a mesh made around the buildings or as what was given in ``points``, with the fields on it.

        Where the model's errors are known (``farfield calibrate``), every field has one more beside it, e.g.
        ``velocity_error``: how far it is off at most in nine of ten places.

        Args:
            buildings: closed surfaces in metres, x east, y north, z = 0 the ground; or a file of them
                (:func:`farfield.problems.urban_wind.formats.read_buildings`).
            roughness: z0 of the ground, m.
            wind_direction: where the wind comes from, degrees clockwise from north; 270 is along +x.
            inverse_length: 1/L, 1/m: 0 neutral, positive stable, negative unstable air.
            wind_speed: of the undisturbed wind, m/s; neutral air scales with it exactly.
            speed_height: at which that is its speed, m.
            points: (N, 3), or a mesh, in the buildings' coordinates (see :class:`Target`).
            spacing: cell size of the mesh that is made otherwise, m; the training data's unless given.
            fields: of :attr:`fields`; all unless given.
            seed: decides which points stand for surfaces and air.
            draws: predictions with so many draws of these points are averaged.
        """
        site = self.site(buildings, roughness=roughness, wind_direction=wind_direction, inverse_length=inverse_length)
        target = Target.of(site, points, spacing)
        ratio = speed_ratio(wind_speed, speed_height, roughness, inverse_length)
        found = self.at(site, target.positions, ratio=ratio, fields=fields, seed=seed, draws=draws)
        return target.filled(found, self.metadata(site, wind_speed, speed_height))

    def site(
        self,
        buildings: trimesh.Trimesh | str | Path,
        *,
        roughness: float,
        wind_direction: float = 270.0,
        inverse_length: float = 0.0,
    ) -> Site:
        """The city as the network wants it; warns of what is unlike the training data. ``site.mesh()`` makes cells."""
        if not isinstance(buildings, trimesh.Trimesh):
            buildings = read_buildings(buildings).mesh
        return self.sites(buildings, [wind_direction], roughness, inverse_length)[0]

    def sites(
        self, buildings: trimesh.Trimesh, directions: Sequence[float], roughness: float, inverse_length: float = 0.0
    ) -> list[Site]:
        """The same for several winds; what is unlike the training data is said once."""
        sites = [
            Site.facing(buildings, direction, roughness, inverse_length, self.normalisation) for direction in directions
        ]
        said = [surprise for site in sites for surprise in site.surprises(self.normalisation, self.oblique)]
        for surprise in dict.fromkeys(said):
            warnings.warn(f"outside the training data, expect larger errors: {surprise}", stacklevel=3)
        return sites

    def at(
        self,
        site: Site,
        points: ArrayLike,
        *,
        ratio: float = 1.0,
        fields: Sequence[str] | None = None,
        seed: int = 0,
        draws: int = 1,
        advance: Advance = lambda share: None,
        group: Group | None = None,
    ) -> Fields:
        """The wind at points (N, 3) of a site, with its errors; NaN inside buildings and below the ground, and said.

        ``ratio`` is that of its speed to 6 m/s at 80 m (see :func:`speed_ratio`). With a ``group``, whose members call
        this together, the points are this member's, perhaps none (:meth:`parts`).
        """
        wanted = self.wanted(fields)
        if draws < 1:
            raise ValueError(f"at least one draw is needed, got {draws}")
        where = site.to_wind(_points(points, allow_none=group is not None))
        in_air = site.in_air(where) if len(where) else np.zeros(0, dtype=bool)
        self._warn_of_places(site, where, in_air, group)
        air = where[in_air]
        total = np.zeros((len(air), len(self.normalisation.channels)))
        together: dict[str, Any] = {} if group is None else {"group": group}
        for draw in range(draws):
            rng = np.random.default_rng([seed, draw])
            total += self.from_site(site, air, rng, advance, **together)
        columns = self.columns(total / draws)
        errors = self.calibration.errors(site.roughness, air, columns) if self.calibration is not None else {}
        if "velocity" in columns:
            columns["velocity"] = site.turn_back(columns["velocity"])
        fields_everywhere = {}
        for name in wanted:
            for values, label in ((columns[name], name), (errors.get(name), f"{name}_error")):
                if values is not None:
                    everywhere = np.full((len(where), *values.shape[1:]), np.nan, dtype=np.float32)
                    everywhere[in_air] = values * ratio ** SPEED_POWERS[name]
                    fields_everywhere[label] = everywhere
        return fields_everywhere

    def _warn_of_places(self, site: Site, where: NDArray, in_air: NDArray[np.bool_], group: Group | None) -> None:
        """Say how many points are not in the air, or outside the box of it; of a group, the first for all."""
        counts = np.array([len(where), len(where) - in_air.sum(), (in_air & ~site.in_domain(where)).sum()])
        if group is not None:
            counts = np.sum(group.gather(counts), axis=0)
            if group.rank > 0:
                return
        count, missing, outside = map(int, counts)
        if missing:
            warnings.warn(
                f"{missing} of {count} points lie inside buildings or below the ground: there is no wind there, and "
                "the fields are NaN",
                stacklevel=3,
            )
        if outside:
            extent = " x ".join(f"{high - low:.0f}" for low, high in site.domain.bounds)
            warnings.warn(
                f"{outside} of {count} points lie outside the {extent} m of air around the buildings: the wind there "
                "is extrapolated",
                stacklevel=3,
            )

    def metadata(self, site: Site, wind_speed: float, speed_height: float) -> dict[str, float | str]:
        """What a file of the wind should say about itself."""
        described: dict[str, float | str] = {
            "wind_direction": site.wind_direction,
            "wind_speed": wind_speed,
            "speed_height": speed_height,
            "roughness": site.roughness,
            "inverse_length": site.inverse_length,
            "model": self.name or repr(self),
            "farfield": __version__,
            "units": ", ".join(f"{name} {UNITS[name]}" for name in self.fields)
            + ", positions m, wind_direction degrees from north, wind_speed m/s at speed_height m, roughness m",
        }
        return described | ({"errors": str(self.calibration)} if self.calibration is not None else {})

    def columns(self, channels: NDArray) -> dict[str, NDArray]:
        """Channels (N, F) by field: (N, 3) for the velocity, (N,) for the rest."""
        ends = np.cumsum([FIELD_WIDTHS[name] for name in self.fields])
        parts = np.split(channels, ends[:-1], axis=1)
        return {name: part[:, 0] if part.shape[1] == 1 else part for name, part in zip(self.fields, parts, strict=True)}


class UrbanPredictor(WindPredictor):
    """The wind by AB-SWIFT; ``counts`` is how many points stood for a training city."""

    model: AbSwift

    def __init__(self, model: AbSwift, normalisation: UrbanNormalisation, counts: PointCounts, encoding: str = ""):
        super().__init__(normalisation, encoding, "urban-wind", next(model.parameters()).device)
        self.model = model.eval().requires_grad_(False)
        self.counts = replace(counts, queries=0)

    @classmethod
    def load(cls, run: Run, device: Device = None) -> UrbanPredictor:
        """The best weights of a run; on CUDA where there is one, unless a device is given."""
        config = UrbanRun.parse(run.settings(), str(run.config_path))
        model = config.build()
        run.load_weights(model)
        normalisation = UrbanNormalisation.from_dict(run.dataset()["normalisation"])
        counts = PointCounts(**config.points.model_dump())
        predictor = cls(model.to(chosen_device(device)), normalisation, counts, config.encoding.name)
        predictor.described_by(run)
        return predictor

    @torch.no_grad()
    def from_case(
        self, case: UrbanCase, points: NDArray, rng: np.random.Generator, advance: Advance = lambda share: None
    ) -> NDArray[np.float32]:
        """One draw of surfaces and anchors, then all channels (N, F) at points (N, 3); all in wind axes."""
        sample = UrbanSample.stack([draw_sample(case, self.normalisation, self.counts, rng)]).to(self.device)
        city: dict[str, Any] = sample.city()
        encoded = self.model.encode(**city)
        queries = self.normalisation.encode_positions(torch.from_numpy(np.asarray(points, dtype=float)))
        out = torch.empty(len(queries), len(self.normalisation.channels))
        if len(queries) == 0:
            return out.numpy()
        # The leaves of a kd-tree: queries that are near one another share the keys that they read.
        order = build_tiles(queries, (_CHUNK,), torch.ones(3, dtype=torch.float64))[0][0].order
        for chunk in order.split(_CHUNK):
            predicted = self.model.decode(encoded, queries[chunk].float()[None].to(self.device), _CHUNK)
            out[chunk] = self.normalisation.decode_targets(predicted[0].float()).cpu()
            advance(len(chunk) / len(order))
        return out.numpy()


@dataclass(frozen=True)
class Target:
    """Where the wind is wanted: the cells of a volume mesh, else the points of whatever was given."""

    dataset: pv.DataSet
    by_cell: bool

    @classmethod
    def of(cls, site: Site, points: ArrayLike | pv.DataSet | None = None, spacing: float | None = None) -> Target:
        """From points (N, 3), from a mesh, or made around the buildings."""
        if points is not None and spacing is not None:
            raise ValueError("the spacing is of a mesh that is made here: give it, or points, not both")
        if points is None:
            return cls(site.mesh(spacing), by_cell=True)
        if not isinstance(points, pv.DataSet):
            return cls(pv.PolyData(_points(points)), by_cell=False)
        _points(points.points)
        grid = points.cast_to_unstructured_grid()
        one_of_each = np.unique(grid.celltypes, return_index=True)[1]
        dimensions = {grid.get_cell(int(i)).dimension for i in one_of_each}
        return cls(points, by_cell=dimensions == {3})

    @property
    def positions(self) -> NDArray[np.float64]:
        """(N, 3), in the user's coordinates."""
        return np.asarray((self.dataset.cell_centers() if self.by_cell else self.dataset).points, dtype=np.float64)

    def some(self, index: NDArray[np.int64]) -> Target:
        """Of the cells of a mesh, or of points that are no surface, these alone."""
        if not self.by_cell:
            points = pv.PolyData(np.asarray(self.dataset.points)[index])
            for name, values in self.dataset.point_data.items():
                points.point_data[name] = np.asarray(values)[index]
            return Target(points, by_cell=False)
        mesh = self.dataset.cast_to_unstructured_grid().extract_cells(index)  # type: ignore[arg-type]
        for data in (mesh.cell_data, mesh.point_data):
            for name in ("vtkOriginalCellIds", "vtkOriginalPointIds"):
                data.pop(name, None)
        return Target(mesh, by_cell=True)

    def filled(self, fields: Fields, metadata: Mapping[str, float | str] | None = None) -> pv.DataSet:
        """A copy with these fields (and what the dataset held before), and the metadata as field data."""
        out = self.dataset.copy()
        data = out.cell_data if self.by_cell else out.point_data
        for name, values in fields.items():
            data[name] = values
        note(out, metadata or {})
        return out


def note(dataset: pv.DataSet, metadata: Mapping[str, float | str]) -> None:
    """Put metadata into the field data of a VTK dataset, whose texts are ASCII."""
    for name, value in metadata.items():
        dataset.field_data[name] = [value.encode("ascii", "replace").decode() if isinstance(value, str) else value]


def _points(points: ArrayLike, allow_none: bool = False) -> NDArray[np.float64]:
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 3 or (len(array) == 0 and not allow_none):
        raise ValueError(f"points must have the shape (points, 3): x, y, z in metres; got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("points must be finite, they hold NaN or infinity")
    return array
