"""A decoder-only language model from the same parts: python examples/language_model.py learns a sentence by heart."""

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from transformer_jax import Context, ModelConfig, causal_mask, label_smoothed_cross_entropy
from transformer_jax.model import build


class LanguageModel(nn.Module):
    config: ModelConfig

    @nn.compact
    def __call__(self, tokens_BT):
        embedding = build.embedding(self.config, self.config.vocab_size)
        x_BTD = build.encoder(self.config)(embedding(tokens_BT), Context(causal_mask(tokens_BT.shape[1])))  # the mask!
        return embedding.logits(x_BTD)


def loss(variables, model, tokens_BT, next_BT):
    total, count = label_smoothed_cross_entropy(model.apply(variables, tokens_BT), next_BT, next_BT > 0, epsilon=0.0)
    return total / count


if __name__ == "__main__":
    text = "It is what it is, said the bee in the tea. " * 3
    rows_BT = jnp.array([list(text[start : start + 17].encode()) for start in range(48)])
    model = LanguageModel(ModelConfig(vocab_size=128, num_encoder_layers=1, d_model=32, d_ff=64, num_heads=4))
    variables, optimizer, said = jax.jit(model.init)(jax.random.key(0), rows_BT), optax.adam(3e-3), text[:16]
    state, gradient = jax.jit(optimizer.init)(variables), jax.jit(jax.grad(loss), static_argnums=1)
    for _ in range(100):
        changes, state = jax.jit(optimizer.update)(gradient(variables, model, rows_BT[:, :-1], rows_BT[:, 1:]), state)
        variables = jax.jit(optax.apply_updates)(variables, changes)
    for end in range(16, 60):
        said += chr(model.apply(variables, jnp.array([list(said[end - 16 :].encode())]))[0, -1].argmax())
    print(said)
