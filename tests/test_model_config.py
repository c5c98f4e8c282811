"""The options of the model: the paper's defaults, Table 3 by name, and contradictions."""

import numpy as np
import pytest

from transformer_jax import MeshConfig, ModelConfig, PartsConfig, RMSNorm
from transformer_jax.errors import ConfigError
from transformer_jax.model.positions import Positions


def test_a_model_in_words():
    assert ModelConfig.base().in_words == "6 + 6 layers, d_model 512, d_ff 2048, 8 heads, norm post (layer)"
    changes = {"norm_kind": "rms", "share_layers": True, "num_decoder_layers": 2, "num_key_value_heads": 2}
    assert ModelConfig.base(**changes).in_words == (
        "6 + 2 shared layers, d_model 512, d_ff 2048, 8 heads (2 of keys and values), norm post (rms)"
    )


def test_variants_by_their_names_in_table_3():
    assert ModelConfig.variant("B d_k=16").key_size == 16
    assert ModelConfig.variant("B d_k=16").value_size == 64
    assert ModelConfig.variant("A h=32").key_size == 16
    assert ModelConfig.variant("C d_model=1024").key_size == 128
    assert ModelConfig.variant("D eps_ls=0") == ModelConfig.base()  # changes only the training
    assert ModelConfig.big(100).num_heads == 16
    with pytest.raises(ConfigError, match="did you mean B d_k=16"):
        ModelConfig.variant("B d_k=17")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 7}, "num_heads = 7 and d_model = 512: do not divide; set d_k and d_v, or num_heads to 8"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3 and num_heads = 8: .* to 2"),
        ({"positions": "rotary", "d_k": 15}, "positions = rotary and d_k = 15: .* even d_k"),
        ({"d_model": 511, "num_heads": 1}, "d_model = 511: .* even"),
        (
            {"d_model": 511, "num_heads": 1, "positions": "transformer_xl"},
            "positions = transformer_xl and d_model = 511",
        ),
        ({"target_vocab_size": 99}, "tie_embeddings = all and target_vocab_size = 99"),
        ({"vocab_size": 10, "pad_id": 10}, "pad_id = 10 and vocab_size = 10"),
        ({"mup_base_d_ff": 64}, "mup_base_d_ff = 64 and mup_base_d_model = none"),
        ({"mup_base_d_model": 20}, "mup_base_d_model = 20: its model: d_k = 2.5: must be a whole number"),
        ({"mup_base_d_model": 64, "mup_base_d_k": 48}, "mup_base_d_model = 64: its model: num_heads = 1.33"),
        (
            {"mup_base_d_model": 8, "positions": "rotary"},
            "mup_base_d_model = 8: its model: .* even d_k",
        ),
    ],
)
def test_contradictions_name_both_numbers(changes, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        ModelConfig(**changes)


def test_custom_positions_have_no_conditions_of_the_encoding_that_they_replace():
    parts = PartsConfig(positions=Positions)
    assert ModelConfig(d_model=9, num_heads=3, parts=parts).key_size == 3
    assert ModelConfig(d_k=15, positions="rotary", parts=parts).key_size == 15


def test_heads_need_not_divide_when_their_widths_are_given():
    assert ModelConfig(num_heads=7, d_k=16, d_v=8).key_size == 16


def test_numbers_of_numpy_are_numbers():
    config = ModelConfig(vocab_size=np.int64(39), dropout=np.float32(0.5), d_model=np.int32(64))
    assert config == ModelConfig(vocab_size=39, dropout=0.5, d_model=64)
    assert [type(value) for value in (config.vocab_size, config.dropout, config.d_model)] == [int, float, int]
    with pytest.raises(ConfigError, match=r"vocab_size = np.float64\(39.5\): must be a whole number"):
        ModelConfig(vocab_size=np.float64(39.5))


def test_parts_may_be_given_as_a_dict():
    assert ModelConfig(parts={"norm": RMSNorm}) == ModelConfig(parts=PartsConfig(norm=RMSNorm))
    with pytest.raises(ConfigError, match=r"parts.nrom: no such option; did you mean parts.norm\?"):
        ModelConfig(parts={"nrom": RMSNorm})
    with pytest.raises(ConfigError, match="parts = 3: is a group of options, not a value"):
        ModelConfig(parts=3)


def test_help_says_what_each_field_is():
    assert "- `d_ff`: inner width of the feed-forward layer" in ModelConfig.__doc__
    assert "- `fsdp`: devices that share the batch" in MeshConfig.__doc__
