import math

import pytest
import torch

from farfield.evaluation.metrics import mean_error, relative_errors


def test_errors_are_what_a_hand_computes():
    truth = torch.tensor([[[1.0, 10.0], [-3.0, 0.0]]])  # one sample, two points, two fields
    prediction = torch.tensor([[[2.0, 10.0], [-3.0, 5.0]]])
    errors = relative_errors(prediction, truth)
    assert errors["l1"].tolist() == [[1 / 4, 5 / 10]]
    torch.testing.assert_close(errors["l2"], torch.tensor([[math.sqrt(1 / 10), math.sqrt(25 / 100)]]))


def test_errors_do_not_depend_on_the_unit():
    truth, prediction = torch.randn(2, 3, 5, 2, generator=torch.Generator().manual_seed(0))
    for name, values in relative_errors(prediction, truth).items():
        torch.testing.assert_close(relative_errors(1000 * prediction, 1000 * truth)[name], values)


def test_a_sample_counts_as_much_as_any_other():
    """The mean of ratios, not the ratio of means: a calm state weighs as much as a violent one."""
    truth = torch.tensor([[[1.0]], [[100.0]]])
    prediction = torch.tensor([[[2.0]], [[100.0]]])
    assert mean_error(relative_errors(prediction, truth)["l1"][:, 0]) == (0.5, 2)


def test_a_field_that_does_not_change_has_no_relative_error():
    truth = torch.tensor([[[0.0]], [[2.0]]])
    errors = relative_errors(torch.ones(2, 1, 1), truth)["l1"]
    assert errors[0].isnan().all()
    assert mean_error(errors[:, 0]) == (0.5, 1)
    assert math.isnan(mean_error(errors[:1, 0])[0])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_prediction_that_is_no_number_is_infinitely_wrong(value):
    errors = relative_errors(torch.full((1, 2, 1), value), torch.ones(1, 2, 1))
    assert all(float(error) == math.inf for error in errors.values())
