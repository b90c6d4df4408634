"""The physics: shallow water, Gray-Scott, urban wind (OpenFOAM), each usable on its own."""
