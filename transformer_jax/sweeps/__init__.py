"""Ablations: one file that says what differs, runs launched from it, one page that says what was found."""

from transformer_jax.sweeps.definition import Sweep, Variant, grid

__all__ = ["Sweep", "Variant", "grid"]
