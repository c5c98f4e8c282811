"""The length penalties: a target of n generated tokens, `<eos>` included, scores log P / penalty(n).

Log-probabilities only fall as a target grows, so that without a penalty short targets win.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

LENGTH_PENALTIES: dict[str, Callable[[Any, Any], Any]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, equation 14; the paper's, with alpha 0.6
    "average": lambda n, alpha: n**alpha,  # alpha 1: the mean log-probability of a token
    "none": lambda n, alpha: np.ones_like(n),
}


def length_penalty(name: str, alpha: float | Array, n: Any) -> Array:
    """The penalty `name` in float32 for `n` generated tokens, a number or an increasing array of them.

    It is monotone in n, as the bound of beam search needs it, although powers in float32 are rounded.
    """
    penalties = jnp.asarray(LENGTH_PENALTIES[name](np.asarray(n, np.float64), alpha), jnp.float32)
    if isinstance(alpha, Array) and penalties.ndim:
        penalties = jnp.where(alpha > 0, lax.cummax(penalties), lax.cummin(penalties))
    return penalties
