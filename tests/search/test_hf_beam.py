"""With the weights of a Marian model our model, cache and search find, token by token, what its `generate` finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from tests.support.places import GOLDEN
from transformer_jax import ModelConfig, SearchRules, beam_search
from transformer_jax.interop.marian_weights import layer_names
from transformer_jax.translation.beam_cache import Stepper

RECORDED = np.load(GOLDEN / "hf_beam.npz")
SEARCHES = [name.removesuffix(" tokens") for name in RECORDED if name.endswith(" tokens")]
EOS, PAD, LONGEST = 0, 23, 14
# Their sinusoids are laid out otherwise than the paper's; as a table of "learned" positions they are just numbers.
MODEL = ModelConfig(
    vocab_size=24,
    pad_id=PAD,
    num_encoder_layers=1,
    num_decoder_layers=2,
    d_model=16,
    d_ff=24,
    num_heads=2,
    activation="swish",
    attention_bias=True,
    norm_epsilon=1e-5,
    positions="learned",
    max_length=64,
)


def parameters():
    found = {"source_embedding/table": RECORDED["model.shared.weight"]}
    for stack in ("encoder", "decoder"):
        found[f"{stack}/positions_0/table"] = RECORDED[f"model.{stack}.embed_positions.weight"]
    for ours, theirs, _ in layer_names(MODEL):
        found[ours] = RECORDED[theirs].T if ours.endswith("kernel") else RECORDED[theirs]
    return traverse_util.unflatten_dict({path: jnp.asarray(array) for path, array in found.items()}, sep="/")


SHORT = ("beams=1 penalty=1.0", "beams=4 penalty=0.6")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.drill) for name in SEARCHES]
)
def test_the_same_targets_with_the_same_scores(name):
    beams, penalty = int(name.split()[0].removeprefix("beams=")), float(name.rpartition("=")[2])
    stepper, source_BS = Stepper(MODEL, parameters()), RECORDED["source_BS"]
    certain_end_N = jnp.where(jnp.arange(24) == EOS, 0.0, -jnp.inf)

    def step(tokens_R, cache):
        logits_RN, after = stepper.step(tokens_R, cache)
        logits_RN = logits_RN + RECORDED["final_logits_bias"]
        # They give the <eos> that ends a target of the greatest length probability 1.
        return jnp.where(cache.position == LONGEST - 1, certain_end_N[None], logits_RN), after

    # Marian's targets begin with <pad>.
    rules = SearchRules(len(source_BS), LONGEST, PAD, EOS, PAD, length_penalty="average", alpha=penalty)
    cache = stepper.start(source_BS, LONGEST, beams)
    found = jax.jit(lambda: beam_search(step, cache, rules, beams, beams, reorder=stepper.reorder))()
    theirs = RECORDED[f"{name} tokens"]  # as wide as the longest
    theirs = np.pad(theirs, ((0, 0), (0, LONGEST - theirs.shape[1])), constant_values=PAD)
    np.testing.assert_array_equal(found.tokens_BNT.reshape(-1, LONGEST), theirs)
    if beams > 1:
        np.testing.assert_allclose(found.scores_BN.reshape(-1), RECORDED[f"{name} scores"], atol=1e-5)
