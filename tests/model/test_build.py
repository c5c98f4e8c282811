"""Each of the seven parts of the model can be a class of the user's own; one that does not fit is refused clearly."""

import re
from typing import Any

import jax
import numpy as np
import pytest
from flax import linen as nn

from tests.support.small_models import SOURCE, TARGET, small, variables_of
from transformer_jax import MultiHeadAttention, Residual, Transformer, sinusoidal_positions
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.extension import load_object
from transformer_jax.model.build import with_loaded_modules
from transformer_jax.model.embedding import Embedding
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, FeedForward
from transformer_jax.model.norm import LayerNorm
from transformer_jax.model.positions import Sinusoidal

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


def file_with(text, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(text)
    return str(file)


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


def model_with(**parts):
    return Transformer(small(parts=PartsConfig(**parts)))


def logits_of(model):
    """The parameters depend on names and shapes alone, so they are the same whatever the class is."""
    return model.apply(variables_of(model, SOURCE, TARGET), SOURCE, TARGET)


@pytest.mark.parametrize("role", ROLES)
def test_a_part_of_ones_own_by_its_file_and_as_a_class(role, tmp_path):
    ours, method, changed = ROLES[role]
    address = file_with(
        f"from {ours.__module__} import {ours.__name__}\n"
        f"class Mine({ours.__name__}):\n"
        f"    def {method}(self, *arguments, **options):\n"
        f"        result = super().{method}(*arguments, **options)\n"
        f"        return {changed}\n",
        tmp_path,
    )
    by_file = logits_of(model_with(**{role: f"{address}:Mine"}))
    assert np.abs(by_file - logits_of(model_with())).max() > 1e-3
    np.testing.assert_array_equal(logits_of(model_with(**{role: load_object(f"{address}:Mine")})), by_file)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("attention", nn.Dense),
        ("feed_forward", MultiHeadAttention),
        ("norm", dict),
        ("positions", FeedForward),
        ("embedding", nn.Embed),
        ("encoder_layer", DecoderLayer),
        ("decoder_layer", EncoderLayer),
    ],
)
def test_a_class_that_is_not_derived_from_the_parts_is_an_error(part, kind):
    with pytest.raises(BadInput, match=f"model.parts.{part} = {kind.__name__}: .* derived"):
        logits_of(model_with(**{part: kind}))


class Temperature(MultiHeadAttention):
    """A learned temperature per head."""

    @nn.compact
    def queries(self, query):
        factors_H = self.param("temperature", nn.initializers.ones_init(), (self.num_heads,))
        return super().queries(query) * factors_H[None, None, :, None]


class ReZero(Residual):
    """Bachlechner et al. 2020."""

    def setup(self):
        super().setup()
        self.weight = self.param("weight", nn.initializers.zeros_init(), ())

    def pre(self, x):
        return x

    def add(self, x, sublayer, deterministic):
        return x + self.weight * self.drop(sublayer, deterministic)


class ReZeroLayer(EncoderLayer):
    residual_class = ReZero


def test_a_learned_temperature_per_head():
    model = model_with(attention=Temperature)
    variables = model.init(jax.random.key(0), SOURCE, TARGET)
    params = variables["params"]
    temperatures = [params[stack]["layers_0"]["self_attention"]["temperature"] for stack in ("encoder", "decoder")]
    assert [array.shape for array in temperatures] == [(2,), (2,)]
    plain = model_with().apply(variables, SOURCE, TARGET)
    np.testing.assert_array_equal(model.apply(variables, SOURCE, TARGET), plain)  # they are ones at first


def test_a_layer_with_another_residual_connection_begins_as_the_identity():
    model = model_with(encoder_layer=ReZeroLayer)
    variables = model.init(jax.random.key(0), SOURCE, TARGET)
    memory = model.apply(variables, SOURCE, method="encode")
    embedded = model.apply(variables, SOURCE, method=lambda model, x: model.source_embedding(x))
    np.testing.assert_allclose(memory, embedded + sinusoidal_positions(5, 8)[None], rtol=1e-5)


def test_positions_of_ones_own_stand_in_place_of_any_kind(tmp_path):
    """Of a kind that has fields of its own too, which it need not have."""
    address = file_with(
        "from transformer_jax.model.positions import Positions\n"
        "class Mine(Positions):\n    def embed(self, x_BTD, positions_BT):\n        return -x_BTD\n",
        tmp_path,
    )
    for kind in ("sinusoidal", "relative"):
        logits_of(Transformer(small(positions=kind, parts=PartsConfig(positions=f"{address}:Mine"))))


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("def mine(x): return x", "mine", "must be a class derived from MultiHeadAttention"),
        ("class Mine: pass", "Mien", "has no Mien; did you mean Mine?"),
        ("1 / 0", "Mine", "raised ZeroDivisionError"),
        ("", "not a name", "must be path/to/file.py:Name"),
    ],
)
def test_an_unfit_file_is_refused(tmp_path, text, name, told):
    with pytest.raises(BadInput, match=re.escape(told)):
        logits_of(model_with(attention=f"{file_with(text, tmp_path)}:{name}"))


def test_a_missing_file_and_a_wrong_type_are_refused():
    with pytest.raises(BadInput, match=r"nowhere\.py: no such Python file"):
        logits_of(model_with(attention="nowhere.py:Mine"))
    with pytest.raises(BadInput, match=r"attention = 3: must be path/to/file\.py:Name or none"):
        PartsConfig(attention=3)


def test_a_loaded_config_needs_its_file_no_more(tmp_path):
    address = file_with("from transformer_jax.model.layers import FeedForward\nclass Mine(FeedForward): pass", tmp_path)
    config = with_loaded_modules(small(parts=PartsConfig(feed_forward=f"{address}:Mine")))
    (tmp_path / "mine.py").unlink()
    assert config.parts.feed_forward.__name__ == "Mine"
    jax.eval_shape(Transformer(config).init, jax.random.key(0), SOURCE, TARGET)


def test_a_class_is_loaded_once_however_often_it_is_named(tmp_path):
    """linen and jit tell modules apart by their class: a second copy would be compiled again."""
    address = file_with("from transformer_jax.model.layers import FeedForward\nclass Mine(FeedForward): pass", tmp_path)
    first, second = (model_with(feed_forward=f"{address}:Mine") for _ in range(2))
    kinds = {type(model.bind({"params": {}}).encoder.layers[0].feed_forward) for model in (first, second)}
    assert len(kinds) == 1
