"""Predictions of one domain by a group: each member reads its part of the input, steps it on and writes its part.

Points are cut by recursive bisection, balanced by predicted cost; the grid of an HDF5 file into blocks, so that parts
are slices of it. States stay with their members over all steps. What is written appears under its name at the end,
when every member has done its part:

    .npz            collected by the first member: for what one memory holds
    .hdf5           one file, written slice by slice, in turn
    .pvtu, .pvti    one piece per member in a folder of the same name, for ParaView; of steps, the last state
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from farfield.attention import Group
from farfield.attention.bisection import split_grid
from farfield.data.source import Cloud
from farfield.files import atomic_path, atomic_write_text, fingerprint
from farfield.models.grid_part import domain_parts
from farfield.prediction.files import copy_frame, open_states, read_states
from farfield.prediction.stepping import Predictor
from farfield.prediction.trained import Trained
from farfield.processes import undoing

PIECES = (".pvtu", ".pvti")
PIECE = re.compile(r"\d+\.vt[ui]")

if TYPE_CHECKING:
    import pyvista as pv

Spread = Callable[[Callable[[Group], Any]], list[Any]]
"""Runs the members of a group that are in this process: ``InTurn(n).run``, or one for a group of processes."""


@dataclass(frozen=True)
class Part:
    """One member's part of a domain."""

    index: NDArray[np.int64] | tuple[slice, ...]  # of all points, or of a grid's cells
    positions: NDArray[np.float64]
    whole: Cloud
    """All points; of a grid only its cells are looked at."""
    vectors: frozenset[str]
    """Fields whose arrays have their components last."""
    spacing: tuple[float, ...] = ()
    origin: tuple[float, ...] = ()


def predict_file_spread(
    predictor: Predictor, source: Path, out: Path, spread: Spread, *, steps: int = 1, start: int = 0
) -> None:
    """:func:`farfield.prediction.files.predict_file` by the members of a group."""
    grid = source.suffix in (".hdf5", ".h5")
    allowed = [source.suffix, ".pvtu", *([".pvti"] if grid else [])]
    if source.suffix not in (".npz", ".hdf5", ".h5") or out.suffix not in allowed:
        raise ValueError(
            f"expected states as .npz or .hdf5 and --out as {', '.join(allowed)}, got {source.name} and {out.name}"
        )
    spread(lambda group: (_grid if grid else _points)(predictor, source, out, group, steps, start))


def refuse_pieces(out: Path, force: bool) -> None:
    """Refuse to replace the folder of pieces beside ``out`` unless forced to, and any other folder of its name."""
    folder = out.with_suffix("")
    if out.suffix not in PIECES or not folder.exists():
        return
    if not folder.is_dir() or not all(PIECE.fullmatch(path.name) for path in folder.iterdir()):
        raise ValueError(f"{folder}, where the pieces of {out.name} go, holds other things: choose another --out")
    if not force:
        raise ValueError(f"{folder} exists: choose another --out, or overwrite with --force")


def _points(predictor: Predictor, source: Path, out: Path, group: Group, steps: int, start: int) -> None:
    arrays, positions, boundary = read_states(source)
    points = predictor._positions(positions)
    group.agree("input", fingerprint(points.tobytes()))
    mine = parts_of(predictor, points, group)
    flags = None if boundary is None else boundary[mine]
    vectors = frozenset(predictor.spec.vectors)
    first = {name: _chosen(values, mine, name in vectors) for name, values in arrays.items()}
    part = Part(mine, points[mine], Cloud(points, tuple(np.ptp(points, axis=0))), vectors)
    kept = {"positions": positions, "time": np.arange(steps + 1) * predictor.time_step}
    kept |= {} if boundary is None else {"boundary": boundary}
    with writer(out, group, part, kept) as write:
        for state in predictor.states(first, points[mine], steps, boundary=flags, group=group):
            write.state(state)


def _grid(predictor: Predictor, source: Path, out: Path, group: Group, steps: int, start: int) -> None:
    with open_states(predictor, source, start, group.size) as (file, centres, datasets):
        group.agree("input", fingerprint(*(axis.tobytes() for axis in centres)))
        cells = tuple(len(axis) for axis in centres)
        tokens = getattr(predictor.model, "tokens", None)
        block = split_grid(cells, group.size, 1 if tokens is None else tokens.patch)[group.rank]
        axes = [axis[cut] for axis, cut in zip(centres, block, strict=True)]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)
        first = {name: found[(slice(None), start, *block)].reshape(len(found), -1) for name, found in datasets.items()}
        spacing = predictor.spacing
        origin = tuple(float(axis[0]) - dx / 2 for axis, dx in zip(centres, spacing, strict=True))
        whole = Cloud(np.zeros((0, len(cells))), (), cells)
        part = Part(block, points, whole, frozenset(predictor.spec.vectors), spacing, origin)
        frame = None if out.suffix.startswith(".pv") else lambda to: copy_frame(predictor, file, to, steps, start)
        with writer(out, group, part, {}, frame) as write:
            for state in predictor.states(first, points, steps, group=group):
                write.state(state)


