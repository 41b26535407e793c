"""The version of fedpage."""

__version__ = "0.1.0"
