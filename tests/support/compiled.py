"""Calls of models that are compiled as a whole: their operations, one after the other, take longer to compile."""

import functools

import jax
import numpy as np
from flax import linen as nn


def compile_modules(patch):
    """`init`, `init_with_output` and `apply` of small models do what they did, as one program."""
    for name in ("init", "init_with_output", "apply"):
        patch.setattr(nn.Module, name, _compiled(getattr(nn.Module, name)))


def _compiled(method):
    @functools.lru_cache(maxsize=100)
    def program(module, tree, static):
        def call(arrays):
            remaining = iter(arrays)
            leaves = [next(remaining) if leaf is None else leaf[0] for leaf in static]
            args, options = jax.tree.unflatten(tree, leaves)
            return method(module, *args, **options)

        return jax.jit(call)

    @functools.wraps(method)
    def run(module, *args, **options):
        leaves, tree = jax.tree.flatten((args, options))
        static = tuple(None if isinstance(leaf, jax.Array | np.ndarray) else (leaf,) for leaf in leaves)
        arrays = [leaf for leaf, known in zip(leaves, static, strict=True) if known is None]
        try:
            compiled = program(module, tree, static) if _is_shallow(module) else None
        except TypeError:  # not hashable
            compiled = None
        return method(module, *args, **options) if compiled is None else compiled(arrays)

    return run


def _is_shallow(module):
    """Whether a module is a model of few layers: many equal layers share their compiled operations, not their part of
    a whole program."""
    return getattr(getattr(module, "config", None), "num_encoder_layers", 9) <= 2
