"""Urban wind, as runs of AB-SWIFT; what is special about it as a problem.

``paper`` is the published set-up, for a GPU; ``cpu`` the best that one core trains in about an hour a run; ``quick``
shows that everything works.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from farfield.evaluation.evaluate import Amount, Subject
from farfield.models.config import EncodingName
from farfield.problems.paper import PAPER_TRAINING
from farfield.problems.problem import Preset, Problem, folder_of, require
from farfield.problems.share import WHOLE, Share
from farfield.problems.urban_wind.config import UrbanRun
from farfield.problems.urban_wind.shown import SHOWN
from farfield.processes import place
from farfield.runs.config import RunConfig
from farfield.runs.run import Run
from farfield.runs.weights import Device

if TYPE_CHECKING:
    from farfield.data.dataset import Dataset
    from farfield.problems.urban_wind.prediction import UrbanPredictor
    from farfield.training.loop import Task


def paper(encoding: EncodingName, dataset: str, seed: int = 0) -> UrbanRun:
    """The paper's AB-SWIFT (table "AB-SWIFT hyperparameters")."""
    return UrbanRun.parse(
        {
            "dataset": dataset,
            "seed": seed,
            "encoding": {"name": encoding},
            "model": {
                "width": 192,
                "heads": 3,
                "expansion": 4,
                "processor_depth": 3,
                "decoder_depth": 4,
                "obstacle_radius": 1.0,
                "terrain_radius": 5.0,
            },
            "points": {
                "obstacles": 4096,
                "terrain": 4096,
                "obstacle_supernodes": 1024,
                "terrain_supernodes": 1024,
                "anchors": 8192,
            },
            "training": {**PAPER_TRAINING, "batch_size": 1, "epochs": 500},
        }
    )


def cpu(encoding: EncodingName, dataset: str, seed: int = 0) -> UrbanRun:
    """AB-SWIFT on one core in an hour: narrower, with an eighth of the points.

    So few points lie metres apart, hence the larger pooling radii: with the paper's, a supernode would know itself
    alone. Wavelengths below the distance of two anchors would alias; without them the loss falls faster. Queries read
    from few anchors and count in the loss, which shows the network more of the air per step; mirror images double the
    cities.
    """
    return paper(encoding, dataset, seed).changed(
        {
            "encoding.rotary.min_wavelength": 60.0,
            "encoding.rotary.max_wavelength": 2000.0,
            "model.width": 96,
            "model.obstacle_radius": 4.0,
            "model.terrain_radius": 12.0,
            "model.max_neighbours": 16,
            "points.obstacles": 2048,
            "points.terrain": 1024,
            "points.obstacle_supernodes": 384,
            "points.terrain_supernodes": 128,
            "points.anchors": 1024,
            "points.queries": 1024,
            "mirrored": True,
            "training.optimiser": "adamw",
            "training.learning_rate": 1e-3,
            "training.final_learning_rate": 1e-5,
            "training.gradient_clip": 1.0,
            "training.precision": "float32",
            "training.steps": 3000,
            "training.validate_every": 500,
            "training.checkpoint_every": 100,
        }
    )


def quick(encoding: EncodingName, dataset: str, seed: int = 0) -> UrbanRun:
    """Urban wind in minutes: too short, and with too few cities, to be accurate."""
    return cpu(encoding, dataset, seed).changed(
        {
            "model.width": 48,
            "points.anchors": 512,
            "points.queries": 512,
            "training.steps": 300,
            "training.validate_every": 100,
        }
    )


class UrbanGeneration:
    """Random cities, solved by OpenFOAM; the published data is as good."""

    default_preset = "quick"

    def configure(self, preset: str, seed: int = 0, scales: str | None = None, changes: Any = ()) -> Any:
        from farfield.problems.urban_wind.presets import PRESETS

        if scales:
            raise ValueError("the cities of urban-wind are as published: --scales has no effect on them")
        if preset not in PRESETS:
            raise ValueError(f"unknown preset {preset!r}; expected one of {', '.join(PRESETS)}")
        settings = PRESETS[preset]
        for change in changes:
            name, _, model = change.partition("=")
            if name != "starts_from" or not model:
                raise ValueError(
                    "the cities of urban-wind are as published: of them --set can say starts_from=MODEL alone, "
                    f"got {change}"
                )
            settings = settings.starting_from(model)
        return settings, seed

    def make(
        self, settings: Any, out: str | Path, workers: int | None = None, console: Any = None, share: Share = WHOLE
    ) -> str:
        from farfield.problems.urban_wind.files import CARD_FILE
        from farfield.problems.urban_wind.generation import generate_urban_wind

        preset, seed = settings
        shown = console is None or console.is_terminal
        index = generate_urban_wind(out, preset, workers or os.cpu_count() or 1, seed, show_progress=shown, share=share)
        if index is None:
            return f"{out}: {share}; the last part to finish, or `--merge`, writes index and card"
        return f"wrote {index} and {index.with_name(CARD_FILE)}"

    def is_whole(self, out: str | Path) -> bool:
        """All is there: OpenFOAM is not needed. Of data made here the card is written last; published data has none."""
        from farfield.problems.urban_wind.files import CARD_FILE, INDEX_FILE, SETTINGS_FILE

        folder = Path(out)
        made_here = (folder / SETTINGS_FILE).exists()
        return (folder / INDEX_FILE).exists() and ((folder / CARD_FILE).exists() or not made_here)


