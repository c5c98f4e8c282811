"""A custom module that ignores another one, or an option, is refused before anything is trained."""

import re

import jax.numpy as jnp
import pytest
from flax import linen as nn

from tests.support.small_models import small
from tests.support.small_runs import experiment
from transformer_jax import MultiHeadAttention
from transformer_jax.config import PartsConfig
from transformer_jax.errors import BadInput
from transformer_jax.experiment import try_out
from transformer_jax.model.custom_usage import refuse_ignored
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, FeedForward
from transformer_jax.model.norm import LayerNorm
from transformer_jax.model.positions import Positions


class MyAttention(MultiHeadAttention):
    pass


class MyFeedForward(FeedForward):
    pass


class Twice(FeedForward):
    """Its weights need not be FeedForward's."""

    def __call__(self, x_BTD, deterministic=True):
        return 2 * super().__call__(x_BTD, deterministic)


class MyNorm(LayerNorm):
    pass


class MyResidual(nn.Module):
    """Pre-norm with a norm that is not the config's."""

    def setup(self):
        self.norm = nn.RMSNorm(1e-6)

    def enter(self, x):
        return self.norm(x)

    def leave(self, x, sublayer, deterministic):
        return x + sublayer


class OwnAttention(EncoderLayer):
    def make_attention(self):
        return MultiHeadAttention(self.config.num_heads)


class OwnFeedForward(DecoderLayer):
    def make_feed_forward(self):
        return FeedForward(self.config.d_ff)


class OwnNorm(EncoderLayer):
    def make_residual(self):
        return MyResidual()


class Root(LayerNorm):
    """Derived from the norm of the config, and another one."""

    def __call__(self, x):
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)


class DerivedResidual(MyResidual):
    def setup(self):
        self.norm = Root(1e-6)


class DerivedNorm(EncoderLayer):
    def make_residual(self):
        return DerivedResidual()


class PlainCrossAttention(DecoderLayer):
    def make_cross_attention(self):
        return MultiHeadAttention(self.config.num_heads)


class Around(MultiHeadAttention):
    """Has another attention within, which is its own affair."""

    def setup(self):
        super().setup()
        self.inner = MultiHeadAttention(self.num_heads)

    def with_context(self, query, key_value, context):
        found, cache = super().with_context(query, key_value, context)
        return found + self.inner(query, query), cache


class OwnQueries(MultiHeadAttention):
    def queries(self, query):
        return self._heads(self.query, query, self.num_heads, self.d_k)


class OwnValues(MultiHeadAttention):
    def values(self, key_value):
        return self._heads(self.value, key_value, self.num_heads, self.d_v)


class Biased(Positions):
    """Adds to the scores."""

    def embed(self, x_BTD, positions_BT):
        return x_BTD + 1

    def bias(self, q_BTHK, queries_BT, keys_BS):
        return jnp.zeros((1, 1, 1, 1))


class WithoutBias(MultiHeadAttention):
    def attend(self, q_BTHK, k_BSHK, v_BSHV, mask, positions, deterministic):
        return super().attend(q_BTHK, k_BSHK, v_BSHV, mask, None, deterministic)


