"""The encoder and the decoder (section 3.1): the layers of each, and the stacks of N layers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.model.cache import Cache
from transformer_jax.model.checks import check_classes, check_shapes, check_whole
from transformer_jax.model.context import Context, check_context
from transformer_jax.model.dropout import Dropout, Rate
from transformer_jax.model.layers import RESIDUAL, LayerNorm, ModuleClass, NormPlacement, Residual
from transformer_jax.model.positions import ALL_METHODS, IN_ATTENTION, Positions, check_encoding

# The caches of a decoder layer's two attentions, "self" and "cross"; and of all layers.
LayerCache = dict[str, Cache]
DecoderCache = tuple[LayerCache, ...]


class _Layer(nn.Module):
    """The base of both layers. A subclass may have another class of residual connections."""

    residual_class: ClassVar[type[Residual]] = Residual

    attention_cls: ModuleClass
    feed_forward_cls: ModuleClass
    placement: NormPlacement = "post"
    norm_cls: ModuleClass = LayerNorm
    dropout: Rate = 0.0
    alpha: float = 1.0
    layer_dropout: Rate = 0.0

    def setup(self) -> None:
        check_classes(attention_cls=self.attention_cls, feed_forward_cls=self.feed_forward_cls, norm_cls=self.norm_cls)
        self.self_attention = self.attention_cls()
        self.self_attention_residual = _residual_of(self)
        self.feed_forward = self.feed_forward_cls()
        self.feed_forward_residual = _residual_of(self)


def _residual_of(layer: _Layer) -> Any:
    return layer.residual_class(layer.placement, layer.norm_cls, layer.dropout, layer.alpha, layer.layer_dropout)


def _attended(
    attention: Any, query: jax.Array, key_value: jax.Array | None, context: Context
) -> tuple[jax.Array, Cache | None]:
    """The output of attention, and its cache. Without one it is a plain call, whose output flax captures."""
    if context.cache is None:
        return attention(query, key_value, context), None
    return attention.with_context(query, key_value, context)


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1).

    - `attention_cls`, `feed_forward_cls`: make the sub-layers, as in `functools.partial(MultiHeadAttention, 8)`.
    - `placement`, `norm_cls`, `dropout`, `alpha`, `layer_dropout`: fields of the residual connection around each, see
      `Residual`.
    """

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        check_context(context=context)
        if context.cache is not None:
            raise ValueError(
                "context has a cache, which an encoder layer cannot return: use self_attention.with_context"
            )
        y = self.self_attention_residual.pre(x_BSD)
        y, _ = _attended(self.self_attention, y, y, context)
        x_BSD = self.self_attention_residual.add(x_BSD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BSD), context.deterministic)
        return self.feed_forward_residual.add(x_BSD, y, context.deterministic)


class DecoderLayer(_Layer):
    """Self-attention, cross-attention to the encoder's output ("memory"), then feed-forward (section 3.1).

    It has the fields of `EncoderLayer`. With a cache (from `new_cache`) x holds only new tokens, and the memory is
    in the cache. Each context has the cache of its attention, and the result has both caches, or None.
    """

    def setup(self) -> None:
        super().setup()
        self.cross_attention = self.attention_cls()
        self.cross_attention_residual = _residual_of(self)

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: Context, cross_context: Context
    ) -> tuple[jax.Array, LayerCache | None]:
        check_context(context=context, cross_context=cross_context)
        if cross_context.window is not None or cross_context.is_causal or cross_context.segments_BT is not None:
            raise ValueError("cross_context: window, is_causal and segments_BT are for self-attention, in `context`")
        y = self.self_attention_residual.pre(x_BTD)
        y, own = _attended(self.self_attention, y, y, context)
        x_BTD = self.self_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.cross_attention_residual.pre(x_BTD)
        y, cross = _attended(self.cross_attention, y, memory_BSD, cross_context)
        x_BTD = self.cross_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.add(x_BTD, y, context.deterministic)
        caches = {name: cache for name, cache in (("self", own), ("cross", cross)) if cache is not None}
        return x_BTD, caches or None

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        """Room for `length` target tokens, and the memory's keys and values."""
        batch, _, d_model = memory_BSD.shape
        own = self.self_attention.new_cache(batch, length, d_model)
        return {"self": own, "cross": self.cross_attention.project_memory(memory_BSD)}


