"""The version, where every floor of the house can see it."""

__version__ = "0.1.0.dev0"
