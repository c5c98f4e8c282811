"""What do the mistakes cost that tutorials on the Transformer actually make?

    transformer-jax sweep experiments/tutorial_mistakes.py --scale=demo --workdir=runs/mistakes --jobs=2
    transformer-jax report runs/mistakes

Each variant makes one mistake found in published code. Most are a class in this file, used as a custom
module (docs/parts.md), so that the library needs no options for mistakes. A mistake that costs
nothing is a result too: it explains why nobody noticed. Expected: a missing mask in the decoder gives
excellent perplexity and worthless translations, because in training the model sees the word to be predicted; a
mistake in decoding alone does not change perplexity; a missing padding mask costs little if sentences of similar
length are batched together, but a translation then depends on the other sentences in its batch.

At demo scale a model of one layer in encoder and decoder learns for 400 updates of at most 1,024 tokens, which is far
from its best. One seed gives no intervals, so only large differences tell something. The 17 runs are to take at most
25 minutes of CPU time together; `--seeds=3` takes three times as long.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from ml_collections import ConfigDict

from transformer_jax.extension import load_module
from transformer_jax.model.attention import MultiHeadAttention
from transformer_jax.model.cache import Cache
from transformer_jax.model.context import Context
from transformer_jax.model.dropout import Dropout
from transformer_jax.model.layers import Embedding, Linear, Residual
from transformer_jax.model.masks import causal_mask
from transformer_jax.model.positions import Positions
from transformer_jax.model.stacks import DecoderLayer, EncoderLayer, LayerCache
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.update.loss import label_smoothed_cross_entropy

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES


def get_sweep(scale: str) -> Sweep:
    return Sweep(
        name="tutorial_mistakes",
        question="What do the mistakes cost that tutorials on the Transformer actually make?",
        base=demo() if scale == "demo" else bases.base(scale),
        variants=[Variant("base", note="without a mistake"), *mistakes()],
        seeds=1 if scale == "demo" else 3,
        primary="bleu",
        notes=(
            "Perplexity is what the mistaken program itself reports: where a mask is missing it may be far too good.",
            "Translations are made with a cache, which hides later words whatever the masks are.",
        ),
    )


def demo() -> ConfigDict:
    """The demo of `bases`, with a shallower model, rows that are padded as in tutorials, and one program each."""
    config = bases.demo()
    config.data.batching = "buckets"
    config.data.num_shapes = 1
    config.data.max_length = 26  # the grammar's sentences have at most 24 words
    config.data.task.valid_size = 200
    config.data.task.test_size = 200
    config.model.num_encoder_layers = 1
    config.model.num_decoder_layers = 1
    config.train.steps = 400
    config.train.eval_every = 400
    config.train.checkpoint_every = 200
    config.decode.beam = 1
    return config


def mistakes() -> list[Variant]:
    def parts(**classes: type) -> dict[str, Any]:
        return {f"model.parts.{role}": bases.own(__file__, found.__name__) for role, found in classes.items()}

    def mistake(group: str, name: str, changes: dict[str, Any], note: str) -> Variant:
        return Variant(name, changes, group, note)

    late = parts(encoder_layer=EncoderDroppingLate, decoder_layer=DecoderDroppingLate)
    return [
        mistake(
            "heads", "shared projections", parts(attention=SharedProjections), "one small W^Q, W^K, W^V for all heads"
        ),
        mistake(
            "heads", "no output projection", parts(attention=NoOutputProjection), "heads are joined, W^O is left out"
        ),
        mistake("heads", "no transpose", parts(attention=AcrossHeads), "self-attention runs across heads, not words"),
        mistake("heads", "no 1/sqrt(d_k)", parts(attention=Unscaled), "scores are not scaled"),
        mistake("masks", "masks ignored", parts(attention=MasksIgnored), "accepted as arguments, and not used"),
        mistake("masks", "no padding masks", parts(attention=NoPaddingMask), "only the decoder's view ahead is masked"),
        mistake("masks", "no cross mask", parts(attention=NoCrossMask), "the decoder attends to the source's padding"),
        mistake(
            "input",
            "wrong exponents",
            parts(positions=WrongExponents),
            "2(2i)/d for the sine, 2(2i+2)/d for the cosine",
        ),
        mistake(
            "input",
            "cosine's own exponent",
            parts(positions=OwnExponent),
            "(2i+1)/d for the cosine: its column's number",
        ),
        mistake("input", "no sqrt(d_model)", {"model.scale_embeddings": False}, "embeddings are not scaled up"),
        mistake(
            "wiring", "self-attention to the encoder", parts(decoder_layer=FedByEncoder), "keys, values: the encoder's"
        ),
        mistake(
            "wiring",
            "residual from the value",
            parts(decoder_layer=ResidualFromValue),
            "around encoder-decoder attention",
        ),
        mistake("wiring", "dropout after the norm", late, "Dropout(LayerNorm(x + Sublayer(x)))"),
        mistake(
            "output", "softmax before the loss", parts(embedding=SoftmaxTwice), "whose own softmax is then the second"
        ),
        mistake(
            "output",
            "smoothing's remainder",
            {"train.loss": bases.own(__file__, "smoothed_with_a_remainder")},
            "1 - epsilon for the right word, epsilon / N for each other one: the sum is below 1",
        ),
        mistake(
            "output",
            "last token alone",
            parts(attention=LastTokenAlone),
            "trained rightly, decoded without the words before",
        ),
    ]


class SharedByHeads(nn.Module):
    """One (d_k x d_k) matrix that each head's slice of the input is multiplied by."""

    use_bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x_BTD: jax.Array, heads: int, width: int) -> jax.Array:
        slices_BTHK = x_BTD.reshape(*x_BTD.shape[:-1], heads, -1)
        return Linear(self.use_bias, self.dtype, name="shared")(slices_BTHK, width)


