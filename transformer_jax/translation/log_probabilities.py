"""The log-probabilities of given translations, and attention weights: one forward pass, no search."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.data.batching import Batch, EvaluationBatches
from transformer_jax.data.prepared import TokenPairs, flatten
from transformer_jax.data.tokenizer import BOS, PAD
from transformer_jax.model import build, fused
from transformer_jax.model.stacks import attention_weights_of
from transformer_jax.model.transformer import HeadMasks, Transformer, matmul_precision
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.update.sharding import batch_sharding, batch_shards

Tokens = Sequence[int]


class Attention(NamedTuple):
    """The weights of every layer (N) and head (H) for one pair; rows are queries, columns what they attend to."""

    encoder_NHSS: np.ndarray
    decoder_NHTT: np.ndarray
    cross_NHTS: np.ndarray


class Scorer:
    """Log-probabilities of given targets under one model."""

    def __init__(self, model: ModelConfig, mesh: Mesh):
        self._mesh = mesh
        model = fused.resolved(build.with_loaded_modules(model), mesh.devices.flat[0], is_local=mesh.size == 1)
        self._score = jax.jit(
            lambda params, batch: token_log_probabilities(model, params, batch),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
            compiler_options=unfused_if_custom(mesh, model),
        )

    def score(self, params: Any, pairs: TokenPairs, tokens_per_batch: int) -> list[np.ndarray]:
        """For each pair the log-probability of every target token given those before it, <eos> included."""
        if not len(pairs):
            return []
        scores: list[np.ndarray] = [np.zeros(0)] * len(pairs)
        longest = int(max(pairs.source_lengths.max(), pairs.target_lengths.max())) + 1
        batches = EvaluationBatches(
            pairs, tokens_per_batch=max(tokens_per_batch, longest), row_multiple=batch_shards(self._mesh)
        )
        for batch in batches:
            placed = jax.device_put(batch._replace(pair_index=None), batch_sharding(self._mesh))
            scores_BT = jax.device_get(self._score(params, placed))
            for row, number in enumerate(np.asarray(batch.pair_index)):
                if number >= 0:
                    scores[number] = scores_BT[row, : pairs.target_lengths[number] + 1]
        return scores


def token_log_probabilities(
    model: ModelConfig, params: Any, batch: Batch, head_masks: HeadMasks | None = None
) -> jax.Array:
    """The log-probability of every token of batch.target_output, BT; 0 at padding."""
    pair = (batch.source, batch.target_input)
    with matmul_precision(model):
        logits_BTN: Any = Transformer(model).apply({"params": params}, *pair, head_masks=head_masks)
    chosen_BT = jnp.take_along_axis(logits_BTN, batch.target_output[..., None], axis=-1)[..., 0]
    return jnp.where(batch.target_output == PAD, 0.0, chosen_BT - jax.nn.logsumexp(logits_BTN, axis=-1))


def token_pairs(sources: Sequence[Tokens], targets: Sequence[Tokens]) -> TokenPairs:
    """Lists of tokens, without special ones, as the arrays that batches are made of."""
    arrays = []
    for side in (sources, targets):
        tokens, lengths = flatten(side, np.int32)
        arrays += [tokens, np.concatenate([[0], np.cumsum(lengths)])]
    return TokenPairs(*arrays)


@partial(jax.jit, static_argnums=0)
def _intermediates(model: ModelConfig, params: Any, source_BS: Any, target_BT: Any) -> Any:
    with matmul_precision(model):
        _, shown = Transformer(model).apply({"params": params}, source_BS, target_BT, mutable=["intermediates"])
    return shown["intermediates"]


def attention_of_pair(model: ModelConfig, params: Any, source: Tokens, target: Tokens) -> Attention:
    """All attention weights while the model reads `source` and writes `target`, each ending with <eos>."""
    model = build.with_loaded_modules(model)
    stacks = _intermediates(model, params, np.asarray([source]), np.asarray([[BOS, *target[:-1]]]))
    places = (("encoder", "self_attention"), ("decoder", "self_attention"), ("decoder", "cross_attention"))
    return Attention(
        *(np.stack([layer[0] for layer in attention_weights_of(stacks[stack], name)]) for stack, name in places)
    )
