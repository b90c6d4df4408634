"""What a plain install leaves out: attention, models and prediction need none of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# A package of ours that is missing, by the name it is imported with -> the extra of pyproject.toml that brings it.
EXTRAS = {
    "lightning_fabric": "train",
    "lion_pytorch": "train",
    "tensorboard": "train",
    "matplotlib": "train",
    "pyvista": "wind",
    "vtk": "wind",
    "vtkmodules": "wind",
    "trimesh": "wind",
    "threadpoolctl": "wind",
    "shapely": "wind",
    "pyproj": "wind",
    "huggingface_hub": "hub",
    "neuralop": "bench",
}


@contextmanager
def naming_extras(extra: str | None = None) -> Iterator[None]:
    """Where a package of an extra is missing, say which command installs it; around a block, or on a function.

    ``extra`` is the one that brings all that the block needs, where its first missing package is part of several.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").split(".")[0]
        if missing not in EXTRAS or "pip install 'farfield[" in str(error):  # an inner block knew better
            raise
        brings = extra or EXTRAS[missing]
        raise ModuleNotFoundError(
            f"this needs {missing}, which a plain install leaves out: pip install 'farfield[{brings}]'", name=error.name
        ) from None