class SharedProjections(MultiHeadAttention):
    """Heads that differ only in which slice of the input they see."""

    def setup(self) -> None:
        self.query, self.key, self.value = (SharedByHeads(self.use_bias, self.dtype) for _ in range(3))
        self.output = Linear(self.use_bias, self.dtype)
        self.drop = Dropout(self.dropout)


class NoOutputProjection(MultiHeadAttention):
    """Concat(head_1 .. head_h), and nothing that would mix them."""

    def setup(self) -> None:
        self.query, self.key, self.value = (Linear(self.use_bias, self.dtype) for _ in range(3))
        self.output = joined
        self.drop = Dropout(self.dropout)


def joined(heads_BTHV: jax.Array, width: int, axes: int) -> jax.Array:
    return heads_BTHV.reshape(*heads_BTHV.shape[:2], width)


class AcrossHeads(MultiHeadAttention):
    """[B, T, H, K] left as it is in place of [B, H, T, K]: the heads of one word attend to each other.

    In self-attention only. To the encoder's output, of another length, this would not run, and is done right.
    """

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        if key_value is not query:
            return super().with_context(query, key_value, context)
        width = query.shape[-1]
        projected = self.queries(query), self.keys(query), self.values(query)
        folded = (x.reshape(-1, self.num_heads, 1, x.shape[-1]) for x in projected)
        heads = self.attend(*folded, unmasked(context).replace(encoding=None))
        output = self.output(heads.reshape(*query.shape[:-1], -1), width)
        return output, context.cache  # no word looks at another: nothing to keep


class Unscaled(MultiHeadAttention):
    """softmax(Q K^T) V."""

    def attend(self, q_BTHK: jax.Array, *others: Any) -> jax.Array:
        return super().attend(q_BTHK * q_BTHK.shape[-1] ** 0.5, *others)


def unmasked(context: Context) -> Context:
    """Without a mask, and without what describes it to fused kernels."""
    without: Context = context.replace(mask=None, lengths_B=None, is_causal=False)
    return without


class MasksIgnored(MultiHeadAttention):
    """No mask but the one that a cache needs, which is about its slots and not about words."""

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        fills_cache = context.cache is not None and key_value is not None
        return super().with_context(query, key_value, context if fills_cache else unmasked(context))


class NoPaddingMask(MultiHeadAttention):
    """The causal mask alone."""

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        if context.cache is None or key_value is None:
            is_causal = context.is_causal
            context = unmasked(context).replace(mask=causal_mask(query.shape[1]) if is_causal else None)
        return super().with_context(query, key_value, context)


class NoCrossMask(MultiHeadAttention):
    """Right in self-attention, where keys and values come from the queries' words."""

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        return super().with_context(query, key_value, context if key_value is query else unmasked(context))


class WrongExponents(Positions):
    """An index that runs 0, 2, 4 ... and is doubled once more."""

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        width = x_BTD.shape[-1]
        doubled = jnp.arange(0, width, 2)
        positions_BT1 = positions_BT[..., None].astype(jnp.float32)
        sine = jnp.sin(positions_BT1 / 10_000.0 ** (2 * doubled / width)[None, None])
        cosine = jnp.cos(positions_BT1 / 10_000.0 ** (2 * (doubled + 2) / width)[None, None])
        interleaved = jnp.stack([sine, cosine], axis=-1).reshape(*positions_BT.shape, width)
        return x_BTD + interleaved.astype(x_BTD.dtype)


class OwnExponent(Positions):
    """Each column's own number in the exponent, whether it is a sine or a cosine."""

    def embed(self, x_BTD: jax.Array, positions_BT: jax.Array) -> jax.Array:
        column = jnp.arange(x_BTD.shape[-1])
        angles_BTD = positions_BT[..., None].astype(jnp.float32) / 10_000.0 ** (column / x_BTD.shape[-1])[None, None]
        return x_BTD + jnp.where(column % 2 == 0, jnp.sin(angles_BTD), jnp.cos(angles_BTD)).astype(x_BTD.dtype)


