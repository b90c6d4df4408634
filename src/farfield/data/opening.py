"""``open_dataset``: a folder or a file as it is, whatever it holds of what can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farfield.data.dataset import Dataset
from farfield.data.description import Description
from farfield.data.hints import Hints
from farfield.data.spec import SampleSpec
from farfield.data.splits import splits_by_folder
from farfield.extras import naming_extras

VTK_ENDINGS = (".vtu", ".vtk", ".vtp", ".vti", ".vts", ".vtr", ".pvd")
_KINDS = {"HDF5": (".hdf5", ".h5"), "VTK": VTK_ENDINGS, "NPZ": (".npz",)}


@naming_extras()
def open_dataset(path: str | Path, *, like: SampleSpec | None = None, to_predict: bool = False) -> Dataset:
    """Open a folder, or one file: HDF5 (The Well's, or plain arrays), VTK of any family, NPZ, what ``save`` wrote.

    Files in folders named train, validation (or valid) and test, as The Well has them, are split so; ``dataset.yaml``
    beside the files says what they do not. With ``like``, the contract of a model, it says so: its fields are read, no
    others. What is ``to_predict`` may be one state, or inputs without outputs.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no data at {path}")
    folder = path if path.is_dir() else path.parent
    description = Description.beside(folder)
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    found = {kind: [p for p in files if p.suffix in endings] for kind, endings in _KINDS.items()}
    found = {kind: paths for kind, paths in found.items() if paths}
    if len(found) != 1:
        told = " and ".join(f"{len(paths)} files of {kind}" for kind, paths in found.items())
        raise ValueError(
            f"{path} holds {told or 'no data that can be read'}: expected one of HDF5 (.hdf5, .h5), VTK "
            f"({', '.join(VTK_ENDINGS)}) or NPZ"
        )
    ((kind, paths),) = found.items()
    hints = description.hints()
    hints = hints if like is None else hints.like(like, to_predict)
    source = _source(kind, paths, hints, description.spacing)
    if not path.is_dir():
        return Dataset(source)
    splits: Mapping[str, Sequence[int]] | None = description.splits or splits_by_folder(source.paths)
    return Dataset(source, splits, folder)


def _source(kind: str, paths: Sequence[Path], hints: Hints, spacing: Sequence[float] | None) -> Any:
    if kind == "VTK":
        from farfield.data.vtk_files import vtk_files

        return vtk_files(paths, hints)
    if kind == "HDF5":
        from farfield.data.the_well import WellFiles
        from farfield.data.well_layout import is_the_wells

        if is_the_wells(paths[0]):
            return WellFiles(paths, hints)
    from farfield.data.array_files import array_files

    return array_files(paths, hints, spacing)
