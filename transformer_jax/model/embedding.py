"""Embeddings of tokens (section 3.4), and the initial values of their table."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from transformer_jax.model.linear import precision_of
from transformer_jax.model.positions import rows_of
from transformer_jax.model_config import EmbeddingInit


class Embedding(nn.Module):
    """Section 3.4: token vectors times sqrt(d_model), and the table of the pre-softmax product.

    - `vocab_size`, `d_model`: rows and columns of the table.
    - `is_scaled`: whether vectors are multiplied by sqrt(d_model), or sqrt(base_d_model).
    - `initial`: the initial table, see `initial_table`.
    - `base_d_model`: d_model of muP's base model.
    - `dtype`: the type of the vectors and of the product; the table is float32.
    """

    vocab_size: int
    d_model: int
    is_scaled: bool = True
    initial: EmbeddingInit = "normal"
    base_d_model: int | None = None
    dtype: Any = jnp.float32

    def setup(self) -> None:
        initializer = initial_table(self.initial, self.base_d_model or self.d_model)
        self.table_ND = self.param("table", initializer, (self.vocab_size, self.d_model))

    def __call__(self, tokens_BT: ArrayLike) -> jax.Array:
        """The vectors of tokens; NaN for ids beyond the vocabulary."""
        vectors_BTD = rows_of(self.table_ND, tokens_BT)
        if self.is_scaled:  # before the cast: in bfloat16 the root of 300 is 0.3 % off
            vectors_BTD = vectors_BTD * (self.base_d_model or self.d_model) ** 0.5
        return vectors_BTD.astype(self.dtype)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Float32 scores for every token of the vocabulary."""
        rows = x_BTD.reshape(-1, x_BTD.shape[-1]).astype(self.dtype)
        table_DN = self.table_ND.T.astype(self.dtype)
        logits = jnp.matmul(rows, table_DN, preferred_element_type=jnp.float32, precision=precision_of(rows))
        return logits.reshape(*x_BTD.shape[:-1], self.vocab_size)


def initial_table(kind: EmbeddingInit, d_model: int) -> nn.initializers.Initializer:
    """The initializer of an embedding table; `d_model` is that of muP's base model, if there is one.

    The alternatives are those of Csordás et al. 2021, section 3.1: "xavier" is then scaled up by sqrt(d_model), "unit"
    is not, and "kaiming" is not either, but has its positions scaled down.
    """
    if kind == "xavier":

        def xavier(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
            limit = (6 / (shape[0] + d_model)) ** 0.5
            return jax.random.uniform(key, shape, dtype, -limit, limit)

        return xavier
    return nn.initializers.normal({"normal": d_model**-0.5, "unit": 1.0, "kaiming": (2 / d_model) ** 0.5}[kind])
