"""The interface of position encodings: five methods, of which each encoding overrides one or more.

An encoding adds to the embeddings, rotates queries and keys, adds to attention's scores or to the queries that make
them, or adds to attention's output. Positions are integers "BT", one row for each sentence or a single row for all (not
always 0, 1, 2 ...: packing restarts them in each segment).
"""

from typing import Any, ClassVar, NamedTuple

import jax
from flax import linen as nn

from transformer_jax.model_config import ModelConfig


class Positions(nn.Module):
    """No positions, and the base class of every encoding; a custom one is a subclass with the same fields.

    `causal` is True in the decoder.
    """

    config: ModelConfig
    causal: bool = False

    # Whether each layer has its own parameters, or all layers of a stack share them.
    per_layer: ClassVar[bool] = False
    # Whether `moved_values` is called; attention must then compute its weights explicitly.
    moves_values: ClassVar[bool] = False

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """The stack's input with positions in it."""
        return x_BTD

    def rotate(self, x_BTHK: jax.Array, positions_BT: jax.Array) -> jax.Array:
        """Queries, or keys, rotated according to their positions."""
        return x_BTHK

    def bias(self, q_BTHK: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> jax.Array | None:
        """What is added to the scores (after scaling): broadcasts to BHTS."""
        return None

    def content_queries(self, q_BTHK: jax.Array) -> jax.Array:
        """The queries as they are multiplied with the keys; `bias` has those without this change."""
        return q_BTHK

    def moved_values(self, weights_BHTS: jax.Array, queries_BT: jax.Array, keys_BS: jax.Array) -> Any:
        """What is added to the heads' outputs, BTHV."""
        return None

    def check_length(self, length: int) -> None:
        """Raises ValueError if a sequence of `length` tokens is too long for this encoding."""


# A custom encoding must override at least one of them.
METHODS = ("embed", "rotate", "bias", "content_queries", "moved_values")


class AttentionPositions(NamedTuple):
    """The positions of the queries and keys of a self-attention, and the encoding that uses them."""

    kind: Positions
    queries_BT: jax.Array
    keys_BS: jax.Array
