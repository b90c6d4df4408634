"""Generation of an urban-wind dataset: random cities, solved by OpenFOAM, in the published layout.

Which cities these are, :mod:`farfield.problems.urban_wind.presets` says. A case is finished when its record exists
(``records/{name}.json``, written after its three VTK files); a killed run continues where it stopped. A case that
stalls or diverges is drawn again, and the record keeps both. Cities to learn from come first, and the index lists every
split as soon as it is whole: training may begin while those that judge are still being solved.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from farfield.data.vtk import write_vtk
from farfield.files import atomic_write_text, locked
from farfield.problems.share import WHOLE, Share
from farfield.problems.urban_wind.buildings import UrbanDomain, boxes_to_mesh
from farfield.problems.urban_wind.card import write_card
from farfield.problems.urban_wind.files import (
    INDEX_FILE,
    SETTINGS_FILE,
    SPLIT_SCALES,
    UrbanCase,
    turning,
)
from farfield.problems.urban_wind.mesh import CartesianMesh
from farfield.problems.urban_wind.presets import (
    ATTEMPTS,
    LEARNED_FROM,
    CaseId,
    UrbanPreset,
    draw_air,
    draw_city,
    list_cases,
)
from farfield.problems.urban_wind.solver import (
    NODE_TYPES,
    Convergence,
    NotConvergedError,
    Start,
    WindSolution,
    require_openfoam,
    solve_boxes,
)
from farfield.progress import Progress
from farfield.runs.run import Run


def generate_urban_wind(
    out: str | Path,
    preset: UrbanPreset,
    workers: int = 2,
    seed: int = 0,
    show_progress: bool = True,
    share: Share = WHOLE,
) -> Path | None:
    """Make (or finish) a dataset in ``out`` and return its index file; None where cases of other jobs are missing."""
    if not share.merge:
        require_openfoam()
    if workers < 1:
        raise ValueError(f"at least one worker is needed, got {workers}")
    out = Path(out)
    busy = f"another process is generating into {out}: wait for it, or choose another --out"
    with locked(out / f".lock{share.part or ''}", busy):
        return _generate(out, preset, workers, seed, show_progress, share)


def _generate(
    out: Path, preset: UrbanPreset, workers: int, seed: int, show_progress: bool, share: Share
) -> Path | None:
    _check_same_settings(out, preset, seed)
    cases = list_cases(preset)
    mine = cases[(share.part or 1) - 1 :: share.parts]  # the large cities come last: every job gets its share of them
    costs = {
        split: CartesianMesh.around(UrbanDomain.square(scale), [], preset.cell, preset.ground_cell).cell_count
        for split, scale in SPLIT_SCALES.items()
    }
    todo = [case for case in mine if not _record_path(out, case).exists()]
    if share.merge and todo:
        raise ValueError(f"{out} is not complete: {len(todo)} of {len(cases)} cases are missing, e.g. {todo[0].name}")
    if workers > 1:  # among those that judge, the largest first: they keep one worker busy for minutes
        todo.sort(key=lambda case: (case.split not in LEARNED_FROM, -costs[case.split]))
    missing = Counter(case.split for case in todo)

    start = predicted_start(preset.starts_from) if preset.starts_from and todo else None
    scratch = out / f".scratch{share.part or ''}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    stop = threading.Event()
    failed: dict[str, str] = {}
    with Progress(Console(stderr=True, quiet=not show_progress), speed_estimate_period=1800.0) as progress:
        finished = len(mine) - len(todo)
        told = f"urban wind, {{}} of {len(mine)} cases"
        bar = progress.add_task(told.format(finished), total=sum(costs[c.split] for c in todo))
        _write_index(out, cases, preset)
        with ThreadPoolExecutor(workers) as pool:
            futures = {pool.submit(_make_case, out, scratch, preset, seed, case, stop, start): case for case in todo}
            try:
                for future in as_completed(futures):
                    case = futures[future]
                    try:
                        future.result()
                    except Exception as error:  # one bad case must not cost the others their hours
                        failed[case.name] = f"{type(error).__name__}: {error}"
                    else:
                        finished += 1
                        missing[case.split] -= 1
                        if not missing[case.split]:
                            _write_index(out, cases, preset)
                    progress.update(bar, advance=costs[case.split], description=told.format(finished))
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    shutil.rmtree(scratch, ignore_errors=True)
    if failed:
        listed = "\n".join(f"  {name}: {reason}" for name, reason in failed.items())
        raise RuntimeError(
            f"{len(failed)} of {len(mine)} cases could not be made (the others are kept, running the same "
            f"command again tries these again):\n{listed}"
        )
    records = _write_index(out, cases, preset)
    if len(records) < len(cases):
        return None
    write_card(out, records, asdict(preset), seed)
    return out / INDEX_FILE


def _record_path(out: Path, case: CaseId) -> Path:
    return out / "records" / f"{case.name}.json"


def _check_same_settings(out: Path, preset: UrbanPreset, seed: int) -> None:
    """A folder holds one dataset: resuming with other settings would mix two."""
    path = out / SETTINGS_FILE
    settings = {"seed": seed, **asdict(preset)}
    if path.exists():
        begun = json.loads(path.read_text())
        unsaid = {
            "max_wind_angle": 0.0,
            "stream": 0,
            "training_settings": None,
            "large_settings": None,
            "starts_from": None,
        }  # what a folder begun by an earlier version does not say
        begun = unsaid | begun
        different = [key for key in settings if begun.get(key) != settings[key]]
        if different:
            raise ValueError(
                f"{out} holds a dataset begun with other settings "
                f"({', '.join(f'{key} {begun.get(key)} instead of {settings[key]}' for key in different)}); "
                "choose another folder"
            )
    else:
        atomic_write_text(path, json.dumps(settings, indent=1) + "\n")


def predicted_start(model: str) -> Start:
    """What the solver starts from where a network of columns knows the wind."""
    from farfield.problems.urban_wind.column_prediction import ColumnPredictor

    predictor = ColumnPredictor.load(Run.find(model), "cpu")

    def start(mesh: CartesianMesh, domain: UrbanDomain, roughness: float) -> dict[str, NDArray[np.floating]]:
        city = UrbanCase(
            name="start",
            scale=domain.scale,
            roughness=roughness,
            inverse_length=0.0,
            positions=mesh.cell_centres().astype(np.float32),
            fields={},
            obstacles=np.asarray(boxes_to_mesh(list(mesh.boxes)).triangles, dtype=np.float32),
            terrain=np.empty((0, 3, 3), dtype=np.float32),
            domain=domain,
        ).in_wind_axes(domain.wind_angle)
        found = predictor.columns(predictor.from_case(city, city.positions, np.random.default_rng(0)))
        return found | {"velocity": found["velocity"] @ turning(domain.wind_angle)}

    return start


def _make_case(
    out: Path,
    scratch: Path,
    preset: UrbanPreset,
    seed: int,
    case: CaseId,
    stop: threading.Event,
    start: Start | None = None,
) -> None:
    scale = SPLIT_SCALES[case.split]
    roughness, wind_angle = draw_air(seed, case, preset)
    settings = preset.settings_for(case.split)
    attempts: list[dict[str, Any]] = []
    shared_air = scale > 1 and preset.cases.keys() >= {"ls", "vls"}
    for attempt in range(ATTEMPTS if shared_air else 2 * ATTEMPTS):
        if stop.is_set():
            return
        if attempt == ATTEMPTS:
            roughness, wind_angle = draw_air(seed, case, preset, again=True)
        boxes = draw_city(seed, case, attempt, preset)
        folder = Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=scratch))
        try:
            solution = solve_boxes(
                boxes,
                UrbanDomain.square(scale, wind_angle),
                roughness,
                preset.cell,
                preset.ground_cell,
                settings,
                folder,
                start=start if preset.start_for(case.split) else None,
            )
        except NotConvergedError as error:
            attempts.append(_attempt_record(attempt, boxes, error.convergence))
            continue
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        attempts.append(_attempt_record(attempt, list(solution.boxes), solution.convergence))
        _write_vtk(out, case.name, solution)
        record = {
            "split": case.split,
            "scale": scale,
            "z0": roughness,
            "invlmo": 0.0,
            "wind_angle": wind_angle,
            "attempts": attempts,
        }
        atomic_write_text(_record_path(out, case), json.dumps(record) + "\n")
        return
    reasons = "; ".join(str(entry["reason"]) for entry in attempts)
    atomic_write_text(out / "records" / f"{case.name}.failed.json", json.dumps(attempts) + "\n")
    raise RuntimeError(f"none of {len(attempts)} random cities converged: {reasons}")


def _attempt_record(attempt: int, boxes: list[Any], convergence: Convergence) -> dict[str, Any]:
    record = {"attempt": attempt, **asdict(convergence), "buildings": [list(box) for box in boxes]}
    # Four digits are more than a residual is worth, and a tenth of the file.
    record["residuals"] = {
        name: [float(f"{value:.4g}") for value in history] for name, history in convergence.residuals.items()
    }
    return record


def _write_vtk(out: Path, name: str, solution: WindSolution) -> None:
    write_vtk(out / f"volume_{name}.vtk", solution.volume)
    for kind in ("buildings", "ground"):
        surface = solution.boundary[kind].copy()
        surface.clear_data()
        write_vtk(out / f"{kind}_{name}.vtk", surface)


def _write_index(out: Path, cases: list[CaseId], preset: UrbanPreset) -> dict[str, dict[str, Any]]:
    """List the splits that are whole, if any; returns their cases' records by name."""
    unfinished = {case.split for case in cases if not _record_path(out, case).exists()}
    for first, later in (("train", "val"), ("val", "test"), ("ls", "vls"), ("vls", "ls")):
        if first in unfinished:  # small cities are numbered through, the large ones share their air
            unfinished.add(later)
    cases = [case for case in cases if case.split not in unfinished]
    if not cases:
        return {}
    records: dict[str, dict[str, Any]] = {case.name: json.loads(_record_path(out, case).read_text()) for case in cases}
    small = [case for case in cases if SPLIT_SCALES[case.split] == 1]
    large = {case.index: case for case in cases if SPLIT_SCALES[case.split] > 1}
    air, large_air = (
        [(records[case.name]["z0"], records[case.name]["wind_angle"]) for case in some]
        for some in (small, [large[i] for i in sorted(large)])
    )
    index = {
        "total_size": len(small),
        **{f"{s}_ids": [case.number for case in small if case.split == s] for s in ("train", "val", "test")},
        "invlmo": [0.0] * len(small),
        "z0": [roughness for roughness, _ in air],
        "ls_z0s": [roughness for roughness, _ in large_air],
        "node_type_classes": list(NODE_TYPES),
    }
    if preset.max_wind_angle:  # not in the published layout, whose wind is along +x
        index |= {"wind_angle": [angle for _, angle in air], "ls_wind_angles": [angle for _, angle in large_air]}
    atomic_write_text(out / INDEX_FILE, json.dumps(index, indent=1) + "\n")
    return records
