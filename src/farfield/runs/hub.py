"""Runs on a model hub: ``hf://owner/name``, or ``hf://owner/name@revision``."""

from __future__ import annotations

import re
from pathlib import Path

PARTS = ("config.yaml", "dataset.json", "provenance.json", "best.safetensors")  # data only: nothing in them is executed
_ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def parse_address(address: str) -> tuple[str, str | None]:
    """The repository's name and the revision, if one is given."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(f"expected hf://owner/name or hf://owner/name@revision, got {address!r}")
    return found["name"], found["revision"]


def fetch(address: str) -> Path:
    """The folder of a run on the hub; what is in the cache of huggingface_hub already is not downloaded again."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name, revision = parse_address(address)
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(PARTS), library_name="farfield"))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise OSError(f"could not load {address}: {str(error).splitlines()[0]}") from None
    if missing := [part for part in PARTS if part != "provenance.json" and not (folder / part).is_file()]:
        raise ValueError(f"{address} is no run of farfield: it has no {', '.join(missing)}")
    return folder
