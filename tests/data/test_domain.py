import numpy as np
import pytest

from farfield.data.domain import Domain, boundary_flags


def test_a_scaled_domain_keeps_the_cell_size_and_may_differ_by_axis():
    domain = Domain((4, 6), (2.0, 3.0)).scaled((3, 1.5))
    assert domain == Domain((12, 9), (6.0, 4.5))
    assert domain.spacing == (0.5, 0.5)


def test_points_run_fastest_along_the_last_axis_and_flags_mark_the_ends_of_each_axis():
    points = Domain((3, 4), (3.0, 4.0)).points()
    np.testing.assert_array_equal(points[:5], [[0.5, 0.5], [0.5, 1.5], [0.5, 2.5], [0.5, 3.5], [1.5, 0.5]])
    flags = boundary_flags(points).reshape(3, 4, 2)
    np.testing.assert_array_equal(flags[:, 1, 0], [1, 0, 1])
    np.testing.assert_array_equal(flags[1, :, 1], [1, 0, 0, 1])


@pytest.mark.parametrize(
    ("cells", "extent", "message"),
    [
        ((0,), (1.0,), "at least one cell"),
        ((-3,), (1.0,), "at least one cell"),
        ((2.5,), (1.0,), "whole numbers"),
        ((4,), (0.0,), "positive, finite extent"),
        ((4,), (-1.0,), "positive, finite extent"),
        ((4,), (np.inf,), "positive, finite extent"),
        ((4, 4), (1.0,), "one cell count and one extent per axis"),
        ((), (), "one cell count and one extent per axis"),
    ],
)
def test_sizes_that_are_none_are_refused(cells, extent, message):
    with pytest.raises(ValueError, match=message):
        Domain(cells, extent)


@pytest.mark.parametrize("scale", [(0, 1), (-1, 1), (1.3, 1), (2,)])
def test_scales_that_give_no_domain_are_refused(scale):
    with pytest.raises(ValueError, match="scale"):
        Domain((4, 4), (1.0, 1.0)).scaled(scale)
