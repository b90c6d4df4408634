"""What a prediction of the wind costs: against OpenFOAM on the same city and core, and tiled against dense attention.

A prediction is everything from an STL of the buildings to the fields at all cells of the solver's mesh: reading it,
what the network is told about the city (points, or solids and physics on a lattice), the network, its answer at the
cells. OpenFOAM's time is that of its solver alone, without making the mesh: as recorded with every generated case, or
measured anew beside the prediction (``solve``): data may come from another machine. With ``finer``, the first city is
also solved with cells of half the size, and predicted at those. All seconds are those of one core's work (CPU time),
which what else the machine does changes little.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trimesh

from farfield.attention import RoPE
from farfield.models.blocks import Attention
from farfield.problems.urban_wind.buildings import Box, write_stl
from farfield.problems.urban_wind.files import SETTINGS_FILE, UrbanCase, UrbanWindFiles
from farfield.problems.urban_wind.openfoam_case import SolverSettings
from farfield.problems.urban_wind.prediction import UrbanPredictor, WindPredictor
from farfield.problems.urban_wind.sampling import UrbanSample, draw_sample
from farfield.problems.urban_wind.scoring import SPLITS, region_errors, split_of
from farfield.problems.urban_wind.solver import WindSolution, solve_boxes

UNSEEN = 1  # a draw whose attention plans no prediction has made before


def benchmark_inference(
    predictor: WindPredictor,
    data: str | Path,
    *,
    cases: int = 1,
    repeats: int = 3,
    solve: bool = False,
    finer: bool = False,
    scales: Sequence[str] = tuple(SPLITS),
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure the first ``cases`` neutral test cities of every scale, on one core."""
    splits = [split_of(scale) for scale in scales]
    files = UrbanWindFiles(data, predictor.fields)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as OpenFOAM's solver
    rows = []
    try:
        for split in splits:
            for number in files.neutral_ids(split)[:cases]:
                case = files.load(split, number)
                say(f"s = {case.scale:g}, case {case.name}, {len(case.positions):,} cells ...")
                solver, source = _solver_seconds(files.folder, case, solve)
                row = {"scale": case.scale, "case": case.name, "mesh": _mesh(files.folder)}
                row |= {"cells": len(case.positions), "openfoam_seconds": solver, "openfoam_source": source}
                row |= _prediction(predictor, case, repeats)
                rows.append(row | (_anchors(predictor, case) if isinstance(predictor, UrbanPredictor) else {}))
        if finer and rows:
            number = files.neutral_ids("test")[0]
            say("the first city with cells of half the size ...")
            case, solution = _solved(files.folder, files.load("test", number), 0.5)
            row = {"scale": case.scale, "case": case.name, "mesh": _mesh(files.folder, 0.5)}
            row |= {"cells": len(case.positions), "openfoam_source": "measured"}
            row |= {"openfoam_seconds": solution.convergence.cpu_seconds}
            rows.append(row | _prediction(predictor, case, repeats))
    finally:
        torch.set_num_threads(threads)
    if not rows:
        raise ValueError(f"{data} has no neutral test cities")
    return {
        "torch": torch.__version__,
        "processor": platform.machine(),
        "threads": 1,
        "network": "AB-SWIFT" if isinstance(predictor, UrbanPredictor) else "columns",
        "encoding": predictor.encoding,
        "parameters": sum(p.numel() for p in predictor.model.parameters()),
        "rows": rows,
    }


def _prediction(predictor: WindPredictor, case: UrbanCase, repeats: int) -> dict[str, Any]:
    """Time of a prediction at all cells, the fastest of several draws, and the mean error of their velocities."""
    seconds: list[float] = []
    errors: dict[str, list[float]] = {"buildings": [], "wake": []}
    with tempfile.TemporaryDirectory() as folder:
        stl = Path(folder) / "city.stl"
        write_stl(stl, trimesh.Trimesh(**trimesh.triangles.to_kwargs(case.obstacles)))
        for draw in range(repeats):
            began = time.process_time()
            surfaces = np.asarray(trimesh.load_mesh(stl, process=False).triangles, dtype=np.float32)
            told = replace(case, obstacles=surfaces, fields={})
            predicted = predictor.from_case(told, case.positions, np.random.default_rng([0, draw]))
            seconds.append(time.process_time() - began)
            found = region_errors(predictor.columns(predicted), case)
            for region, values in errors.items():
                values.append(float(found["velocity", f"l1_{region}"]))
    return {
        "seconds": min(seconds),
        **{f"velocity_error_{region}": float(np.mean(values)) for region, values in errors.items()},
    }


def _anchors(predictor: UrbanPredictor, case: UrbanCase) -> dict[str, Any]:
    """Time to encode a city that was not seen before, with both kinds of attention among its anchors."""
    model = predictor.model
    sample = draw_sample(case, predictor.normalisation, predictor.counts, np.random.default_rng(UNSEEN))
    city: dict[str, Any] = UrbanSample.stack([sample]).to(predictor.device).city()
    found: dict[str, Any] = {"anchors": city["anchors"].shape[1]}
    outputs, kept = {}, model.backend
    local = not any(isinstance(module, Attention) and isinstance(module.encoding, RoPE) for module in model.modules())
    try:
        for model.backend in ("dense", "tiled") if local else ("dense",):  # RoPE alone sees everything
            with torch.no_grad():
                began = time.process_time()
                encoded = model.encode(**city)
                found[f"{model.backend}_seconds"] = time.process_time() - began
                outputs[model.backend] = model.at_anchors(encoded)
    finally:
        model.backend = kept
    if local:
        difference = (outputs["tiled"] - outputs["dense"]).abs() / outputs["dense"].std(dim=1, keepdim=True)
        found["tiled_difference"] = float(difference.max())
    return found


