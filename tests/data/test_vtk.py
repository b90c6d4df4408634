"""VTK files."""

import numpy as np
import pytest
import pyvista as pv

from farfield.data.vtk import write_vtk


@pytest.mark.parametrize("name", ["a.vtu", "a.vtk"])
def test_cells_come_back(tmp_path, name: str) -> None:
    box = pv.ImageData(dimensions=(3, 2, 2)).cast_to_unstructured_grid()
    box.cell_data["velocity"] = np.arange(6.0).reshape(2, 3)
    write_vtk(tmp_path / name, box)
    back = pv.read(tmp_path / name)
    assert isinstance(back, pv.UnstructuredGrid)
    np.testing.assert_array_equal(back.cell_data["velocity"], box.cell_data["velocity"])
    np.testing.assert_array_equal(back.points, box.points)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.vtp", "a.vtk"])
def test_points_come_back(tmp_path, name: str) -> None:
    cloud = pv.PolyData(np.random.default_rng(0).random((5, 3)))
    cloud.point_data["k"] = np.arange(5.0)
    write_vtk(tmp_path / name, cloud)
    np.testing.assert_array_equal(pv.read(tmp_path / name).point_data["k"], np.arange(5.0))


def test_a_name_that_does_not_suit_is_refused(tmp_path) -> None:
    for name in ("a.vtu", "a.stl"):
        with pytest.raises(ValueError, match="expected a name ending in"):
            write_vtk(tmp_path / name, pv.PolyData(np.zeros((1, 3))))
    assert list(tmp_path.iterdir()) == []
