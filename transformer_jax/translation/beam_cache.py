"""The model as the search sees it: `step(tokens, cache)`, with a cache that beams share.

The K beams of a sentence are K queries of one row. Cross-attention's keys and values, the same for all beams, then
exist once per sentence. Self-attention's cache has K slots for each position: step t fills slots t K .. t K + K - 1,
one for each beam, and nothing that was written ever moves. When the search continues beam k from another hypothesis,
only a table changes: ancestors_BKL says, for beam k and position l, which of that position's K slots holds the token
of its hypothesis. The mask of self-attention follows from that table.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer_jax.model.stacks import DecoderCache
from transformer_jax.model.transformer import Transformer, matmul_precision
from transformer_jax.model_config import ModelConfig
from transformer_jax.update.sharding import path_name

NOT_YET = -1  # the ancestor at a position not yet decoded: no slot has this number


class BeamCache(NamedTuple):
    """The state of decoding between two steps."""

    layers: DecoderCache
    memory_mask: jax.Array  # B11S
    ancestors_BKL: jax.Array
    position: jax.Array  # of the token that comes next


class Stepper:
    """One model with its parameters, as a search needs it: `step`, `reorder`, and `grow` for stages."""

    def __init__(self, config: ModelConfig, params: Any):
        # cuDNN's kernels do not take the mask of beams.
        self._model = Transformer(dataclasses.replace(config, attention_implementation="plain"))
        self._variables = {"params": _matrices_as_used(params, "kernel", config)}
        # Embeddings are looked up in full precision, and only multiplied in the type of the products.
        self._logits_variables = {"params": _matrices_as_used(params, "embedding/table", config)}

    def start(self, source_BS: jax.Array, length: int, beams: int = 1) -> BeamCache:
        """Encodes the sources and makes room for `beams` targets of `length` tokens each."""
        model, variables = self._model, self._variables
        with matmul_precision(model.config):
            memory_BSD = model.apply(variables, source_BS, method="encode")
            layers: Any = model.apply(variables, memory_BSD, length, beams, method="new_cache")
        memory_mask: Any = model.apply(variables, source_BS, method="cross_mask")
        ancestors_BKL = jnp.full((source_BS.shape[0], beams, length), NOT_YET, jnp.int32)
        return BeamCache(layers, memory_mask, ancestors_BKL, jnp.int32(0))

    def step(self, tokens_R: jax.Array, cache: BeamCache) -> tuple[jax.Array, BeamCache]:
        """The logits of what follows each beam's last token; R = B K, the beams of a sentence side by side."""
        batch, beams, length = cache.ancestors_BKL.shape
        slots_K = jnp.arange(beams)
        ancestors_BKL = cache.ancestors_BKL.at[:, :, cache.position].set(slots_K[None])
        mask_BKLK = ancestors_BKL[:, :, :, None] == slots_K[None, None, None]
        with matmul_precision(self._model.config):
            decoded: Any = self._model.apply(
                self._variables,
                tokens_R.reshape(batch, beams),
                cache.layers,
                cache.memory_mask,
                mask=mask_BKLK.reshape(batch, 1, beams, length * beams),
                positions_BT=jnp.full((1, beams), cache.position),
                key_positions=jnp.repeat(jnp.arange(length), beams)[None],
                method="step_features",
            )
            features_BKD, layers = decoded
            logits_BKN: Any = self._model.apply(self._logits_variables, features_BKD, method="logits")
        logits_RN = logits_BKN.reshape(batch * beams, -1)
        return logits_RN, BeamCache(layers, cache.memory_mask, ancestors_BKL, cache.position + 1)

    def grow(self, cache: BeamCache, length: int) -> BeamCache:
        """A copy of the cache with room for targets of `length` tokens."""
        batch, beams, old_length = cache.ancestors_BKL.shape
        config = self._model.config
        memory_BSD = jax.ShapeDtypeStruct((batch, cache.memory_mask.shape[-1], config.d_model), config.dtype)
        larger: Any = jax.eval_shape(
            lambda memory_BSD: self._model.apply(self._variables, memory_BSD, length, beams, method="new_cache"),
            memory_BSD,
        )

        def padded(leaf: jax.Array, larger: jax.ShapeDtypeStruct) -> jax.Array:
            room = [(0, new - old, 0) for old, new in zip(leaf.shape, larger.shape, strict=True)]
            return jax.lax.pad(leaf, jnp.zeros((), leaf.dtype), room)

        layers = jax.tree.map(padded, cache.layers, larger)
        room = ((0, 0), (0, 0), (0, length - old_length))
        ancestors_BKL = jnp.pad(cache.ancestors_BKL, room, constant_values=NOT_YET)
        return cache._replace(layers=layers, ancestors_BKL=ancestors_BKL)

    @staticmethod
    def reorder(cache: BeamCache, parents_BK: jax.Array) -> BeamCache:
        """Beam k continues the hypothesis of beam parents_BK[b, k]."""
        ancestors_BKL = jnp.take_along_axis(cache.ancestors_BKL, parents_BK[:, :, None], axis=1)
        return cache._replace(ancestors_BKL=ancestors_BKL)


def _matrices_as_used(params: Any, name: str, config: ModelConfig) -> Any:
    """The parameters, those so named in the type of matrix products: GPUs would otherwise cast them at every step."""
    if any(getattr(config.parts, field.name) is not None for field in dataclasses.fields(config.parts)):
        return params  # whose modules may need them as they are

    def as_used(path: Any, leaf: jax.Array) -> jax.Array:
        return leaf.astype(config.dtype) if path_name(path).endswith(name) else leaf

    return jax.tree_util.tree_map_with_path(as_used, params)
