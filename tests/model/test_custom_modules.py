"""Each of the seven parts of the model can be a class of the user's own; one that does not fit is refused clearly."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.small_models import SOURCE, TARGET, small, variables_of
from transformer_jax import MultiHeadAttention, Transformer
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.extension import load_object
from transformer_jax.model.custom_modules import loaded
from transformer_jax.model.embedding import Embedding
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, FeedForward
from transformer_jax.model.norm import LayerNorm
from transformer_jax.model.positions import Positions, Sinusoidal

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


class NoModule:
    pass


class OtherFields(nn.Module):
    def __call__(self, x_BTD, deterministic=True):
        return x_BTD


class OtherMethods(nn.Module):
    """All of MultiHeadAttention's fields, but no cache."""

    num_heads: int
    d_k: int
    d_v: int
    dropout: float
    use_bias: bool
    dtype: str
    implementation: str

    def with_context(self, query, key_value, context):
        return query, context.cache


class Unaware(MultiHeadAttention):
    def attend(self, q_BTHK, k_BSHK, v_BSHV, *others):
        return 2 * super().attend(q_BTHK, k_BSHK, v_BSHV, *others)


class Aware(Unaware):
    softcap: float | None = None


class FormerAttention(MultiHeadAttention):
    """Written when layers called `__call__` with everything one by one."""

    def __call__(self, query, key_value, mask=None, cache=None, deterministic=True, **more):
        return super().__call__(query, key_value, mask)


class FormerLayer(EncoderLayer):
    def __call__(self, x_BSD, mask, places=None, head_mask_H=None, deterministic=True):
        return x_BSD


class OtherArguments(FeedForward):
    def __call__(self, x_BTD):
        return x_BTD


@pytest.mark.parametrize(
    ("role", "part", "told"),
    [
        ("feed_forward", NoModule, "NoModule: is not a class derived from flax.linen.Module"),
        (
            "feed_forward",
            OtherFields,
            "OtherFields: lacks the field d_ff that FeedForward has (deriving from FeedForwa",
        ),
        ("attention", OtherMethods, "OtherMethods: lacks the method remember that MultiHeadAttention has"),
        (
            "attention",
            FormerAttention,
            "overrides __call__, which layers do not call; with_context(query, key_value, context) is what they call",
        ),
        ("encoder_layer", FormerLayer, "__call__ lacks the argument context that EncoderLayer's has (docs/parts.md)"),
        ("feed_forward", OtherArguments, "__call__ lacks the argument deterministic that FeedForward's has"),
        ("positions", FeedForward, "lacks the field config that Positions has"),
        ("embedding", EncoderLayer, "lacks the field vocab_size that Embedding has"),
        ("encoder_layer", DecoderLayer, "__call__ lacks the argument x_BSD that EncoderLayer's has"),
        ("decoder_layer", EncoderLayer, "__call__ lacks the argument x_BTD that DecoderLayer's has"),
    ],
)
def test_an_unfit_class_is_refused_with_what_it_lacks(role, part, told):
    with pytest.raises(BadInput, match=f"^model.parts.{role} = .*{re.escape(told)}"):
        logits_of(model_with(**{role: part}))


class Former(OtherMethods):
    """A whole class, written before MultiHeadAttention had `softcap`, `num_key_value_heads` and `qk_norm`."""

    def remember(self, key_value):
        return {"keys": key_value, "values": key_value}

    def new_cache(self, batch, length, d_model):
        return {}


@pytest.mark.parametrize(
    ("part", "changes", "told"),
    [
        (Former, {}, None),
        (Former, {"num_key_value_heads": 2}, None),  # num_heads
        (Former, {"qk_norm": True}, "Former: lacks the field qk_norm that MultiHeadAttention has"),
        (Unaware, {"qk_norm": True}, None),
        (
            Unaware,
            {"attention_softcap": 1.0},
            "Unaware: overrides attend, which uses softcap: declare the field softcap in the class if it",
        ),
        (Unaware, {"num_key_value_heads": 1}, "Unaware: overrides attend, which uses num_key_value_heads"),
        (Aware, {"attention_softcap": 1.0}, None),
    ],
)
def test_a_class_from_before_an_option_is_refused_only_with_that_option(part, changes, told):
    model = Transformer(small(parts=PartsConfig(attention=part), **changes))
    if told is None:
        jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)
    else:
        with pytest.raises(BadInput, match=f"^model.parts.attention = .*{re.escape(told)}"):
            jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)


class Misspelt(Positions):
    def embeds(self, x_BTD, positions_BT):
        return x_BTD + 1


class Empty(Positions):
    pass


class OtherArgumentsOfEmbed(Positions):
    def embed(self, x_BTD):
        return x_BTD


class NeverCalled(Positions):
    def moved_values(self, weights_BHTS, queries_BT, keys_BS):
        return weights_BHTS


class Wider(Positions):
    def embed(self, x_BTD, positions_BT):
        return jnp.concatenate([x_BTD, x_BTD], axis=-1)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Misspelt, "Misspelt: overrides none of embed, .*, so that it would do nothing; embeds: did you mean embed?"),
        (
            Empty,
            "Empty: overrides none of embed, rotate, bias, content_queries, moved_values, so that it would do nothing",
        ),
        (OtherArgumentsOfEmbed, "embed lacks the argument positions_BT that Positions's has"),
        (NeverCalled, "NeverCalled: has moved_values, but not moves_values = True"),
    ],
)
def test_positions_that_would_do_nothing_are_refused(kind, told):
    with pytest.raises(BadInput, match=f"^model.parts.positions = .*{told.replace('?', '[?]')}"):
        logits_of(model_with(positions=kind))


def test_positions_that_change_the_shape_are_refused():
    with pytest.raises(BadInput, match=r"^Wider.embed made \(2, 5, 16\) of \(2, 5, 8\): it must keep the shape"):
        logits_of(model_with(positions=Wider))


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
        ("def mine(x): return x", "mine", "is not a class derived from flax.linen.Module"),
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
    config = loaded(small(parts=PartsConfig(feed_forward=f"{address}:Mine")))
    (tmp_path / "mine.py").unlink()
    assert config.parts.feed_forward.__name__ == "Mine"
    jax.eval_shape(Transformer(config).init, jax.random.key(0), SOURCE, TARGET)


def test_a_class_is_loaded_once_however_often_it_is_named(tmp_path):
    """linen and jit tell modules apart by their class: a second copy would be compiled again."""
    address = file_with("from transformer_jax.model.layers import FeedForward\nclass Mine(FeedForward): pass", tmp_path)
    first, second = (model_with(feed_forward=f"{address}:Mine") for _ in range(2))
    kinds = {type(model.bind({"params": {}}).encoder.layers[0].feed_forward) for model in (first, second)}
    assert len(kinds) == 1
