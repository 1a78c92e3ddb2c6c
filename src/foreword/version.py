"""The version, on its own so that every room may read it."""

__version__ = "0.4.0"
