"""The undisturbed wind: vertical profiles from Monin-Obukhov similarity.

With zeta = (z + z0) / L and the integrated universal functions Psi_m, Psi_h,

    U(z)     = u* / kappa  Psi_m(z),        u* such that U(80 m) = 6 m/s
    theta(z) = theta_ref + theta* / kappa (Psi_h(z) - Psi_h(2 m)),    theta* = u*² theta_ref / (kappa g L)
    k(z)     = u*² / sqrt(C_mu) sqrt(1 - Ri_f),      Ri_f = zeta / phi_m(zeta)
    eps(z)   = u*³ / (kappa (z + z0)) phi_m (1 - Ri_f)

where Psi(z) is the integral of phi(zeta) d ln(zeta) from z0 / L. The functions phi are those of Högström
(1988) in unstable air (1/L < 0) and of Cheng and Brutsaert (2005) in stable air (1/L > 0); phi_m is 1 in
neutral air, which is the logarithmic law. Where very stable air reaches Ri_f = 1, k and epsilon are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

KAPPA = 0.42  # von Kármán's constant
C_MU = 0.03  # of the k-epsilon model: the atmospheric value, k = u*² / sqrt(C_mu)
GRAVITY = 9.81  # m/s²
REFERENCE_SPEED, REFERENCE_HEIGHT = 6.0, 80.0  # m/s at m
REFERENCE_TEMPERATURE, TEMPERATURE_HEIGHT = 293.15, 2.0  # K at m
AIR_DENSITY = 1.204  # kg/m³ at that temperature: turns OpenFOAM's kinematic pressure into Pa

PROFILE_HEIGHTS: Array = np.linspace(0.0, 100.0, 64)  # m: where a network is told the inflow
PROFILE_COLUMNS = ("speed", "pottemp", "k", "epsilon")  # m/s, K, m²/s², m²/s³

HOGSTROM_MOMENTUM, HOGSTROM_HEAT, HOGSTROM_PRANDTL = 19.3, 11.6, 0.95
CHENG_BRUTSAERT_MOMENTUM, CHENG_BRUTSAERT_HEAT = (6.1, 2.5), (5.3, 1.1)


def _phi_momentum(zeta: Array) -> Array:
    """Dimensionless wind shear, kappa (z + z0) / u* dU/dz."""
    stable = np.maximum(zeta, 0.0)
    a, b = CHENG_BRUTSAERT_MOMENTUM
    root = (1 + stable**b) ** (1 / b)
    phi_stable = 1 + a * (stable + stable**b * root ** (1 - b)) / (stable + root)
    phi_unstable = (1 - HOGSTROM_MOMENTUM * np.minimum(zeta, 0.0)) ** -0.25
    return np.where(zeta < 0, phi_unstable, phi_stable)


def _stable_integral(zeta: Array, a: float, b: float) -> Array:
    return a * np.log(zeta + (1 + zeta**b) ** (1 / b))


def _psi_momentum(height: Array, roughness: float, inverse_length: float) -> Array:
    """Integral of phi_m over ln(zeta) from the roughness height to height + roughness."""
    logarithm = np.log((height + roughness) / roughness)
    zeta, zeta0 = (height + roughness) * inverse_length, roughness * inverse_length
    if inverse_length > 0:
        return logarithm + (
            _stable_integral(zeta, *CHENG_BRUTSAERT_MOMENTUM)
            - _stable_integral(np.asarray(zeta0), *CHENG_BRUTSAERT_MOMENTUM)
        )
    x, x0 = (1 - HOGSTROM_MOMENTUM * zeta) ** 0.25, (1 - HOGSTROM_MOMENTUM * zeta0) ** 0.25
    return (
        logarithm
        - 2 * np.log((1 + x) / (1 + x0))
        - np.log((1 + x**2) / (1 + x0**2))
        + 2 * (np.arctan(x) - np.arctan(x0))
    )


def _psi_heat(height: Array, roughness: float, inverse_length: float) -> Array:
    """The same for heat."""
    logarithm = np.log((height + roughness) / roughness)
    zeta, zeta0 = (height + roughness) * inverse_length, roughness * inverse_length
    if inverse_length > 0:
        return logarithm + (
            _stable_integral(zeta, *CHENG_BRUTSAERT_HEAT) - _stable_integral(np.asarray(zeta0), *CHENG_BRUTSAERT_HEAT)
        )
    x, x0 = (1 - HOGSTROM_HEAT * zeta) ** 0.5, (1 - HOGSTROM_HEAT * zeta0) ** 0.5
    return HOGSTROM_PRANDTL * (logarithm - 2 * np.log((1 + x) / (1 + x0)))


def friction_velocity(roughness: float, inverse_length: float = 0.0) -> float:
    """u*, m/s: the one that gives 6 m/s at 80 m over ground of this roughness length (m)."""
    if not roughness > 0:
        raise ValueError(f"the roughness length must be positive, got {roughness} m")
    reference = _psi_momentum(np.array(REFERENCE_HEIGHT), roughness, inverse_length)
    return float(REFERENCE_SPEED * KAPPA / reference)


def speed_ratio(speed: float, height: float, roughness: float, inverse_length: float = 0.0) -> float:
    """A wind of ``speed`` (m/s) at ``height`` (m) over the one that is 6 m/s at 80 m, over ground of this roughness.

    Neutral wind around buildings scales with its speed: velocities by the ratio r, pressure and k by r², epsilon by r³.
    Stratified air does not, and is refused unless r is 1.
    """
    if not (np.isfinite(speed) and speed > 0):
        raise ValueError(f"the wind speed must be a positive number of m/s, got {speed}")
    if not (np.isfinite(height) and height > 0):
        raise ValueError(f"the height of the wind speed must be positive, got {height} m")
    ratio = speed / float(inflow_profile(roughness, inverse_length, np.array([height]))[0, 0])
    if inverse_length != 0 and abs(ratio - 1) > 1e-6:
        raise ValueError(
            f"stratified air (1/L = {inverse_length}) does not scale with its speed: only the wind of "
            f"{REFERENCE_SPEED:g} m/s at {REFERENCE_HEIGHT:g} m is known"
        )
    return ratio


def inflow_profile(roughness: float, inverse_length: float = 0.0, heights: Array = PROFILE_HEIGHTS) -> Array:
    """Profile (len(heights), 4) of speed, potential temperature, k and epsilon (:data:`PROFILE_COLUMNS`).

    ``roughness`` is z0 in metres, ``inverse_length`` is 1/L in 1/m: 0 neutral, positive stable, negative
    unstable.
    """
    heights = np.asarray(heights, dtype=float)
    u_star = friction_velocity(roughness, inverse_length)
    zeta = (heights + roughness) * inverse_length
    phi = _phi_momentum(zeta)
    flux_richardson = np.minimum(zeta / phi, 1.0)

    theta_star = u_star**2 * REFERENCE_TEMPERATURE * inverse_length / (KAPPA * GRAVITY)
    psi_reference = _psi_heat(np.array(TEMPERATURE_HEIGHT), roughness, inverse_length)
    speed = u_star / KAPPA * _psi_momentum(heights, roughness, inverse_length)
    theta = REFERENCE_TEMPERATURE + theta_star / KAPPA * (_psi_heat(heights, roughness, inverse_length) - psi_reference)
    k = u_star**2 / np.sqrt(C_MU) * np.sqrt(1 - flux_richardson)
    epsilon = u_star**3 / (KAPPA * (heights + roughness)) * phi * (1 - flux_richardson)
    return np.stack([speed, theta, k, epsilon], axis=1)
