"""A decoder-only language model in NNX, with a search: python examples/nnx_language_model.py learns to count to 19.

Attention, feed-forward layers and norms are this library's linen modules in NNX (docs/nnx.md); the embedding is NNX's.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.nnx import bridge

from transformer_jax import (
    Context,
    FeedForward,
    LayerNorm,
    MultiHeadAttention,
    SearchRules,
    beam_search,
    causal_mask,
    gather_beams,
    label_smoothed_cross_entropy,
    sinusoid,
)

PAD, BOS, EOS, LAST = 0, 1, 2, 19
VOCABULARY, BEAMS, LONGEST = 20, 4, 20


class LanguageModel(nnx.Module):
    """Without a cache it computes the logits of whole sequences, with one those of the next tokens."""

    def __init__(self, vocabulary, width, heads, layers, rngs):
        def built(module, *inputs):
            return bridge.ToNNX(module).lazy_init(*inputs, rngs=rngs)

        x_BTD, self.width = jnp.zeros((1, 1, width)), width
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.attentions = nnx.List([built(MultiHeadAttention(heads, dropout=0.1), x_BTD, x_BTD) for _ in range(layers)])
        self.feed_forwards = nnx.List([built(FeedForward(4 * width), x_BTD) for _ in range(layers)])
        self.norms = nnx.List([built(LayerNorm(), x_BTD) for _ in range(2 * layers + 1)])

    def __call__(self, tokens_BT, cache=None, rngs=None):
        position = 0 if cache is None else cache[0]["filled"]
        mask = causal_mask(tokens_BT.shape[1]) if cache is None else None
        x_BTD = self.embed(tokens_BT) + sinusoid(position + jnp.arange(tokens_BT.shape[1])[None], self.width)
        new_cache = []
        for i, (attention, feed_forward) in enumerate(zip(self.attentions, self.feed_forwards, strict=True)):
            y_BTD = self.norms[2 * i](x_BTD)
            context = Context(mask, cache=cache and cache[i], deterministic=rngs is None)
            y_BTD, kept = attention.with_context(y_BTD, y_BTD, context, rngs=rngs)
            x_BTD = x_BTD + y_BTD
            x_BTD = x_BTD + feed_forward(self.norms[2 * i + 1](x_BTD))
            new_cache.append(kept)
        return self.embed.attend(self.norms[-1](x_BTD)), new_cache

    def new_cache(self, rows, length):
        return [attention.new_cache(rows, length, self.width) for attention in self.attentions]


@nnx.jit
def train(model, optimizer, inputs, targets, rngs):
    def loss(model, rngs):
        total, count = label_smoothed_cross_entropy(model(inputs, rngs=rngs)[0], targets, targets != PAD, epsilon=0.0)
        return total / count

    optimizer.update(model, nnx.grad(loss)(model, rngs))


def search(model, prefix):
    """Beam search without repetitions: the cache also holds the tokens that each sequence already contains."""

    def step(tokens_R, cache):
        logits_R1N, layers = model(tokens_R[:, None], cache["layers"])
        used_RN = cache["used_RN"] | jax.nn.one_hot(tokens_R, VOCABULARY, dtype=bool)
        return jnp.where(used_RN, -jnp.inf, logits_R1N[:, 0]), {"layers": layers, "used_RN": used_RN}

    rows = len(prefix) * BEAMS
    cache = {"layers": model.new_cache(rows, LONGEST), "used_RN": jnp.zeros((rows, VOCABULARY), bool)}
    rules = SearchRules(len(prefix), LONGEST, BOS, EOS, PAD, prefix=prefix)
    return jax.jit(lambda cache: beam_search(step, cache, rules, BEAMS, reorder=gather_beams))(cache)


if __name__ == "__main__":
    starts = np.arange(3, 15)
    targets = np.array([[*range(n, LAST + 1), EOS, *[PAD] * (n - 3)] for n in starts])  # 5 6 7 ... 19 <eos>
    inputs = np.insert(targets, 0, BOS, axis=1)[:, :-1]
    model = LanguageModel(VOCABULARY, width=32, heads=4, layers=1, rngs=nnx.Rngs(0))
    optimizer, rngs = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param), nnx.Rngs(dropout=1)
    for _ in range(100):
        train(model, optimizer, inputs, targets, rngs)
    found = search(model, prefix=np.array([[7], [12]]))  # the first tokens of two sequences
    for tokens_T, length in zip(found.tokens_BNT[:, 0], found.lengths_BN[:, 0], strict=True):
        print(*tokens_T[: length - 1])  # without <eos>
