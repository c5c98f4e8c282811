"""The encoder and the decoder (section 3.1): the layers of each, and the stacks of N layers."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.model.attention import Cache, Context
from transformer_jax.model.layers import RESIDUAL, Dropout, LayerNorm, ModuleClass, NormPlacement, Rate, Residual
from transformer_jax.model.positions import Positions
from transformer_jax.model.shapes import check_shapes

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

    def setup(self) -> None:
        self.self_attention = self.attention_cls()
        self.self_attention_residual = self.make_residual()
        self.feed_forward = self.feed_forward_cls()
        self.feed_forward_residual = self.make_residual()

    def make_residual(self) -> Any:
        return self.residual_class(self.placement, self.norm_cls, self.dropout, self.alpha)


class EncoderLayer(_Layer):
    """Self-attention, then feed-forward (section 3.1).

    - `attention_cls`, `feed_forward_cls`: make the sub-layers, as in `functools.partial(MultiHeadAttention, 8)`.
    - `placement`, `norm_cls`, `dropout`, `alpha`: fields of the residual connection around each, see `Residual`.
    """

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        y = self.self_attention_residual.pre(x_BSD)
        y, _ = self.self_attention.with_context(y, y, context)
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
        self.cross_attention_residual = self.make_residual()

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: Context, cross_context: Context
    ) -> tuple[jax.Array, LayerCache | None]:
        y = self.self_attention_residual.pre(x_BTD)
        y, own = self.self_attention.with_context(y, y, context)
        x_BTD = self.self_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.cross_attention_residual.pre(x_BTD)
        y, cross = self.cross_attention.with_context(y, memory_BSD, cross_context)
        x_BTD = self.cross_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.add(x_BTD, y, context.deterministic)
        return x_BTD, {"self": own, "cross": cross} if own is not None and cross is not None else None

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

    def setup(self) -> None:
        stored = 1 if self.share_layers else self.num_layers
        self.layers = [self.layer_cls() for _ in range(stored)]
        first = self.positions_cls()
        self.positions = [first, *(self.positions_cls() for _ in range(1, stored if first.per_layer else 1))]
        self.drop = Dropout(self.dropout)
        if self.final_norm_cls is not None:
            self.final_norm = self.final_norm_cls()

    def in_order(self) -> list[tuple[Any, Positions]]:
        """Each layer as it is applied, with its positions: with `share_layers` all are the same."""
        layers, positions = self.layers, self.positions
        return [(layers[i % len(layers)], positions[i % len(positions)]) for i in range(self.num_layers)]

    def check_length(self, length: int) -> None:
        limit = self.positions[0].limit
        if limit is not None and length > limit:
            raise ValueError(f"positions end at {limit}, not {length}: raise model.max_length, or use other positions")

    def pre(self, x_BTD: jax.Array, context: Context, filled: Any = 0) -> tuple[jax.Array, Context]:
        """Embeddings with positions and dropout on the sum; and the positions, by default counted from `filled`."""
        length = x_BTD.shape[-2]
        if context.positions_BT is None:
            self.check_length(length)
            context = context.replace(positions_BT=filled + jnp.arange(length)[None])
        check_shapes(x_BTD=x_BTD, positions_BT=context.positions_BT)
        x_BTD = self.drop(self.positions[0].embed(x_BTD, context.positions_BT), context.deterministic)
        return checkpoint_name(x_BTD, RESIDUAL), context

    def of_layer(self, context: Context, layer: int, encoding: Positions | None, cache: Any = None) -> Context:
        """The context of one layer."""
        head_mask = context.head_mask
        if head_mask is not None:
            shape, layers = jnp.shape(head_mask), self.num_layers
            if len(shape) != 2 or shape[0] != layers:
                raise ValueError(f"head_mask has the shape {shape}: must be [layers, heads], with layers = {layers}")
            head_mask = jnp.asarray(head_mask)[layer]
        own: Context = context.replace(encoding=encoding, cache=cache, head_mask=head_mask)
        return own

    def post(self, x_BTD: jax.Array) -> jax.Array:
        return x_BTD if self.final_norm_cls is None else self.final_norm(x_BTD)


class Encoder(_Stack):
    """A stack of encoder layers over embedded tokens.

    - `layer_cls`: makes a layer, such as `functools.partial(EncoderLayer, ...)`.
    - `num_layers`: how often a layer is applied.
    - `positions_cls`: makes the position encoding, by default none.
    - `dropout`: the rate at which the sum of embeddings and positions is dropped.
    - `final_norm_cls`: makes the norm at the end, for layers with pre-norm; post-norm, the paper's, has none.
    - `share_layers`: one layer, applied `num_layers` times.

    `transformer_jax.model.build.encoder(config)` makes it from a config.
    """

    def __call__(self, x_BSD: jax.Array, context: Context) -> jax.Array:
        x_BSD, context = self.pre(x_BSD, context)
        for i, (layer, encoding) in enumerate(self.in_order()):
            x_BSD = layer(x_BSD, self.of_layer(context, i, encoding))
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
        caches = []
        for i, (layer, encoding) in enumerate(self.in_order()):
            own = self.of_layer(context, i, encoding, cache and cache[i]["self"])
            cross = self.of_layer(cross_context, i, None, cache and cache[i]["cross"])
            x_BTD, new_cache = layer(x_BTD, memory_BSD, own, cross)
            caches.append(new_cache)
        x_BTD = self.post(x_BTD)
        x_BTD = x_BTD if self.output_divisor == 1 else x_BTD / self.output_divisor
        return x_BTD, None if cache is None else tuple(caches)

    def new_cache(self, memory_BSD: jax.Array, length: int, beams: int = 1) -> DecoderCache:
        """An empty cache for decoding `beams` targets per row, of up to `length` tokens each, against this memory."""
        self.check_length(length)
        return tuple(layer.new_cache(memory_BSD, length * beams) for layer, _ in self.in_order())


def attention_weights_of(shown: Any, attention: str) -> list[jax.Array]:
    """The weights of "self_attention" or "cross_attention" in a stack's "intermediates", BHTS for each application."""
    layers = [shown[f"layers_{i}"] for i in range(sum(name.startswith("layers_") for name in shown))]
    return [weights_BHTS for layer in layers for weights_BHTS in layer[attention]["weights"]]
