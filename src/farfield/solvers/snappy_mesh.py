"""snappyHexMesh's dictionaries: meshes around buildings of any shape, cut out of a background mesh."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from farfield.solvers.urban_mesh import foam_header

Array = NDArray[np.floating]


def write_snappy(case: Path, inside: Array) -> None:
    """Write what snappyHexMesh needs to cut ``constant/triSurface/buildings.stl`` out of the background mesh.

    ``inside`` is a point in the air; it must not lie on a face of the mesh.
    """
    features = """
buildings.stl
{
    extractionMethod extractFromSurface;
    extractFromSurfaceCoeffs { includedAngle 150; }
    writeObj no;
}
"""
    x, y, z = inside
    snappy = f"""
castellatedMesh true;
snap true;
addLayers false;
geometry {{ buildings.stl {{ type triSurfaceMesh; name buildings; }} }}
castellatedMeshControls
{{
    maxLocalCells 20000000;
    maxGlobalCells 20000000;
    minRefinementCells 0;
    nCellsBetweenLevels 2;
    features ( {{ file "buildings.eMesh"; level 1; }} );
    refinementSurfaces {{ buildings {{ level (1 1); patchInfo {{ type wall; }} }} }}
    refinementRegions {{}}
    resolveFeatureAngle 30;
    locationInMesh ({x:.6g} {y:.6g} {z:.6g});
    allowFreeStandingZoneFaces true;
}}
snapControls
{{
    nSmoothPatch 3;
    tolerance 2.0;
    nSolveIter 30;
    nRelaxIter 5;
    nFeatureSnapIter 10;
    implicitFeatureSnap false;
    explicitFeatureSnap true;
    multiRegionFeatureSnap false;
}}
addLayersControls
{{
    relativeSizes true;
    layers {{}}
    expansionRatio 1;
    finalLayerThickness 0.3;
    minThickness 0.1;
    nGrow 0;
    featureAngle 60;
    nRelaxIter 3;
    nSmoothSurfaceNormals 1;
    nSmoothNormals 3;
    nSmoothThickness 10;
    maxFaceThicknessRatio 0.5;
    maxThicknessToMedialRatio 0.3;
    minMedianAxisAngle 90;
    nBufferCellsNoExtrude 0;
    nLayerIter 50;
}}
meshQualityControls
{{
    maxNonOrtho 65;
    maxBoundarySkewness 20;
    maxInternalSkewness 4;
    maxConcave 80;
    minVol 1e-13;
    minTetQuality 1e-15;
    minArea -1;
    minTwist 0.02;
    minDeterminant 0.001;
    minFaceWeight 0.05;
    minVolRatio 0.01;
    minTriangleTwist -1;
    nSmoothScale 4;
    errorReduction 0.75;
    relaxed {{ maxNonOrtho 75; }}
}}
mergeTolerance 1e-6;
"""
    for name, text in (("surfaceFeatureExtractDict", features), ("snappyHexMeshDict", snappy)):
        (case / "system" / name).write_text(foam_header("dictionary", name) + text)
