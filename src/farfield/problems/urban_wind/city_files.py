"""Buildings in, the wind around them out: files for ParaView, NumPy or a spreadsheet, and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from numpy.typing import NDArray
from rich.console import Console

from farfield.attention import Group
from farfield.data.vtk import write_vtk
from farfield.files import atomic_path, fingerprint, read_arrays, refuse_overwriting, write_table
from farfield.prediction.writers import Spread, all_can_write, join_meshes, pieces_folder, refuse_pieces
from farfield.problems.urban_wind.footprints import LocalFrame
from farfield.problems.urban_wind.formats import Buildings, read_buildings
from farfield.problems.urban_wind.inflow_profiles import REFERENCE_HEIGHT, REFERENCE_SPEED, speed_ratio
from farfield.problems.urban_wind.pictures import draw_wind, fastest_shown, raster_of_wakes
from farfield.problems.urban_wind.prediction import Advance, Fields, Target, WindPredictor
from farfield.problems.urban_wind.probes import Probes, read_probes
from farfield.problems.urban_wind.site import Site
from farfield.progress import Progress

OUTPUTS = (".vtu", ".vtk", ".vtp", ".npz", ".csv")
MESHES = (".vtu", ".vtk", ".vtp")


def predict_city(
    predictor: WindPredictor,
    buildings: Buildings | str | Path,
    out: str | Path,
    *,
    roughness: float,
    wind_direction: float | Sequence[float],
    inverse_length: float = 0.0,
    wind_speed: float = REFERENCE_SPEED,
    speed_height: float = REFERENCE_HEIGHT,
    points: str | Path | None = None,
    spacing: float | None = None,
    fields: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 1,
    force: bool = False,
    parts: Spread | None = None,
    console: Console | None = None,
) -> list[Path]:
    """Write the wind around buildings to ``out``, with a picture of it at 2 m height; returns what was written.

    The options are those of :meth:`WindPredictor.predict`. Several directions give a file and a picture each, named
    after them, with one scale of colours; a CSV has all of them. What can be wrong is found before the network runs,
    and whatever goes wrong, no file is left half-written. With ``parts``, the members of a group share the network's
    work and the points; ``out`` may then be a .pvtu, of which each writes a piece.
    """
    out = Path(out)
    outputs = OUTPUTS if parts is None else (*OUTPUTS, ".pvtu")
    if out.suffix not in outputs:
        raise ValueError(f"expected an output that ends in {', '.join(outputs)}, got {out.name}")
    directions = [float(one) for one in np.atleast_1d(wind_direction)]
    outs = [out] * len(directions) if out.suffix == ".csv" else names_by_direction(out, directions)
    wanted = predictor.wanted(fields)
    drawn = "velocity" in wanted and out.suffix != ".csv"
    written = [*dict.fromkeys(outs), *(path.with_suffix(".png") for path in outs if drawn)]
    refuse_overwriting(written, force, inputs(buildings, points))
    for path in outs:
        refuse_pieces(path, force)
    ratio = speed_ratio(wind_speed, speed_height, roughness, inverse_length)
    city = buildings if isinstance(buildings, Buildings) else read_buildings(buildings)
    given = None if points is None else read_points(points, city.frame)
    if out.suffix == ".csv" and (given is None or isinstance(given, pv.DataSet)):
        raise ValueError(f"{out.name}: a table is written of points: give --points PROBES.csv (x, y, z), .npy or .npz")
    sites = predictor.sites(city.mesh, directions, roughness, inverse_length)
    at = given.positions if isinstance(given, Probes) else given
    target = Target.of(sites[0], at, spacing)
    if out.suffix == ".vtp" and not isinstance(target.dataset, pv.PolyData):
        raise ValueError(f"{out.name}: .vtp is for points and surfaces, a mesh of the air needs .vtu or .vtk")
    if out.suffix == ".pvtu" and not target.by_cell and target.dataset.n_cells != target.dataset.n_points:
        raise ValueError(f"{out.name}: .pvtu is for points and meshes of the air, a surface needs .vtu, .vtk or .vtp")

    raster = raster_of_wakes(sites) if drawn else None
    winds, tables = [], []
    what = f"wind at {len(target.positions):,} points, {len(directions)} directions"
    with progress(what, draws * len(directions), console) as advance:
        for site, path in zip(sites, outs, strict=True):
            if at is None and site is not sites[0]:
                target = Target.of(site, None, spacing)
            asked = target.positions
            if raster is not None:
                asked = np.concatenate([asked, raster.asked(site)])
            described = predictor.metadata(site, wind_speed, speed_height) | place(city.frame)
            options: dict[str, Any] = {"ratio": ratio, "fields": wanted, "seed": seed, "draws": draws}
            if parts is None:
                found = predictor.at(site, asked, advance=advance, **options)
            else:
                share = _Share(predictor, site, asked, options, path, target, described)
                collected = [one for one in parts(share.of) if one is not None]
                if not collected:  # the first process has them
                    continue
                found = collected[0]
            count = 0 if out.suffix == ".pvtu" else len(target.positions)
            if raster is not None:
                winds.append(raster.faded(site, found["velocity"][count:], ratio))
            own = {name: values[:count] for name, values in found.items()}
            if out.suffix == ".csv":
                probes = given if isinstance(given, Probes) else Probes(target.positions)
                tables.append(probes.table({"wind_direction": np.full(count, site.wind_direction), **own}))
            elif out.suffix != ".pvtu":
                _write(path, target, own, described)
    if tables:
        write_table(out, tables[0][0], [row for _, rows in tables for row in rows])
    if raster is not None and winds:
        fastest = fastest_shown(winds)
        for site, path, velocity in zip(sites, outs, winds, strict=True):
            title = (
                f"Wind from {site.wind_direction:g}°, {wind_speed:g} m/s at {speed_height:g} m, "
                f"z0 = {roughness:g} m{f', 1/L = {inverse_length:g} 1/m' if inverse_length else ''}"
            )
            draw_wind(path.with_suffix(".png"), raster, site, velocity, title, fastest)
    return written


@dataclass(frozen=True)
class _Share:
    """What the members of a group do of one wind."""

    predictor: WindPredictor
    site: Site
    asked: NDArray[np.float64]  # the target's points, then those of the picture
    options: dict[str, Any]
    out: Path
    target: Target
    metadata: Mapping[str, float | str]

    def of(self, group: Group) -> Fields | None:
        """Predict this member's points. The first returns all; of a .pvtu, written here, those of the picture alone."""
        mesh, site = self.site.buildings, self.site
        told = (site.basis, site.roughness, site.inverse_length, self.options)
        bytes_of = (mesh.vertices, mesh.faces, self.asked)
        known = fingerprint(repr(told).encode(), *(np.asarray(a).tobytes() for a in bytes_of))
        group.agree("input", known[:16])
        mine = self.predictor.parts(site, self.asked, group.size)[group.rank]
        if self.out.suffix != ".pvtu":
            all_can_write(group, self.out.parent)
            return _collected(group, mine, self._at(mine, group))
        with pieces_folder(self.out, group) as folder:
            found = self._at(mine, group)
            own = int(np.searchsorted(mine, len(self.target.positions)))
            piece = None
            if own:
                fields = {name: values[:own] for name, values in found.items()}
                piece = self.target.some(mine[:own]).filled(fields, self.metadata).cast_to_unstructured_grid()
            join_meshes(self.out, group, folder, piece)
        return _collected(group, mine[own:], {name: values[own:] for name, values in found.items()})

    def _at(self, mine: NDArray[np.int64], group: Group) -> Fields:
        return self.predictor.at(self.site, self.asked[mine], group=group, **self.options)


