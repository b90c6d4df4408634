"""How the results of urban wind are shown: errors of the velocity by region, and maps of the wind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from farfield.report.saved import Presentation, Quantity, Results, read_published
from farfield.report.tables import Table, cell
from farfield.style import NAMES

if TYPE_CHECKING:
    from farfield.report.figures import Drawn

REGIONS = {"buildings": "l1_buildings", "wake": "l1_wake"}


def velocity_by_region(fields: Sequence[str]) -> list[Quantity]:
    """What the paper reports."""
    return [Quantity("velocity", metric, f"velocity ({name})", name) for name, metric in REGIONS.items()]


def fields_table(results: Results) -> Table:
    """Urban wind: all that is predicted, by region."""
    rows = []
    for encoding in results.encodings:
        for region, metric in REGIONS.items():
            errors = [results.summary(encoding, s, field, metric) for s in results.scales for field in results.fields]
            rows.append([NAMES[encoding], region, *map(cell, errors)])
    header = ["encoding", "region", *(f"s = {s}, {field}" for s in results.scales for field in results.fields)]
    return Table(f"{results.problem}-fields", f"{results.shown.title}: L1 error [%] of every field.", header, rows)


def pictures(results: Results, scale: str) -> Iterator[Drawn]:
    """The wind of the first test city."""
    from farfield.problems.urban_wind.pictures import pictures

    return pictures(results, scale)


def scene(results: Results) -> tuple[str, str] | None:
    """The wind of the first test city in three dimensions."""
    from farfield.problems.urban_wind.pictures import wind_scene

    return wind_scene(results)


SHOWN = Presentation(
    title="Urban wind",
    published=read_published(Path(__file__).parent / "published.csv"),
    quantities=velocity_by_region,
    scales_together=True,
    error_of="the velocity",
    where="in the square of buildings and in the rest of the domain (wake), for cities s times as wide as those of "
    "training. Mean over cities and draws of points",
    figure_title="{}",
    error_name="Error",
    counted=(("l1_buildings", "draws of points, over all cities"),),
    predicted="city",
    time_unit=("s", 1.0),
    further_tables=lambda results: [fields_table(results)],
    pictures=pictures,
    scene=scene,
)
