"""A custom loss: tokens with high probability p count less, by (1 - p)^2 (focal loss, Lin et al. 2017).

transformer-jax train --config=configs/demo.py --workdir=runs/focal --config.train.loss=examples/focal_loss.py:focal
"""

import jax
import jax.numpy as jnp


def focal(logits_BTN, targets_BT, weights_BT):
    """The sums of the loss and of its weights. Weights are 1, and 0 for padding."""
    every_log_p_BTN = jax.nn.log_softmax(logits_BTN)
    log_p_BT = jnp.take_along_axis(every_log_p_BTN, targets_BT[..., None], axis=-1)[..., 0]
    loss_BT = -((1 - jnp.exp(log_p_BT)) ** 2) * log_p_BT
    return jnp.sum(loss_BT * weights_BT), jnp.sum(weights_BT)
