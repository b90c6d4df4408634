"""Buildings, terrain, surfaces and the reading of meshes."""
