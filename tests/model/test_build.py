"""Each of the seven parts of the model can be a class of the user's own; one that does not fit is refused clearly."""

from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.support.small_models import SOURCE, TARGET, applied, small, variables_of
from transformer_jax import MultiHeadAttention, Transformer
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.model import build
from transformer_jax.model.layers import Embedding, FeedForward, LayerNorm
from transformer_jax.model.positions import Sinusoidal
from transformer_jax.model.stacks import DecoderLayer, EncoderLayer

# Each role: our class, one of its methods, and a change of that method's result that shows in the logits.
ROLES = {
    "attention": (MultiHeadAttention, "attend", "2 * result"),
    "feed_forward": (FeedForward, "__call__", "2 * result"),
    "norm": (LayerNorm, "__call__", "2 * result"),
    "positions": (Sinusoidal, "embed", "2 * result"),
    "embedding": (Embedding, "__call__", "2 * result"),
    "encoder_layer": (EncoderLayer, "__call__", "2 * result"),
    "decoder_layer": (DecoderLayer, "__call__", "(2 * result[0], result[1])"),
}


def test_one_option_changes_every_norm_of_the_model():
    """Those of queries and keys, of every residual connection, and the final norms of pre-norm."""

    class Scale(nn.Module):
        epsilon: float
        dtype: Any

        @nn.compact
        def __call__(self, x):
            return x * self.param("mine", nn.initializers.ones_init(), ())

    model = Transformer(small(norm="pre", qk_norm=True, parts=PartsConfig(norm=Scale)))
    paths = jax.tree_util.tree_leaves_with_path(variables_of(model, SOURCE, TARGET))
    norms = [[key.key for key in path] for path, _ in paths if "norm" in path[-2].key]
    assert len(norms) == 2 + 3 + 2 + 3 * 2
    assert {names[-1] for names in norms} == {"mine"}


def test_norms_of_custom_modules_equal_those_of_options():
    """RMSNorm of queries and keys, in every residual connection, and at the ends of pre-norm stacks."""

    class QKNorm(MultiHeadAttention):
        def setup(self):
            super().setup()
            self.query_norm, self.key_norm = (nn.RMSNorm(1e-6, self.dtype) for _ in range(2))

        def queries(self, query):
            return self.query_norm(super().queries(query))

        def keys(self, key_value):
            return self.key_norm(super().keys(key_value))

    parts = PartsConfig(norm=nn.RMSNorm, attention=QKNorm)
    models = [Transformer(small(norm="pre", **by)) for by in ({"norm_kind": "rms", "qk_norm": True}, {"parts": parts})]
    by_options, by_modules = (applied(model, variables_of(model, SOURCE, TARGET), SOURCE, TARGET) for model in models)
    np.testing.assert_allclose(by_options, by_modules, rtol=1e-5, atol=1e-6)


def model_with(**parts):
    return Transformer(small(parts=PartsConfig(**parts)))


def logits_of(model):
    """The parameters depend on names and shapes alone, so they are the same whatever the class is."""
    return applied(model, variables_of(model, SOURCE, TARGET), SOURCE, TARGET)


@pytest.mark.parametrize("role", ROLES)
def test_a_part_of_ones_own_by_its_file_and_as_a_class(role, tmp_path):
    ours, method, changed = ROLES[role]
    address = f"{tmp_path}/mine.py:Mine"
    (tmp_path / "mine.py").write_text(
        f"from {ours.__module__} import {ours.__name__}\n"
        f"class Mine({ours.__name__}):\n"
        f"    def {method}(self, *arguments, **options):\n"
        f"        result = super().{method}(*arguments, **options)\n"
        f"        return {changed}\n"
    )
    by_file = logits_of(model_with(**{role: address}))
    assert np.abs(by_file - logits_of(model_with())).max() > 1e-3
    # A config whose classes are loaded needs the file no more; a second copy of a class would be compiled again.
    config = small(parts=PartsConfig(**{role: address}))
    loaded = build.with_loaded_modules(config)
    assert loaded == build.with_loaded_modules(config)
    (tmp_path / "mine.py").unlink()
    if role == "attention":
        np.testing.assert_array_equal(logits_of(Transformer(loaded)), by_file)


def test_a_class_that_is_not_derived_from_the_parts_is_an_error():
    with pytest.raises(BadInput, match="derived"):
        jax.eval_shape(model_with(norm=dict).init, jax.random.key(0), SOURCE, TARGET)


class UpToSeven(Sinusoidal):
    """A custom encoding with a limit; model.positions and model.max_length do not apply to it."""

    limit = 7


def test_the_limit_is_that_of_the_encoding_in_use():
    assert build.position_limit(small(positions="learned", max_length=11)) == 11
    assert build.position_limit(small(positions="rotary", max_length=11)) is None
    assert build.position_limit(small(positions="learned", parts=PartsConfig(positions=UpToSeven))) == 7


def test_deepnorm_scales_the_initial_feed_forward_value_and_output_weights():
    """Wang et al. 2022, figure 2, for encoder-decoder models of N and M layers: alpha and beta."""

    def initial(norm):
        model = Transformer(small(norm=norm, num_encoder_layers=2))
        return jax.jit(model.init)(jax.random.key(0), SOURCE, TARGET)["params"]

    n, m = 2, 1
    expected = {
        "encoder": (0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16)),
        "decoder": ((3 * m) ** (1 / 4), (12 * m) ** (-1 / 4)),
    }
    deepnorm, post = initial("deepnorm"), initial("post")
    for stack, (alpha, beta) in expected.items():
        scaling = build.deepnorm_scaling(small(norm="deepnorm", num_encoder_layers=2), stack)
        assert scaling == pytest.approx((alpha, beta))
        for (path, scaled), plain in zip(
            jax.tree_util.tree_leaves_with_path(deepnorm[stack]), jax.tree.leaves(post[stack]), strict=True
        ):
            gain = beta if path[-2].key in ("value", "output", "inner", "outer") else 1.0
            np.testing.assert_allclose(scaled, gain * plain, rtol=1e-5, err_msg=str(path))


def test_an_output_table_of_its_own_begins_as_before():
    tokens = np.ones((1, 3), int)
    model = Transformer(small(d_model=40, vocab_size=4000, embedding_init="unit", tie_embeddings="none"))
    params = jax.jit(model.init)(jax.random.key(0), tokens, tokens)["params"]
    deviations = {name: float(params[f"{name}_embedding"]["table"].std()) for name in ("source", "target", "output")}
    assert deviations == pytest.approx({"source": 1.0, "target": 1.0, "output": 40**-0.5}, rel=0.01)
