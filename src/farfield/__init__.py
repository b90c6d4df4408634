"""farfield: transformer neural operators, trained on small domains, used on much larger ones."""

__version__ = "0.1.0"
