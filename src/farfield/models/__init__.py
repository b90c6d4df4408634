"""Networks built on :mod:`farfield.attention`."""
