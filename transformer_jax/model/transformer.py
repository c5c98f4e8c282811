"""The model of section 3: Transformer.encode / decode / __call__."""

import contextlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.typing import ArrayLike

from transformer_jax.model import build
from transformer_jax.model.checks import check_choice, check_ids, check_shapes
from transformer_jax.model.context import Context
from transformer_jax.model.layers import Embedding
from transformer_jax.model.masks import causal_mask, combine_masks, padding_mask, segment_mask
from transformer_jax.model.stacks import DecoderCache
from transformer_jax.model_config import ModelConfig

# One factor per head, "NH" (layer, head), for each of the three attentions: "encoder", "decoder", "cross".
HeadMasks = dict[str, Any]


class AttentionInputs(NamedTuple):
    """How sentences lie in the rows of a batch; None is the default.

    - `source_mask`, `target_mask`, `cross_mask`: the masks of the encoder's and the decoder's self-attention and of
      cross-attention, boolean [B or 1, H or 1, T or 1, S or 1]. They default to padding (where a token is `pad_id`),
      other segments and, in the decoder, later tokens; an explicit mask replaces all of its default. Fused kernels
      compute only the default, and give NaN in rows whose padding is not at the end: for them give `padding_mask`.
    - `source_segments`, `target_segments`: the number of each token's sentence where several are packed into a row, 0
      at padding; a target's sentence attends to the source's of the same number.
    - `source_positions`, `target_positions`: by default 0, 1, 2 ..., in each segment.
    """

    source_mask: ArrayLike | None = None
    target_mask: ArrayLike | None = None
    cross_mask: ArrayLike | None = None
    source_segments: ArrayLike | None = None
    target_segments: ArrayLike | None = None
    source_positions: ArrayLike | None = None
    target_positions: ArrayLike | None = None


class Features(NamedTuple):
    """The inputs of the output layer. The table is None if a custom embedding computes the logits."""

    decoded_BTD: jax.Array
    table_ND: jax.Array | None
    bias_N: jax.Array | None


DEFAULT = AttentionInputs()


