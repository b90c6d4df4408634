"""The dictionaries of an OpenFOAM case: steady neutral wind around buildings, k-epsilon, SIMPLEC.

Written for the version in Debian's package ``openfoam`` (1912). What keeps the inflow profile unchanged over
open ground (Richards and Hoxey 1993; Parente et al. 2011), measured in the tests:

- the model's C_mu, kappa and sigma_eps agree with the inlet's: sigma_eps = kappa² / (sqrt(C_mu) (C2 - C1));
- the profile's values are held at the top, which supplies the shear stress u*² that a slip plane would not;
- epsilon and its source in the cell at the ground use the distance y + z0, see :func:`ground_wall_constants`.

The wind blows along +x, between slip sides, unless told otherwise: oblique wind has no sides, only inlets and outlets.
Air that comes back in through an outlet then brings the inflow's profile with it, since an outlet may lie along the
wind as well as across it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.problems.urban_wind.inflow_profiles import (
    AIR_DENSITY,
    C_MU,
    KAPPA,
    REFERENCE_HEIGHT,
    REFERENCE_SPEED,
    friction_velocity,
    inflow_profile,
)
from farfield.problems.urban_wind.mesh import foam_header

Array = NDArray[np.floating]

VISCOSITY = 1.5e-5  # m²/s
C1, C2 = 1.44, 1.92
SIGMA_EPSILON = KAPPA**2 / (np.sqrt(C_MU) * (C2 - C1))


@dataclass(frozen=True)
class SolverSettings:
    """When SIMPLE stops, and how it gets there."""

    tolerance: float = 1e-4  # initial residual of U, k, epsilon; ten times that for p
    iteration_limit: int = 500  # large cities can take three times as many as small ones
    momentum_relaxation: float = 0.9
    turbulence_relaxation: float = 0.8


def ground_wall_constants(roughness: float, first_cell_height: float) -> tuple[float, float]:
    """(kappa, z0) to hand to the wall functions of the ground so that they act with the distance y + z0.

    Version 1912 has no rough-wall epsilon: it sets epsilon_P = C_mu^3/4 k^3/2 / (kappa y), where the inlet
    has (y + z0) in place of y. The first cell is equally high everywhere, so kappa' = kappa (y + z0) / y
    gives exactly the right epsilon and source; z0' then restores kappa / ln((y + z0) / z0), on which the
    wall's drag depends.
    """
    y = first_cell_height / 2
    kappa = KAPPA * (y + roughness) / y
    return kappa, y / np.expm1(kappa / KAPPA * np.log1p(y / roughness))


def write_case(
    case: Path,
    roughness: float,
    first_cell_height: float,
    domain_height: float,
    settings: SolverSettings,
    cell_heights: Array | None = None,
    non_orthogonal: bool = False,
    wind: tuple[float, float] = (1.0, 0.0),
    face_heights: Mapping[str, Array] | None = None,
    start: Mapping[str, Array] | None = None,
) -> None:
    """Write everything but the mesh. ``cell_heights`` starts every cell from the inflow at its height, ``start`` from
    fields: velocity (N, 3), pressure (Pa), k and epsilon (N,) of every cell.

    ``wind`` is where it blows to. ``face_heights`` gives every face of the inlet and the outlet the inflow at its
    height, where the wind is not along an axis: at the outlet for air that comes back in; at the inlet it holds
    the wind as it is, where OpenFOAM's own condition would let air out again beside a city that is in its way.
    """
    files = {
        "system/controlDict": _control(settings),
        "system/fvSchemes": _schemes(non_orthogonal),
        "system/fvSolution": _solution(settings, non_orthogonal),
        "constant/transportProperties": f"transportModel Newtonian;\nnu {VISCOSITY};\n",
        "constant/turbulenceProperties": _turbulence(),
    }
    for path, text in files.items():
        target = case / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(foam_header("dictionary", target.name) + text)
    (case / "0").mkdir(exist_ok=True)
    if start is None:
        start = _undisturbed(roughness, np.array([domain_height / 3]) if cell_heights is None else cell_heights, wind)
    fields = _fields(roughness, first_cell_height, domain_height, start, wind, face_heights or {})
    for name, data in fields.items():
        (case / "0" / name).write_bytes(data)


def _control(settings: SolverSettings) -> str:
    return f"""
