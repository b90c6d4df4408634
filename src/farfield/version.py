"""The version, in a module that imports nothing: provenance needs it below the package's public face."""

__version__ = "0.2.0"
