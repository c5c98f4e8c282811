"""An encoder classifier from the same parts: python examples/classifier.py tells English from German by letters."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from transformer_jax import Context, ModelConfig, padding_mask
from transformer_jax.data.corpora.tasks import generate
from transformer_jax.model import build


class Classifier(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, tokens_BS):
        x_BSD = build.embedding(self.config, self.config.vocab_size)(tokens_BS)
        x_BSD = build.encoder(self.config)(x_BSD, Context(padding_mask(tokens_BS)))
        return nn.Dense(2)(x_BSD.mean(axis=1, where=(tokens_BS != 0)[..., None]))


def sentences(split, count, width=32):
    texts = [text for pair in generate("grammar", split, size=count) for text in pair]  # English, German, English ...
    return jnp.array([list(text.encode()[:width].ljust(width, b"\0")) for text in texts]), jnp.arange(2 * count) % 2


if __name__ == "__main__":
    model = Classifier(ModelConfig(vocab_size=256, num_encoder_layers=1, d_model=32, d_ff=64, num_heads=4))
    (tokens_BS, labels_B), cost = sentences("train", 64), optax.softmax_cross_entropy_with_integer_labels
    optimizer, variables = optax.adam(3e-3), jax.jit(model.init)(jax.random.key(0), tokens_BS)
    gradient = jax.jit(jax.grad(lambda variables: cost(model.apply(variables, tokens_BS), labels_B).mean()))
    state = jax.jit(optimizer.init)(variables)
    for _ in range(100):
        changes, state = jax.jit(optimizer.update)(gradient(variables), state)
        variables = jax.jit(optax.apply_updates)(variables, changes)
    tests_BS, labels_B = sentences("test", 64)
    print(f"{(model.apply(variables, tests_BS).argmax(-1) == labels_B).mean():.0%} right")
