"""A custom position encoding: scores decrease with the logarithm of the distance (KERPLE, Chi et al. 2022).

transformer-jax train --config=configs/demo.py --workdir=runs/log_distance \
    --config.model.parts.positions=examples/log_distance.py:LogDistance
"""

import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model.positions import Positions


class LogDistance(Positions):
    """Adds -depth * log(1 + width * distance) to the scores; each head learns its own depth and width."""

    @nn.compact
    def bias(self, q_BTHK, queries_BT, keys_BS):
        depth, width = (
            nn.softplus(self.param(name, nn.initializers.normal(1.0), (1, q_BTHK.shape[2], 1, 1)))
            for name in ("depth", "width")
        )
        distance_B1TS = jnp.abs(keys_BS[:, None, None, :] - queries_BT[:, None, :, None])
        return -depth * jnp.log1p(width * distance_B1TS)
