"""Points of interest from a table."""

from pathlib import Path

import numpy as np
import pytest

from farfield.problems.urban_wind.footprints import LocalFrame
from farfield.problems.urban_wind.probes import read_probes


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_table_is_read_and_its_other_columns_are_kept(tmp_path) -> None:
    probes = read_probes(write(tmp_path / "a.csv", "name;X;Y;Z\ndoor;1;2;1.5\n\nroof;3;4;20\n"))
    assert probes.positions.tolist() == [[1, 2, 1.5], [3, 4, 20]]
    header, rows = probes.table({"velocity": np.arange(6.0).reshape(2, 3), "k": np.array([0.5, np.nan])})
    assert header == ["name", "x", "y", "z", "velocity_x", "velocity_y", "velocity_z", "k"]
    assert rows[1] == ["roof", 3.0, 4.0, 20.0, "3", "4", "5", "nan"]


def test_places_on_the_earth_need_a_city_there(tmp_path) -> None:
    path = write(tmp_path / "a.csv", "lon,lat\n13.4,52.5\n13.401,52.5\n")
    with pytest.warns(UserWarning, match="no column z: its points are taken at 1.75 m"):
        probes = read_probes(path, LocalFrame(13.4, 52.5))
    np.testing.assert_allclose(probes.positions, [[0, 0, 1.75], [67.9, 0, 1.75]], atol=0.1)
    with pytest.raises(ValueError, match="has lon and lat, the buildings have not"):
        read_probes(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table with columns x, y, z .* got 0 rows of nothing"),
        ("x,y,z\n", "got 0 rows of x, y, z"),
        ("a,b\n1,2\n", "got 1 rows of a, b"),
        ("x,y,z\n1,2,3\n1,high,3\n", "line 3: y must be a number, got 'high'"),
        ("x,y,z\n1,nan,3\n", "line 2: y must be a number, got 'nan'"),
        ("x,y,z\n1,2\n", "line 2: expected 3 columns, got 2"),
    ],
)
def test_bad_tables_are_named(tmp_path, text, message) -> None:
    with pytest.raises(ValueError, match=message):
        read_probes(write(tmp_path / "a.csv", text))
