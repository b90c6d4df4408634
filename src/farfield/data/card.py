"""The dataset card: a page of Markdown beside the data, with a picture of one simulation per split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.figure import Figure

from farfield.data.generated import Split
from farfield.data.standardise import Statistics
from farfield.files import atomic_path, atomic_write_text
from farfield.style import quantity


def distance_from_published(published: Statistics, statistics: Statistics) -> Statistics:
    """Of means: the difference in published standard deviations; of those: the relative difference."""
    distances: Statistics = {}
    for name, fields in published.items():
        unit = published[name.replace("mean", "std")]
        distances[name] = {field: (statistics[name][field] - value) / unit[field] for field, value in fields.items()}
    return distances


def write_card(
    folder: Path, splits: Mapping[str, Split], statistics: Statistics, about: str, published: Statistics
) -> None:
    """Write ``README.md`` and ``pictures/<split>.png`` into a dataset's folder.

    ``about`` says what was solved; ``published`` are the statistics to compare the training split's with, if any.
    """
    train = splits["train"]
    spec, settings = train.spec, train.provenance["settings"]
    lines = [
        f"# {spec.problem}",
        "",
        about,
        "",
        f"Made by farfield {train.provenance['version']}: `{train.provenance['command']}`",
        "",
        "## Splits",
        "",
        "| split | times the training domain | cells | simulations | states | file |",
        "|---|---|---|---|---|---|",
    ]
    for name, split in splits.items():
        scale = " x ".join(f"{factor:g}" for factor in split.scale)
        cells = " x ".join(str(count) for count in split.domain.cells)
        file = split.path.relative_to(folder)
        lines.append(f"| {name} | {scale} | {cells} | {len(split)} | {split.states(0)} | `{file}` |")
    lines += [
        "",
        f"States are {quantity(spec.time_step, spec.time_unit)} apart, cells "
        f"{quantity(spec.spacing[0], spec.length_unit)} wide. Positions for a model are multiplied by "
        f"{', '.join(f'{scale:g}' for scale in spec.position_scale)}, which makes the training domain 1000 wide.",
        "",
        "## Fields",
        "",
        "Of the training split: `stats.yaml`.",
        "",
        "| field | unit | mean | std | mean change per state | its std |",
        "|---|---|---|---|---|---|",
    ]
    for field, unit in zip(spec.fields, spec.field_units, strict=True):
        numbers = (statistics[key][field] for key in ("mean", "std", "mean_delta", "std_delta"))
        lines.append(f"| {field} | {unit} | " + " | ".join(f"{number:.5g}" for number in numbers) + " |")
    if published:
        lines += ["", "Distance from the published training split (means in standard deviations):", ""]
        lines += ["| statistic | " + " | ".join(spec.fields) + " |", "|---|" + "---|" * len(spec.fields)]
        for name, distances in distance_from_published(published, statistics).items():
            lines.append(f"| {name} | " + " | ".join(f"{100 * distances[f]:+.1f} %" for f in spec.fields) + " |")
    lines += ["", "## Settings", "", "| setting | value |", "|---|---|"]
    lines += [f"| {key} | {value} |" for key, value in settings.items()]
    lines += [
        "",
        "## Reading",
        "",
        "The files follow [The Well](https://github.com/PolymathicAI/the_well)'s HDF5 layout and open with "
        "its reader, or with",
        "",
        "```python",
        "from farfield.data.samples import step_pairs",
        'pairs = step_pairs("this folder", "train")   # features, positions, targets, weights',
        "```",
        "",
        "## One simulation of each split",
        "",
    ]
    for name, split in splits.items():
        # in matplotlib's own style, so that the bytes do not depend on what a user or another module has set
        with atomic_path(folder / "pictures" / f"{name}.png") as partial, style.context("default"):
            picture(split).savefig(partial, format="png", dpi=100)
        lines += [f"![{name}](pictures/{name}.png)", ""]
    atomic_write_text(folder / "README.md", "\n".join(lines))


def picture(split: Split, simulation: int = 0) -> Figure:
    """One simulation at four times: profiles in one dimension, maps of the last field in two."""
    times = np.linspace(0, split.states(0) - 1, 4).round().astype(int)
    spec, extent = split.spec, split.domain.extent
    title = f"{spec.problem}, {split.provenance['split']}: simulation {simulation}"
    if split.domain.space_dim == 1:
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        (x,) = split.domain.centres()
        panels = figure.subplots(len(spec.fields), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (index, field) in zip(panels, enumerate(spec.fields), strict=True):
            for time in times:
                label = quantity(time * spec.time_step, spec.time_unit)
                axes.plot(x, split.grids(simulation, slice(time, time + 1))[0, index], label=label, linewidth=1)
            axes.set_ylabel(f"{field} [{spec.field_units[index]}]")
            axes.grid(alpha=0.3)
        axes.set_xlabel(f"x [{spec.length_unit}]")
        lines, labels = axes.get_legend_handles_labels()
        figure.legend(lines, labels, loc="outside lower center", ncols=len(times))
        figure.suptitle(title)
        return figure
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    panels = figure.subplots(1, len(times), sharey=True)
    maps = [split.grids(simulation, slice(time, time + 1))[0, -1] for time in times]
    highest = max(float(values.max()) for values in maps)
    for axes, time, values in zip(panels, times, maps, strict=True):
        image = axes.imshow(values.T, origin="lower", extent=(0, extent[0], 0, extent[1]), vmin=0, vmax=highest)
        axes.set_title(f"t = {time * spec.time_step:g}", fontsize="medium")
        axes.set_xlabel(f"x [{spec.length_unit}]")
    panels[0].set_ylabel(f"y [{spec.length_unit}]")
    figure.colorbar(image, ax=panels, label=spec.fields[-1])
    figure.suptitle(title)
    return figure