class Transformer(nn.Module):
    """Figure 1. `encode` encodes the source, `decode` gives logits of the target; a call does both.

    The target is the decoder's *input*: it begins with <bos>, and the logits at t predict what follows target[:, t].
    `head_masks` multiplies each head's output by a factor: {"encoder", "decoder" or "cross": an array (layer, head)}.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        self.source_embedding = build.embedding(config, config.vocab_size)
        if config.tie_embeddings != "all":
            self.target_embedding = build.embedding(config, self._target_size)
        if config.tie_embeddings == "none":
            self.output_embedding = build.embedding(config, self._target_size, is_output=True)
        if config.output_bias:
            self.output_bias_N = self.param(
                "output_bias", nn.initializers.zeros_init(), (self._target_size,), jnp.float32
            )
        self.encoder = build.encoder(config)
        self.decoder = build.decoder(config)

    def __call__(
        self,
        source_BS: ArrayLike,
        target_BT: ArrayLike,
        inputs: AttentionInputs = DEFAULT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits_BTN of each next target token."""
        features = self.features(source_BS, target_BT, inputs, head_masks=head_masks, deterministic=deterministic)
        return self.logits(features.decoded_BTD)

    def features(
        self,
        source_BS: ArrayLike,
        target_BT: ArrayLike,
        inputs: AttentionInputs = DEFAULT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> Features:
        """The features of all target positions, for a loss that computes the logits itself, a few tokens at a time."""
        memory_BSD = self.encode(source_BS, inputs, head_masks=head_masks, deterministic=deterministic)
        context = Context(inputs.cross_mask, deterministic=deterministic)
        if inputs.cross_mask is None:
            mask = self.cross_mask(source_BS, inputs.source_segments, inputs.target_segments)
            lengths_B = self._lengths(source_BS) if inputs.source_segments is None else None
            context = context.replace(mask=mask, lengths_B=lengths_B)
        decoded_BTD = self._decode(target_BT, memory_BSD, context, inputs, head_masks)
        embedding = self._output_embedding
        has_table = getattr(type(embedding), "logits", None) is Embedding.logits
        bias_N = self.output_bias_N if self.config.output_bias else None
        return Features(decoded_BTD, embedding.table_ND if has_table else None, bias_N)

    def logits(self, decoded_BTD: jax.Array) -> jax.Array:
        """The pre-softmax linear transformation (section 3.4)."""
        logits_BTN = self._output_embedding.logits(decoded_BTD)
        return logits_BTN + self.output_bias_N[None, None] if self.config.output_bias else logits_BTN

    def encode(
        self,
        source_BS: ArrayLike,
        inputs: AttentionInputs = DEFAULT,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """The encoder's output, the decoder's "memory"."""
        check_ids("source", source_BS, self.config.vocab_size)
        fields = {"head_mask": self._checked(head_masks).get("encoder"), "deterministic": deterministic}
        rows = inputs.source_mask, inputs.source_segments, inputs.source_positions
        context = self._context(source_BS, *rows, is_causal=False, **fields)
        return self.encoder(self.source_embedding(source_BS), context)

    def decode(
        self,
        target_BT: ArrayLike,
        memory_BSD: ArrayLike,
        memory_mask: ArrayLike,
        *,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        """Logits_BTN, given the encoder's output; `memory_mask` is cross-attention's mask, from `cross_mask`."""
        context = Context(_known(memory_mask), deterministic=deterministic)
        return self.logits(self._decode(target_BT, memory_BSD, context, DEFAULT, head_masks))

    def _decode(
        self, target_BT: ArrayLike, memory_BSD: ArrayLike, cross: Context, inputs: AttentionInputs, head_masks: Any
    ) -> jax.Array:
        check_ids("target", target_BT, self._target_size)
        masks = self._checked(head_masks)
        fields = {"head_mask": masks.get("decoder"), "deterministic": cross.deterministic}
        rows = inputs.target_mask, inputs.target_segments, inputs.target_positions
        context = self._context(target_BT, *rows, is_causal=True, **fields)
        x_BTD, memory_BSD = self._target_embedding(target_BT), jnp.asarray(memory_BSD)
        return self.decoder(x_BTD, memory_BSD, context, cross.replace(head_mask=masks.get("cross")))[0]

    def _context(
        self, tokens_BT: ArrayLike, mask: Any, segments_BT: Any, positions_BT: Any, is_causal: bool, **fields: Any
    ) -> Context:
        """The context of a stack's self-attention; None is the default mask, and positions are counted."""
        if segments_BT is not None:
            check_shapes(tokens_BL=tokens_BT, segments_BL=segments_BT)
            positions_BT = _counted_in_segments(segments_BT) if positions_BT is None else positions_BT
        context = Context(mask, positions_BT=positions_BT, window=self.config.window, **fields)
        if mask is not None:
            return context
        mask = padding_mask(tokens_BT, self.config.pad_id)
        lengths_B = self._lengths(tokens_BT) if segments_BT is None else None
        if self.config.window is None:  # with a window attention hides these: here they would be quadratic in length
            of_later = causal_mask(jnp.shape(tokens_BT)[1]) if is_causal else None
            of_segments = None if segments_BT is None else segment_mask(segments_BT, segments_BT)
            mask, segments_BT = combine_masks(of_later, mask, of_segments), None
        return context.replace(mask=mask, lengths_B=lengths_B, is_causal=is_causal, segments_BT=segments_BT)

    def _checked(self, head_masks: HeadMasks | None) -> HeadMasks:
        """A mask of another name would have no effect."""
        for name in head_masks or {}:
            check_choice(("encoder", "decoder", "cross"), head_masks=name)
        return head_masks or {}

    def _lengths(self, tokens_BT: ArrayLike) -> jax.Array:
        """The number of tokens of each row, for fused kernels: NaN where padding is not at the end of a row."""
        return jnp.sum(jnp.asarray(tokens_BT) != self.config.pad_id, axis=-1, dtype=jnp.int32)

    def step(self, *inputs: Any, **options: Any) -> tuple[jax.Array, DecoderCache]:
        """Logits_BTN of what `step_features` returns, and the cache (first from `new_cache`)."""
        x_BTD, cache = self.step_features(*inputs, **options)
        return self.logits(x_BTD), cache

    def step_features(
        self,
        tokens_BT: ArrayLike,
        cache: DecoderCache,
        memory_mask: ArrayLike,
        mask: ArrayLike | None = None,
        positions_BT: ArrayLike | None = None,
        key_positions: ArrayLike | None = None,
        *,
        head_masks: HeadMasks | None = None,
    ) -> tuple[jax.Array, DecoderCache]:
        """The decoder's output for new tokens, by default those that follow the cache's, and the cache with them.

        - `memory_mask`: the mask of cross-attention, from `cross_mask`.
        - `mask`: self-attention's mask over the slots of the cache; by default a token sees the slots up to its own.
        - `positions_BT`, `key_positions`: positions of tokens and of all slots; by default slot l is at position l.
        """
        check_ids("tokens", tokens_BT, self._target_size)
        heads, window = self._checked(head_masks), self.config.window
        places: dict[str, Any] = {"positions_BT": positions_BT, "key_positions_BS": key_positions}
        context = Context(mask, head_mask=heads.get("decoder"), window=window, **places)
        cross_context = Context(_known(memory_mask), head_mask=heads.get("cross"))
        decoded: Any = self.decoder(self._target_embedding(tokens_BT), None, context, cross_context, cache)
        return decoded

    def cross_mask(
        self, source_BS: ArrayLike, source_segments: ArrayLike | None = None, target_segments: ArrayLike | None = None
    ) -> jax.Array:
        """The default mask of cross-attention: the *source's* padding and other segments are hidden."""
        if (source_segments is None) != (target_segments is None):
            raise ValueError("segments are given for one side only: give both, or cross_mask")
        mask = padding_mask(source_BS, self.config.pad_id)
        if source_segments is not None and target_segments is not None:
            mask = mask & segment_mask(target_segments, source_segments)
        return mask

    def new_cache(self, memory_BSD: ArrayLike, length: int, beams: int = 1) -> DecoderCache:
        """An empty cache for decoding `beams` targets per row of up to `length` tokens against this memory."""
        return self.decoder.new_cache(jnp.asarray(memory_BSD), length, beams)

    @property
    def _target_size(self) -> int:
        return self.config.target_vocab_size or self.config.vocab_size

    @property
    def _target_embedding(self) -> Any:
        return self.source_embedding if self.config.tie_embeddings == "all" else self.target_embedding

    @property
    def _output_embedding(self) -> Any:
        return self.output_embedding if self.config.tie_embeddings == "none" else self._target_embedding


def _counted_in_segments(segments_BT: ArrayLike) -> jax.Array:
    """Positions 0, 1, 2 ... that begin anew with each segment of a row."""
    segments_BT = jnp.asarray(segments_BT)
    places_1T = jnp.arange(segments_BT.shape[1])[None]
    is_first = jnp.pad(segments_BT[:, 1:] != segments_BT[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return places_1T - jax.lax.cummax(jnp.where(is_first, places_1T, 0), axis=1)


def _known(memory_mask: ArrayLike | None) -> ArrayLike:
    """None would not be the default of `__call__`: the decoder does not know where the source has padding."""
    if memory_mask is None:
        raise ValueError("memory_mask is None: must be the mask of cross-attention, as from model.cross_mask(source)")
    return memory_mask


def matmul_precision(config: ModelConfig) -> contextlib.AbstractContextManager[None]:
    """A context in which programs are traced with the precision `model.matmul_precision`.

    By default JAX multiplies float32 in one bfloat16 pass on TPUs, and in TF32 on NVIDIA GPUs. All programs of a run
    are traced inside: training, evaluation, scoring and decoding. The modules themselves follow the caller's setting.
    """
    return jax.default_matmul_precision(config.matmul_precision)


def abstract_params(config: ModelConfig) -> Any:
    """The shapes and types of a model's parameters, which are not computed."""
    tokens = jnp.ones((1, 1), jnp.int32)
    return jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)["params"]
