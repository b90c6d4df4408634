"""An STL of buildings in, the wind around them out: a file for ParaView or NumPy, and a picture."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyvista as pv
from numpy.typing import NDArray
from rich.console import Console

from farfield.data.vtk import write_vtk
from farfield.files import atomic_path, refuse_overwriting
from farfield.problems.urban_wind.formats import read_buildings
from farfield.problems.urban_wind.inflow_profiles import REFERENCE_HEIGHT, REFERENCE_SPEED, speed_ratio
from farfield.problems.urban_wind.pictures import PedestrianMap
from farfield.problems.urban_wind.prediction import Fields, Target, WindPredictor
from farfield.progress import Progress

OUTPUTS = (".vtu", ".vtk", ".vtp", ".npz")
MESHES = (".vtu", ".vtk", ".vtp")


def predict_city(
    predictor: WindPredictor,
    buildings: str | Path,
    out: str | Path,
    *,
    roughness: float,
    wind_direction: float,
    inverse_length: float = 0.0,
    wind_speed: float = REFERENCE_SPEED,
    speed_height: float = REFERENCE_HEIGHT,
    unit: str = "m",
    ground: bool = False,
    default_height: float | None = None,
    height_attribute: str | None = None,
    points: str | Path | None = None,
    spacing: float | None = None,
    fields: Sequence[str] | None = None,
    seed: int = 0,
    draws: int = 1,
    force: bool = False,
    console: Console | None = None,
) -> list[Path]:
    """Write the wind around an STL to ``out``, and a picture of it at 2 m height beside it; returns what was written.

    The options are those of :meth:`WindPredictor.predict`; ``unit`` is the STL's. What can be wrong is found before
    the network runs, and whatever goes wrong, no file is left half-written.
    """
    out, picture = Path(out), Path(out).with_suffix(".png")
    if out.suffix not in OUTPUTS:
        raise ValueError(f"expected an output that ends in {', '.join(OUTPUTS)}, got {out.name}")
    wanted = predictor.wanted(fields)
    written = [out, picture] if "velocity" in wanted else [out]
    refuse_overwriting(written, force, [Path(file) for file in (buildings, points) if file is not None])
    ratio = speed_ratio(wind_speed, speed_height, roughness, inverse_length)
    given = None if points is None else read_points(points)
    city = read_buildings(
        buildings, unit=unit, ground=ground, default_height=default_height, height_attribute=height_attribute
    ).mesh
    site = predictor.site(city, roughness=roughness, wind_direction=wind_direction, inverse_length=inverse_length)
    target = Target.of(site, given, spacing)
    if out.suffix == ".vtp" and not isinstance(target.dataset, pv.PolyData):
        raise ValueError(f"{out.name}: .vtp is for points and surfaces, a mesh of the air needs .vtu or .vtk")

    positions = target.positions
    map_ = PedestrianMap.over(site) if "velocity" in wanted else None
    asked = positions if map_ is None else np.concatenate([positions, map_.positions])
    console = console or Console(stderr=True)
    with Progress(console) as bar:
        task = bar.add_task(f"wind at {len(positions):,} points", total=draws)
        found = predictor.at(
            site,
            asked,
            ratio=ratio,
            fields=wanted,
            seed=seed,
            draws=draws,
            advance=lambda share: bar.advance(task, share),
        )

    _write(out, target, {name: values[: len(positions)] for name, values in found.items()})
    if map_ is None:
        return written
    title = (
        f"Wind from {wind_direction % 360:g}°, {wind_speed:g} m/s at {speed_height:g} m, "
        f"z0 = {roughness:g} m{f', 1/L = {inverse_length:g} 1/m' if inverse_length else ''}"
    )
    map_.draw(picture, site, found["velocity"][len(positions) :], title)
    return written


def read_points(path: str | Path) -> pv.DataSet | NDArray[np.float64]:
    """Where the wind is wanted: a mesh or points in VTK's formats, or (N, 3) from NumPy's (.npz: ``positions``)."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix in MESHES:
        dataset = pv.read(path)
        if not isinstance(dataset, pv.DataSet) or dataset.n_points == 0:
            raise ValueError(f"{path} holds no points, or is damaged")
        return dataset
    if path.suffix not in (".npy", ".npz"):
        raise ValueError(f"expected points in a file that ends in {', '.join(MESHES)}, .npy or .npz, got {path.name}")
    try:
        loaded = np.load(path)  # pickled objects are refused
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            if "positions" not in loaded:
                raise ValueError(f"it has no array 'positions', only {', '.join(loaded) or 'none'}")
            return np.asarray(loaded["positions"])
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} does not hold points (N, 3): {error}") from None


def _write(out: Path, target: Target, fields: Fields) -> None:
    if out.suffix == ".npz":
        arrays: dict[str, Any] = {"positions": target.positions, **fields}
        with atomic_path(out) as partial, partial.open("wb") as opened:
            np.savez(opened, **arrays)
        return
    filled = target.filled(fields)
    if out.suffix == ".vtu" or not isinstance(filled, pv.PolyData | pv.UnstructuredGrid):
        filled = filled.cast_to_unstructured_grid()
    write_vtk(out, filled)