def predict_simulation(
    predictor: Any,
    cloud: Cloud,
    group: Group,
    *,
    state: Mapping[str, NDArray] | None,
    out: Path,
    inputs: Mapping[str, NDArray],
    parameters: Mapping[str, float],
    steps: int,
) -> None:
    """One simulation of a user's data by the members of a group: steps from a state, or, without one, steady fields."""
    group.agree("input", fingerprint(cloud.points.tobytes()))
    mine, points = parts_of(predictor, cloud.points, group), cloud.points
    options = {
        "extent": cloud.extent,
        "boundary": None if cloud.flags is None else cloud.flags[mine],
        "inputs": {name: values[mine] for name, values in inputs.items()},
        "parameters": parameters,
        "group": group,
    }
    part = Part(mine, points[mine], cloud, frozenset(predictor.spec.vectors))
    with writer(out, group, part, {}) as write:
        if state is None:
            write.state(predictor.predict(points[mine], **options))
            write.stacked = False
            return
        for later in predictor.states({name: v[mine] for name, v in state.items()}, points[mine], steps, **options):
            write.state(later)


def _chosen(values: NDArray, index: NDArray[np.int64], vector: bool) -> NDArray:
    return np.take(values, index, axis=-2 if vector else -1)


def parts_of(predictor: Trained, points: NDArray[np.float64], group: Group) -> NDArray[np.int64]:
    """The points of this member."""
    where = torch.from_numpy(points * np.asarray(predictor.position_scale))
    return domain_parts(predictor.model, where, group.size)[group.rank]


class Writer(ABC):
    """Takes the states of one member, one after the other."""

    stacked = True  # whether there is an axis of steps

    def __init__(self, out: Path, group: Group, part: Part):
        self.out, self.group, self.part, self.time = out, group, part, 0

    def state(self, fields: Mapping[str, NDArray]) -> None:
        """The next state: arrays (N,) or (B, N) of this member's points, vectors with their components last."""
        self.write(fields)
        self.time += 1

    def block(self) -> tuple[slice, ...]:
        """Of a grid, this member's."""
        assert isinstance(self.part.index, tuple)
        return self.part.index

    @abstractmethod
    def write(self, fields: Mapping[str, NDArray]) -> None: ...

    @abstractmethod
    def finish(self) -> None:
        """All states are there."""


class _Npz(Writer):
    def __init__(self, out: Path, group: Group, part: Part, kept: Mapping[str, NDArray]):
        super().__init__(out, group, part)
        self.kept, self.states = kept, []  # type: ignore[var-annotated]

    def write(self, fields: Mapping[str, NDArray]) -> None:
        self.states.append(fields)

    def finish(self) -> None:
        last = self.states[-1]
        mine = {name: np.stack([state[name] for state in self.states]) for name in last} if self.stacked else last
        parts = self.group.gather((self.part.index, mine))
        if self.group.rank > 0:
            return
        back = np.argsort(np.concatenate([index for index, _ in parts]))
        whole: dict[str, Any] = {"positions": self.part.whole.points, **self.kept}
        for name in mine:
            vector = name in self.part.vectors
            joined = np.concatenate([found[name] for _, found in parts], axis=-2 if vector else -1)
            whole[name] = _chosen(joined, back, vector)
        with atomic_path(self.out) as partial, partial.open("wb") as file:
            np.savez(file, **whole)


class _Hdf5(Writer):
    """One file for all, which the members open one after the other."""

    def __init__(self, out: Path, group: Group, part: Part, path: Path):
        super().__init__(out, group, part)
        self.path = path

    def write(self, fields: Mapping[str, NDArray]) -> None:
        block = self.block()
        shape = tuple(cut.stop - cut.start for cut in block)
        for turn in range(self.group.size):
            if turn == self.group.rank and len(self.part.positions):
                with h5py.File(self.path, "r+") as file:
                    for name, values in fields.items():
                        to = (slice(None), self.time, *block)
                        file["t0_fields"][name][to] = values.reshape(-1, *shape).astype(np.float32)
            self.group.gather("written")

    def finish(self) -> None:
        self.group.gather("all have written")
        if self.group.rank == 0:
            self.path.replace(self.out)


