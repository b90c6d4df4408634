"""Shallow water in one dimension: the velocity v and the height h of water over a flat bed."""

FIELDS = ("v", "h")
GRAVITY = 9.81  # m/s²
