"""The commands, one function each."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

console = Console()


def demo(out: Path = typer.Option(Path("farfield-demo"), help="Folder for the picture.")) -> None:
    """Draw how far a point sees with each encoding, and what enlarging the domain does to attention: one picture.

    Example: `farfield demo --out pictures`

    It trains nothing and takes seconds. `make demo`, in the source, is the ten-minute experiment: it trains three
    encodings and tests them on larger domains, as `farfield reproduce swe --preset quick` does.
    """
    from farfield.studies.kernels import draw_overview

    out.mkdir(parents=True, exist_ok=True)
    console.print("Drawing the kernels, and attention in domains of up to ten times the size (a few seconds) ...")
    path = draw_overview(out / "overview.png")
    console.print(
        f"See [bold]{path}[/]: RoPE's output inside changes when the domain grows, LASPE's and LAAPE's does not."
    )
    _next("farfield reproduce swe --preset quick", "the same in trained models, ten minutes")


def generate(
    problem: str = typer.Argument(help="swe, gray-scott or urban-wind (with OpenFOAM: Debian package openfoam)."),
    preset: str | None = typer.Option(
        None,
        help="quick, cpu (the best for two cores) or paper (as published).  [default: cpu; urban-wind: quick]",
    ),
    out: Path | None = typer.Option(None, help="Folder of the dataset.  [default: data/PROBLEM-PRESET]"),
    workers: int | None = typer.Option(None, help="Simulations solved at once.  [default: one per core]"),
    seed: int = typer.Option(0, help="The same seed gives the same data, whatever the number of workers."),
    scales: str | None = typer.Option(
        None, help="Larger domains instead of the preset's, e.g. `2,10,100`, or `2x1` for two axes; not for urban-wind."
    ),
    changes: list[str] = typer.Option(
        [], "--set", help="Change a setting of `dataset.yaml`, e.g. `states=21`; repeatable; not for urban-wind."
    ),
    part: str | None = typer.Option(
        None,
        help="Make one of n parts, e.g. `2/8`, as one of several jobs with the same --out; the last one joins them.",
    ),
    merge: bool = typer.Option(False, "--merge", help="Only join what all parts have made."),
) -> None:
    """Make a dataset with the built-in solvers.

    Example: `farfield generate swe --preset quick --out data/swe`

    Run it again to continue after a crash: what is complete is kept. Several jobs make one dataset, byte for byte the
    same; in a SLURM array of eight: `farfield generate swe --out data/swe --part $SLURM_ARRAY_TASK_ID/8`
    """
    from farfield.problems import problem_named
    from farfield.problems.share import Share

    share = Share.parse(part, merge)
    generation = problem_named(problem).generation
    if generation is None:
        raise ValueError(f"the data of {problem} is not made here")
    preset = preset or generation.default_preset
    settings = generation.configure(preset, seed, scales, changes)
    out = out or Path("data") / f"{problem}-{preset}"
    print(generation.make(settings, out, workers, Console(stderr=True), share))
    _next(f"farfield train {problem} --preset {preset} --data {out}")


def check(
    data: Path = typer.Argument(help="A folder or a file: The Well's HDF5, VTK, NPZ."),
    write: bool = typer.Option(True, help="Write a first dataset.yaml where there is none, to be corrected by hand."),
) -> None:
    """Say what is understood of your own data, and what is wrong with it, before any training.

    Example: `farfield check data/mine`

    Fields, roles, units, spacing, extent, boundaries, statistics and proposed decay lengths. What cannot be guessed
    (which fields are inputs, a time step, a periodic axis) goes into `dataset.yaml` beside the files.
    """
    _there(data)
    from farfield.data.description import DESCRIPTION, write_description
    from farfield.data.opening import open_dataset

    opened = open_dataset(data)
    opened.check()
    print(opened)
    if write and data.is_dir() and not (data / DESCRIPTION).exists():
        write_description(data / DESCRIPTION, opened.spec)
        print(f"{data / DESCRIPTION} says what was understood: correct it where it is wrong, and check again")
    _next(f"farfield train {data} --minutes 20 --out runs/mine")


def train(
    problem: str | None = typer.Argument(
        None,
        metavar="PROBLEM|DATA",
        help="swe, gray-scott, urban-wind, urban-columns, or a folder of your own data (`farfield check`).",
    ),
    encoding: str | None = typer.Option(
        None, help="rope, laspe, laape; on grids: flashbias, alibi, window; urban-columns: none.  [default: laape]"
    ),
    preset: str | None = typer.Option(None, help="Built-in problems: quick, cpu or paper.  [default: cpu]"),
    minutes: float | None = typer.Option(
        None, help="Own data: how long training may take here; decides the number of steps.", min=0.01
    ),
    data: Path | None = typer.Option(None, help="Dataset folder.  [default: data/PROBLEM-PRESET]"),
    out: Path | None = typer.Option(None, help="Run folder.  [default: runs/PROBLEM-PRESET-ENCODING-seedN]"),
    seed: int | None = typer.Option(None, help="Decides initial weights and order of the data.  [default: 0]"),
    settings: list[str] = typer.Option([], "--set", help="A setting of the run, e.g. model.width=96; repeatable."),
    config: Path | None = typer.Option(None, help="Repeat a run: its config.yaml, instead of PROBLEM and --preset."),
    resume: Path | None = typer.Option(None, help="Continue the run in this folder, to exactly the same losses."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    devices: int = typer.Option(1, min=1, help="Processes on this machine, one per GPU."),
    nodes: int = typer.Option(
        1, min=1, help="Machines; start the same command on each (torchrun and SLURM are understood)."
    ),
    per_domain: int = typer.Option(
        1, min=1, help="So many of the processes share each domain, for those that fit no single device."
    ),
) -> None:
    """Train one model on a dataset. Ctrl-C saves and leaves; --resume continues.

    Examples:

    `farfield train swe --encoding laape --preset quick`

    `farfield train swe --set training.optimiser=muon --set training.steps=2000 --out runs/muon`

    `farfield train --resume runs/muon`

    `farfield train data/mine --minutes 20 --out runs/mine`
    """
    _there(data, config, resume, Path(problem) if problem and len(Path(problem).parts) > 1 else None)
    from farfield.problems import PROBLEMS, problem_for, problem_named, problem_of
    from farfield.runs.config import parse_settings, read_settings
    from farfield.runs.run import Run
    from farfield.training.loop import fit, is_first_process

    if problem is not None and problem not in PROBLEMS and Path(problem).exists():
        from farfield import api

        _only_without("own data has no presets", preset=preset, data=data)
        out = out or Path("runs") / f"{Path(problem).resolve().stem}-{encoding or 'laape'}-seed{seed or 0}"
        launch = {"accelerator": accelerator, "devices": devices, "nodes": nodes, "per_domain": per_domain}
        launch["console"] = console
        options = {"encoding": encoding or "laape", "minutes": minutes, "seed": seed or 0}
        api.train(problem, out=out, settings=parse_settings(settings), **options, **launch)  # type: ignore[arg-type]
        _next(f"farfield evaluate {out}", "or with --data LARGE, on larger domains")
        return
    _only_without("the built-in problems' presets say their steps", minutes=minutes)
    if sum(source is not None for source in (problem, config, resume)) != 1:
        raise ValueError(
            "give one of: a problem (swe, gray-scott, urban-wind, urban-columns), --config FILE, --resume RUN"
        )
    if problem is None:
        _only_without("a run's configuration is in its config.yaml", encoding=encoding, preset=preset, seed=seed)
    if resume is not None:
        _only_without("--resume continues a run as it was begun", set=settings, out=out)
        run = Run(resume)
        chosen = problem_of(run)
        run_config = chosen.config(run)
    elif config is not None:
        values = read_settings(config)
        chosen = problem_for(values)
        run_config = chosen.run_type.parse(values, str(config)).changed(parse_settings(settings))
        run = Run(out or Path("runs") / config.resolve().parent.name)
    else:
        assert problem is not None
        preset, chosen = preset or "cpu", problem_named(problem)
        folder = str(data or Path("data") / f"{problem}-{preset}")
        run_config = chosen.run(preset, encoding or "laape", folder, seed or 0).changed(parse_settings(settings))
        run = Run(out or Path("runs") / f"{problem}-{preset}-{run_config.encoding.name}-seed{run_config.seed}")
    if data is not None:
        run_config = run_config.changed({"dataset": str(data)})
    fit(
        chosen,
        run_config,
        run,
        resume=resume is not None,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        console=console,
    )
    if is_first_process():
        _next(f"farfield evaluate {run} --scales 1 2 3")


def evaluate(
    run: Path = typer.Argument(help="A run's folder."),
    scales: str = typer.Option("", help="Domain sizes, e.g. `1 2 10`: times the training domain; the paper's if none."),
    limit: int | None = typer.Option(
        None, help="Per scale: pairs of states, drawn at random once, or cities of urban wind; all by default."
    ),
    rollouts: int | None = typer.Option(None, help="Simulations per scale to roll out; all by default, 0 for none."),
    draws: int = typer.Option(10, help="Urban wind: draws of points that each city is predicted from."),
    cells: int | None = typer.Option(
        None, help="Urban wind: cells that each draw predicts, chosen at random; all by default, which is slow."
    ),
    data: Path | None = typer.Option(
        None, help="Data to test on, if not the run's own: a dataset folder, or your own data at any size."
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
    precision: str = typer.Option("float32", help="float32, or bfloat16: faster where the processor has units for it."),
) -> None:
    """Measure a run's errors on domains of rising size: RUN/evaluation.csv.

    Over one step and over rollouts; of urban wind, in the square of buildings and in the wake.

    Example: `farfield evaluate runs/swe-quick-laape-seed0 --scales 1 2 3 7 10`

    Run it again to continue: a scale that is done is not done again.
    """
    _there(run, data)
    from farfield.api import evaluate
    from farfield.evaluation.evaluate import Amount

    _at_least(0, limit=limit, rollouts=rollouts)
    _at_least(1, draws=draws, cells=cells)
    amount = Amount(limit, rollouts, draws, cells)
    options: dict[str, Any] = {"amount": amount, "device": device, "precision": precision}
    rows = evaluate(run, data, _listed(scales), **options, console=Console(stderr=True))
    print(f"{run / 'evaluation.csv'}: {len(rows)} rows")
    _next(f"farfield report {run}", "tables and figures")


def calibrate(
    run: str = typer.Argument(help="A run's folder, or a shipped model's name, of urban wind."),
    data: Path | None = typer.Option(
        None, help="Dataset folder whose validation cities are used.  [default: the run's]"
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
) -> None:
    """Measure how large a model's errors are on validation cities: predictions then say it beside every field.

    Example: `farfield calibrate runs/urban-columns-cpu-laape-seed0`
    """
    from farfield.problems import problem_of
    from farfield.runs.run import Run

    found = Run.find(run)
    print(problem_of(found).calibrate(found, data, device))


def finetune(
    run: Path = typer.Argument(help="A run on your own data."),
    data: Path = typer.Option(help="A few (larger) simulations of the same kind; all of them are trained on."),
    out: Path = typer.Option(help="Folder of the new run."),
    minutes: float | None = typer.Option(
        None, help="How long it may take here; the run's own steps unless given.", min=0.01
    ),
    settings: list[str] = typer.Option([], "--set", help="A setting of the run, e.g. old_share=0.3; repeatable."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    devices: int = typer.Option(1, min=1, help="Processes on this machine, one per GPU."),
    nodes: int = typer.Option(1, min=1, help="Machines; start the same command on each."),
    per_domain: int = typer.Option(
        1, min=1, help="So many of the processes share each domain, for those that fit no single device."
    ),
) -> None:
    """Continue a run on a few large simulations, with a part of its old data mixed in; errors before and after.

    Example: `farfield finetune runs/mine --data data/few-large --minutes 10 --out runs/mine-large`
    """
    import csv

    _there(run, data)
    from farfield import api
    from farfield.runs.config import parse_settings
    from farfield.training.loop import is_first_process

    done = api.finetune(
        run,
        data,
        out=out,
        minutes=minutes,
        settings=parse_settings(settings),
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        per_domain=per_domain,
        console=console,
    )
    if not is_first_process():
        return
    with (done.folder / "finetune.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["metric"] in ("l1", "l1_step"):
                print(f"{row['stage']:>6}, s = {row['scale']}: {row['field']} {100 * float(row['value']):.2f} %")
    _next(f"farfield predict --model {out} --input FILE --out FILE")


def report(
    runs: list[Path] = typer.Argument(
        help="Folders of evaluated runs, of one or several problems, encodings and seeds."
    ),
    out: Path = typer.Option(Path("report"), help="Folder for the page, tables and figures."),
    force: bool = typer.Option(False, "--force", help="Overwrite a report that is there."),
) -> None:
    """Make tables, figures and one HTML page of evaluated runs, from their saved rows only.

    Example: `farfield report runs/swe-quick-*-seed0 --out report`
    """
    _there(*runs)
    from farfield.api import report

    print(f"{report(runs, out, force=force)}: open it in a browser; tables and figures are beside it")


def view(
    file: Path = typer.Argument(help="A prediction, or data: .vtu, .vtk, .vtp, .npz, or .hdf5 in The Well's layout."),
    truth: Path | None = typer.Option(None, help="What it should be, to switch to or to see beside it."),
    buildings: Path | None = typer.Option(
        None, help="Wind: surfaces to draw, .stl, .obj, .ply or .vtk; else what is no air in FILE."
    ),
    simulation: int = typer.Option(0, help="States: which simulation of a file with several.", min=0),
    out: Path | None = typer.Option(None, help="The page.  [default: FILE with the ending .html]"),
) -> None:
    """Look at a prediction in the browser: one page, which needs no server and can be sent to others.

    **Wind in three dimensions**, with a slider for the height, streamlines, and truth, prediction or error:

    `farfield view flow.vtu --buildings city.stl`

    **States in time**, with a slider, truth beside prediction:

    `farfield view next.npz --truth solved.npz`
    """
    _there(file, truth, buildings)
    from farfield.view.files import write_view

    page, told = write_view(file, out, truth, buildings, simulation)
    print(f"{page}: {told}; open it in a browser")


def push(
    run: Path = typer.Argument(help="A run's folder."),
    address: str = typer.Argument(help="hf://owner/name: a repository of yours on the Hugging Face hub."),
    private: bool = typer.Option(False, help="Make the repository private, if it is new."),
) -> None:
    """Publish a run: its configuration, weights and provenance, with a model card made from them.

    Example: `farfield push runs/mine hf://me/my-model`

    Log in first: `hf auth login`. Anybody can then `farfield.load("hf://me/my-model")`.
    """
    from farfield.api import push

    print(f"{push(run, address, private=private)}: published")
    _next(f"farfield predict --model {address} --input FILE --out FILE", "by anybody")


def reproduce(
    problem: str = typer.Argument(help="swe, gray-scott, urban-wind, urban-columns or stability."),
    preset: str = typer.Option("quick", help="quick: minutes, cpu: the best for two cores, paper: as published."),
    encodings: str | None = typer.Option(None, help="Encodings to compare.  [default: rope laspe laape]"),
    seeds: str | None = typer.Option(
        None, help="Training runs per encoding, e.g. `0 1 2`: the tables show mean and spread.  [default: 0]"
    ),
    out: Path | None = typer.Option(None, help="Folder of runs and report.  [default: runs/PROBLEM-PRESET]"),
    data: Path | None = typer.Option(None, help="Dataset folder.  [default: data/PROBLEM-PRESET]"),
    settings: list[str] = typer.Option([], "--set", help="A setting of the runs, e.g. training.steps=400; repeatable."),
    accelerator: str = typer.Option("auto", help="auto, cpu or cuda."),
    models: list[str] = typer.Option(
        [], "--model", help="stability: trained Gray-Scott models, as run folders or shipped names; repeatable."
    ),
) -> None:
    """Repeat the paper's experiment: generate data, train, evaluate on larger domains, report.

    Example: `farfield reproduce swe --preset quick`

    `stability` shows where low precision breaks the encodings as published, and not here. It trains nothing:

    `farfield reproduce stability --model runs/gray-scott-cpu/laspe-seed0 --model runs/gray-scott-cpu/laape-seed0`

    Run it again to continue: what is done is not done again.
    """
    from farfield.runs.config import parse_settings
    from farfield.studies.reproduce import experiment, reproduce, reproduce_stability
    from farfield.training import Interrupted

    out = out or Path("runs") / f"{problem}-{preset}"
    if problem == "stability":  # a study, no problem
        _only_without("stability trains nothing", encodings=encodings, seeds=seeds, set=settings, data=data)
        page = reproduce_stability(models, preset, out, console=console)
        console.print(f"[bold]{page}[/]: open it in a browser; tables and figures are beside it")
        return
    _only_without(f"{problem} trains its own models", model=models)
    numbers = _listed(seeds or "0")
    if not all(number.isdigit() for number in numbers):
        raise ValueError(f"--seeds expects whole numbers, e.g. 0 1 2, got {seeds!r}")
    plan = experiment(problem, preset, data or Path("data") / f"{problem}-{preset}", parse_settings(settings))
    try:
        chosen = _listed(encodings or "rope laspe laape")
        page = reproduce(plan, chosen, list(map(int, numbers)), out, accelerator=accelerator, console=console)
    except Interrupted as stopped:
        raise Interrupted(f"{stopped}, or run the same command again") from None
    console.print(f"[bold]{page}[/]: open it in a browser; tables and figures are beside it")


_LARGE = "Large domains"
_STATES, _CITY = "States in a file: shallow water, Gray-Scott", "Buildings: urban wind"


def predict(
    model: str = typer.Option(help="A shipped model's name, or a run's folder."),
    out: Path | None = typer.Option(
        None, help="File of the prediction: the input's format, or .vtu, .vtk, .vtp, .npz, .csv for wind."
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
    force: bool = typer.Option(False, "--force", help="Overwrite files that exist."),
    input: Path | None = typer.Option(
        None, help="States to start from: .npz, or .hdf5 in The Well's layout.", rich_help_panel=_STATES
    ),
    steps: int | None = typer.Option(None, help="Saved steps to predict.  [default: 1]", rich_help_panel=_STATES),
    start: int | None = typer.Option(
        None,
        help="HDF5: which of the file's states to start from; -1 for the last.  [default: 0]",
        rich_help_panel=_STATES,
    ),
    buildings: Path | None = typer.Option(
        None,
        help="Buildings: STL, OBJ, PLY (x east, y north, z up, ground at z = 0), GeoJSON footprints with heights, "
        "CityJSON.",
        rich_help_panel=_CITY,
    ),
    roughness: float | None = typer.Option(
        None, help="Roughness length z0 of the ground [m]: 0.03 grass, 0.3 suburb, 1 city.", rich_help_panel=_CITY
    ),
    wind_direction: str | None = typer.Option(
        None,
        help="Where the wind comes from [degrees]: 0 north, 90 east, 270 west; or several, e.g. `225 250`.",
        rich_help_panel=_CITY,
    ),
    wind_directions: int | None = typer.Option(
        None, help="So many winds, evenly around the compass.  [default with --weather: 16]", rich_help_panel=_CITY
    ),
    wind_speed: float | None = typer.Option(
        None,
        help="Speed of the undisturbed wind [m/s]; neutral air scales with it.  [default: 6]",
        rich_help_panel=_CITY,
    ),
    speed_height: float | None = typer.Option(
        None,
        help="Height at which it has that speed, or of the weather station [m].  [default: 80; station: 10]",
        rich_help_panel=_CITY,
    ),
    weather: Path | None = typer.Option(
        None,
        help="Judge comfort and safety of pedestrians by an EPW file, or a CSV of direction, speed, frequency.",
        rich_help_panel=_CITY,
    ),
    station_roughness: float | None = typer.Option(
        None, help="Roughness length around the weather station [m].  [default: 0.03]", rich_help_panel=_CITY
    ),
    openfoam: Path | None = typer.Option(
        None,
        help="Instead of --out: an OpenFOAM case (simpleFoam) whose U, p, k, epsilon shall start from the prediction.",
        rich_help_panel=_CITY,
    ),
    inverse_length: float | None = typer.Option(
        None,
        help="1/L of the air [1/m]: 0 neutral, positive stable, negative unstable.  [default: 0]",
        rich_help_panel=_CITY,
    ),
    unit: str | None = typer.Option(
        None,
        help="Unit of the buildings, or of footprints' heights: m, cm, mm, km, ft, in.  [default: m]",
        rich_help_panel=_CITY,
    ),
    ground: bool = typer.Option(
        False, "--ground", help="Set every building on the ground (heights above the sea).", rich_help_panel=_CITY
    ),
    default_height: float | None = typer.Option(
        None, help="Height of footprints that have none [m].", rich_help_panel=_CITY
    ),
    height_attribute: str | None = typer.Option(
        None, help="Property of the footprints with the height.  [default: height and its like]", rich_help_panel=_CITY
    ),
    points: Path | None = typer.Option(
        None,
        "--points",
        "--probes",
        help="Where to predict: the cells of a volume mesh, else the points, of a .vtu, .vtk, .vtp, .npy or .npz; or a "
        "CSV with columns x, y, z (or longitude, latitude, z).",
        rich_help_panel=_CITY,
    ),
    spacing: float | None = typer.Option(
        None,
        help="Cell size [m], between the buildings, of the mesh made without --points.  [default: as in training]",
        rich_help_panel=_CITY,
    ),
    fields: str | None = typer.Option(
        None, help="What to write, e.g. `velocity k`.  [default: all that the model has]", rich_help_panel=_CITY
    ),
    seed: int | None = typer.Option(
        None, help="Decides which points stand for surfaces and air.  [default: 0]", rich_help_panel=_CITY
    ),
    draws: int | None = typer.Option(
        None, help="Predictions to average, each with its own points.  [default: 1]", rich_help_panel=_CITY
    ),
    devices: int = typer.Option(
        1, min=1, help="Processes on this machine that share the domain, one per GPU.", rich_help_panel=_LARGE
    ),
    nodes: int = typer.Option(
        1,
        min=1,
        help="Machines that share it; run the same command on each. Under torchrun or srun, give neither of the two.",
        rich_help_panel=_LARGE,
    ),
    parts: int | None = typer.Option(
        None,
        min=1,
        help="Predict so many parts of the domain one after the other, in one process with little memory.",
        rich_help_panel=_LARGE,
    ),
    timeout: float = typer.Option(
        30.0, min=1.0, help="Seconds after which a silent process counts as lost.", rich_help_panel=_LARGE
    ),
) -> None:
    """Predict with a trained model, in physical units, on a domain of any size.

    **The next states of a file** (NumPy: one array (N,) or (B, N) per field and `positions` (N,) or (N, P); the output
    holds the states (steps + 1, ...), the given one first):

    `farfield predict --model swe-laape --input state.npz --out next.npz --steps 10`

    **The steady wind around buildings**, on a mesh made around them or at your own points, with a picture of the wind
    at 2 m height beside it; open the .vtu in ParaView:

    `farfield predict --model urban-wind-laape --buildings city.stl --roughness 0.3 --wind-direction 250 --out flow.vtu`

    `farfield predict ... --wind-directions 16 --wind-speed 5 --speed-height 10 --points probes.csv --out wind.csv`

    The wind is that of the training data, 6 m/s at 80 m height, unless told otherwise. Points inside buildings get NaN.

    **Comfort and safety of pedestrians**, a map, its table, a picture and a .vtu of it:

    `farfield predict ... --buildings city.geojson --roughness 0.5 --weather station.epw --out comfort.vtu`

    **A domain that is too large for one device or memory** is cut into parts, which know of one another what they need;
    --out may then also be a .pvtu or, for HDF5, a .pvti:

    `farfield predict --model swe-laape --input state.npz --out next.npz --devices 2`
    """
    if (out is None) == (openfoam is None):
        raise ValueError("give --out FILE (or, for urban wind, --openfoam CASE instead of it)")
    if (input is None) == (buildings is None):
        raise ValueError("give either --input FILE (states) or --buildings FILE (urban wind)")
    is_folder = len(Path(model).parts) > 1 and not model.startswith("hf:")
    _there(input, buildings, points, weather, openfoam, Path(model) if is_folder else None)
    _at_least(1, steps=steps, draws=draws)
    from farfield.processes import joined, launch, place

    if devices * nodes > 1:
        _only_without("--devices and --nodes share a domain among processes, --parts is for one", parts=parts)
        if place() is None:
            command = [sys.executable, "-m", "farfield", *sys.argv[1:]]
            raise typer.Exit(launch(command, devices, nodes))
    from farfield.problems import problem_of
    from farfield.runs.run import Run

    given = {
        "force": force or None,
        "input": input,
        "steps": steps,
        "start": start,
        "buildings": buildings,
        "roughness": roughness,
        "wind_direction": None if wind_direction is None else _numbers("--wind-direction", wind_direction),
        "wind_directions": wind_directions,
        "wind_speed": wind_speed,
        "speed_height": speed_height,
        "weather": weather,
        "station_roughness": station_roughness,
        "openfoam": openfoam,
        "inverse_length": inverse_length,
        "unit": unit,
        "ground": ground or None,
        "default_height": default_height,
        "height_attribute": height_attribute,
        "points": points,
        "spacing": spacing,
        "fields": None if fields is None else _listed(fields),
        "seed": seed,
        "draws": draws,
    }
    run = Run.find(model)
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with contextlib.ExitStack() as stack:
        first = True
        if place() is not None:
            group = stack.enter_context(joined(timeout, device))
            options["parts"], first = lambda work: [work(group)], group.rank == 0
        elif parts is not None and out is not None:
            from farfield.attention import InTurn

            out.parent.mkdir(parents=True, exist_ok=True)
            waiting = stack.enter_context(tempfile.TemporaryDirectory(prefix=".waiting-", dir=out.parent))
            options["parts"] = lambda work: InTurn(parts, waiting).run(work)
        done = problem_of(run).predict_file(run, options, out or Path(), device)
    if not first:
        return
    print(done)
    if out is not None and out.is_file() and out.suffix != ".csv" and weather is None:
        _next(f"farfield view {out}", "in the browser")


def _next(command: str, why: str = "") -> None:
    """The command to type after this one."""
    print(f"next: {command}" + (f"   # {why}" if why else ""))


def _there(*paths: Path | None) -> None:
    """Refuse what does not exist, before anything heavy is imported."""
    for path in paths:
        if path is not None and not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")


def _listed(text: str) -> list[str]:
    return [part for part in text.replace(",", " ").split() if part]


def _numbers(option: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in _listed(text)]
    except ValueError:
        numbers = []
    if not numbers:
        raise ValueError(f"{option} expects numbers, e.g. `225 250`, got {text!r}")
    return numbers


def _at_least(lowest: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < lowest:
            raise ValueError(f"--{name} must be at least {lowest}, got {value}")


def _only_without(why: str, **options: object) -> None:
    """Refuse options that would have no effect."""
    if given := [f"--{name}" for name, value in options.items() if value not in (None, [])]:
        raise ValueError(f"{why}: {', '.join(given)} cannot be given with it")


COMMANDS = (demo, generate, check, train, evaluate, calibrate, finetune, report, reproduce, predict, view, push)
