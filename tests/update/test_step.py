"""One update: what it counts, what it skips, and that cutting a batch up changes nothing."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.small_runs import batch_of, batches, experiment, params_of, sentences, trainer, worst_difference
from transformer_jax.data.batching import Batch
from transformer_jax.model.transformer import Transformer
from transformer_jax.update.loss import Objective
from transformer_jax.update.optimizer import make_schedule
from transformer_jax.update.step import batch_sums, make_eval_step, resolve, train_step

# Ten updates by Adam in float32. Adam divides by the root of the second moment, so a gradient that is nearly nothing
# (1e-9 and less) moves its parameter by a good share of the rate whichever way it is rounded: SGD shows the gradients.
WITHIN = 2e-5
SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3}
DROPOUT_IN_PARTS = {"model__dropout": 0.2, "train__accumulate": 2}


def test_an_update_is_the_logged_rate_times_the_gradient_of_the_mean_over_all_tokens():
    """Plain SGD and z-loss, by hand: sums divided once; the schedule is asked with the updates made before."""
    run = trainer(**SGD, optimizer__warmup_steps=5, train__z_loss=0.1)
    schedule = make_schedule(run.config.optimizer, 16, 10)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params, batch):
        logits = Transformer(run.config.model).apply({"params": params}, batch.source, batch.target_input)
        sums = Objective(z_loss=0.1).sums(logits, batch.target_output, batch.target_output != 0)
        return sums.loss / sums.tokens

    state = run.new()
    for batch in batches(3):
        before, rate = params_of(state), float(schedule(int(state.updates)))
        loss, gradients = mean_loss(jax.device_get(state.params), batch)
        state = run.train([batch], state)
        after = params_of(state)
        assert float(run.metrics.loss) == pytest.approx(float(loss), rel=1e-5)
        for name, gradient in params_of(state.replace(params=gradients)).items():
            moved, within = before[name] - after[name], 1e-5 * rate * np.abs(gradient).max() + 1e-7
            np.testing.assert_allclose(moved, rate * gradient, atol=within)
    assert int(state.updates) == 3


def test_four_parts_make_the_same_update():
    whole = trainer().train(batches())
    in_parts = trainer(train__accumulate=4).train(batches())
    assert worst_difference(in_parts, whole) < (WITHIN,)
    assert int(in_parts.updates) == int(whole.updates) == 10
    assert float(in_parts.sums.loss) == pytest.approx(float(whole.sums.loss), rel=1e-5)
    given = [sum(int((getattr(batch, side) != 0).sum()) for batch in batches()) for side in ("source", "target_output")]
    for state in (whole, in_parts):
        assert [int(state.sums.source_tokens), int(state.sums.target_tokens)] == given


def test_dropout_follows_from_seed_and_step_and_each_part_of_a_batch_has_its_own():
    """All of these losses have the same parameters."""
    run = trainer(**DROPOUT_IN_PARTS)
    state, first, second = run.new(), sentences(8), sentences(8, seed=1)

    def loss(step, *parts):
        """Part 0 has the even rows, part 1 the odd ones."""
        copy = jax.tree.map(jnp.copy, state).replace(step=jnp.asarray(step, jnp.int32))
        run.train([batch_of([pair for pairs in zip(*parts, strict=True) for pair in pairs])], copy)
        return float(run.metrics.loss)

    losses = [loss(step, first, second) for step in range(3)]
    assert len(set(losses)) == 3
    assert loss(0, first, second) == losses[0]
    # With one mask for both parts, only the order of two sums would differ.
    assert loss(0, second, first) != pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_empty_rows_change_nothing():
    filled = [jax.tree.map(lambda rows: np.pad(rows, [(0, 8), (0, 0)]), batch) for batch in batches(3)]
    ours, theirs = (trainer(**DROPOUT_IN_PARTS).train(data) for data in (filled, batches(3)))
    assert worst_difference(ours, theirs) < (WITHIN,)


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
    pairs = [sentences(16, seed) for seed in range(5)]
    one_a_row = trainer().train([batch_of(p) for p in pairs])
    many_a_row = trainer().train([packed(p, rows=4, width=32) for p in pairs])
    assert worst_difference(many_a_row, one_a_row) < (WITHIN,)
    assert float(many_a_row.sums.target_tokens) == float(one_a_row.sums.target_tokens)


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
    counts = (state.step, state.updates, state.step - state.updates, state.bad_in_a_row, run.metrics.bad_in_a_row)
    assert tuple(map(int, counts)) == (5, 2, 3, 3, 3)
    assert (float(state.sums.loss), float(state.sums.target_tokens)) == (loss, tokens)
    assert int(run.train(batches(1), run.new().replace(bad_in_a_row=state.bad_in_a_row)).bad_in_a_row) == 0


def test_bfloat16_trains_with_float32_parameters():
    run = trainer(model__dtype="bfloat16", train__steps=100)
    state, losses = run.new(), []
    for _ in range(30):
        state = run.train(batches(1), state)
        losses.append(float(run.metrics.loss))
    assert losses[-1] < losses[0] - 0.5
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(state.optimizer) if leaf.ndim} == {jnp.dtype("float32")}


def test_an_output_bias_is_in_the_loss_and_has_its_gradient():
    run = trainer(model__output_bias=True, model__tie_embeddings="none")
    config, params, batch = run.config, jax.device_get(run.new().params), batches(1)[0]
    params["output_bias"] = (100 * np.random.default_rng(0).normal(size=24)).astype(np.float32)

    def plain(params):
        logits = Transformer(config.model).apply({"params": params}, batch.source, batch.target_input)
        return Objective().sums(logits, batch.target_output, batch.target_output != 0).loss

    def ours(params):
        return batch_sums(config, params, batch).loss

    both = jax.jit(lambda params: [jax.value_and_grad(loss)(params) for loss in (ours, plain)])
    (loss, gradients), (expected, by_hand) = both(params)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-4), gradients, by_hand)


def test_evaluation_is_the_loss_of_training_without_dropout_and_z_loss():
    dropped, run, batch = trainer(**DROPOUT_IN_PARTS), trainer(), batches(1)[0]
    config = experiment(**DROPOUT_IN_PARTS, train__z_loss=0.1)
    evaluated = make_eval_step(config, dropped.mesh)(dropped.new().params, batch)
    trained = run.train([batch]).sums
    np.testing.assert_allclose(evaluated.loss, trained.loss, rtol=1e-5)
    np.testing.assert_allclose(evaluated.nll, trained.nll, rtol=1e-5)
    assert (evaluated.correct, evaluated.tokens) == (trained.right, trained.target_tokens)


def test_steps_export_with_symbolic_batch_and_lengths():
    run = trainer()
    b, s, t = jax.export.symbolic_shape("b, s, t")
    sizes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in [(b, s), (b, t), (b, t)]]
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), run.plan)
    step, (seed,) = run.step.func, run.step.args
    jax.export.export(step)(seed, abstract, Batch(*sizes))
    jax.export.export(make_eval_step(experiment(), run.mesh))(abstract.params, Batch(*sizes))


ACTIVATIONS = {"train__rematerialize": "activations"}
REMATERIALIZED = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3, "model__dropout": 0.1}
MODELS = {
    "pre-norm, SwiGLU, rotary": {
        "model__norm": "pre", "model__activation": "swiglu", "model__positions": "rotary", "model__qk_norm": True
    },
    "bias and dropout in attention": {"model__positions": "relative", "model__attention_dropout": 0.1},
}  # fmt: skip


@pytest.mark.slow
def test_recomputing_activations_makes_the_same_update():
    changes = {**REMATERIALIZED, **MODELS["bias and dropout in attention"], "mesh__fsdp": 2}
    kept, again = (trainer(2, **changes, **remat).train(batches(3)) for remat in ({}, ACTIVATIONS))
    for path, expected in params_of(kept).items():
        np.testing.assert_allclose(params_of(again)[path], expected, atol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", MODELS)
def test_no_matrix_product_is_computed_twice_and_random_bits_are(name):
    def count(what, **changes):
        run = trainer(**REMATERIALIZED, **MODELS[name], **changes)
        text = run.step.func.lower(*run.step.args, run.plan, batch_of(sentences(8), 8)).as_text()
        return len(re.findall(what, text))

    assert count("stablehlo.dot_general", **ACTIVATIONS) == count("stablehlo.dot_general")
    assert count("optimization_barrier", **ACTIVATIONS) > count("optimization_barrier")


def described_mesh(platform):
    """What tracing looks at of a mesh on such devices. The machine that compiles has CPUs in each case."""
    device = SimpleNamespace(platform=platform, device_kind=platform)
    return SimpleNamespace(devices=np.array([device]), size=1, shape={"data": 1, "fsdp": 1, "tensor": 1})


@pytest.mark.parametrize(
    ("platform", "wanted", "is_computed_again"),
    [
        ("tpu", "auto", True), ("gpu", "auto", False), ("tpu", "nothing", False), ("gpu", "activations", True),
    ],
)  # fmt: skip
def test_the_devices_decide_what_is_recomputed_unless_the_config_does(platform, wanted, is_computed_again):
    resolved = resolve(experiment(train__rematerialize=wanted), described_mesh(platform), is_training=True)
    assert (resolved.train.rematerialize == "activations") == is_computed_again


@pytest.mark.parametrize(("platform", "together"), [("tpu", True), ("gpu", False)])
def test_both_gradients_of_each_product_are_computed_together_on_tpus(platform, together):
    run, batch = trainer(), batch_of(sentences(8), 8)

    def step(state):
        return train_step(run.config, run.optimizer, state, batch, described_mesh(platform))

    barriers = str(jax.make_jaxpr(step)(run.new())).count("optimization_barrier")
    kernels = [path for path in params_of(run.new()) if path.endswith("kernel")]
    assert barriers == (len(kernels) if together else 0)


def test_a_batch_may_be_a_dict_with_the_fields_of_a_batch():
    run, (batch,) = trainer(), batches(1)
    fields = {name: value for name, value in batch._asdict().items() if value is not None}
    state, _ = run.step(run.new(), fields)
    assert worst_difference(state, run.train([batch]))[0] == 0
    for wrong in ({**fields, "labels": batch.source}, list(fields.values())):
        with pytest.raises(TypeError, match="target_output"):
            run.step(run.new(), wrong)