IGNORED = [
    # What a user of RMSNorm wrote, and did not notice that the final norm stayed another one.
    (
        {"norm": "pre"},
        {"encoder_layer": OwnNorm},
        "encoder_layer = OwnNorm: its layers have no LayerNorm, but model.norm = pre ends the encoder with one: set "
        "model.parts.norm to the class of the layers' norm",
    ),
    ({"norm_kind": "rms"}, {"encoder_layer": OwnNorm}, "encoder_layer = OwnNorm: ignores model.norm_kind = rms"),
    ({"norm_kind": "rms", "qk_norm": True}, {"encoder_layer": OwnNorm}, "OwnNorm: ignores model.norm_kind = rms"),
    ({"norm": "sandwich"}, {"encoder_layer": OwnNorm}, "encoder_layer = OwnNorm: ignores model.norm = sandwich"),
    ({"norm": "deepnorm"}, {"encoder_layer": OwnAttention}, "OwnAttention: ignores model.norm = deepnorm in the enc"),
    ({}, {"encoder_layer": OwnNorm, "norm": MyNorm}, "encoder_layer = OwnNorm: ignores model.parts.norm = MyNorm"),
    (
        {},
        {"encoder_layer": OwnAttention, "attention": MyAttention},
        "encoder_layer = OwnAttention: ignores model.parts.attention = MyAttention in the encoder: "
        "attention_of(config, 'encoder') makes it (docs/parts.md)",
    ),
    (
        {},
        {"decoder_layer": OwnFeedForward, "feed_forward": MyFeedForward},
        "decoder_layer = OwnFeedForward: ignores model.parts.feed_forward = MyFeedForward in the decoder",
    ),
    ({"qk_norm": True}, {"encoder_layer": OwnAttention}, "encoder_layer = OwnAttention: ignores model.qk_norm = True"),
    ({"num_key_value_heads": 1}, {"encoder_layer": OwnAttention}, "ignores model.num_key_value_heads = 1"),
    ({"attention_softcap": 20.0}, {"encoder_layer": OwnAttention}, "ignores model.attention_softcap = 20.0"),
    ({"norm": "deepnorm"}, {"feed_forward": Twice}, "feed_forward = Twice: overrides __call__, which uses gain"),
    # A class derived from the final norm's, in a place where the config's is expected.
    ({"norm": "pre"}, {"encoder_layer": DerivedNorm}, "encoder_layer = DerivedNorm: its layers have no LayerNorm, but"),
    # One attention of two.
    (
        {},
        {"decoder_layer": PlainCrossAttention, "attention": MyAttention},
        "decoder_layer = PlainCrossAttention: ignores model.parts.attention = MyAttention in the decoder",
    ),
    ({"qk_norm": True}, {"decoder_layer": PlainCrossAttention}, "PlainCrossAttention: ignores model.qk_norm = True"),
    ({"qk_norm": True}, {"attention": OwnQueries}, "OwnQueries: overrides queries, which uses qk_norm"),
    ({"num_key_value_heads": 1}, {"attention": OwnValues}, "overrides values, which uses num_key_value_heads"),
    ({"attention_dropout": 0.3}, {"attention": WithoutBias}, "WithoutBias: overrides attend, which uses dropout"),
    ({"activation": "swiglu"}, {"feed_forward": Twice}, "Twice: overrides __call__, which uses activation: declare"),
    ({"activation_dropout": 0.3}, {"feed_forward": Twice}, "Twice: overrides __call__, which uses dropout"),
    ({"ffn_bias": False}, {"feed_forward": Twice}, "Twice: overrides __call__, which uses use_bias"),
    ({}, {"attention": WithoutBias, "positions": Biased}, "WithoutBias: ignores model.parts.positions = Biased in"),
    ({"positions": "t5"}, {"attention": WithoutBias}, "WithoutBias: ignores model.positions = t5 in the encoder"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "parts", "told"), IGNORED)
def test_what_a_custom_module_ignores_is_refused(options, parts, told):
    with pytest.raises(BadInput, match=f"^model.parts..*{re.escape(told)}"):
        refuse_ignored(small(parts=PartsConfig(**parts), **options))


class Parallel(EncoderLayer):
    """Attention and feed-forward side by side, with one of the two residual connections."""

    def __call__(self, x_BSD, context):
        y = self.self_attention_residual.enter(x_BSD)
        attended, _ = self.self_attention.with_context(y, y, context)
        both = attended + self.feed_forward(y, context.deterministic)
        return self.self_attention_residual.leave(x_BSD, both, context.deterministic)


@pytest.mark.parametrize("norm", ["post", "pre", "sandwich", "deepnorm"])
def test_what_custom_layers_use_is_not_refused(norm):
    """With every custom module, and with every option that a custom layer could ignore."""
    parts = {"attention": MyAttention, "feed_forward": MyFeedForward, "positions": Biased}
    options = {"qk_norm": True, "num_key_value_heads": 1, "attention_softcap": 20.0}
    refuse_ignored(small(norm=norm, norm_kind="rms", parts=PartsConfig(encoder_layer=Parallel, **parts), **options))
    refuse_ignored(small(norm=norm, parts=PartsConfig(encoder_layer=Parallel, norm=MyNorm, **parts)))


def test_what_is_within_a_custom_module_need_not_be_one():
    refuse_ignored(small(parts=PartsConfig(attention=Around)))


def test_a_custom_module_without_options_that_it_overrides_is_not_refused():
    for part in (OwnQueries, OwnValues, WithoutBias):
        refuse_ignored(small(parts=PartsConfig(attention=part)))
    refuse_ignored(small(parts=PartsConfig(feed_forward=Twice)))


def test_a_norm_of_the_layers_alone_is_fine_where_there_is_no_final_one():
    refuse_ignored(small(norm="post", parts=PartsConfig(encoder_layer=OwnNorm)))


def test_a_training_refuses_before_it_prepares_data(tmp_path):
    (tmp_path / "mine.py").write_text("from tests.model.test_custom_usage import OwnNorm")
    parts = {"model__parts__encoder_layer": f"{tmp_path}/mine.py:OwnNorm"}
    with pytest.raises(BadInput, match=r"mine\.py:OwnNorm: its layers have no LayerNorm"):
        try_out(experiment(model__norm="pre", **parts))
