"""Decoding with the cache that beams share is decoding without a cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import SOURCE, assert_close, built, every_encoding, every_norm
from transformer_jax.config import DecodeConfig
from transformer_jax.search.beam import beam_search, repeat_beams
from transformer_jax.search.rules import SearchRules
from transformer_jax.translation.stepper import Stepper
from transformer_jax.translation.translate import Rows, search

BEAMS, LENGTH, GROWS_AT = 6, 5, 3  # more beams than positions
IDS = {"bos_id": 1, "eos_id": 2, "pad_id": 0}


@every_norm
@every_encoding
def test_every_step_of_a_beam_gives_the_logits_of_a_pass_without_cache(positions, norm):
    check_steps(*built(positions=positions, norm=norm))


def test_there_may_be_more_beams_than_learned_positions():
    check_steps(*built(positions="learned", max_length=LENGTH))


def check_steps(model, variables):
    """The beams are mixed at random after each step; every beam's logits are then those of its own whole target.

    Whole targets are filled up to LENGTH with tokens that a causal model does not see: one shape for all positions.
    """
    stepper, rng = Stepper(model.config, variables["params"]), np.random.default_rng(0)
    cache = stepper.start(SOURCE, GROWS_AT, BEAMS)
    targets_BKT = np.full((len(SOURCE), BEAMS, LENGTH), 3, np.int32)
    targets_BKT[:, :, 0] = 1
    for position in range(LENGTH):
        if position == GROWS_AT:
            cache = stepper.grow(cache, LENGTH)
        logits_RN, cache = stepper.step(targets_BKT[:, :, position].reshape(-1), cache)
        whole_RTN = model.apply(variables, np.repeat(SOURCE, BEAMS, 0), targets_BKT.reshape(-1, LENGTH))
        assert_close(logits_RN, whole_RTN[:, position])
        parents_BK = rng.integers(0, BEAMS, targets_BKT.shape[:2])
        cache = stepper.reorder(cache, jnp.asarray(parents_BK))
        targets_BKT = np.take_along_axis(targets_BKT, parents_BK[..., None], 1)
        if position + 1 < LENGTH:
            targets_BKT[:, :, position + 1] = rng.integers(3, 20, parents_BK.shape)


def test_the_search_finds_what_it_finds_with_copied_caches():
    model, variables = built()
    stepper = Stepper(model.config, variables["params"])
    rules = SearchRules(len(SOURCE), 8, **IDS)
    shared = jax.jit(
        lambda: beam_search(stepper.step, stepper.start(SOURCE, 8, BEAMS), rules, BEAMS, BEAMS, reorder=stepper.reorder)
    )

    def step(tokens_R, cache):
        logits_R1N, layers = model.apply(variables, tokens_R[:, None], cache["layers"], cache["mask"], method="step")
        return logits_R1N[:, 0], {**cache, "layers": layers}

    def copied():
        memory_BSD = model.apply(variables, SOURCE, method="encode")
        layers = model.apply(variables, memory_BSD, 8, method="new_cache")
        cache = {"layers": layers, "mask": model.apply(variables, SOURCE, method="cross_mask")}
        return beam_search(step, repeat_beams(cache, BEAMS), rules, BEAMS, BEAMS)

    ours, theirs = shared(), jax.jit(copied)()
    np.testing.assert_array_equal(ours.tokens_BNT, theirs.tokens_BNT)
    assert_close(ours.scores_BN, theirs.scores_BN)


def test_the_tail_finds_what_the_whole_batch_finds():
    """In a cache that has grown, with one sentence and with four at a time."""
    model, variables = built()
    source_BS = np.random.default_rng(0).integers(3, 20, (8, 4)).astype(np.int32)
    limits_B, decode = jnp.asarray([3, 14, 5, 9, 4, 13, 4, 12]), DecodeConfig(beam=3, n_best=2, alpha=4.0)
    searched = jax.jit(search, static_argnames=("model", "decode", "max_length", "tail"))
    found = [
        searched(
            variables["params"],
            Rows(source_BS, limits_B, jnp.arange(8)),
            model=model.config,
            decode=decode,
            max_length=14,
            tail=tail,
        )
        for tail in (None, 1, 4)
    ]
    assert (found[0].lengths_BN[:, 0] > 11).sum() >= 2  # and so into the room that is made in the tail
    for other in found[1:]:
        np.testing.assert_array_equal(other.tokens_BNT, found[0].tokens_BNT)
        assert_close(other.scores_BN, found[0].scores_BN)


def test_learned_positions_count_positions_and_not_slots():
    model, variables = built(positions="learned")
    stepper = Stepper(model.config, variables["params"])
    stepper.start(SOURCE, model.config.max_length, BEAMS)
    with pytest.raises(ValueError, match="learned positions end at max_length = 16, but 17 are asked for"):
        stepper.start(SOURCE, model.config.max_length + 1, BEAMS)
