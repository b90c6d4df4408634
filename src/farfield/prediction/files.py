"""``farfield predict``: from a file or a folder of what is known to files of what is predicted.

What a prediction starts from may be

    .npz              ``positions`` and fields by their names, (N,) or (B, N); ``inputs/<name>``, ``parameters/<name>``
    The Well's HDF5   to an HDF5 file that is the same but for its states, or to any other ending
    any own data      as it is trained on: NPZ, HDF5, VTK; one state is enough, and a steady problem's outputs need not
                      be there

and its output .npz, .vtu, .vtp, .vtk (on the mesh that was given), .hdf5, .pvtu, .pvti (:mod:`.writers`).

A domain may be shared by the members of a group: points are cut by recursive bisection, balanced by predicted cost, the
grid of an HDF5 file into blocks, so that parts are slices of it. States stay with their members over all steps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.attention import Group
from farfield.attention.bisection import split_grid
from farfield.data.source import Cloud
from farfield.data.spec import grouped
from farfield.files import check_memory, fingerprint, read_arrays, refuse_overwriting
from farfield.models.grid_part import domain_parts
from farfield.prediction.trained import Trained
from farfield.prediction.writers import Alone, Part, Spread, copy_frame, refuse_pieces, writer

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset
    from farfield.data.the_well import WellFiles

_HDF5 = (".hdf5", ".h5")
_POINTS = (".npz", ".vtu", ".vtp", ".vtk", ".pvtu")


def predict_file(
    predictor: Any,
    source: str | Path,
    out: str | Path,
    *,
    steps: int = 1,
    start: int = 0,
    force: bool = False,
    parts: Spread | None = None,
) -> str:
    """Predict from ``source`` into ``out``; returns what was done, in words.

    ``start`` says which of several states to begin with. Several simulations go into a folder ``out``, but for those of
    an HDF5 file, which go into one. Raises ``ValueError`` where there is not what the model needs; nothing is written
    then. With ``parts`` the members of a group share each domain.
    """
    source, out = Path(source), Path(out)
    if not source.exists():
        raise FileNotFoundError(f"no file {source}")
    _check_ending(out, (*_POINTS, *_HDF5, ".pvti", ""))
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise ValueError(f"{out} lies in the data that is predicted from: choose another --out")
    refuse_pieces(out, force)
    spread = parts or (lambda work: [work(Alone())])
    told = f"{out}: {steps} {'step' if steps == 1 else 'steps'} predicted"
    arrays = _state_file(source)
    if arrays is not None:
        _check_ending(out, _POINTS)
        if start:
            raise ValueError(f"--start is for states in time, {source.name} holds the ones to start from")
        refuse_overwriting([out], force, [source])
        spread(lambda group: _points(predictor, dict(arrays), out, group, steps))
    elif out.suffix in (*_HDF5, ".pvti"):
        refuse_overwriting([out], force, [source])
        from farfield.data.hints import Hints
        from farfield.data.the_well import WellFiles
        from farfield.data.well_layout import is_the_wells

        if source.suffix not in _HDF5 or not is_the_wells(source):
            raise ValueError(f"{out.name} is for an input in The Well's layout (.hdf5), got {source.name}")
        if predictor.spec.kind == "steady":
            raise ValueError(f"{out.name} is for steps: expected one of {', '.join(_POINTS)} for a steady problem")
        files = WellFiles([source], Hints().like(predictor.spec, to_predict=True))
        predictor.spec.require_same(files.spec, "the model")
        _check_start(files, start)
        spread(lambda group: _grid(predictor, files, out, group, steps, start))
    else:
        from farfield.data.opening import open_dataset

        data = open_dataset(source, like=predictor.spec, to_predict=True)
        predictor.spec.require_same(data.spec, "the model")
        names = _names(data, source, out)
        refuse_overwriting(names, force, [source])
        _check_start(data.source, start)
        for simulation, name in enumerate(names):
            work = _Simulation(predictor, data, simulation, name, steps, start)
            spread(work.predict)
        told = f"{out}: {len(data)} simulation{'s' * (len(data) > 1)} predicted"
    return told if predictor.spec.kind == "stepping" or arrays is None else f"{out}: predicted"


def _check_ending(out: Path, endings: tuple[str, ...]) -> None:
    if out.suffix not in endings:
        raise ValueError(f"expected a name ending in {', '.join(filter(None, endings))} for --out, got {out.name}")


def _names(data: Dataset, source: Path, out: Path) -> list[Path]:
    """One file for one simulation, else one each in a folder, named as the files they come from."""
    if len(data) == 1:
        _check_ending(out, _POINTS)
        return [out]
    if out.suffix:
        raise ValueError(
            f"{source} holds {len(data)} simulations, which go into a folder: give one for --out, e.g. "
            f"{out.with_suffix('')}, got {out}"
        )
    paths = [path for path in _meshes(data) if path is not None]
    if len(paths) == len(data):
        return [out / path.relative_to(source).with_suffix(".vtu") for path in paths]
    return [out / f"simulation_{simulation:04d}.npz" for simulation in range(len(data))]


def _meshes(data: Dataset) -> list[Path | None]:
    """Of each simulation, the file of VTK's that it is read from."""
    from farfield.data.opening import VTK_ENDINGS

    paths = getattr(data.source, "paths", None) or [None] * len(data)
    return [path if path is not None and path.suffix in VTK_ENDINGS else None for path in paths]


