"""Predictions of a user's own data, from files to files: NPZ, The Well's HDF5 or VTK in, NPZ or VTK out.

NPZ holds what :meth:`farfield.data.dataset.Dataset.save` writes of a simulation: positions (or spacing, of a grid), and
the predicted fields by their names; of steps (steps + 1, ...), the given state first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farfield.data.opening import open_dataset
from farfield.data.source import Cloud, Source
from farfield.data.spec import grouped
from farfield.files import atomic_path, refuse_overwriting
from farfield.prediction.spread import Spread, predict_simulation, refuse_pieces
from farfield.prediction.trained import Trained


def predict_dataset(
    predictor: Any,
    path: Path,
    out: Path,
    *,
    steps: int = 1,
    start: int = 0,
    force: bool = False,
    parts: Spread | None = None,
) -> str:
    """Predict every simulation of a dataset; one goes to the file ``out``, several into a folder of that name.

    With ``parts`` the members of a group share each domain (:mod:`farfield.prediction.spread`).
    """
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"{out} lies in the data that is predicted from: choose another --out")
    data = open_dataset(path)
    predictor.spec.require_same(data.spec, "the model")
    names = [out] if len(data) == 1 else [out / f"simulation_{i:04d}.npz" for i in range(len(data))]
    endings = (".npz", ".vtu", ".vtp") if parts is None else (".npz", ".pvtu")
    if len(data) == 1 and out.suffix not in endings:
        raise ValueError(f"expected a name ending in {', '.join(endings)} for --out, got {out.name}")
    refuse_overwriting(names, force, [path])
    for name in names:
        refuse_pieces(name, force)
    for simulation in range(len(data)) if predictor.spec.kind == "stepping" else ():
        if not -data.source.states(simulation) <= start < data.source.states(simulation):
            raise ValueError(
                f"{data.source.name(simulation)} has {data.source.states(simulation)} states, there is no state "
                f"{start} to start from"
            )
    for simulation, name in enumerate(names):
        cloud = data.source.cloud(simulation)
        given = given_to(predictor, data.source, simulation)
        if parts is not None:
            state = None
            if predictor.spec.kind == "stepping":
                state = named(predictor, data.source.read(simulation)[start])
            shared = {"state": state, "out": name, "steps": steps, **given}
            parts(functools.partial(predict_simulation, predictor, cloud, **shared))
            continue
        if predictor.spec.kind == "steady":
            fields = predictor.predict(cloud.points, extent=cloud.extent, boundary=cloud.flags, **given)
        else:
            state = named(predictor, data.source.read(simulation)[start])
            fields = predictor.rollout(state, cloud.points, steps, extent=cloud.extent, boundary=cloud.flags, **given)
            if name.suffix != ".npz":  # a file of one moment
                fields = {field: states[-1] for field, states in fields.items()}
        write_fields(name, cloud, fields)
    return f"{out}: {len(data)} simulation{'s' * (len(data) > 1)} predicted"


def named(predictor: Trained, values: NDArray) -> dict[str, NDArray]:
    """Channels (N, F) by the names that a user knows."""
    found = {}
    for name, parts in grouped(predictor.fields, predictor.spec).items():
        chosen = values[..., [predictor.fields.index(part) for part in parts]]
        found[name] = chosen if name in predictor.spec.vectors else chosen[..., 0]
    return found


def given_to(predictor: Trained, source: Source, simulation: int) -> dict[str, Any]:
    """Inputs and parameters of a simulation, as a predictor takes them."""
    spec, values = predictor.spec, source.inputs(simulation)
    inputs = {}
    for name, parts in grouped(spec.inputs, spec).items():
        chosen = values[:, [spec.inputs.index(part) for part in parts]]
        inputs[name] = chosen if name in spec.vectors else chosen[:, 0]
    return {
        "inputs": inputs,
        "parameters": dict(zip(spec.parameters, source.parameters(simulation).tolist(), strict=True)),
    }


def write_fields(path: Path, cloud: Cloud, fields: Mapping[str, NDArray]) -> None:
    """Fields at points, to NPZ, or as points with data to VTK."""
    if path.suffix != ".npz":
        import pyvista as pv

        from farfield.data.vtk import write_vtk

        corners = np.zeros((len(cloud), 3))
        corners[:, : cloud.points.shape[1]] = cloud.points
        mesh = pv.PolyData(corners)
        for name, values in fields.items():
            mesh.point_data[name] = values
        write_vtk(path, mesh if path.suffix == ".vtp" else mesh.cast_to_unstructured_grid())
        return
    with atomic_path(path) as partial, partial.open("wb") as file:
        np.savez(file, positions=cloud.points, **dict(fields))  # type: ignore[arg-type]