class FedByEncoder(DecoderLayer):
    """Both attentions take keys and values from the encoder: of the words before, only the last one is known."""

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: Context, cross_context: Context
    ) -> tuple[jax.Array, LayerCache | None]:
        caches = {}
        for name, given in (("self", context), ("cross", cross_context)):
            attention = {"self": self.self_attention, "cross": self.cross_attention}[name]
            residual = {"self": self.self_attention_residual, "cross": self.cross_attention_residual}[name]
            given = cross_context.replace(cache=given.cache, head_mask=None)
            y, caches[name] = attention.with_context(residual.pre(x_BTD), memory_BSD, given)
            x_BTD = residual.add(x_BTD, y, context.deterministic)
        y = self.feed_forward(self.feed_forward_residual.pre(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.add(x_BTD, y, context.deterministic)
        return x_BTD, None if context.cache is None else caches

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        return {
            "self": self.self_attention.project_memory(memory_BSD),
            "cross": self.cross_attention.project_memory(memory_BSD),
        }


class ResidualFromValue(DecoderLayer):
    """Around encoder-decoder attention: LayerNorm(value + Sublayer(x)), the value being the encoder's output.

    Word t of the target is added to word t of the source, or to nothing where the source has ended.
    """

    def __call__(
        self, x_BTD: jax.Array, memory_BSD: jax.Array | None, context: Context, cross_context: Context
    ) -> tuple[jax.Array, LayerCache | None]:
        y = self.self_attention_residual.pre(x_BTD)
        y, own = self.self_attention.with_context(y, y, context)
        x_BTD = self.self_attention_residual.add(x_BTD, y, context.deterministic)

        y = self.cross_attention_residual.pre(x_BTD)
        y, cross = self.cross_attention.with_context(y, memory_BSD, cross_context)
        value_BSD = memory_BSD if cross is None else cross["memory"]
        assert value_BSD is not None and context.positions_BT is not None
        value_BTD = jnp.take(value_BSD, context.positions_BT[0], axis=1, mode="fill", fill_value=0.0)
        x_BTD = self.cross_attention_residual.add(value_BTD, y, context.deterministic)

        y = self.feed_forward(self.feed_forward_residual.pre(x_BTD), context.deterministic)
        x_BTD = self.feed_forward_residual.add(x_BTD, y, context.deterministic)
        return x_BTD, None if own is None or cross is None else {"self": own, "cross": cross}

    def new_cache(self, memory_BSD: jax.Array, length: int) -> LayerCache:
        cache = super().new_cache(memory_BSD, length)
        return {"self": cache["self"], "cross": {**cache["cross"], "memory": memory_BSD}}


class DropoutLast(Residual):
    """Dropout(LayerNorm(x + Sublayer(x))): what every later layer sees has holes in it, the stack's output too."""

    def add(self, x: jax.Array, sublayer: jax.Array, deterministic: bool) -> jax.Array:
        return self.drop(self.norm(x + sublayer), deterministic)


class EncoderDroppingLate(EncoderLayer):
    residual_class = DropoutLast


class DecoderDroppingLate(DecoderLayer):
    residual_class = DropoutLast


class SoftmaxTwice(Embedding):
    """Probabilities, for a loss that expects logits: no word can get more than e / (e + N - 1) of its probability."""

    def logits(self, x_BTD: jax.Array) -> jax.Array:
        return jax.nn.softmax(super().logits(x_BTD))


def smoothed_with_a_remainder(
    logits_BTN: jax.Array, targets_BT: jax.Array, weights_BT: jax.Array, epsilon: float
) -> tuple[jax.Array, jax.Array]:
    """The right word's share of epsilon is missing: the targets sum to 1 - epsilon / N."""
    loss, count = label_smoothed_cross_entropy(logits_BTN, targets_BT, weights_BT, epsilon)
    share, log_p_BTN = epsilon / logits_BTN.shape[-1], jax.nn.log_softmax(logits_BTN)
    right_BT = jnp.take_along_axis(log_p_BTN, targets_BT[..., None], axis=-1)[..., 0]
    return loss + share * (right_BT * weights_BT).sum(), count


class LastTokenAlone(MultiHeadAttention):
    """Training sees all the words before; decoding shows the decoder the last one only, in its right place."""

    def with_context(
        self, query: jax.Array, key_value: jax.Array | None, context: Context
    ) -> tuple[jax.Array, Cache | None]:
        if context.cache is None or key_value is None:
            return super().with_context(query, key_value, context)
        itself = jnp.eye(query.shape[1], dtype=bool)[None, None]  # beams stand side by side
        output, _ = super().with_context(
            query, key_value, context.replace(mask=itself, cache=None, key_positions_BS=context.positions_BT)
        )
        return output, context.cache
