"""What a sample is, how it is stored, normalised, generated and read."""