class _Stack(nn.Module):
    """The base of the encoder and the decoder."""

    layer_cls: ModuleClass
    num_layers: int
    positions_cls: ModuleClass = Positions
    dropout: Rate = 0.0
    final_norm_cls: ModuleClass | None = None
    share_layers: bool = False
    remat: bool = False

    def setup(self) -> None:
        check_whole(num_layers=self.num_layers)
        check_classes(layer_cls=self.layer_cls, positions_cls=self.positions_cls, final_norm_cls=self.final_norm_cls)
        stored = 1 if self.share_layers else self.num_layers
        self.layers = [self.layer_cls() for _ in range(stored)]
        first = self.positions_cls()
        check_encoding(first, ALL_METHODS, "it has no effect")
        self.positions = [first, *(self.positions_cls() for _ in range(1, stored if first.per_layer else 1))]
        self.drop = Dropout(self.dropout)
        if self.final_norm_cls is not None:
            self.final_norm = self.final_norm_cls()

    def check_length(self, length: int) -> None:
        limit = self.positions[0].limit
        if limit is not None and length > limit:
            raise ValueError(f"positions end at {limit}, not {length}: raise model.max_length, or use other positions")

    def pre(self, x_BTD: jax.Array, context: Context, filled: Any = 0) -> tuple[jax.Array, Context]:
        """Embeddings with positions and dropout on the sum; and the positions, by default counted from `filled`."""
        check_context(context=context)
        if context.encoding is not None:
            name = type(context.encoding).__name__
            raise ValueError(f"encoding is {name}: a stack makes its own, as in Encoder(..., positions_cls={name})")
        if context.positions_BT is None:
            check_shapes(x_BTD=x_BTD)
            length = jnp.shape(x_BTD)[1]
            self.check_length(length)
            context = context.replace(positions_BT=filled + jnp.arange(length)[None])
        check_shapes(x_BTD=x_BTD, positions_PT=context.positions_BT)
        x_BTD = self.drop(self.positions[0].embed(jnp.asarray(x_BTD), context.positions_BT), context.deterministic)
        return checkpoint_name(x_BTD, RESIDUAL), context

    def recomputes(self) -> bool:
        """Whether a gradient computes what is inside a layer again."""
        return self.remat and not self.is_initializing()

    def post(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD if self.final_norm_cls is None else self.final_norm(x_BTD)


# Functions, because flax captures what methods return, and layers and encodings are not arrays.


def _in_order(stack: _Stack) -> list[tuple[Any, Positions]]:
    """Each layer as it is applied, with its positions: with `share_layers` all are the same."""
    layers, positions = stack.layers, stack.positions
    return [(layers[i % len(layers)], positions[i % len(positions)]) for i in range(stack.num_layers)]


def _of_layer(stack: _Stack, context: Context, layer: int, encoding: Positions | None, cache: Any) -> Context:
    head_mask = context.head_mask
    if head_mask is not None:
        shape, layers = jnp.shape(head_mask), stack.num_layers
        if len(shape) != 2 or shape[0] != layers:
            raise ValueError(f"head_mask has the shape {shape}: must be [layers, heads], with layers = {layers}")
        head_mask = jnp.asarray(head_mask)[layer]
    if encoding is not None and not encoding.overrides(*IN_ATTENTION):
        encoding = None
    return context.replace(encoding=encoding, cache=cache, head_mask=head_mask)


def _applied(stack: _Stack, layer: Any, *inputs: Any) -> Any:
    """The layer's output."""
    if stack.recomputes():
        return nn.remat(lambda layer, *inputs: layer(*inputs))(layer, *inputs)
    return layer(*inputs)


class Encoder(_Stack):
    """A stack of encoder layers over embedded tokens.

    - `layer_cls`: makes a layer, such as `functools.partial(EncoderLayer, ...)`.
    - `num_layers`: how often a layer is applied.
    - `positions_cls`: makes the position encoding, by default none.
    - `dropout`: the rate at which the sum of embeddings and positions is dropped.
    - `final_norm_cls`: makes the norm at the end, for layers with pre-norm; post-norm, the paper's, has none.
    - `share_layers`: one layer, applied `num_layers` times.
    - `remat`: gradients keep each layer's input and compute the rest again (`flax.linen.remat`).

    `transformer_jax.model.build.encoder(config)` makes it from a config.
    """

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        x_BSD, context = self.pre(x_BSD, context)
        for i, (layer, encoding) in enumerate(_in_order(self)):
            x_BSD = _applied(self, layer, x_BSD, _of_layer(self, context, i, encoding, context.cache))
        return self.post(x_BSD)


class Decoder(_Stack):
    """A stack of decoder layers over embedded tokens and the encoder's output.

    It has the fields of `Encoder`, and `output_divisor`: the output is divided by it (muP's width / base width).
    """

    output_divisor: float = 1.0

    def __call__(
        self,
        x_BTD: jax.Array,
        memory_BSD: jax.Array | None,
        context: Context,
        cross_context: Context,
        cache: DecoderCache | None = None,
    ) -> tuple[jax.Array, DecoderCache | None]:
        """The last layer's output, and the caches of all layers (None without a cache), as in `DecoderLayer`."""
        # A custom layer's cache need not count its slots where positions are given.
        filled = 0 if cache is None or context.positions_BT is not None else cache[0]["self"]["filled"]
        x_BTD, context = self.pre(x_BTD, context, filled)
        check_context(cross_context=cross_context)
        if context.cache is not None or cross_context.cache is not None:
            raise ValueError("a context has a cache: a Decoder is given the caches of all layers as `cache`")
        caches = []
        for i, (layer, encoding) in enumerate(_in_order(self)):
            own = _of_layer(self, context, i, encoding, cache and cache[i]["self"])
            cross = _of_layer(self, cross_context, i, cross_context.encoding, cache and cache[i]["cross"])
            x_BTD, new_cache = _applied(self, layer, x_BTD, memory_BSD, own, cross)
            caches.append(new_cache)
        x_BTD = self.post(x_BTD)
        x_BTD = x_BTD if self.output_divisor == 1 else x_BTD / self.output_divisor
        return x_BTD, None if cache is None else tuple(caches)

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        """An empty cache for decoding `beams` targets per row, of up to `length` tokens each, against this memory."""
        self.check_length(length)
        return tuple(layer.new_cache(memory_BSD, length * beams) for layer, _ in _in_order(self))


def attention_weights_of(shown: Any, attention: str) -> list[jax.Array]:
    """The weights of "self_attention" or "cross_attention" in a stack's "intermediates", BHTS for each application."""
    layers = [shown[f"layers_{i}"] for i in range(sum(name.startswith("layers_") for name in shown))]
    return [weights_BHTS for layer in layers for weights_BHTS in layer[attention]["weights"]]
