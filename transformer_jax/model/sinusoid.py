"""The sinusoids of section 3.5."""

import jax
import jax.numpy as jnp

from transformer_jax.model.shapes import check_positive

LAYOUTS = ("interleaved", "halves")


def sinusoidal_positions(length: int, d_model: int) -> jax.Array:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same): the paper's table, (length, d_model)."""
    return sinusoid(jnp.arange(length), d_model)


def sinusoid(positions: jax.Array, d_model: int, layout: str = "interleaved") -> jax.Array:
    """The same at any positions, on a new last axis: sine and cosine interleaved.

    The layout "halves" has all sines first, then all cosines, as in Tensor2Tensor and Marian.
    """
    check_positive(d_model=d_model)
    if layout not in LAYOUTS:
        raise ValueError(f"layout = {layout!r}: must be one of {', '.join(LAYOUTS)}")
    if d_model % 2:
        raise ValueError(f"d_model = {d_model} is odd: sinusoids are pairs of sine and cosine")
    turns = angles(positions, d_model)
    if layout == "halves":
        return jnp.concatenate([jnp.sin(turns), jnp.cos(turns)], axis=-1)
    return jnp.stack([jnp.sin(turns), jnp.cos(turns)], axis=-1).reshape(*positions.shape, d_model)


def angles(positions: jax.Array, width: int, theta: float = 10_000.0) -> jax.Array:
    """pos / theta^(2i / width) for i = 0 .. width/2 - 1, on a new last axis."""
    wavelengths = theta ** (jnp.arange(0, width, 2) / width)
    return positions[..., None].astype(jnp.float32) / jnp.expand_dims(wavelengths, tuple(range(positions.ndim)))