READING = ("unit", "ground", "default_height", "height_attribute")
OF_ALL = ("roughness", "wind_directions", "speed_height", "seed", "draws", "force")
OF_WIND = ("wind_direction", "wind_speed", "inverse_length", "points", "spacing", "fields", "parts")
OF_COMFORT = ("weather", "station_roughness", "points")
OF_OPENFOAM = ("openfoam", "wind_direction", "wind_speed")


def predict_wind_file(problem: Problem, run: Run, options: Mapping[str, Any], out: Path, device: Device) -> str:
    """``farfield predict`` of a network of wind: buildings in; files of the wind, of comfort, or a case of OpenFOAM."""
    kind = next((name for name in ("weather", "openfoam") if name in options), "wind")
    known = {"wind": OF_WIND, "weather": OF_COMFORT, "openfoam": OF_OPENFOAM}[kind]
    require(run, options, "buildings", "a file of buildings", (*READING, *OF_ALL, *OF_WIND, *OF_COMFORT, *OF_OPENFOAM))
    if "parts" in options and "parts" not in known:
        raise ValueError(f"--{kind} works in one process: leave out --devices, --nodes and --parts")
    if unused := [name for name in options if name not in ("buildings", *READING, *OF_ALL, *known)]:
        raise ValueError(f"--{unused[0].replace('_', '-')} has no use {f'with --{kind}' if kind != 'wind' else 'here'}")
    if "roughness" not in options or not (kind == "weather" or {"wind_direction", "wind_directions"} & options.keys()):
        raise ValueError(
            "--buildings needs --roughness (z0 in metres) and --wind-direction (degrees), --wind-directions (how many, "
            "around the compass) or --weather"
        )
    from farfield.problems.urban_wind.formats import read_buildings

    if (place() or (0,))[0] > 0:  # what there is to warn of, the first process says for all
        warnings.simplefilter("ignore")
    given = dict(options)
    reading = {name: given.pop(name) for name in READING if name in given}
    city, count = read_buildings(given.pop("buildings"), **reading), given.pop("wind_directions", None)
    if count is not None and kind != "weather":
        if "wind_direction" in given or kind == "openfoam":
            raise ValueError("give --wind-direction (one or more angles), or --wind-directions (how many), not both")
        if not 1 <= count <= 360:
            raise ValueError(f"--wind-directions expects a number from 1 to 360, got {count}")
        given["wind_direction"] = [360.0 * number / count for number in range(count)]
    predictor = problem.predictor(run, device)
    if kind == "weather":
        from farfield.problems.urban_wind.comfort_files import predict_comfort

        if count is not None:
            given["directions"] = count
        written = predict_comfort(predictor, city, given.pop("weather"), out, **given)
    elif kind == "openfoam":
        from farfield.problems.urban_wind.openfoam_start import write_start

        given.pop("force", None)
        written = write_start(predictor, city, given.pop("openfoam"), **given)
    else:
        from farfield.problems.urban_wind.city_files import predict_city

        written = predict_city(predictor, city, out, **given)
    return f"wrote {', '.join(map(str, written[:-1]))}{' and ' if written[1:] else ''}{written[-1]}"


def calibrate_wind(problem: Problem, run: Run, folders: list[Path], device: Device) -> str:
    """``farfield calibrate`` of a network of wind: its errors on validation cities, into the run's folder."""
    from farfield.problems.urban_wind.files import UrbanWindFiles
    from farfield.problems.urban_wind.uncertainty import calibrate

    predictor = problem.predictor(run, device)
    found = calibrate(predictor, run, [UrbanWindFiles(folder, predictor.fields) for folder in folders])
    found.write(run)
    judged = ", ".join(f"{name} {share:.1%}" for name, share in found.held_out.items())
    return f"{run.folder}: {found}; of cities held out, within their errors: {judged}"


@dataclass(frozen=True)
class UrbanWind(Problem):
    """Buildings -> the steady wind around them."""

    run_type: ClassVar[type[RunConfig]] = UrbanRun

    def task(self, config: UrbanRun) -> Task:
        from farfield.problems.urban_wind.training import urban_task

        return urban_task(config)

    def predictor(self, run: Run, device: Device = None) -> UrbanPredictor:
        from farfield.problems.urban_wind.prediction import UrbanPredictor

        return UrbanPredictor.load(run, device)

    def subject(self, run: Run, data: Dataset | str | Path | None = None, device: Device = None) -> Subject:
        from farfield.problems.urban_wind.scoring import UrbanSubject

        return UrbanSubject(self.predictor(run, device), folder_of(run, data))

    def calibrate(self, run: Run, data: str | Path | None = None, device: Device = None) -> str:
        return calibrate_wind(self, run, [folder_of(run, data)], device)

    def predict_file(self, run: Run, options: Mapping[str, Any], out: Path, device: Device = None) -> str:
        return predict_wind_file(self, run, options, out, device)


SCALES = ("1", "2", "5")
PROBLEM = UrbanWind(
    name="urban-wind",
    shown=SHOWN,
    generation=UrbanGeneration(),
    presets={
        "quick": Preset(quick, minutes=4, scales=SCALES, amounts=dict.fromkeys(SCALES, Amount(draws=1))),
        "cpu": Preset(
            cpu,
            minutes=120,
            scales=SCALES,
            # The paper's ten draws, of the largest cities three; each predicts a random share of the cells.
            amounts={"1": Amount(cells=2048), "2": Amount(cells=4096), "5": Amount(draws=3, cells=8192)},
        ),
        "paper": Preset(paper, minutes=60 * 24 * 60, scales=SCALES),  # on two cores; it wants a GPU
    },
)
