"""The model card: what a run is, how it was made and what it was measured at, from its saved files alone."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import yaml

from farfield.evaluation.rows import read_rows, scale_order
from farfield.files import atomic_write_text
from farfield.report.tables import percent
from farfield.runs.hub import PARTS, parse_address
from farfield.runs.run import Run
from farfield.style import NAMES, labelled


def model_card(run: Run, address: str) -> str:
    """The README.md of a run's repository on a hub, whose address is told to whoever loads it."""
    settings, provenance = run.settings(), run.provenance()
    problem, encoding = settings["problem"], settings["encoding"]["name"]
    about = {"library_name": "farfield", "tags": ["neural-operator", problem, encoding]}
    spec = run.dataset().get("spec", {})
    lines = [
        "---", yaml.safe_dump(about, sort_keys=False).strip(), "---", "",
        f"# {problem}, {NAMES[encoding]}", "",
        "A transformer neural operator, trained on small domains for use on larger ones without retraining.", "",
        "```python", "import farfield as ff", "", f'model = ff.load("{address}")', "```", "",
    ]  # fmt: skip
    if spec:
        fields = ", ".join(map(labelled, spec["fields"], spec["field_units"]))
        extent = " x ".join(f"{length:g}" for length in spec["training_extent"])
        lines += [f"It predicts {fields}. Training domain: {extent} {spec['length_unit']}.", ""]
    lines += _errors(run)
    if commands := provenance.get("commands"):
        lines += ["Made by:", "", "```", *commands, "```", ""]
    if versions := provenance.get("versions"):
        told = ", ".join(f"{name} {version}" for name, version in versions.items())
        lines += [f"Seed {provenance.get('seed')}; {told}.", ""]
    return "\n".join(lines)


def push(run_folder: str | Path, address: str, *, private: bool = False) -> str:
    """Put a run (its configuration, weights and provenance, and a model card) on a model hub; returns its address.

    ``address`` is ``hf://owner/name``; who you are is what ``hf auth login`` has noted. What continues the training
    stays here.
    """
    from huggingface_hub import HfApi

    run = Run.find(run_folder)
    name, revision = parse_address(address)
    if missing := [part for part in PARTS if not (run.folder / part).is_file()]:
        raise ValueError(f"{run} cannot be published: it has no {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="farfield-push-") as folder:
        for part in PARTS:
            shutil.copyfile(run.folder / part, Path(folder) / part)
        atomic_write_text(Path(folder) / "README.md", model_card(run, address))
        hub = HfApi(library_name="farfield")
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, commit_message=f"Upload of {run.folder.name}"
        )
    return address


def _errors(run: Run) -> list[str]:
    """Relative L1 errors, a line per scale; nothing where a run has not been evaluated."""
    if not run.rows_path.is_file():
        return []
    rows = [row for row in read_rows(run.rows_path) if row.metric.startswith("l1") and row.horizon == 1]
    told: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: scale_order(row.scale)):
        where = row.metric.removeprefix("l1").removeprefix("_").replace("_", " ")
        told.setdefault(row.scale, []).append(f"{row.field}{f' ({where})' if where else ''} {percent(row.value)} %")
    lines = [f"| {scale} | {', '.join(errors)} |" for scale, errors in told.items()]
    return ["| domain, times that of training | relative L1 error |", "|---|---|", *lines, ""] if lines else []