application simpleFoam;
libs (atmosphericModels);
startFrom startTime;
startTime 0;
stopAt endTime;
endTime {settings.iteration_limit};
deltaT 1;
writeControl timeStep;
writeInterval {settings.iteration_limit};
purgeWrite 1;
writeFormat binary;
writePrecision 8;
timeFormat general;
runTimeModifiable false;
"""


def _schemes(non_orthogonal: bool) -> str:
    # Cell-limited gradients stall the residuals, so they stay unlimited.
    correction = "limited corrected 0.33" if non_orthogonal else "orthogonal"
    return f"""
ddtSchemes {{ default steadyState; }}
gradSchemes {{ default Gauss linear; }}
divSchemes
{{
    default none;
    div(phi,U) bounded Gauss linearUpwind grad(U);
    div(phi,k) bounded Gauss upwind;
    div(phi,epsilon) bounded Gauss upwind;
    div((nuEff*dev2(T(grad(U))))) Gauss linear;
}}
laplacianSchemes {{ default Gauss linear {correction}; }}
interpolationSchemes {{ default linear; }}
snGradSchemes {{ default {correction}; }}
wallDist {{ method meshWave; }}
"""


def _solution(settings: SolverSettings, non_orthogonal: bool) -> str:
    correctors = int(non_orthogonal)
    return f"""
solvers
{{
    p {{ solver GAMG; smoother GaussSeidel; tolerance 1e-8; relTol 0.1; }}
    Phi {{ $p; relTol 0.01; }}
    "(U|k|epsilon)"
    {{
        solver smoothSolver;
        smoother GaussSeidel;
        tolerance 1e-9;
        relTol 0.2;
        maxIter 3;
    }}
}}
potentialFlow {{ nNonOrthogonalCorrectors {correctors}; }}
SIMPLE
{{
    nNonOrthogonalCorrectors {correctors};
    consistent yes;
    residualControl
    {{
        p {10 * settings.tolerance:g};
        U {settings.tolerance:g};
        "(k|epsilon)" {settings.tolerance:g};
    }}
}}
relaxationFactors
{{
    equations
    {{
        U {settings.momentum_relaxation};
        "(k|epsilon)" {settings.turbulence_relaxation};
    }}
}}
cache {{ grad(U); }}
"""


def _turbulence() -> str:
    return f"""
