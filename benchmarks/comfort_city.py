"""A city of footprints and a year of weather, made up but seeded; then how comfortable its streets are.

    python benchmarks/comfort_city.py --out comfort          # makes city.geojson and station.epw, and judges them

The city has streets off the compass, courtyards, towers and gaps, in longitude and latitude (around 13.40 E, 52.50 N,
where nothing of the kind stands). The weather has prevailing south-westerly wind, a calm hour in twenty and gaps.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import shapely

from farfield.api import load
from farfield.problems.urban_wind.comfort_files import predict_comfort
from farfield.problems.urban_wind.footprints import LocalFrame

FRAME = LocalFrame(13.4, 52.5)
EXTENT = 600.0  # m
STREETS_TURNED = 17.0  # degrees


def footprints(seed: int) -> list[tuple[shapely.Polygon, float]]:
    """Blocks of houses between streets: outlines (m) and heights (m)."""
    rng = np.random.default_rng(seed)
    found: list[tuple[shapely.Polygon, float]] = []
    for x in np.arange(-EXTENT / 2, EXTENT / 2 - 20, 38.0):
        for y in np.arange(-EXTENT / 2, EXTENT / 2 - 20, 38.0):
            if rng.random() < 0.12:
                continue  # a square
            width, depth = rng.uniform(16, 27, 2)
            house = shapely.box(x, y, x + width, y + depth)
            height = float(rng.gamma(6, 2.6)) + 6
            if rng.random() < 0.08:  # a tower
                house, height = shapely.box(x, y, x + 20, y + 20), float(rng.uniform(35, 48))
            elif rng.random() < 0.25 and min(width, depth) > 22:  # a courtyard
                house -= shapely.box(x + 7, y + 7, x + width - 7, y + depth - 7)
            elif rng.random() < 0.3:  # an L
                house -= shapely.box(x + width / 2, y + depth / 2, x + width, y + depth)
            found.append((house, height))
    turned = shapely.affinity.rotate
    return [(turned(house, STREETS_TURNED, origin=(0, 0)), height) for house, height in found]


def write_city(path: Path, seed: int = 0) -> int:
    """GeoJSON in longitude and latitude; returns how many footprints it has."""
    houses = footprints(seed)
    features = [
        {
            "type": "Feature",
            "geometry": shapely.geometry.mapping(shapely.transform(house, FRAME.to_degrees)),
            "properties": {"height": round(height, 1)},
        }
        for house, height in houses
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return len(houses)


def write_weather(path: Path, seed: int = 0, hours: int = 8760) -> None:
    """An EPW file: whole degrees in steps of ten, speeds in tenths of m/s at 10 m."""
    rng = np.random.default_rng(seed)
    prevailing = rng.random(hours) < 0.65
    direction = np.where(prevailing, rng.normal(235, 35, hours), rng.uniform(0, 360, hours))
    direction = np.round(direction / 10) * 10 % 360
    speed = np.round(rng.weibull(2.0, hours) * np.where(prevailing, 5.2, 3.4), 1)
    speed[rng.random(hours) < 0.05] = 0.0
    missing = rng.random(hours) < 0.01
    direction[missing], speed[missing] = 999, 999
    head = ["LOCATION,Made up,-,-,seeded,0,52.5,13.4,1,40", *(f"COMMENTS {n}" for n in range(7))]
    rows = [
        ",".join([f"2021,{1 + h // 730},1,{h % 24 + 1},60,-", *["0"] * 14, f"{d:.0f}", f"{s:.1f}", *["0"] * 13])
        for h, (d, s) in enumerate(zip(direction, speed, strict=True))
    ]
    path.write_text("\n".join([*head, *rows]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("comfort"))
    parser.add_argument("--model", default="urban-wind-laape")
    parser.add_argument("--directions", type=int, default=16)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    city, station = arguments.out / "city.geojson", arguments.out / "station.epw"
    count = write_city(city)
    write_weather(station)
    began, cpu = time.monotonic(), time.process_time()
    written = predict_comfort(
        load(arguments.model),
        city,
        station,
        arguments.out / "comfort.vtu",
        roughness=0.5,
        directions=arguments.directions,
        force=True,
    )
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print(f"{count} footprints, {arguments.directions} directions: {seconds:.0f} s, {cpu:.0f} s of CPU")
    print(f"wrote {', '.join(map(str, written))}")


if __name__ == "__main__":
    main()
