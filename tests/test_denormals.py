"""Denormal numbers count as zero where that is asked for, and only there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farfield.denormals import denormals_as_zero


def _halved() -> tuple[float, float]:
    smallest = torch.finfo(torch.float32).tiny
    return float(torch.tensor(smallest) / 2), float(np.float32(smallest) / np.float32(2))


def test_denormals_are_zero_within_and_come_back_after_an_error() -> None:
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot treat denormals as zero")
    assert all(_halved())
    with pytest.raises(KeyError), denormals_as_zero():
        assert not any(_halved())
        raise KeyError
    assert all(_halved())
    with denormals_as_zero():
        with denormals_as_zero():
            pass
        assert not any(_halved())  # the outer one still holds
