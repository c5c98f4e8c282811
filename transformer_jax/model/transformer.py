"""The model of section 3: embeddings, and Transformer.encode / decode / __call__."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer_jax.model import parts
from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask, segment_mask
from transformer_jax.model.precision import precision_of
from transformer_jax.model.stacks import Decoder, DecoderCache, Encoder, HeadMasks
from transformer_jax.model_config import ModelConfig


class Embedding(nn.Module):
    """Section 3.4: token vectors times sqrt(d_model), and the same table as the pre-softmax transformation."""

    config: ModelConfig
    vocab_size: int

    def setup(self) -> None:
        d_model = self.config.d_model
        self.table_ND = self.param("table", nn.initializers.normal(d_model**-0.5), (self.vocab_size, d_model))

    def __call__(self, tokens_BT: jax.Array) -> jax.Array:
        vectors_BTD = self.table_ND[tokens_BT]
        if self.config.scale_embeddings:  # before the cast: in bfloat16 the root of 300 is 0.3 % too large
            vectors_BTD = vectors_BTD * self.config.d_model**0.5
        return vectors_BTD.astype(self.config.dtype)

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        """Float32 scores for every token of the vocabulary."""
        rows = x_BTD.reshape(-1, x_BTD.shape[-1]).astype(self.config.dtype)
        table_DN = self.table_ND.T.astype(self.config.dtype)
        logits = jnp.matmul(rows, table_DN, preferred_element_type=jnp.float32, precision=precision_of(rows))
        return logits.reshape(*x_BTD.shape[:-1], self.vocab_size)


class Transformer(nn.Module):
    """Figure 1. `encode` the source, `decode` the target against it, or both at once.

    The target given is the decoder's *input*: it begins with <bos>, and the logits at t predict what follows
    target[:, t]. Masks default to padding (where a token is `pad_id`) and, in the decoder, to no look ahead. Explicit
    masks replace the defaults; segment ids (sentences packed into a row) narrow them; positions default to 0, 1, 2 ...
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        embedding = parts.choose(config.parts.embedding, Embedding, "embedding", ("__call__", "logits"))
        target_size = config.target_vocab_size or config.vocab_size
        self.source_embedding = embedding(config, config.vocab_size)
        if config.tie_embeddings != "all":
            self.target_embedding = embedding(config, target_size)
        if config.tie_embeddings == "none":
            self.output_embedding = embedding(config, target_size)
        if config.output_bias:
            self.output_bias_N = self.param("output_bias", nn.initializers.zeros_init(), (target_size,))
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)

    def __call__(self, source_BS: jax.Array, target_BT: jax.Array, **more: Any) -> jax.Array:
        """Logits_BTN of each next target token. What else can be given: see `features`."""
        return self.logits(self.features(source_BS, target_BT, **more))

    def logits(self, features_BTD: jax.Array) -> jax.Array:
        """The pre-softmax linear transformation (section 3.4)."""
        logits_BTN = self._output_embedding.logits(features_BTD)
        return logits_BTN + self.output_bias_N[None, None] if self.config.output_bias else logits_BTN

    def features(
        self,
        source_BS: jax.Array,
        target_BT: jax.Array,
        *,
        source_mask: jax.Array | None = None,
        target_mask: jax.Array | None = None,
        cross_mask: jax.Array | None = None,
        source_segments: jax.Array | None = None,
        target_segments: jax.Array | None = None,
        source_positions: jax.Array | None = None,
        target_positions: jax.Array | None = None,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """The decoder's output, of which the logits are products with the output table."""
        memory_BSD = self.encode(
            source_BS,
            mask=source_mask,
            segments=source_segments,
            positions=source_positions,
            head_masks=head_masks,
            deterministic=deterministic,
        )
        if cross_mask is None:
            cross_mask = self.cross_mask(source_BS, source_segments, target_segments)
        x_BTD, _ = self._decode(
            target_BT,
            memory_BSD,
            cross_mask,
            mask=target_mask,
            segments=target_segments,
            positions=target_positions,
            head_masks=head_masks,
            deterministic=deterministic,
        )
        return x_BTD

    def output_table(self) -> jax.Array | None:
        """The matrix of the pre-softmax transformation, ND; None if a class of one's own makes the logits."""
        embedding = self._output_embedding
        return embedding.table_ND if getattr(type(embedding), "logits", None) is Embedding.logits else None

    def output_bias(self) -> jax.Array | None:
        """What is added to that product, N; None without model.output_bias."""
        return self.output_bias_N if self.config.output_bias else None

    def encode(
        self,
        source_BS: jax.Array,
        *,
        mask: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """The encoder's output, the decoder's "memory"."""
        if mask is None:
            within = None if segments is None else segment_mask(segments, segments)
            mask = combine_masks(padding_mask(source_BS, self.config.pad_id), within)
        if positions is None:
            self.encoder.check_length(source_BS.shape[1])
            positions = _counted(source_BS)
        head_mask_NH = None if head_masks is None else head_masks.get("encoder")
        return self.encoder(self.source_embedding(source_BS), mask, positions, head_mask_NH, deterministic)

    def decode(
        self, target_BT: jax.Array, memory_BSD: jax.Array | None, memory_mask: jax.Array | None, **more: Any
    ) -> Any:
        """Logits_BTN; with `cache` (from `new_cache`), in which the target continues: (logits_BTN, cache).

        `memory_mask` is the mask of encoder-decoder attention, as `cross_mask` gives it. With a cache the memory is in
        it, and None here. Also: mask, segments, positions, key_positions (where the cache's slots stand), head_masks,
        deterministic.
        """
        x_BTD, cache = self._decode(target_BT, memory_BSD, memory_mask, **more)
        logits_BTN = self.logits(x_BTD)
        return logits_BTN if cache is None else (logits_BTN, cache)

    def _decode(
        self,
        target_BT: jax.Array,
        memory_BSD: jax.Array | None,
        memory_mask: jax.Array | None,
        mask: jax.Array | None = None,
        segments: jax.Array | None = None,
        positions: jax.Array | None = None,
        key_positions: jax.Array | None = None,
        cache: DecoderCache | None = None,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> tuple[jax.Array, DecoderCache | None]:
        if cache is not None:
            slots = cache[0]["self"]["keys"].shape[-1]
            positions = cache[0]["self"]["filled"] + _counted(target_BT) if positions is None else positions
            key_positions = jnp.arange(slots)[None] if key_positions is None else key_positions
        else:
            if positions is None:
                self.decoder.check_length(target_BT.shape[1])
                positions = _counted(target_BT)
            key_positions = positions
            if mask is None:
                within = None if segments is None else segment_mask(segments, segments)
                padding = padding_mask(target_BT, self.config.pad_id)
                mask = combine_masks(causal_mask(target_BT.shape[1]), padding, within)
        x_BTD = self._target_embedding(target_BT)
        return self.decoder(
            x_BTD, memory_BSD, mask, memory_mask, positions, key_positions, cache, head_masks, deterministic
        )

    def cross_mask(
        self,
        source_BS: jax.Array,
        source_segments: jax.Array | None = None,
        target_segments: jax.Array | None = None,
    ) -> jax.Array:
        """Encoder-decoder attention hides the *source's* padding, and other segments."""
        padding = padding_mask(source_BS, self.config.pad_id)
        if source_segments is None or target_segments is None:
            return padding
        return padding & segment_mask(target_segments, source_segments)

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        """An empty cache for decoding targets of up to `length` tokens against this memory, `beams` of them a row."""
        return self.decoder.new_cache(memory_BSD, length, beams)

    @property
    def _target_embedding(self) -> Any:
        return self.source_embedding if self.config.tie_embeddings == "all" else self.target_embedding

    @property
    def _output_embedding(self) -> Any:
        return self.output_embedding if self.config.tie_embeddings == "none" else self._target_embedding


def _counted(tokens_BT: jax.Array) -> jax.Array:
    """Positions 0, 1, 2 ..., the same for every row: 1T."""
    return jnp.arange(tokens_BT.shape[1])[None]