def _solver_seconds(folder: Path, case: UrbanCase, solve: bool) -> tuple[float | None, str]:
    """OpenFOAM's seconds on one core for this case, and where they are from; None if the data do not say."""
    path = folder / "records" / f"{case.name}.json"
    if not path.exists():
        return None, "not recorded"
    solved = json.loads(path.read_text())["attempts"][-1]
    if not solve:
        known = "cpu_seconds" in solved  # not in the records of early datasets
        return (solved["cpu_seconds"], "recorded") if known else (solved["seconds"], "recorded, wall time")
    return _solved(folder, case)[1].convergence.cpu_seconds, "measured"


def _solved(folder: Path, case: UrbanCase, size: float = 1.0) -> tuple[UrbanCase, WindSolution]:
    """The city of a case solved anew, with cells ``size`` times as large as the data's."""
    solved = json.loads((folder / "records" / f"{case.name}.json").read_text())["attempts"][-1]
    settings = json.loads((folder / SETTINGS_FILE).read_text())
    solution = solve_boxes(
        [Box(*box) for box in solved["buildings"]],
        case.box,
        case.roughness,
        size * settings["cell"],
        size * settings["ground_cell"],
        SolverSettings(**settings["settings"]),
    )
    positions = np.asarray(solution.volume.cell_centers().points, dtype=np.float32)
    fields = {name: np.asarray(solution.volume[name]) for name in case.fields}
    along_files = replace(case, positions=positions, fields=fields, wind_angle=0.0)
    in_wind_axes = along_files.in_wind_axes(case.wind_angle)
    return replace(in_wind_axes, obstacles=case.obstacles), solution


def _mesh(folder: Path, size: float = 1.0) -> str:
    """The cells between the buildings, and the height of those at the ground."""
    path = folder / SETTINGS_FILE
    if not path.exists():
        return "unknown"
    settings = json.loads(path.read_text())
    return f"{size * settings['cell']:g} m, at the ground {size * settings['ground_cell']:g} m high"


def markdown(results: dict[str, Any]) -> str:
    """The figures as tables, with the ratios."""
    lines = [
        f"`farfield bench inference`: {results['network']} with {results['encoding']}, {results['parameters']:,} "
        f"weights, torch {results['torch']}, one core ({results['processor']}).",
        "",
        "Prediction of all cells (from reading the STL on) against OpenFOAM's solver on the same mesh, CPU seconds:",
        "",
        "| s | case | mesh | cells | OpenFOAM [s] | prediction [s] | ratio | velocity error, buildings | wake |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in results["rows"]:
        solver = row["openfoam_seconds"]
        known = f"{solver:.1f} ({row['openfoam_source']})" if solver is not None else "not recorded"
        ratio = f"{solver / row['seconds']:.1f}" if solver is not None else "-"
        lines.append(
            f"| {row['scale']:g} | {row['case']} | {row['mesh']} | {row['cells']:,} "
            f"| {known} | {row['seconds']:.2f} | {ratio} "
            f"| {100 * row['velocity_error_buildings']:.1f} % | {100 * row['velocity_error_wake']:.1f} % |"
        )
    lines += _together(results["rows"])
    if results["network"] != "AB-SWIFT":
        return "\n".join(lines) + "\n"
    lines += [
        "",
        "Encoding the city, where anchors attend to all others (dense) or to those in reach (tiled), CPU seconds:",
        "",
        "| s | anchors | dense [s] | tiled [s] | ratio | largest difference, of the fields' spread |",
        "|---|---|---|---|---|---|",
    ]
    for row in (row for row in results["rows"] if "anchors" in row):
        tiled = "- | - | -"
        if "tiled_seconds" in row:
            ratio = row["dense_seconds"] / row["tiled_seconds"]
            tiled = f"{row['tiled_seconds']:.2f} | {ratio:.1f} | {row['tiled_difference']:.1e}"
        lines.append(f"| {row['scale']:g} | {row['anchors']:,} | {row['dense_seconds']:.2f} | {tiled} |")
    return "\n".join(lines) + "\n"


def _together(rows: list[dict[str, Any]]) -> list[str]:
    """A table of the sums over the cities of each size and mesh: single ones differ as the solver's iterations do."""
    kinds: dict[tuple[float, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if row["openfoam_seconds"] is not None:
            kinds.setdefault((row["scale"], row["mesh"], row["openfoam_source"]), []).append(row)
    if not kinds:
        return []
    lines = ["", "All cities of a size together:", "", "| s | mesh | cities | OpenFOAM [s] | prediction [s] | ratio |"]
    lines.append("|---|---|---|---|---|---|")
    for (scale, mesh, source), some in kinds.items():
        solver, prediction = (sum(row[name] for row in some) for name in ("openfoam_seconds", "seconds"))
        known = f"{len(some)} | {solver:.1f} ({source})"
        lines.append(f"| {scale:g} | {mesh} | {known} | {prediction:.2f} | {solver / prediction:.1f} |")
    return lines
