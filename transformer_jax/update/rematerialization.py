"""What the backward pass computes again in place of keeping it: train.rematerialize."""

from typing import Any

import jax

from transformer_jax.model.attention import WEIGHTS
from transformer_jax.model.layers import RESIDUAL

_is_named = jax.checkpoint_policies.save_only_these_names(WEIGHTS, RESIDUAL)


def recomputes_activations(rematerialize: str, platform: str) -> bool:
    """Whether a train step on devices of this kind does, with this value of train.rematerialize.

    On TPUs it lowers memory and memory traffic. On GPUs it lowers memory, for more traffic; on CPUs it costs time.
    """
    return rematerialize == "activations" or (rematerialize == "auto" and platform == "tpu")


def keeps_products(primitive: Any, *inputs: Any, **parameters: Any) -> bool:
    """The policy for `jax.checkpoint`: no matrix product is computed twice, while all that is cheap is.

    Kept are matrix products and fused attention, the weights of attention, and the residual sums. Computed again are
    norms, activation functions, dropout with its random bits, and copies.
    """
    is_product = primitive.name.startswith("dot_")  # dot_general, dot_product_attention_fwd_wrapper
    return is_product or _is_named(primitive, *inputs, **parameters)
