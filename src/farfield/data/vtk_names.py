"""The endings of VTK files, known without importing VTK."""

ENDINGS = (".vtu", ".vtk", ".vtp", ".vti", ".vts", ".vtr", ".pvd")
