"""The log-probabilities of given translations, and attention weights: one forward pass, no search."""

import itertools
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import DecodeConfig
from transformer_jax.data.batching import Batch, assemble
from transformer_jax.data.buckets import Shape
from transformer_jax.data.prepared import TokenPairs, flatten
from transformer_jax.data.tokenizer import BOS, PAD
from transformer_jax.errors import BadInput
from transformer_jax.model import build, fused
from transformer_jax.model.capture import Change, NoActivation, capture, patch
from transformer_jax.model.transformer import HeadMasks, Transformer, matmul_precision
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.translation.translate import groups_of, rounded_up
from transformer_jax.update.sharding import batch_sharding

Tokens = Sequence[int]


class Attention(NamedTuple):
    """The weights of every layer (N) and head (H) for one pair; rows are queries, columns what they attend to."""

    encoder_NHSS: np.ndarray
    decoder_NHTT: np.ndarray
    cross_NHTS: np.ndarray


class Scorer:
    """Log-probabilities of given targets under one model."""

    def __init__(self, model: ModelConfig, mesh: Mesh, changes: Mapping[str, Change]):
        self._mesh, self._model = mesh, model
        model = fused.resolved(build.with_loaded_modules(model), mesh.devices.flat[0], has_whole_heads=mesh.size == 1)
        self._score = jax.jit(
            patch(lambda params, batch: token_log_probabilities(model, params, batch), changes),
            out_shardings=NamedSharding(mesh, PartitionSpec()),
            compiler_options=unfused_if_custom(mesh, model),
        )

    def score(self, params: Any, pairs: TokenPairs, tokens_per_batch: int) -> list[np.ndarray]:
        """For each pair the log-probability of every target token given those before it, <eos> included."""
        scores: list[np.ndarray] = [np.zeros(0)] * len(pairs)
        longest = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
        decode = DecodeConfig(extra_length=0, tokens_per_batch=tokens_per_batch)
        for group in groups_of(self._model, decode, self._mesh, longest.tolist()):
            shape, members = Shape(group.rows, group.source, group.target), group.members
            batch = assemble(pairs, members, np.ones(len(members), np.int32), shape, packed=False)
            placed = jax.device_put(batch, batch_sharding(self._mesh))
            scores_BT = jax.device_get(self._score(params, placed))
            for row, number in enumerate(members):
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


class Captor:
    """The activations of one model, and its attention weights."""

    def __init__(self, model: ModelConfig, changes: Mapping[str, Change]):
        self._model = build.with_loaded_modules(model)
        self._activations = jax.jit(self._captured, static_argnums=0)
        self._changes = changes

    def _captured(self, names: frozenset[str] | None, params: Any, *pair: Any) -> dict[str, jax.Array]:
        with matmul_precision(self._model):
            apply = patch(Transformer(self._model).apply, self._changes)
            return capture(apply, names)({"params": params}, *pair)[1]

    def activations(
        self, params: Any, source: Tokens, target: Tokens, names: Collection[str] | None = None
    ) -> dict[str, np.ndarray]:
        """The activations while the model reads `source` and writes `target`, each ending with <eos>."""
        limit, pair = build.position_limit(self._model), []
        for tokens in (source, [BOS, *target[:-1]]):
            room = min(rounded_up(len(tokens)), limit or sys.maxsize)  # few shapes, as each is compiled
            pair.append(np.asarray([[*tokens, *[PAD] * (room - len(tokens))]]))
        found = self._activations(None if names is None else frozenset(names), params, *pair)
        return {
            name: _cut(name, np.asarray(activation), len(source), len(target)) for name, activation in found.items()
        }

    def attention(self, params: Any, source: Tokens, target: Tokens) -> Attention:
        """All attention weights while the model reads `source` and writes `target`; BadInput if there are none."""
        decoder = self._model.num_decoder_layers
        places = {
            "encoder/layers_{}/self_attention/weights": self._model.num_encoder_layers,
            "decoder/layers_{}/self_attention/weights": decoder,
            "decoder/layers_{}/cross_attention/weights": decoder,
        }
        names = [[place.format(layer) for layer in range(layers)] for place, layers in places.items()]
        try:
            found = self.activations(params, source, target, list(itertools.chain(*names)))
        except NoActivation as error:
            raise BadInput(f"a custom attention module gives no weights to show: {error}") from None
        return Attention(*(np.concatenate([found[name] for name in each]) for each in names))


def _cut(name: str, activation: np.ndarray, source: int, target: int) -> np.ndarray:
    """The activation without padding."""
    place, _, ending = name.rpartition("/")
    length = source if name.startswith("encoder") else target
    keys = source if place.endswith("cross_attention") else length
    if ending == "weights":
        return activation[:, :, :length, :keys]
    return activation[:, : keys if ending in ("keys", "values") else length]
