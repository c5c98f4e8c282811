"""The encoder and the decoder (section 3.1): positions, dropout on the sum, N layers, pre-norm's final norm."""

import bisect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.errors import BadInput
from transformer_jax.model import custom_modules
from transformer_jax.model.attention import Context
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, LayerCache
from transformer_jax.model.masks import Mask
from transformer_jax.model.norm import norm_of
from transformer_jax.model.position_interface import METHODS, AttentionPositions, Positions
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.model.residual import RESIDUAL
from transformer_jax.model.shapes import check_shapes, check_type
from transformer_jax.model_config import MOST_ROWS, ModelConfig

# The cache of every decoder layer.
DecoderCache = tuple[LayerCache, ...]
# One factor for each head, "NH" (layer, head), for each of the three attentions: "encoder", "decoder", "cross".
HeadMasks = dict[str, jax.Array]


class DecoderContext(NamedTuple):
    """What the decoder is given besides its input and the encoder's output."""

    mask: Mask
    memory_mask: Mask
    positions_BT: jax.Array
    key_positions_BS: jax.Array
    cache: DecoderCache | None = None
    head_masks: HeadMasks | None = None
    deterministic: bool = True

    def of_layer(self, layer: int, encoding: Positions) -> tuple[Context, Context]:
        """The contexts of the layer's self-attention and cross-attention."""
        positions = AttentionPositions(encoding, self.positions_BT, self.key_positions_BS)
        cache = {"self": None, "cross": None} if self.cache is None else self.cache[layer]
        own, cross = (_head_mask(self.head_masks, name, layer) for name in ("decoder", "cross"))
        return (
            Context(self.mask, positions, cache["self"], own, self.deterministic),
            Context(self.memory_mask, None, cache["cross"], cross, self.deterministic),
        )


class _Stack(nn.Module):
    """What the encoder and the decoder share."""

    config: ModelConfig

    def build(self, layer: Any, count: int, causal: bool) -> None:
        self.depth, stored = count, self.config.stored(count)
        self.layers = [layer(self.config) for _ in range(stored)]
        encoding = _encoding(self.config)
        self.positions = [encoding(self.config, causal) for _ in range(stored if encoding.per_layer else 1)]
        self.drop = Dropout(self.config.dropout)
        if self.config.is_pre_norm:  # post-norm, the paper's, ends with its last layer's norm
            self.final_norm = norm_of(self.config)

    def in_order(self) -> list[tuple[Any, Positions]]:
        """Each layer as it is applied, with its positions: with `share_layers` all are the same."""
        return [(self.layers[i % len(self.layers)], self.positions[i % len(self.positions)]) for i in range(self.depth)]

    def check_length(self, length: int) -> None:
        self.positions[0].check_length(length)

    def counted(self, tokens_BT: jax.Array) -> jax.Array:
        """Positions 0, 1, 2 ..., the same for every row: 1T."""
        self.check_length(tokens_BT.shape[1])
        return jnp.arange(tokens_BT.shape[1])[None]

    def enter(self, x_BTD: jax.Array, positions_BT: jax.Array, deterministic: bool) -> jax.Array:
        """The input of the first layer: embeddings with positions, and dropout on the sum."""
        check_shapes(x_BLD=x_BTD)
        encoding = self.positions[0]
        encoded = encoding.embed(x_BTD, positions_BT)
        if encoded.shape != x_BTD.shape:
            name = type(encoding).__name__
            raise BadInput(f"{name}.embed made {encoded.shape} of {x_BTD.shape}: it must keep the shape")
        return checkpoint_name(self.drop(encoded, deterministic), RESIDUAL)

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        return self.final_norm(x_BTD) if self.config.is_pre_norm else x_BTD


class Encoder(_Stack):
    """N encoder layers over embedded tokens."""

    def setup(self) -> None:
        layer = custom_modules.choose(self.config, "encoder_layer", EncoderLayer)
        self.build(layer, self.config.num_encoder_layers, causal=False)

    def __call__(
        self,
        x_BSD: jax.Array,
        mask: Mask,
        positions_BS: jax.Array,
        head_masks: HeadMasks | None = None,
        deterministic: bool = True,
    ) -> jax.Array:
        x_BSD = self.enter(x_BSD, positions_BS, deterministic)
        for i, (layer, encoding) in enumerate(self.in_order()):
            positions = AttentionPositions(encoding, positions_BS, positions_BS)
            head_mask_H = _head_mask(head_masks, "encoder", i)
            x_BSD = layer(x_BSD, Context(mask, positions, None, head_mask_H, deterministic))
        return self.leave(x_BSD)


