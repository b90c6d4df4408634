"""Experiments across problems: the comparison of encodings, precision, and what the kernels look like."""