simulationType RAS;
RAS
{{
    RASModel kEpsilon;
    turbulence on;
    printCoeffs off;
    kEpsilonCoeffs {{ Cmu {C_MU}; C1 {C1}; C2 {C2}; sigmaEps {SIGMA_EPSILON:.6g}; }}
}}
"""


def _undisturbed(roughness: float, heights: Array, wind: tuple[float, float]) -> dict[str, Array]:
    """The inflow at these heights."""
    speed, _, k, epsilon = inflow_profile(roughness, heights=heights).T
    velocity = speed[:, None] * np.array([*wind, 0.0])
    return {"velocity": velocity, "pressure": np.zeros(1), "k": k, "epsilon": epsilon}


def _fields(
    roughness: float,
    first_cell_height: float,
    domain_height: float,
    start: Mapping[str, Array],
    wind: tuple[float, float],
    face_heights: Mapping[str, Array],
) -> dict[str, bytes]:
    u_star = friction_velocity(roughness)
    speed, _, k, epsilon = inflow_profile(roughness, heights=np.array([domain_height]))[0]
    # No `value` in these three: it would silently replace the profile.
    profile = (
        f"flowDir ({wind[0]:.12g} {wind[1]:.12g} 0); zDir (0 0 1); Uref {REFERENCE_SPEED}; Zref {REFERENCE_HEIGHT}; "
        f"z0 uniform {roughness:.8g}; d uniform 0; zGround uniform 0; kappa {KAPPA}; Cmu {C_MU};"
    )
    ground_kappa, ground_z0 = ground_wall_constants(roughness, first_cell_height)
    ground = f"Cmu {C_MU}; kappa {ground_kappa:.8g}; E 9.8;"
    smooth = f"Cmu {C_MU}; kappa {KAPPA}; E 9.8;"
    slip = "type slip;"

    def undisturbed(patch: str, column: int) -> bytes:
        """A column of the inflow's profile (0: its velocity) at every face of a patch."""
        values = inflow_profile(roughness, heights=face_heights[patch])[:, column]
        return _listed(values[:, None] * np.array([*wind, 0.0]) if column == 0 else values)

    def outflow(value: str, column: int) -> bytes:
        """Free outflow; air that comes back in has ``value``, or the inflow's at its height (``column`` of it)."""
        returning = undisturbed("outlet", column) if "outlet" in face_heights else f"uniform {value}".encode()
        return b"type inletOutlet; inletValue %b; value %b;" % (returning, returning)

    inflow: str | bytes = f"type atmBoundaryLayerInletVelocity; {profile}"
    if "inlet" in face_heights:
        inflow = b"type fixedValue; value %b;" % undisturbed("inlet", 0)

    def held(value: str) -> str:
        return f"type fixedValue; value uniform {value};"

    return {
        "U": _field(
            "volVectorField",
            "U",
            "[0 1 -1 0 0 0 0]",
            start["velocity"],
            inlet=inflow,
            outlet=outflow("(0 0 0)", 0),
            sides=slip,
            top=held(f"({speed * wind[0]:.8g} {speed * wind[1]:.8g} 0)"),
            ground="type noSlip;",
            buildings="type noSlip;",
        ),
        "p": _field(
            "volScalarField",
            "p",
            "[0 2 -2 0 0 0 0]",
            start["pressure"] / AIR_DENSITY,
            inlet="type zeroGradient;",
            outlet=held("0"),
            sides=slip,
            top="type zeroGradient;",
            ground="type zeroGradient;",
            buildings="type zeroGradient;",
        ),
        "k": _field(
            "volScalarField",
            "k",
            "[0 2 -2 0 0 0 0]",
            start["k"],
            inlet=f"type atmBoundaryLayerInletK; {profile}",
            outlet=outflow(f"{k:.8g}", 2),
            sides=slip,
            top=held(f"{k:.8g}"),
            ground=f"type kqRWallFunction; value uniform {k:.8g};",
            buildings=f"type kqRWallFunction; value uniform {k:.8g};",
        ),
        "epsilon": _field(
            "volScalarField",
            "epsilon",
            "[0 2 -3 0 0 0 0]",
            start["epsilon"],
            inlet=f"type atmBoundaryLayerInletEpsilon; {profile}",
            outlet=outflow(f"{epsilon:.8g}", 3),
            sides=slip,
            top=held(f"{epsilon:.8g}"),
            ground=f"type epsilonWallFunction; {ground} value uniform {epsilon:.8g};",
            buildings=f"type epsilonWallFunction; {smooth} value uniform {epsilon:.8g};",
        ),
        "nut": _field(
            "volScalarField",
            "nut",
            "[0 2 -1 0 0 0 0]",
            C_MU * start["k"] ** 2 / start["epsilon"],
            inlet="type calculated; value uniform 0;",
            outlet="type calculated; value uniform 0;",
            sides=slip,
            top=f"type calculated; value uniform {KAPPA * u_star * (domain_height + roughness):.8g};",
            ground=f"type nutkAtmRoughWallFunction; {ground} z0 uniform {ground_z0:.8g}; value uniform 0;",
            buildings=f"type nutkWallFunction; {smooth} value uniform 0;",
        ),
    }


def _listed(values: Array) -> bytes:
    """One value per cell or face, in binary."""
    element = b"scalar" if values.ndim == 1 else b"vector"
    data = np.ascontiguousarray(values, dtype="<f8").tobytes()
    return b"nonuniform List<%b>\n%d\n(%b)" % (element, len(values), data)


def _field(kind: str, name: str, dimensions: str, internal: Array, **patches: str | bytes) -> bytes:
    """A field file: one value for all cells, or one per cell in binary."""
    header = foam_header(kind, name, binary=True) + f"\ndimensions {dimensions};\n\ninternalField "
    if len(internal) == 1:
        value = " ".join(f"{v:.8g}" for v in np.atleast_1d(internal[0]))
        body = f"uniform {value if internal.ndim == 1 else f'({value})'};".encode()
    else:
        body = _listed(internal) + b";"
    conditions = b"\n".join(
        b"    %b { %b }" % (patch.encode(), text if isinstance(text, bytes) else text.encode())
        for patch, text in patches.items()
    )
    return header.encode() + body + b"\n\nboundaryField\n{\n" + conditions + b"\n}\n"