def _check_start(source: Any, start: int) -> None:
    for simulation in range(len(source)):
        states = source.states(simulation)
        if not -states <= start < states:
            raise ValueError(f"{source.name(simulation)} has {states} states, there is no state {start} to start from")


def _state_file(source: Path) -> dict[str, NDArray] | None:
    """The arrays of an .npz file of points with their fields by name; None of any other file."""
    if source.suffix != ".npz":
        return None
    arrays = read_arrays(source)
    if any(name.startswith(("states/", "outputs/")) for name in arrays) or "spacing" in arrays:
        return None
    if "positions" not in arrays and (source.parent / "dataset.yaml").is_file():
        return None  # that says the rest
    if "positions" not in arrays:
        raise ValueError(f"{source} has no array 'positions', it has {', '.join(arrays) or 'no arrays'}")
    arrays.pop("time", None)  # as in the files written here
    return arrays


def _points(predictor: Any, arrays: dict[str, NDArray], out: Path, group: Group, steps: int) -> None:
    spec, positions, boundary = predictor.spec, arrays.pop("positions"), arrays.pop("boundary", None)
    extent, known = arrays.pop("extent", None), {}
    for kind, names in (("inputs", tuple(grouped(spec.inputs, spec))), ("parameters", spec.parameters)):
        called = {name: f"{kind}/{name}" if f"{kind}/{name}" in arrays else name for name in names}
        known[kind] = {name: arrays.pop(call) for name, call in called.items() if call in arrays}
    points = predictor.checked_positions(positions)
    mine = _share(predictor, points, group)
    part = Part(mine, points[mine], Cloud(points, tuple(np.ptp(points, axis=0))), frozenset(spec.vectors))
    options = {
        "boundary": None if boundary is None else _of(boundary, mine, len(points)),
        "extent": None if extent is None else tuple(map(float, extent)),
        "inputs": {name: _of(values, mine, len(points)) for name, values in known["inputs"].items()},
        "parameters": {name: float(value) for name, value in known["parameters"].items()},
        "group": _of_several(group),
    }
    kept = {"positions": positions} | ({} if boundary is None else {"boundary": boundary})
    if spec.kind == "steady":
        with writer(out, group, part, kept) as write:
            write.steady(predictor.predict(points[mine], **options))
        return
    axes = {name: -2 if name in spec.vectors else -1 for name in arrays}
    first = {name: _of(values, mine, len(points), axes[name]) for name, values in arrays.items()}
    kept["time"] = np.arange(steps + 1) * predictor.time_step
    with writer(out, group, part, kept) as write:
        for state in predictor.states(first, points[mine], steps, **options):
            write.state(state)


