"""Linear attention (Katharopoulos et al. 2020): exp(q k) becomes phi(q) phi(k), with one sum over keys.

transformer-jax train --config=configs/demo.py --workdir=runs/linear \
    --config.model.parts.attention=examples/linear_attention.py:LinearAttention

Linear where all queries see the same keys: in the encoder, and in attention to it. Not to look ahead, self-attention
in the decoder writes the weights out. Position encodings that act on the scores have no effect.
"""

import jax.numpy as jnp
from flax import linen as nn

from transformer_jax import MultiHeadAttention


class LinearAttention(MultiHeadAttention):
    def attend(self, q_BTHK, k_BSHK, v_BSHV, context):
        mask, q_BTHK, k_BSHK = context.mask, nn.elu(q_BTHK) + 1, nn.elu(k_BSHK) + 1
        if mask is None or mask.shape[1:3] == (1, 1):
            if mask is not None:
                k_BSHK = jnp.where(mask[:, 0, 0, :, None, None], k_BSHK, 0)
            sum_BHKV = jnp.einsum("bshk,bshv->bhkv", k_BSHK, v_BSHV)
            heads_BTHV = jnp.einsum("bthk,bhkv->bthv", q_BTHK, sum_BHKV)
            total_BTH = jnp.einsum("bthk,bhk->bth", q_BTHK, k_BSHK.sum(axis=1))
        else:
            weights_BHTS = jnp.where(mask, jnp.einsum("bthk,bshk->bhts", q_BTHK, k_BSHK), 0)
            heads_BTHV = jnp.einsum("bhts,bshv->bthv", weights_BHTS, v_BSHV)
            total_BTH = jnp.moveaxis(weights_BHTS.sum(axis=-1), 1, 2)
        return heads_BTHV / jnp.maximum(total_BTH, 1e-6)[..., None]  # zero for a query that may attend to nothing
