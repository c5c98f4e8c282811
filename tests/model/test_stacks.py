"""The encoder and the decoder: depths, final norms, and the limit of position encodings."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, TARGET, built, every_encoding, small
from transformer_jax import Transformer, padding_mask
from transformer_jax.config import PartsConfig
from transformer_jax.model.build import position_limit
from transformer_jax.model.positions import Sinusoidal
from transformer_jax.model.stacks import attention_weights_of


class UpToSeven(Sinusoidal):
    """A custom encoding with a limit; model.positions and model.max_length do not apply to it."""

    def check_length(self, length: int) -> None:
        if length > 7:
            raise ValueError(f"{length} are more than 7")


def test_the_limit_is_that_of_the_encoding_in_use():
    assert position_limit(small(positions="learned", max_length=11)) == 11
    assert position_limit(small(positions="rotary", max_length=11)) is None
    custom = {"positions": "learned", "max_length": 3}
    assert position_limit(small(**custom, parts=PartsConfig(positions=UpToSeven))) == 7
    assert position_limit(small(**custom, parts=PartsConfig(positions=Sinusoidal))) is None


@every_encoding
def test_all_but_learned_go_beyond_max_length(positions):
    model = Transformer(small(positions=positions, max_length=3))
    tokens = np.full((1, 4), 5)
    if positions == "learned":
        for call in (
            lambda: model.init(jax.random.key(0), tokens, tokens),
            lambda: model.init(jax.random.key(0), jnp.zeros((1, 2, 8)), 4, method="new_cache"),
        ):
            with pytest.raises(ValueError, match="learned positions end at max_length = 3, but 4 are asked for"):
                call()
    else:
        logits = jax.eval_shape(model.init_with_output, jax.random.key(0), tokens, tokens)[0]
        assert logits.shape == (1, 4, model.config.vocab_size)


def test_encoder_and_decoder_have_separate_depths():
    _, variables = built(num_encoder_layers=3, num_decoder_layers=1)
    layers = {
        stack: sum(name.startswith("layers_") for name in variables["params"][stack])
        for stack in ("encoder", "decoder")
    }
    assert layers == {"encoder": 3, "decoder": 1}


@pytest.mark.parametrize("positions", ["sinusoidal", "relative"])
def test_shared_layers_equal_separate_ones_with_the_same_parameters(positions):
    """Logits, cached steps, head masks of one application, and the attention weights of each."""
    depths = {"num_encoder_layers": 2, "num_decoder_layers": 3, "positions": positions}
    shared, variables = built(share_layers=True, **depths)
    separate, params = Transformer(small(**depths)), {**variables["params"]}
    for stack, depth in (("encoder", 2), ("decoder", 3)):
        per_layer = ["layers", "positions"] if positions == "relative" else ["layers"]
        assert set(params[stack]) == {f"{name}_0" for name in per_layer}
        params[stack] = {f"{name}_{i}": params[stack][f"{name}_0"] for name in per_layer for i in range(depth)}

    @functools.partial(jax.jit, static_argnums=0)
    def results(model, variables):
        head_masks = {"decoder": jnp.ones((3, 2)).at[1, 0].set(0.0)}
        masked, shown = model.apply(variables, SOURCE, TARGET, head_masks=head_masks, mutable=["intermediates"])
        memory = model.apply(variables, SOURCE, method="encode")
        cache, mask = model.apply(variables, memory, 2, method="new_cache"), padding_mask(SOURCE)
        for t in range(2):
            step, cache = model.apply(variables, TARGET[:, t : t + 1], cache, mask, method="step")
        weights = attention_weights_of(shown["intermediates"]["decoder"], "self_attention")
        return model.apply(variables, SOURCE, TARGET), masked, step, weights

    ours, theirs = results(shared, variables), results(separate, {"params": params})
    assert len(ours[-1]) == 3
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=1e-6), ours, theirs)
    assert np.abs(ours[0] - ours[1]).max() > 1e-3


def test_only_pre_norm_has_a_final_norm():
    for norm, expected in (("post", False), ("deepnorm", False), ("pre", True), ("sandwich", True)):
        _, variables = built(norm=norm)
        assert all(("final_norm" in variables["params"][stack]) is expected for stack in ("encoder", "decoder"))
