"""The README's picture: the wind at 2 m height among 225 random buildings, by the shipped model.

python docs/city.py                  # docs/city.png
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from farfield.api import load
from farfield.problems.urban_wind.buildings import boxes_to_mesh, random_buildings, write_stl
from farfield.problems.urban_wind.city_files import predict_city

HERE = Path(__file__).parent


def main() -> None:
    buildings = random_buildings(np.random.default_rng(0), scale=5.0, count=225)
    with tempfile.TemporaryDirectory() as folder:
        stl, flow = Path(folder) / "city.stl", Path(folder) / "flow.vtu"
        write_stl(stl, boxes_to_mesh(buildings))
        predict_city(load("urban-wind-laape"), stl, flow, roughness=0.3, wind_direction=250.0)
        shutil.copy(flow.with_suffix(".png"), HERE / "city.png")


if __name__ == "__main__":
    main()
