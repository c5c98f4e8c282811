"""Decoding with the cache that beams share is decoding without a cache."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_models import ATTENTION, SOURCE, assert_close, built, with_drills
from transformer_jax.config import DecodeConfig
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.search.beam import beam_search, gather_beams, repeat_beams
from transformer_jax.search.sampling import greedy_search
from transformer_jax.search.targets import SearchRules
from transformer_jax.translation.beam_cache import Stepper
from transformer_jax.translation.translate import Rows, search

BEAMS, LENGTH, GROWS_AT = 6, 5, 3  # more beams than positions
IDS = {"bos_id": 1, "eos_id": 2, "pad_id": 0}


# What the encodings do depends on positions, and so on the cache; what else there is goes around.
OTHERS = [
    {},
    {"norm": "pre"},
    {"num_key_value_heads": 1, "mup_base_d_model": 4},
    {"norm_kind": "rms", "activation": "swiglu"},
    {"num_heads": 4, "num_key_value_heads": 2},
]


@pytest.mark.parametrize(
    ("changes", "grows"),
    [
        *(
            with_drills([name], {"positions": name, **others}, name == "sinusoidal")
            for name, others in zip(ENCODINGS, itertools.cycle(OTHERS), strict=False)
        ),
        (ATTENTION, True),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_every_step_of_a_beam_gives_the_logits_of_a_pass_without_cache(changes, grows):
    """The beams are mixed at random after each step; every beam's logits are then those of its own whole target.

    Whole targets are filled up to LENGTH with tokens that a causal model does not see: one shape for all positions.
    There are more beams than positions, learned ones as well.
    """
    model, variables = built(**changes, max_length=LENGTH)
    stepper, rng = Stepper(model.config, variables["params"]), np.random.default_rng(0)
    tokens_TBK = rng.integers(3, 20, (LENGTH, len(SOURCE), BEAMS)).astype(np.int32)
    tokens_TBK[0] = 1
    parents_TBK = rng.integers(0, BEAMS, tokens_TBK.shape)

    @jax.jit
    def by_steps():
        def advance(cache, given):
            tokens_BK, parents_BK = given
            logits_RN, cache = stepper.step(tokens_BK.reshape(-1), cache)
            return stepper.reorder(cache, parents_BK), logits_RN

        first = GROWS_AT if grows else LENGTH
        cache, logits_TRN = jax.lax.scan(
            advance, stepper.start(SOURCE, first, BEAMS), (tokens_TBK[:first], parents_TBK[:first])
        )
        if not grows:
            return logits_TRN
        rest = (tokens_TBK[first:], parents_TBK[first:])
        return jnp.concatenate([logits_TRN, jax.lax.scan(advance, stepper.grow(cache, LENGTH), rest)[1]])

    target_BKT, targets = np.full((len(SOURCE), BEAMS, LENGTH), 3, np.int32), []
    for position, (tokens_BK, parents_BK) in enumerate(zip(tokens_TBK, parents_TBK, strict=True)):
        target_BKT[:, :, position] = tokens_BK
        targets.append(target_BKT)
        target_BKT = np.take_along_axis(target_BKT, parents_BK[..., None], 1)
    sources = np.tile(np.repeat(SOURCE, BEAMS, 0), (LENGTH, 1))
    whole_XTN = jax.jit(model.apply)(variables, sources, np.reshape(targets, (-1, LENGTH)))
    whole_TRTN = whole_XTN.reshape(LENGTH, -1, *whole_XTN.shape[1:])
    assert_close(by_steps(), whole_TRTN[np.arange(LENGTH), :, np.arange(LENGTH)])


def plain(model, variables, room, beams=1):
    """A step with a cache of its own for every beam, and its first cache."""

    def step(tokens_R, cache):
        logits_R1N, layers = model.apply(variables, tokens_R[:, None], cache["layers"], cache["mask"], method="step")
        return logits_R1N[:, 0], {**cache, "layers": layers}

    memory_BSD = model.apply(variables, SOURCE, method="encode")
    layers = model.apply(variables, memory_BSD, room, method="new_cache")
    return step, repeat_beams({"layers": layers, "mask": model.apply(variables, SOURCE, method="cross_mask")}, beams)


@pytest.mark.parametrize(
    "name", ["stepper", *(pytest.param(each, marks=pytest.mark.drill) for each in ("greedy", "beam"))]
)
def test_a_cache_that_is_too_short_gives_nan(name):
    """The logits beyond the room would otherwise be those of overwritten tokens."""
    model, variables = built()
    rules, room = SearchRules(len(SOURCE), 8, **IDS, min_length=8), 7

    @jax.jit
    def searched():
        if name == "stepper":
            stepper = Stepper(model.config, variables["params"])
            cache = stepper.start(SOURCE, room, 3)
            return beam_search(stepper.step, cache, rules, 3, reorder=stepper.reorder)
        if name == "beam":
            return beam_search(*plain(model, variables, room, 3), rules, 3, reorder=gather_beams)
        return greedy_search(*plain(model, variables, room), rules)

    found = searched()
    assert np.isnan(found.scores_BN).all() and not found.finished_BN.any()


def test_the_tail_finds_what_the_whole_batch_finds():
    """In a cache that has grown, with four sentences at a time."""
    model, variables = built()
    source_BS = np.random.default_rng(0).integers(3, 20, (8, 4)).astype(np.int32)
    limits_B, decode = jnp.asarray([3, 14, 5, 9, 4, 13, 4, 12]), DecodeConfig(beam=3, n_best=2, alpha=4.0)
    searched = jax.jit(search, static_argnames=("model", "decode", "max_length", "tail"))
    rows, options = (
        Rows(source_BS, limits_B, jnp.arange(8)),
        {"model": model.config, "decode": decode, "max_length": 14},
    )
    whole, by_tail = (searched(variables["params"], rows, **options, tail=tail) for tail in (None, 4))
    assert (whole.lengths_BN[:, 0] > 11).sum() >= 2  # and so into the room that is made in the tail
    np.testing.assert_array_equal(by_tail.tokens_BNT, whole.tokens_BNT)
    assert_close(by_tail.scores_BN, whole.scores_BN)


def test_a_search_in_bfloat16_runs_with_grouped_queries():
    """XLA for CPUs cannot run every product of bfloat16 that it compiles, and not the same in a loop as outside."""
    model, variables = built(num_heads=4, num_key_value_heads=2, d_k=8, d_v=8, dtype="bfloat16")
    rows = Rows(SOURCE, jnp.array([7, 5]), jnp.arange(2))
    searched = jax.jit(search, static_argnames=("model", "decode", "max_length"))
    found = searched(variables["params"], rows, model=model.config, decode=DecodeConfig(beam=1), max_length=7)
    assert ((found.lengths_BN >= 1) & (found.lengths_BN <= jnp.array([[7], [5]]))).all()


def test_learned_positions_count_positions_and_not_slots():
    model, variables = built(positions="learned")
    stepper = Stepper(model.config, variables["params"])
    with pytest.raises(ValueError, match="17"):
        jax.eval_shape(lambda: stepper.start(SOURCE, model.config.max_length + 1, BEAMS))


def test_matrices_are_cast_before_the_search_and_not_at_every_step():
    model, variables = built(dtype="bfloat16")
    stepper = Stepper(model.config, variables["params"])
    cache = jax.eval_shape(lambda: stepper.start(SOURCE, 7, beams=2))
    program = jax.make_jaxpr(stepper.step)(jnp.full(2 * len(SOURCE), 5), cache)
    matrices = {
        shape for leaf in jax.tree.leaves(variables) for shape in (leaf.shape, leaf.shape[::-1]) if leaf.ndim == 2
    }
    casts = [equation for equation in program.eqns if equation.primitive.name == "convert_element_type"]
    assert casts and not [cast for cast in casts if cast.invars[0].aval.shape in matrices]
