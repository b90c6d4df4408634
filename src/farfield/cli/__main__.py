"""``python -m farfield.cli``."""

from farfield.cli import main

main()
