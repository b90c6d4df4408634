"""What writes predictions, by the ending of a name; a domain may be written by the members of a group, part by part.

    .npz                positions and fields by name, of steps (steps + 1, ...); collected by the first member
    .vtu, .vtp, .vtk    fields on the mesh that was given, or at points; of steps, the last state
    .hdf5               The Well's layout, written slice by slice, in turn
    .pvtu, .pvti        one piece per member in a folder of the same name, for ParaView; of steps, the last state

What is written appears under its name at the end, when every member has done its part.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farfield.attention import Group
from farfield.data.source import Cloud
from farfield.files import atomic_path, atomic_write_text, make_folder
from farfield.processes import undoing

if TYPE_CHECKING:
    import pyvista as pv

    from farfield.data.the_well import WellFiles

PIECES = (".pvtu", ".pvti")
PIECE = re.compile(r"\d+\.vt[ui]")
Spread = Callable[[Callable[[Group], Any]], list[Any]]
"""Runs the members of a group that are in this process: ``InTurn(n).run``, or one for a group of processes."""


class Alone(Group):
    """A group of one, which waits for nobody."""

    rank, size = 0, 1

    def exchange(self, rows: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        return rows

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def maximum(self, values: Tensor) -> Tensor:
        return values


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
    mesh: Path | None = None
    """Of VTK's files, the one whose points or cells these are."""


class Writer(ABC):
    """Takes the states of one member, one after the other."""

    stacked = True  # whether there is an axis of steps

    def __init__(self, out: Path, group: Group, part: Part):
        self.out, self.group, self.part, self.time = out, group, part, 0
        self.simulations = slice(None)

    def begin(self, simulations: slice) -> None:
        """The next states are those of these simulations."""
        self.simulations, self.time = simulations, 0

    def steady(self, fields: Mapping[str, NDArray]) -> None:
        """Fields that are no steps: all there is."""
        self.stacked = False
        self.state(fields)

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
        whole: dict[str, Any] = dict(self.kept)
        for name in mine:
            axis = -2 if name in self.part.vectors else -1
            whole[name] = np.take(np.concatenate([found[name] for _, found in parts], axis=axis), back, axis=axis)
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
                        dataset = next(file[group][name] for group in file if name in file[group])
                        to = (self.simulations, self.time, *block)
                        count = len(range(*self.simulations.indices(len(dataset))))
                        dataset[to] = values.reshape(count, *shape, *dataset.shape[2 + len(shape) :])
            self.group.gather("written")

    def finish(self) -> None:
        self.group.gather("all have written")
        if self.group.rank == 0:
            self.path.replace(self.out)


class _Mesh(Writer):
    """One file of VTK's: the mesh that was given, or points."""

    def __init__(self, out: Path, group: Group, part: Part):
        super().__init__(out, group, part)
        self.last: dict[str, NDArray] = {}

    def write(self, fields: Mapping[str, NDArray]) -> None:
        name, values = next(iter(fields.items()))
        states = values.shape[: values.ndim - (2 if name in self.part.vectors else 1)]
        if self.simulations.start or int(np.prod(states)) != 1:
            raise ValueError(f"{self.out.suffix} holds one simulation: take .npz or .hdf5 for several")
        self.last = dict(fields)

    def flat(self) -> dict[str, NDArray[np.float32]]:
        """The last state, (N, components)."""
        widths = {name: v.shape[-1] if name in self.part.vectors else 1 for name, v in self.last.items()}
        count = len(self.part.positions)
        return {name: np.asarray(v, np.float32).reshape(count, widths[name]) for name, v in self.last.items()}

    def finish(self) -> None:
        from farfield.data.vtk import on_mesh, points_mesh, write_vtk
        from farfield.data.vtk_files import first_mesh

        if self.group.size > 1:
            raise ValueError(f"{self.out.suffix} is written by one process: take .pvtu for several")
        if self.part.mesh is None:
            mesh = points_mesh(self.out, self.part.positions, self.flat())
        else:
            mesh = on_mesh(self.out, first_mesh(self.part.mesh), self.flat())
        write_vtk(self.out, mesh)


