"""Monin-Obukhov similarity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad

from farfield.problems.urban_wind.inflow_profiles import (
    C_MU,
    GRAVITY,
    KAPPA,
    PROFILE_HEIGHTS,
    _phi_momentum,
    friction_velocity,
    inflow_profile,
    speed_ratio,
)

ROUGHNESSES = [0.05, 0.3, 1.0]
STABILITIES = [-0.1, -0.01, 0.0, 0.01, 0.05]


@pytest.mark.parametrize("roughness", ROUGHNESSES)
@pytest.mark.parametrize("inverse_length", STABILITIES)
def test_reference_speed_and_temperature(roughness: float, inverse_length: float) -> None:
    at = inflow_profile(roughness, inverse_length, np.array([80.0, 2.0]))
    assert at[0, 0] == pytest.approx(6.0)
    assert at[1, 1] == pytest.approx(293.15)


@pytest.mark.parametrize("roughness", ROUGHNESSES)
def test_neutral_air_is_the_logarithmic_law(roughness: float) -> None:
    u_star = KAPPA * 6 / np.log((80 + roughness) / roughness)
    profile = inflow_profile(roughness)
    assert profile.shape == (64, 4)
    assert np.allclose(profile[:, 0], u_star / KAPPA * np.log((PROFILE_HEIGHTS + roughness) / roughness))
    assert np.allclose(profile[:, 1], 293.15)
    assert np.allclose(profile[:, 2], u_star**2 / np.sqrt(C_MU))
    assert np.allclose(profile[:, 3], u_star**3 / (KAPPA * (PROFILE_HEIGHTS + roughness)))


@pytest.mark.parametrize("sign", [-1, 1])
def test_weak_stratification_tends_to_neutral(sign: int) -> None:
    heights = PROFILE_HEIGHTS[1:]  # the wind on the ground is zero: no relative difference there
    neutral = inflow_profile(0.3, 0.0, heights)
    differences = [np.abs(inflow_profile(0.3, sign * weak, heights) / neutral - 1).max() for weak in (1e-4, 1e-5, 1e-6)]
    assert differences[0] < 6.1 * 1e-4 * 100, "first order: phi_m - 1 is at most 6.1 zeta"
    assert differences[1] < differences[0] / 5 and differences[2] < differences[1] / 5


@pytest.mark.parametrize("inverse_length", [-0.1, -0.01, 0.01, 0.05])
def test_wind_is_the_integral_of_its_shear(inverse_length: float) -> None:
    """kappa (z + z0) / u* dU/dz = phi_m, integrated numerically."""
    roughness = 0.3
    u_star = friction_velocity(roughness, inverse_length)

    def shear(height: float) -> float:
        distance = height + roughness
        return float(u_star / KAPPA / distance * _phi_momentum(np.array(distance * inverse_length)))

    for top in (5.0, 40.0, 100.0):
        speed = inflow_profile(roughness, inverse_length, np.array([top]))[0, 0]
        assert speed == pytest.approx(quad(shear, 0, top)[0], rel=1e-6)


@pytest.mark.parametrize("inverse_length", [-0.1, -0.01, 0.01, 0.05])
def test_heat_flux_has_the_sign_of_the_stratification(inverse_length: float) -> None:
    profile = inflow_profile(0.3, inverse_length)
    assert np.all(np.sign(np.diff(profile[:, 1])) == np.sign(inverse_length))
    u_star = friction_velocity(0.3, inverse_length)
    theta_star = u_star**2 * 293.15 * inverse_length / (KAPPA * GRAVITY)
    gradient = np.diff(profile[:2, 1])[0]
    assert gradient == pytest.approx(theta_star / KAPPA * np.log((100 / 63 + 0.3) / 0.3), rel=0.5)


@pytest.mark.parametrize("roughness", ROUGHNESSES)
@pytest.mark.parametrize("inverse_length", STABILITIES)
def test_profiles_are_continuous_and_physical(roughness: float, inverse_length: float) -> None:
    heights = np.linspace(0, 100, 20_001)
    profile = inflow_profile(roughness, inverse_length, heights)
    assert np.isfinite(profile).all()
    assert profile[0, 0] == 0 and np.all(np.diff(profile[:, 0]) > 0)
    assert np.all(profile[:, 2:] >= 0)
    steps = np.abs(np.diff(profile, axis=0)).max(0)
    finer = np.abs(np.diff(inflow_profile(roughness, inverse_length, np.linspace(0, 100, 40_001)), axis=0)).max(0)
    assert np.all(finer <= 0.8 * steps + 1e-9), "halving the spacing shrinks every step: no jumps"


def test_roughness_must_be_positive() -> None:
    with pytest.raises(ValueError, match="roughness"):
        inflow_profile(0.0)


def test_the_speed_ratio_is_that_of_the_profiles() -> None:
    assert speed_ratio(6.0, 80.0, 0.3) == pytest.approx(1)
    at_10 = inflow_profile(0.3, heights=np.array([10.0]))[0, 0]
    assert speed_ratio(2 * at_10, 10.0, 0.3) == pytest.approx(2)
    assert speed_ratio(6.0, 80.0, 0.3, 0.01) == pytest.approx(1)
    with pytest.raises(ValueError, match="does not scale"):
        speed_ratio(12.0, 80.0, 0.3, 0.01)
