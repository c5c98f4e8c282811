"""The learning rates of muP (Yang et al. 2022, "Tensor Programs V", table 8, Adam).

With muP the best learning rate of a narrow model, the base, is that of wider ones. Its other rules are in the model:
initial sizes, attention's scores times 1 / d_k, and the output divided by d_model.
"""

import math

import jax

from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.update.optimizer import Multiplier
from transformer_jax.update.sharding import path_name


def rate_multiplier(model: ModelConfig) -> Multiplier | None:
    """Each parameter's multiple of the learning rate, base fan_in / fan_in; None in the standard parametrisation.

    The last axis of a parameter is its fan_out, the others are fan_in. Comparing the shapes with those of the base
    model shows how much it grew, also in custom modules. Vectors and tables of vectors (embeddings, positions) have a
    fan_in that does not grow with the width, and their learning rate is not multiplied.
    """
    if model.mup_base_d_model is None:
        return None
    base = _shapes(model.mup_base())
    multiples = {path: math.prod(base[path][:-1]) / math.prod(shape[:-1]) for path, shape in _shapes(model).items()}
    return lambda path, shape: multiples[path]


def _shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its path."""
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(model))
    return {path_name(path): leaf.shape for path, leaf in leaves}
