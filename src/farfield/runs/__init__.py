"""A run's folder: its configuration, weights, provenance and records, with one reader and one writer."""