class Decoder(_Stack):
    """N decoder layers over embedded tokens and the encoder's output."""

    def setup(self) -> None:
        layer = custom_modules.choose(self.config, "decoder_layer", DecoderLayer, ("__call__", "new_cache"))
        self.build(layer, self.config.num_decoder_layers, causal=True)

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: DecoderContext
    ) -> tuple[jax.Array, DecoderCache | None]:
        """The last layer's output, and the caches of all layers (None without a cache)."""
        check_type(DecoderContext, "DecoderContext(mask, memory_mask, ...)", context=context)
        x_BTD = self.enter(x_BTD, context.positions_BT, context.deterministic)
        caches = []
        for i, (layer, encoding) in enumerate(self.in_order()):
            x_BTD, cache = layer(x_BTD, memory_BSD, *context.of_layer(i, encoding))
            caches.append(cache)
        return self.leave(x_BTD), None if context.cache is None else tuple(caches)

    def leave(self, x_BTD: jax.Array) -> jax.Array:
        x_BTD = super().leave(x_BTD)
        width = self.config.d_model / self.config.base_d_model
        return x_BTD if width == 1 else x_BTD / width  # muP's, so that logits are divided by the width

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        self.check_length(length)
        return tuple(layer.new_cache(memory_BSD, length * beams) for layer, _ in self.in_order())


def attention_weights_of(shown: Any, attention: str) -> list[jax.Array]:
    """The weights of "self_attention" or "cross_attention", BHTS for each layer, of a stack's "intermediates".

    A shared layer has those of all its applications.
    """
    layers = [shown[f"layers_{i}"] for i in range(sum(name.startswith("layers_") for name in shown))]
    return [weights_BHTS for layer in layers for weights_BHTS in layer[attention]["weights"]]


def position_limit(config: ModelConfig) -> int | None:
    """The length of the longest sequence that the position encoding supports; None without a limit."""
    encoding = _encoding(config)(config, parent=None)

    def refuses(length: int) -> bool:
        try:
            encoding.check_length(length)
        except ValueError:
            return True
        return False

    lengths = range(1, MOST_ROWS + 1)
    return bisect.bisect_left(lengths, True, key=refuses) if refuses(lengths[-1]) else None


def _encoding(config: ModelConfig) -> type[Positions]:
    """The class that model.positions names, or the custom one."""
    if config.parts.positions is None:
        return ENCODINGS[config.positions]
    methods = (*METHODS, "check_length")
    encoding = custom_modules.choose(config, "positions", Positions, methods, at_least_one_of=METHODS)
    if custom_modules.overrides(encoding, Positions, "moved_values") and not encoding.moves_values:
        raise custom_modules.unfit(config, "positions", "has moved_values, but not moves_values = True")
    return encoding


def check_head_masks(head_masks: HeadMasks | None, config: ModelConfig) -> None:
    """Raises ValueError if a name or shape is wrong: the mask would have no effect, or one on other heads."""
    decoder = config.num_decoder_layers, config.num_heads
    shapes = {"encoder": (config.num_encoder_layers, config.num_heads), "decoder": decoder, "cross": decoder}
    for name, mask_NH in (head_masks or {}).items():
        if name not in shapes:
            raise ValueError(f"head_masks has {name!r}: must be one of {', '.join(shapes)}")
        if mask_NH.shape != shapes[name]:
            raise ValueError(
                f"head_masks[{name!r}] has the shape {mask_NH.shape}: must be [layers, heads] = {shapes[name]}"
            )


def _head_mask(head_masks: HeadMasks | None, name: str, layer: int) -> jax.Array | None:
    masks_NH = (head_masks or {}).get(name)
    return None if masks_NH is None else masks_NH[layer]
