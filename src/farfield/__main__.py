"""``python -m farfield``."""

from farfield.cli import main

main()