def _grid(predictor: Any, files: WellFiles, out: Path, group: Group, steps: int, start: int) -> None:
    """An HDF5 file from an HDF5 file: all of its simulations, block by block."""
    spec, centres = predictor.spec, files.coordinates
    cells = tuple(map(len, centres))
    needed = 8 * math.prod(cells) * (len(spec.fields) + len(cells)) // group.size
    check_memory(needed, f"one state of {files.paths[0]}")
    group.agree("input", fingerprint(*(axis.tobytes() for axis in centres))[:16])
    tokens = getattr(predictor.model, "tokens", None)
    block = split_grid(cells, group.size, 1 if tokens is None else tokens.patch)[group.rank]
    axes = [axis[cut] for axis, cut in zip(centres, block, strict=True)]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
    spacing = predictor.spacing
    origin = tuple(float(axis[0]) - dx / 2 for axis, dx in zip(centres, spacing, strict=True))
    whole = Cloud(np.zeros((0, len(cells))), files.extent, cells)
    part = Part(block, points, whole, frozenset(spec.vectors), spacing, origin)
    alike = not (spec.inputs or spec.parameters)  # then all simulations go through the network together
    together = [range(len(files))] if alike else [range(i, i + 1) for i in range(len(files))]
    frame = None if out.suffix == ".pvti" else lambda to: copy_frame(files, to, steps, start, spec.time_step)
    with writer(out, group, part, {}, frame) as write:
        for some in together:
            values = np.concatenate([files.read(i, _only(start), block) for i in some])
            options = predictor.given(files.inputs(some[0], block), files.parameters(some[0]))
            options |= {"group": _of_several(group), "extent": files.extent}
            write.begin(slice(some.start, some.stop))
            for state in predictor.states(predictor.named(values, spec.fields), points, steps, **options):
                write.state(state)


def _of(values: NDArray, mine: NDArray[np.int64], points: int, axis: int = 0) -> NDArray:
    """A member's part of an array; all of one of another length, for the predictor says what is wrong with it."""
    fits = values.ndim >= abs(axis) and values.ndim > 0 and values.shape[axis] == points
    return np.take(values, mine, axis=axis) if fits else values


def _only(state: int) -> slice:
    return slice(state, None if state == -1 else state + 1)


class _Simulation:
    """One simulation of own data, and the file that its prediction goes to."""

    def __init__(self, predictor: Any, data: Dataset, simulation: int, out: Path, steps: int, start: int):
        self.predictor, self.out, self.steps = predictor, out, steps
        source = data.source
        self.cloud = source.cloud(simulation)
        self.given = predictor.given(source.inputs(simulation), source.parameters(simulation))
        self.state = predictor.named(source.read(simulation, _only(start))[0], predictor.fields)
        self.mesh = _meshes(data)[simulation]

    def predict(self, group: Group) -> None:
        predictor, points = self.predictor, self.cloud.points
        mine = _share(predictor, points, group)
        part = Part(mine, points[mine], self.cloud, frozenset(predictor.spec.vectors), mesh=self.mesh)
        options = {
            "extent": self.cloud.extent,
            "boundary": None if self.cloud.flags is None else self.cloud.flags[mine],
            "inputs": {name: values[mine] for name, values in self.given["inputs"].items()},
            "parameters": self.given["parameters"],
            "group": _of_several(group),
        }
        kept = {"positions": points}
        if predictor.spec.kind == "stepping":
            kept["time"] = np.arange(self.steps + 1) * predictor.time_step
        with writer(self.out, group, part, kept) as write:
            if predictor.spec.kind == "steady":
                write.steady(predictor.predict(points[mine], **options))
                return
            state = {name: values[mine] for name, values in self.state.items()}
            for later in predictor.states(state, points[mine], self.steps, **options):
                write.state(later)


def _share(predictor: Trained, points: NDArray[np.float64], group: Group) -> NDArray[np.int64]:
    """The points of this member."""
    if group.size == 1:
        return np.arange(len(points))
    group.agree("input", fingerprint(points.tobytes())[:16])
    where = torch.from_numpy(points * np.asarray(predictor.position_scale))
    return domain_parts(predictor.model, where, group.size)[group.rank]


def _of_several(group: Group) -> Group | None:
    """What the network is told: one that has a domain for itself need not ask others."""
    return None if group.size == 1 else group
