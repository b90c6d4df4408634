"""The card of a generated urban-wind dataset: what was solved, how it converged, what it looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from farfield.files import atomic_write_text
from farfield.problems.urban_wind.buildings import (
    BUILDING_HEIGHT,
    BUILDINGS_PER_HECTARE,
    DOMAIN_HEIGHT,
    DOWNWIND_MARGIN,
    FOOTPRINT_SIDE,
    SIDE_MARGIN,
    SMALLEST_GAP,
    UPWIND_MARGIN,
)
from farfield.problems.urban_wind.files import CARD_FILE, SPLIT_SCALES
from farfield.problems.urban_wind.inflow_profiles import C_MU, KAPPA
from farfield.problems.urban_wind.pictures import draw_pedestrian_wind

RESIDUALS = ("Ux", "Uy", "Uz", "p", "k", "epsilon")


def write_card(out: Path, records: dict[str, dict[str, Any]], preset: dict[str, Any], seed: int) -> None:
    """Write ``README.md`` with a picture of one case of each scale."""
    settings = preset["settings"]
    special = {kind: preset.get(f"{kind}_settings") for kind in ("training", "large")}
    loosely = "".join(f" The {kind} cities were solved to {s['tolerance']:g}." for kind, s in special.items() if s)
    if preset.get("starts_from"):
        loosely += f" These started from what {preset['starts_from']} predicts."
    pictures = []
    for scale in sorted({record["scale"] for record in records.values()}):
        name = next(name for name, record in records.items() if record["scale"] == scale)
        picture = f"speed_at_2m_s{scale:g}.png"
        draw_pedestrian_wind(out / f"volume_{name}.vtk", out / picture, f"case {name}, s = {scale:g}")
        pictures.append(f"![wind speed at 2 m, s = {scale:g}]({picture})")

    roughnesses = [record["z0"] for record in records.values()]
    accepted = {name: record["attempts"][-1] for name, record in records.items()}
    rejected = [(name, a) for name, record in records.items() for a in record["attempts"][:-1]]
    redraws = [f"- case {name}, attempt {a['attempt']}: {a['reason']}" for name, a in rejected]
    seconds = sum(a["cpu_seconds"] for record in records.values() for a in record["attempts"])
    text = f"""# Wind around random buildings

{len(records)} steady simulations of neutral wind around random box-shaped buildings, in the layout of the
RandomBuildingsDataset (Zenodo record 19249906), **solved with OpenFOAM by farfield, not part of that
record**.
Seed {seed}, cells of {preset["cell"]:g} m between the buildings, first cell {preset["ground_cell"]:g} m high,
residual tolerance {settings["tolerance"]:g} (ten times that for p), at most {settings["iteration_limit"]}
iterations.{loosely} {seconds / 3600:.2f} CPU hours of solver time.

{_table(_summary(records))}

Residuals are the largest initial residuals at the last iteration of any accepted case of the split.

## What it looks like

{chr(10).join(pictures)}

## Cases that were drawn again

{chr(10).join(redraws) if redraws else "None: every first draw converged."}

{len(redraws)} of {len(records) + len(redraws)} runs stalled or diverged. Such a case was drawn again with
another city (same z0, next attempt number); `records/` keeps the residual history of every attempt.
So cities whose flow has no steady solution at this resolution are rarer here than among random cities.

## Choices that may differ from the published set

- Solver: OpenFOAM's simpleFoam with the standard k-epsilon model (C_mu {C_MU}, kappa {KAPPA}, as in the
  inflow), where the published set used code_saturne.
- Neutral air only (1/L = 0); the potential temperature is therefore 293.15 K everywhere.
- {_range(BUILDINGS_PER_HECTARE)} axis-aligned buildings per hectare, sides {_range(FOOTPRINT_SIDE)} m,
  heights {_range(BUILDING_HEIGHT)} m, gaps of at least {SMALLEST_GAP:g} m; walls on multiples of the cell
  size, roofs on the nearest mesh line. z0 is log-uniform, here from {min(roughnesses):.3f} to
  {max(roughnesses):.3f} m.
- Margins around the building square do not grow with it: {UPWIND_MARGIN:g} m upwind, {DOWNWIND_MARGIN:g} m
  downwind, {SIDE_MARGIN:g} m on each side; the top is at {DOMAIN_HEIGHT:g} m.
- The profile's velocity, k and epsilon are held at the top; sides are slip planes; pressure is in Pa,
  relative to the outlet.
- The wind blows {_wind(preset)}.
- `node_type` has one 0/1 column per entry of `node_type_classes`; a cell may touch several patches.
- The large cities of both scales share `ls_z0s`, index by index.

## Every case

<details><summary>cells, iterations, CPU seconds, last residuals</summary>

{_table([_row(name, records[name], attempt) for name, attempt in accepted.items()])}

</details>
"""
    atomic_write_text(out / CARD_FILE, text)


def _wind(preset: dict[str, Any]) -> str:
    largest = preset["max_wind_angle"]
    if not largest:
        return "along +x"
    return (
        f"up to {largest:g} degrees to either side of +x, drawn evenly; the box and the boxes stay along the axes, so "
        "the wind enters through two sides, where its velocity is held, and leaves through the other two, where the "
        "pressure is. A side that wakes do not reach before the end of the box (the wind is within "
        f"{np.degrees(np.arctan(SIDE_MARGIN / DOWNWIND_MARGIN)):.0f} degrees of it) lets no more air out than the "
        "undisturbed wind would. The margin of a side lies between those above as the wind's direction does"
    )


def _range(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"


def _row(name: str, record: dict[str, Any], attempt: dict[str, Any]) -> dict[str, str]:
    return {
        "case": name,
        "split": record["split"],
        "z0 [m]": f"{record['z0']:.3f}",
        "buildings": str(len(attempt["buildings"])),
        "cells": str(attempt["cells"]),
        "iterations": str(attempt["iterations"]),
        "CPU seconds": f"{attempt['cpu_seconds']:.1f}",
        "attempts": str(len(record["attempts"])),
        **{f: f"{attempt['residuals'][f][-1]:.1e}" for f in RESIDUALS},
    }


def _summary(records: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    rows = []
    for split, scale in SPLIT_SCALES.items():
        members = [record for record in records.values() if record["split"] == split]
        if not members:
            continue
        last = [record["attempts"][-1] for record in members]

        def spread(key: str, digits: int = 0, last: list[dict[str, Any]] = last) -> str:
            values = [attempt[key] for attempt in last]
            return f"{min(values):.{digits}f} - {max(values):.{digits}f} (median {np.median(values):.{digits}f})"

        worst = {f: max(attempt["residuals"][f][-1] for attempt in last) for f in RESIDUALS}
        rows.append(
            {
                "split": split,
                "s": f"{scale:g}",
                "cases": str(len(members)),
                "cells": spread("cells"),
                "iterations": spread("iterations"),
                "CPU seconds": spread("cpu_seconds", 1),
                "drawn again": str(sum(len(record["attempts"]) - 1 for record in members)),
                "largest residual U / p / k / epsilon": " / ".join(
                    f"{value:.1e}"
                    for value in (
                        max(worst[f] for f in ("Ux", "Uy", "Uz")),
                        worst["p"],
                        worst["k"],
                        worst["epsilon"],
                    )
                ),
            }
        )
    return rows


def _table(rows: list[dict[str, str]]) -> str:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join(lines + ["| " + " | ".join(row.values()) + " |" for row in rows])