class _Pieces(Writer):
    """A piece of VTK's per member, and one file that lists them."""

    def __init__(self, out: Path, group: Group, part: Part, folder: Path):
        super().__init__(out, group, part)
        self.folder, self.last = folder, {}  # type: ignore[var-annotated]

    def write(self, fields: Mapping[str, NDArray]) -> None:
        name, values = next(iter(fields.items()))
        states = values.shape[: values.ndim - (2 if name in self.part.vectors else 1)]
        if int(np.prod(states)) != 1:
            raise ValueError(f"{self.out.suffix} holds one simulation: take .npz or .hdf5 for several")
        self.last = dict(fields)

    def finish(self) -> None:
        from farfield.data.vtk_pieces import image_piece, index_text, points_mesh

        count = len(self.part.positions)
        fields = {name: np.asarray(v, np.float32).reshape(count, -1) for name, v in self.last.items()}
        if self.out.suffix == ".pvtu":
            mesh = points_mesh(self.part.positions, fields) if count else None
            join_meshes(self.out, self.group, self.folder, mesh)
            return
        name, extent = f"{self.group.rank}.vti", None
        if count:
            extent = image_piece(self.folder / name, self.block(), self.part.spacing, self.part.origin, fields)
        told = [one for one in self.group.gather((name, extent)) if one[1] is not None]
        if self.group.rank == 0:
            declared = {"CellData": {name: ("Float32", values.shape[1]) for name, values in fields.items()}}
            place = (self.part.whole.cells, self.part.spacing, self.part.origin)
            _join(self.out, self.folder, index_text(self.out, told, declared, *place))


def join_meshes(out: Path, group: Group, folder: Path, mesh: pv.UnstructuredGrid | None) -> None:
    """Write this member's part of a mesh, if it has one, into the folder of pieces; the first puts all in place."""
    from farfield.data.vtk_pieces import index_text, mesh_piece

    name = f"{group.rank}.vtu"
    told = group.gather((name, None if mesh is None else mesh_piece(folder / name, mesh)))
    pieces = [(name, declared) for name, declared in told if declared is not None]
    if group.rank == 0:
        _join(out, folder, index_text(out, [(name, None) for name, _ in pieces], pieces[0][1] if pieces else {}))


def _join(out: Path, folder: Path, index: str) -> None:
    place = out.with_suffix("")
    if place.exists():
        for path in filter(lambda path: PIECE.fullmatch(path.name), place.iterdir()):
            path.unlink()
        place.rmdir()  # nothing but old pieces goes
    folder.rename(place)
    atomic_write_text(out, index)


@contextlib.contextmanager
def writer(
    out: Path,
    group: Group,
    part: Part,
    kept: Mapping[str, NDArray],
    frame: Callable[[Path], None] | None = None,
) -> Iterator[Writer]:
    """What writes a prediction, by the ending of ``out``; nothing stands under that name before all have finished."""
    if out.suffix.startswith(".pv"):
        with pieces_folder(out, group) as folder:
            pieces = _Pieces(out, group, part, folder)
            yield pieces
            pieces.finish()
        return
    all_can_write(group, out.parent)
    if out.suffix == ".npz":
        collected = _Npz(out, group, part, kept)
        yield collected
        collected.finish()
        return
    assert frame is not None
    partial = out.with_name(f".{out.name}.{group.gather(uuid.uuid4().hex[:8])[0]}.partial")
    with _removed(group, partial):
        if group.rank == 0:
            frame(partial)
        group.gather("the file is there")
        slices = _Hdf5(out, group, part, partial)
        yield slices
        slices.finish()


@contextlib.contextmanager
def pieces_folder(out: Path, group: Group) -> Iterator[Path]:
    """Where the members write their pieces, before all of them are there; removed if anything goes wrong."""
    all_can_write(group, out.parent)
    folder = out.with_name(f".{out.stem}.{group.gather(uuid.uuid4().hex[:8])[0]}.partial")
    with _removed(group, folder):
        folder.mkdir(exist_ok=True)
        yield folder


@contextlib.contextmanager
def _removed(group: Group, partial: Path) -> Iterator[None]:
    """What is not whole goes, whatever ends this."""

    def remove() -> None:
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.unlink(missing_ok=True)

    with undoing(remove):
        try:
            yield
        finally:
            remove()


def all_can_write(group: Group, folder: Path) -> None:
    """Refuse a folder that some members cannot write to, or that is not the same for all, before anything is done."""
    token = group.gather(uuid.uuid4().hex[:8])[0]
    path = folder / f".{token}-{group.rank}.partial"
    problem = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        problem = str(error)
    problems = group.gather(problem)
    missing = [r for r in range(group.size) if not (folder / f".{token}-{r}.partial").exists()]
    unseen = group.gather(missing)
    if problem is None:
        path.unlink()
    if failed := [r for r, found in enumerate(problems) if found is not None]:
        raise OSError(
            f"member {failed[0] + 1} of {group.size} cannot write to {folder} ({problems[failed[0]]}): choose one for "
            "--out that all machines share and may write"
        )
    if alone := [r for r, others in enumerate(unseen) if others]:
        raise OSError(
            f"member {alone[0] + 1} of {group.size} does not see in {folder} what the others write there: choose a "
            "folder for --out that all machines share"
        )
