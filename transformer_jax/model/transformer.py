"""The model of section 3: Transformer.encode / decode / __call__."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model import custom_modules
from transformer_jax.model.embedding import Embedding
from transformer_jax.model.fused import takes_token_masks
from transformer_jax.model.masks import Mask, checked_rows, cross_attention_mask, self_attention_mask
from transformer_jax.model.shapes import check_ids, check_type
from transformer_jax.model.stacks import Decoder, DecoderCache, DecoderContext, Encoder, HeadMasks, check_head_masks
from transformer_jax.model_config import ModelConfig


class Layout(NamedTuple):
    """How sentences lie in the rows of a batch; None is the default.

    Masks default to padding (where a token is `pad_id`) and, in the decoder, to no look ahead. Explicit masks replace
    the defaults; segment ids (sentences packed into a row) restrict them. Positions default to 0, 1, 2 ...
    """

    source_mask: Mask = None
    target_mask: Mask = None
    cross_mask: Mask = None
    source_segments: jax.Array | None = None
    target_segments: jax.Array | None = None
    source_positions: jax.Array | None = None
    target_positions: jax.Array | None = None


DEFAULT_LAYOUT = Layout()


class Transformer(nn.Module):
    """Figure 1. `encode` the source, `decode` the target against it, or both at once.

    The target is the decoder's *input*: it begins with <bos>, and the logits at t predict what follows target[:, t].
    `head_masks` multiplies each head's output by a factor: {"encoder", "decoder" or "cross": an array (layer, head)}.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        embedding = custom_modules.choose(config, "embedding", Embedding, ("__call__", "logits"))
        self.source_embedding = embedding(config, config.vocab_size)
        if config.tie_embeddings != "all":
            self.target_embedding = embedding(config, self._target_size)
        if config.tie_embeddings == "none":
            # Only multiplied with features, never looked up: model.embedding_init does not concern it.
            self.output_embedding = embedding(dataclasses.replace(config, embedding_init="normal"), self._target_size)
        if config.output_bias:
            self.output_bias_N = self.param("output_bias", nn.initializers.zeros_init(), (self._target_size,))
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def __call__(
        self,
        source_BS: jax.Array,
        target_BT: jax.Array,
        layout: Layout = DEFAULT_LAYOUT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits_BTN of each next target token."""
        features_BTD = self.features(source_BS, target_BT, layout, head_masks=head_masks, deterministic=deterministic)
        return self.logits(features_BTD)

    def logits(self, features_BTD: jax.Array) -> jax.Array:
        """The pre-softmax linear transformation (section 3.4)."""
        logits_BTN = self._output_embedding.logits(features_BTD)
        return logits_BTN + self.output_bias_N[None, None] if self.config.output_bias else logits_BTN

    def features(
        self,
        source_BS: jax.Array,
        target_BT: jax.Array,
        layout: Layout = DEFAULT_LAYOUT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """The decoder's output; the logits are its products with the output table."""
        options: dict[str, Any] = {"head_masks": head_masks, "deterministic": deterministic}
        memory_BSD = self.encode(source_BS, layout, **options)
        if layout.cross_mask is None:
            segments = layout.source_segments, layout.target_segments
            mask = cross_attention_mask(source_BS, self.config.pad_id, *segments, takes_token_masks(self.config))
            layout = layout._replace(cross_mask=mask)
        return self._decode(target_BT, memory_BSD, layout, **options)

    def output_table(self) -> jax.Array | None:
        """The matrix of the pre-softmax transformation, ND; None if a custom embedding computes the logits."""
        embedding = self._output_embedding
        return embedding.table_ND if getattr(type(embedding), "logits", None) is Embedding.logits else None

    def output_bias(self) -> jax.Array | None:
        """What is added to that product, N; None without model.output_bias."""
        return self.output_bias_N if self.config.output_bias else None

    def encode(
        self,
        source_BS: jax.Array,
        layout: Layout = DEFAULT_LAYOUT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """The encoder's output, the decoder's "memory"."""
        check_type(Layout, "Layout(source_mask=mask)", layout=layout)
        check_ids("source", source_BS, self.config.vocab_size)
        check_head_masks(head_masks, self.config)
        mask, positions_BS = layout.source_mask, layout.source_positions
        if mask is None:
            mask = self._self_attention_mask(source_BS, layout.source_segments, causal=False)
        if positions_BS is None:
            positions_BS = self.encoder.counted(source_BS)
        x_BSD = checked_rows(self.source_embedding(source_BS), mask)
        return self.encoder(x_BSD, mask, positions_BS, head_masks, deterministic)

    def decode(
        self,
        target_BT: jax.Array,
        memory_BSD: jax.Array,
        memory_mask: jax.Array | None,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits_BTN against the encoder's output; `memory_mask` is cross-attention's, as from `cross_mask`."""
        options: dict[str, Any] = {"head_masks": head_masks, "deterministic": deterministic}
        return self.logits(self._decode(target_BT, memory_BSD, Layout(cross_mask=memory_mask), **options))

    def _decode(
        self,
        target_BT: jax.Array,
        memory_BSD: jax.Array,
        layout: Layout,
        head_masks: HeadMasks | None,
        deterministic: bool,
    ) -> jax.Array:
        check_ids("target", target_BT, self._target_size)
        check_head_masks(head_masks, self.config)
        mask, positions_BT = layout.target_mask, layout.target_positions
        if mask is None:
            mask = self._self_attention_mask(target_BT, layout.target_segments, causal=True)
        if positions_BT is None:
            positions_BT = self.decoder.counted(target_BT)
        context = DecoderContext(
            mask, layout.cross_mask, positions_BT, positions_BT, head_masks=head_masks, deterministic=deterministic
        )
        return self.decoder(checked_rows(self._target_embedding(target_BT), mask), memory_BSD, context)[0]

    def _self_attention_mask(self, tokens_BT: jax.Array, segments_BT: jax.Array | None, causal: bool) -> Mask:
        config = self.config
        return self_attention_mask(tokens_BT, config.pad_id, segments_BT, causal, takes_token_masks(config))

    def step(self, *inputs: Any, **options: Any) -> tuple[jax.Array, DecoderCache]:
        """Logits_BTN of what `step_features` returns, and the cache (first from `new_cache`)."""
        x_BTD, cache = self.step_features(*inputs, **options)
        return self.logits(x_BTD), cache

    def step_features(
        self,
        tokens_BT: jax.Array,
        cache: DecoderCache,
        memory_mask: jax.Array | None,
        mask: jax.Array | None = None,
        positions_BT: jax.Array | None = None,
        key_positions: jax.Array | None = None,
    ) -> tuple[jax.Array, DecoderCache]:
        """The decoder's output for new tokens, by default those that follow the cache's, and the cache with them."""
        check_ids("tokens", tokens_BT, self._target_size)
        if positions_BT is None:
            positions_BT = cache[0]["self"]["filled"] + jnp.arange(tokens_BT.shape[1])[None]
        if key_positions is None:  # slot l of the cache is at position l
            key_positions = jnp.arange(cache[0]["self"]["keys"].shape[-1])[None]
        context = DecoderContext(mask, memory_mask, positions_BT, key_positions, cache)
        decoded: Any = self.decoder(self._target_embedding(tokens_BT), None, context)
        return decoded

    def cross_mask(
        self, source_BS: jax.Array, source_segments: jax.Array | None = None, target_segments: jax.Array | None = None
    ) -> jax.Array:
        """The default mask of cross-attention: the *source's* padding and other segments are hidden."""
        mask: Any = cross_attention_mask(source_BS, self.config.pad_id, source_segments, target_segments)
        return mask

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        """An empty cache for decoding `beams` targets a row of up to `length` tokens against this memory."""
        return self.decoder.new_cache(memory_BSD, length, beams)

    @property
    def _target_size(self) -> int:
        return self.config.target_vocab_size or self.config.vocab_size

    @property
    def _target_embedding(self) -> Any:
        return self.source_embedding if self.config.tie_embeddings == "all" else self.target_embedding

    @property
    def _output_embedding(self) -> Any:
        return self.output_embedding if self.config.tie_embeddings == "none" else self._target_embedding


def abstract_params(config: ModelConfig) -> Any:
    """The shapes and types of a model's parameters, which are not computed."""
    tokens = jnp.ones((1, 1), jnp.int32)
    variables: Any = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return variables["params"]