def _collected(group: Group, index: NDArray[np.int64], fields: Fields) -> Fields | None:
    """The fields of all members in the order of their indices, for the first of them."""
    told = group.gather((index, fields))
    if group.rank > 0:
        return None
    order = np.argsort(np.concatenate([index for index, _ in told]))
    return {name: np.concatenate([found[name] for _, found in told])[order] for name in fields}


def names_by_direction(out: Path, directions: Sequence[float]) -> list[Path]:
    """One file per direction: flow-045.vtu; a single direction leaves the name as it is."""
    if len(directions) == 1:
        return [out]
    digits = "05.1f" if any(direction % 1 for direction in directions) else "03.0f"
    names = [out.with_name(f"{out.stem}-{direction:{digits}}{out.suffix}") for direction in directions]
    if len(set(names)) < len(names):
        raise ValueError(f"directions must differ by a tenth of a degree or more, got {directions}")
    return names


@contextmanager
def progress(what: str, total: float, console: Console | None = None) -> Iterator[Advance]:
    """A bar with the time left, on a terminal."""
    with Progress(console or Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda share: bar.advance(task, share)


def inputs(buildings: Buildings | str | Path, *others: object) -> list[Path]:
    """The files that were given."""
    path = buildings.path if isinstance(buildings, Buildings) else buildings
    return [Path(file) for file in (path, *others) if isinstance(file, str | Path)]


def read_points(path: str | Path, frame: LocalFrame | None = None) -> pv.DataSet | NDArray[np.float64] | Probes:
    """Where the wind is wanted: a mesh or points in VTK's formats, (N, 3) from NumPy's (.npz: ``positions``), a CSV."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix == ".csv":
        return read_probes(path, frame)
    if path.suffix in MESHES:
        dataset = pv.read(path)
        if not isinstance(dataset, pv.DataSet) or dataset.n_points == 0:
            raise ValueError(f"{path} holds no points, or is damaged")
        return dataset
    if path.suffix not in (".npy", ".npz"):
        known = ", ".join(MESHES)
        raise ValueError(f"expected points in a file that ends in {known}, .csv, .npy or .npz, got {path.name}")
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, mmap_mode="r"))  # mapped: a header that claims too much is refused
        arrays = read_arrays(path)
        if "positions" not in arrays:
            raise ValueError(f"it has no array 'positions', it has {', '.join(arrays) or 'no arrays'}")
        return arrays["positions"]
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} does not hold points (N, 3): {error}") from None


def place(frame: LocalFrame | None) -> dict[str, float | str]:
    """Where x = y = 0 lies, for the metadata."""
    return {} if frame is None else {"longitude": frame.longitude, "latitude": frame.latitude, "crs": str(frame)}


def _write(out: Path, target: Target, fields: Fields, metadata: Mapping[str, float | str]) -> None:
    if out.suffix == ".npz":
        arrays: dict[str, Any] = {"positions": target.positions, **fields, "metadata": np.array(json.dumps(metadata))}
        with atomic_path(out) as partial, partial.open("wb") as opened:
            np.savez(opened, **arrays)
        return
    filled = target.filled(fields, metadata)
    if out.suffix == ".vtu" or not isinstance(filled, pv.PolyData | pv.UnstructuredGrid):
        filled = filled.cast_to_unstructured_grid()
    write_vtk(out, filled)
