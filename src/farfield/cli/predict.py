"""``farfield predict``."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer

from farfield.cli.words import listed, numbers, refuse_beside, require_at_least, require_files, say_next

_OURS = ("model", "out", "device", "devices", "nodes", "parts", "timeout")  # the others are the problem's
_LARGE = "Large domains"
_STATES, _CITY = "Data in a file: steps, and models of your own data", "Buildings: urban wind"


def predict(
    model: str = typer.Option(help="A shipped model's name, or a run's folder."),
    out: Path | None = typer.Option(
        None, help="File of the prediction: .npz, .vtu, .vtk, .vtp, .hdf5, for wind .csv; a folder for several."
    ),
    device: str | None = typer.Option(None, help="cpu or cuda; CUDA where there is one."),
    force: bool = typer.Option(False, "--force", help="Overwrite files that exist."),
    input: Path | None = typer.Option(
        None, help="What to start from: .npz, .hdf5, VTK, or a folder of them.", rich_help_panel=_STATES
    ),
    steps: int | None = typer.Option(None, help="Saved steps to predict.  [default: 1]", rich_help_panel=_STATES),
    start: int | None = typer.Option(
        None,
        help="Which of a file's states to start from; -1 for the last.  [default: 0]",
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

    **A model of your own data** starts from a file like those it was trained on, with one state, or a steady problem's
    inputs; a mesh comes back with the fields on it:

    `farfield predict --model runs/mine --input large.vtu --out predicted.vtu`

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
    options: dict[str, Any] = {
        name: given
        for name, given in locals().items()
        if name not in _OURS and given is not None and given is not False
    }
    if wind_direction is not None:
        options["wind_direction"] = numbers("--wind-direction", wind_direction)
    if fields is not None:
        options["fields"] = listed(fields)
    if (out is None) == (openfoam is None):
        raise ValueError("give --out FILE (or, for urban wind, --openfoam CASE instead of it)")
    if (input is None) == (buildings is None):
        raise ValueError("give either --input FILE (states) or --buildings FILE (urban wind)")
    is_folder = len(Path(model).parts) > 1 and not model.startswith("hf:")
    require_files(input, buildings, points, weather, openfoam, Path(model) if is_folder else None)
    require_at_least(1, steps=steps, draws=draws)
    from farfield.processes import joined, launch, place

    if devices * nodes > 1:
        refuse_beside("--devices and --nodes share a domain among processes, --parts is for one", parts=parts)
        if place() is None:
            command = [sys.executable, "-m", "farfield", *sys.argv[1:]]
            raise typer.Exit(launch(command, devices, nodes))
    from farfield.problems import problem_of
    from farfield.runs.run import Run

    run = Run.find(model)
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
        say_next(f"farfield view {out}", "in the browser")
