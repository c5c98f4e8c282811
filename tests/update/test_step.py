"""One update: what it counts, what it skips, and that cutting a batch up changes nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_runs import (
    Trainer,
    batch_of,
    batches,
    experiment,
    params_of,
    sentences,
    trainer,
    worst_difference,
)
from transformer_jax.data.batching import Batch
from transformer_jax.model.transformer import Transformer
from transformer_jax.update.loss import token_sums
from transformer_jax.update.optimizer import make_schedule
from transformer_jax.update.step import _summed_gradients, batch_sums, make_eval_step

# Ten updates by Adam in float32. Adam divides by the root of the second moment, so a gradient that is nearly nothing
# (1e-9 and less) moves its parameter by a good share of the rate whichever way it is rounded: SGD shows the gradients.
WITHIN = 2e-5
SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3}


def test_the_gradient_is_that_of_the_mean_over_all_tokens():
    """One SGD step by hand: sums over the batch, divided once."""
    config = experiment(**SGD, optimizer__schedule="constant", optimizer__warmup_steps=0)
    run, batch = Trainer(config), batches(1)[0]
    before = params_of(run.new())

    def mean_loss(params):
        logits = Transformer(config.model).apply({"params": params}, batch.source, batch.target_input)
        sums = token_sums(logits, batch.target_output, batch.target_output != 0, 0.1)
        return sums.loss / sums.tokens

    start = run.new()
    loss, gradients = jax.jit(jax.value_and_grad(mean_loss))(jax.device_get(start.params))
    after = params_of(run.train([batch], start))
    expected = params_of(type("State", (), {"params": gradients}))
    assert float(run.pulse.loss) == pytest.approx(float(loss), rel=1e-5)
    for name, gradient in expected.items():
        np.testing.assert_allclose(
            before[name] - after[name], 0.3 * gradient, atol=1e-5 * np.abs(gradient).max() + 1e-7
        )


@pytest.mark.parametrize("changes", [{}, pytest.param(SGD, marks=pytest.mark.slow)], ids=["adam", "sgd"])
def test_four_parts_make_the_same_update(changes):
    whole = trainer(**changes).train(batches())
    in_parts = trainer(**changes, train__accumulate=4).train(batches())
    assert worst_difference(in_parts, whole) < (WITHIN,)
    assert int(in_parts.updates) == int(whole.updates) == 10
    assert float(in_parts.sums.loss) == pytest.approx(float(whole.sums.loss), rel=1e-5)
    given = [sum(int((getattr(batch, side) != 0).sum()) for batch in batches()) for side in ("source", "target_output")]
    for state in (whole, in_parts):
        assert [int(state.sums.source_tokens), int(state.sums.target_tokens)] == given


def test_each_part_has_its_own_dropout():
    """Two parts with the same rows: with one dropout mask for both they would have the same loss."""
    rows = sentences(8)
    batch = batch_of([pair for pair in rows for _ in range(2)])  # part 0 has the even rows, part 1 the odd ones
    options = {"model__dropout": 0.5, "optimizer__learning_rate": 1e-30}
    halves = trainer(**options).train([batch_of(rows)])
    both = trainer(**options, train__accumulate=2).train([batch])
    assert float(both.sums.nll) != pytest.approx(2 * float(halves.sums.nll), rel=1e-5)


def packed(pairs, rows, width):
    """The same sentences, many to a row, as packing lays them."""
    arrays = {name: np.zeros((rows, width), np.int32) for name in Batch._fields[:7]}
    fill = [[0, 0, 0] for _ in range(rows)]
    for number, (source, target) in enumerate(pairs):
        row = number % rows
        source_at, target_at, segment = fill[row]
        s, t = slice(source_at, source_at + len(source) + 1), slice(target_at, target_at + len(target) + 1)
        arrays["source"][row, s], arrays["target_output"][row, t] = [*source, 2], [*target, 2]
        arrays["target_input"][row, t] = [1, *target]
        for side, place in (("source", s), ("target", t)):
            arrays[f"{side}_segments"][row, place] = segment + 1
            arrays[f"{side}_positions"][row, place] = np.arange(place.stop - place.start)
        fill[row] = [s.stop, t.stop, segment + 1]
    return Batch(**arrays)


def test_buckets_and_packing_make_the_same_update():
    pairs = [sentences(16, seed) for seed in range(10)]
    one_a_row = trainer().train([batch_of(p) for p in pairs])
    many_a_row = trainer().train([packed(p, rows=4, width=32) for p in pairs])
    assert worst_difference(many_a_row, one_a_row) < (WITHIN,)
    assert float(many_a_row.sums.target_tokens) == float(one_a_row.sums.target_tokens)


@pytest.mark.slow
def test_empty_rows_change_nothing():
    filled = [jax.tree.map(lambda rows: np.pad(rows, [(0, 8), (0, 0)]), batch) for batch in batches(3)]
    dropped = {"model__dropout": 0.2}
    ours, theirs = trainer(**dropped).train(filled), trainer(**dropped).train(batches(3))
    assert worst_difference(ours, theirs) < (WITHIN,)


@pytest.mark.slow
def test_the_logged_rate_is_the_one_used():
    """Plain SGD moves by rate * gradient, and the schedule is asked with the updates made before."""
    run = trainer(**SGD, optimizer__warmup_steps=5)
    schedule = make_schedule(run.config.optimizer, 16, 10)
    by_itself = jax.jit(functools.partial(_summed_gradients, run.config, None))
    state = run.new()
    for batch in batches(6):
        before, rate = params_of(state), float(schedule(int(state.updates)))
        rng = jax.random.fold_in(jax.random.key(0), state.step)
        gradients, (sums, _) = by_itself(jax.device_get(state.params), batch, rng)
        state = run.train([batch], state)
        gradient = np.asarray(gradients["source_embedding"]["table"]) / float(sums.tokens)
        moved = before["source_embedding/table"] - params_of(state)["source_embedding/table"]
        np.testing.assert_allclose(moved, rate * gradient, atol=1e-6)
    assert int(state.updates) == 6


def poisoned(state):
    """A state from which every gradient is not finite."""
    params = jax.tree.map(lambda leaf: leaf, state.params)
    params["encoder"]["layers_0"]["feed_forward"]["inner"]["kernel"] *= jnp.nan
    return state.replace(params=params)


def test_an_update_that_is_not_finite_is_left_out_and_counted():
    run = trainer()
    state = poisoned(run.train(batches(2)))
    before, moments = params_of(state), jax.device_get(state.optimizer)
    loss, tokens = float(state.sums.loss), float(state.sums.target_tokens)
    state = run.train(batches(3), state)
    for name, array in params_of(state).items():
        np.testing.assert_array_equal(array, before[name])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.optimizer), moments)
    counts = (state.step, state.updates, state.skipped, state.bad_in_a_row, run.pulse.bad_in_a_row)
    assert tuple(map(int, counts)) == (5, 2, 3, 3, 3)
    assert (float(state.sums.loss), float(state.sums.target_tokens)) == (loss, tokens)


def test_a_finite_gradient_ends_the_row_of_bad_ones():
    run = trainer()
    state = run.new().replace(bad_in_a_row=jnp.asarray(3, jnp.int32))
    assert int(run.train(batches(1), state).bad_in_a_row) == 0


def test_the_old_state_is_given_to_the_new_one():
    run = trainer()
    old = run.new()
    run.train(batches(1), old)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((old.params, old.optimizer)))


def test_bfloat16_trains_with_float32_parameters():
    run = trainer(model__dtype="bfloat16", train__steps=100)
    state, losses = run.new(), []
    for _ in range(30):
        state = run.train(batches(1), state)
        losses.append(float(run.pulse.loss))
    assert losses[-1] < losses[0] - 0.5
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim} == {jnp.dtype("float32")}


@pytest.mark.slow
def test_dropout_follows_from_seed_and_step_alone():
    def after(seed, steps):
        return trainer(model__dropout=0.2, seed=seed).train(batches(steps))

    assert worst_difference(after(0, 2), after(0, 2)) < (1e-30,)
    run = trainer(model__dropout=0.2)
    state, losses = run.new(), set()
    for step in (0, 1, 2):  # the same parameters and batch: only the step differs
        copy = jax.tree.map(jnp.copy, state).replace(step=jnp.asarray(step, jnp.int32))
        run.train(batches(1), copy)
        losses.add(float(run.pulse.loss))
    assert len(losses) == 3


@pytest.mark.parametrize("tied", ["all", "none"])
def test_an_output_bias_is_in_the_loss_and_has_its_gradient(tied):
    config = experiment(model__output_bias=True, model__tie_embeddings=tied)
    params = jax.device_get(trainer(model__output_bias=True, model__tie_embeddings=tied).new().params)
    params["output_bias"] = np.random.default_rng(0).normal(size=24).astype(np.float32)
    batch = batches(1)[0]

    def plain(params):
        logits = Transformer(config.model).apply({"params": params}, batch.source, batch.target_input)
        return token_sums(logits, batch.target_output, batch.target_output != 0, 0.1).loss

    expected, by_hand = jax.jit(jax.value_and_grad(plain))(params)
    loss, gradients = jax.jit(jax.value_and_grad(lambda params: batch_sums(config, None, params, batch, None).loss))(
        params
    )
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for path, gradient in jax.tree_util.tree_leaves_with_path(gradients):
        expected_gradient = functools.reduce(lambda tree, key: tree[key.key], path, by_hand)
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-4)


def test_evaluation_has_no_dropout():
    run = trainer(model__dropout=0.2)
    state, batch = run.new(), batches(1)[0]
    ours = make_eval_step(run.config, run.mesh)(state.params, batch)
    theirs = jax.jit(lambda params: batch_sums(experiment(), None, params, batch, rng=None))(state.params)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