class _Pieces(_Mesh):
    """A piece of VTK's per member, and one file that lists them."""

    def __init__(self, out: Path, group: Group, part: Part, folder: Path):
        super().__init__(out, group, part)
        self.folder = folder

    def finish(self) -> None:
        from farfield.data.vtk import points_mesh
        from farfield.data.vtk_pieces import image_piece, index_text

        count, fields = len(self.part.positions), self.flat()
        if self.out.suffix == ".pvtu":
            mesh = points_mesh(self.out, self.part.positions, fields) if count else None
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


def copy_frame(files: WellFiles, path: Path, steps: int, start: int, time_step: float) -> None:
    """A new file with all of an old one but its states, and room for ``steps`` predicted ones after that at ``start``.

    Its dimensions, boundary conditions and constants are kept.
    """
    predicted = {(field.group, field.name) for field in files.predicted}
    with h5py.File(files.paths[0], "r") as file, h5py.File(path, "w") as written:
        written.attrs.update(dict(file.attrs))
        for group in file:
            if not isinstance(file[group], h5py.Group):
                file.copy(group, written)
                continue
            target = written.create_group(group)
            target.attrs.update(dict(file[group].attrs))
            for name in file[group]:
                if (group, name) in predicted:
                    old = file[group][name]
                    shape = (len(old), steps + 1, *old.shape[2:])
                    made = target.create_dataset(name, shape, np.float32, chunks=(1, 1, *old.shape[2:]))
                    made.attrs.update(dict(old.attrs))
                elif (group, name) != ("dimensions", "time"):
                    file[group].copy(name, target)
        known = "time" in file["dimensions"]
        begin = float(np.ravel(file["dimensions/time"])[start]) if known else 0.0
        times = begin + np.arange(steps + 1) * time_step
        made = written["dimensions"].create_dataset("time", data=times.astype(np.float32))
        made.attrs.update({"sample_varying": False, "time_varying": False})


def refuse_pieces(out: Path, force: bool) -> None:
    """Refuse to replace the folder of pieces beside ``out`` unless forced to, and any other folder of its name."""
    folder = out.with_suffix("")
    if out.suffix not in PIECES or not folder.exists():
        return
    if not folder.is_dir() or not all(PIECE.fullmatch(path.name) for path in folder.iterdir()):
        raise ValueError(f"{folder}, where the pieces of {out.name} go, holds other things: choose another --out")
    if not force:
        raise ValueError(f"{folder} exists: choose another --out, or overwrite with --force")


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
    if group.size > 1:
        all_can_write(group, out.parent)
    if frame is None:
        whole: Writer = _Npz(out, group, part, kept) if out.suffix == ".npz" else _Mesh(out, group, part)
        yield whole
        whole.finish()
        return
    partial = out.with_name(f".{out.name}.{group.gather(uuid.uuid4().hex[:8])[0]}.partial")
    with _removed(partial):
        if group.rank == 0:
            make_folder(out.parent)
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
    with _removed(folder):
        folder.mkdir(exist_ok=True)
        yield folder


@contextlib.contextmanager
def _removed(partial: Path) -> Iterator[None]:
    """What is not whole goes, whatever ends this: the first member may be gone, so whoever notices removes it."""

    def remove() -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)

    with undoing(remove):
        try:
            yield
        except BaseException:
            remove()
            raise


def all_can_write(group: Group, folder: Path) -> None:
    """Refuse a folder that some members cannot write to, or that is not the same for all, before anything is done."""
    token = group.gather(uuid.uuid4().hex[:8])[0]
    path = folder / f".{token}-{group.rank}.partial"
    problem = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        problem = f"{folder} ({error.strerror or error})"
    problems = group.gather(problem)
    missing = [r for r in range(group.size) if not (folder / f".{token}-{r}.partial").exists()]
    unseen = group.gather(missing)
    if problem is None:
        path.unlink()
    if failed := [r for r, found in enumerate(problems) if found is not None]:
        raise OSError(
            f"member {failed[0] + 1} of {group.size} cannot write to {problems[failed[0]]}: choose a folder for --out "
            "that all machines share and may write"
        )
    if alone := [r for r, others in enumerate(unseen) if others]:
        raise OSError(
            f"member {alone[0] + 1} of {group.size} does not see in {folder} what the others write there: choose a "
            "folder for --out that all machines share"
        )
