"""One update: what it counts, what it skips, and that cutting a batch up changes nothing."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import freeze

from tests.support.small_runs import (
    Trainer,
    batch_of,
    batches,
    experiment,
    objective_of,
    params_of,
    sentences,
    trainer,
    worst_difference,
)
from transformer_jax.data.batching import Batch
from transformer_jax.errors import BadInput
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.compiled import decided_for, make_eval_step, make_train_step
from transformer_jax.update.loss import Objective
from transformer_jax.update.optimizer import make_schedule
from transformer_jax.update.step import (
    TrainState,
    as_batch,
    batch_sums,
    train_step,
)

# Adam divides by the root of the second moment, so a gradient that is nearly nothing moves its parameter by a good
# share of the rate whichever way it is rounded: SGD shows the gradients.
SGD = {"optimizer__name": "sgd", "optimizer__learning_rate": 0.3}
DROPOUT_IN_PARTS = {"model__dropout": 0.2, "train__accumulate": 2}


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


def test_an_update_is_the_logged_rate_times_the_gradient_of_the_mean_over_all_tokens():
    """Plain SGD, z-loss and an output bias, by hand: sums over four microbatches are divided once, packed or not.

    The schedule is asked with the updates made before. A batch may be a dict with the fields of a batch.
    """
    output = {"model__output_bias": True, "model__tie_embeddings": "none"}
    run = trainer(**SGD, **output, optimizer__warmup_steps=5, train__z_loss=0.1, train__accumulate=4)
    schedule, objective = make_schedule(run.config.optimizer, 16, 10), Objective(z_loss=0.1)

    @jax.jit
    @jax.value_and_grad
    def mean_loss(params, batch):
        logits = Transformer(run.config.model).apply({"params": params}, batch.source, batch.target_input)
        sums = objective.of_logits(logits, batch.target_output, batch.target_output != 0)
        return sums.loss / sums.tokens

    state = run.new()
    bias = 3 * np.random.default_rng(0).normal(size=24).astype(np.float32)
    state = state.replace(params={**state.params, "output_bias": jnp.asarray(bias)})
    pairs = [sentences(16, seed) for seed in range(3)]
    for batch, given in zip(map(batch_of, pairs), (0, 0, 1), strict=True):
        before, rate = params_of(state), float(schedule(int(state.updates)))
        loss, gradients = mean_loss(jax.device_get(state.params), batch)
        fields = packed(pairs[2], rows=4, width=32) if given else batch
        state, measured = run.step(state, {k: v for k, v in fields._asdict().items() if v is not None})
        after = params_of(state)
        assert float(measured.loss) == pytest.approx(float(loss), rel=1e-5)
        for name, gradient in params_of(state.replace(params=gradients)).items():
            moved, within = before[name] - after[name], 1e-5 * rate * np.abs(gradient).max() + 1e-6
            np.testing.assert_allclose(moved, rate * gradient, atol=within, err_msg=name)
    assert int(state.updates) == 3
    counted = [sum(len(pair[side]) + 1 for batch in pairs for pair in batch) for side in (0, 1)]
    assert [int(state.sums.source_tokens), int(state.sums.target_tokens)] == counted


@pytest.mark.parametrize("wrong", [{"source": 0, "labels": 0}, {"source": 0, "target_output": 0}, [0, 1, 2]])
def test_another_batch_is_an_error_that_names_the_fields(wrong):
    with pytest.raises(TypeError, match="must be a Batch or a dict with source, target_input, target_output"):
        as_batch(wrong)


@pytest.mark.parametrize(("rows", "places"), [(1, 5), (4, 3)])
def test_a_row_of_the_source_for_each_of_the_target_and_a_label_for_each_input(rows, places):
    tokens = np.ones((4, 5), np.int32)
    with pytest.raises(ValueError, match="must have as many rows each"):
        as_batch(Batch(tokens[:rows], tokens[:, :places], tokens))
    for empty in (tokens[:0], tokens[:, :0]):
        with pytest.raises(ValueError, match="at least one"):
            as_batch(Batch(empty, empty, empty))


@pytest.mark.parametrize("name", ["source", "target_input", "target_output"])
def test_tokens_that_are_no_integers_are_refused_and_not_cut(name):
    batch = dict.fromkeys(("source", "target_input", "target_output"), np.ones((2, 3), np.int32))
    with pytest.raises(ValueError, match=f"{name} is float32: must be"):
        as_batch(batch | {name: np.full((2, 3), 4.7, np.float32)})


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


def test_empty_rows_change_nothing():
    """Neither the sums nor the dropout masks of the others."""
    run, (batch,) = trainer(**DROPOUT_IN_PARTS), batches(1)
    filled = jax.tree.map(lambda rows: np.pad(rows, [(0, 8), (0, 0)]), batch)
    sums = jax.jit(
        lambda params, batch: batch_sums(run.config, objective_of(run.config), params, batch, jax.random.key(0))
    )
    params = run.new().params
    np.testing.assert_allclose(sums(params, filled), sums(params, batch), rtol=1e-6)


MUP = {"model__mup_base_d_model": 8, "model__mup_base_d_ff": 16, "optimizer__clip_norm": 0.5}


@pytest.mark.parametrize("warmup", [{}, {"optimizer__warmup_share": 0.4, "optimizer__warmup_steps": 9}], ids=str)
def test_a_step_in_ones_own_loop_is_that_of_a_run_with_all_that_belongs_to_the_optimizer(warmup):
    run, config = trainer(**MUP), experiment(**MUP, **warmup)
    step = make_train_step(config, mesh=run.mesh)
    state = TrainState.create(config, mesh=run.mesh, params=run.new().params)
    for batch in batches(2):
        state, _ = step(config.seed, state, batch)
    assert worst_difference(state, run.train(batches(2))) < (1e-6,)


def with_leaf(params, leaf):
    inner = {**params["source_embedding"], "table": leaf}
    return {**params, "source_embedding": inner}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda params: jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params),
         r"decoder/layers_0/\S+ is bfloat16\[16, 16\]: must be float32\[16, 16\]; \d+ more differ"),
        (lambda params: with_leaf(params, jnp.ones((24, 8))), r"embedding/table is float32\[24, 8\]: must be .*16\]$"),
        (lambda params: {name: params[name] for name in ("encoder", "source_embedding")}, "decoder/.* is missing"),
        (lambda params: {**params, "more": {"bias": jnp.ones(2)}}, r"more/bias is float32\[2\]: must be left out$"),
    ],
    ids=["type", "shape", "missing", "more"],
)  # fmt: skip
def test_given_parameters_must_be_those_of_the_model(change, message):
    params = trainer().new().params
    with pytest.raises(BadInput, match=f"^params: .*{message}"):
        TrainState.create(experiment(), params=change(params))


def test_parameters_may_be_a_frozen_dict():
    params = jax.device_get(trainer().new().params)
    jax.tree.map(np.testing.assert_array_equal, TrainState.create(experiment(), params=freeze(params)).params, params)


def test_wrong_arguments_of_a_step_are_told_with_the_right_ones():
    config = experiment(train__accumulate=3)
    with pytest.raises(BadInput, match=r"batch has 16 rows: must be a multiple of 24, for 8 parts .*accumulate = 3"):
        make_train_step(config)(0, None, batches(1)[0])
    for call in (make_train_step, TrainState.create, TrainState.abstract):
        with pytest.raises(TypeError, match=r"config is a ModelConfig: must be an ExperimentConfig; from_config_dict"):
            call(config.model)
    for mesh, right in (
        (jax.make_mesh((8,), ("data",)), r"jax.make_mesh\(\(8, 1, 1\), .*AxisType.Auto,\) \* 3\)"),
        (jax.make_mesh((4, 2), ("data", "tensor")), r"jax.make_mesh\(\(4, 1, 2\), "),
        (jax.make_mesh((2, 4), ("x", "y")), r"jax.make_mesh\(\(8, 1, 1\), "),
    ):
        with pytest.raises(BadInput, match=f"^mesh has the axes .*: must be {right}"):
            make_train_step(experiment(), mesh=mesh)


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


def test_evaluation_is_the_loss_of_training_without_dropout_and_z_loss():
    dropped, run, batch = trainer(**DROPOUT_IN_PARTS), trainer(), batches(1)[0]
    config = experiment(**DROPOUT_IN_PARTS, train__z_loss=0.1)
    evaluated = make_eval_step(config, dropped.mesh)(dropped.new().params, batch)
    trained = run.train([batch]).sums
    np.testing.assert_allclose(evaluated.loss, trained.loss, rtol=1e-5)
    np.testing.assert_allclose(evaluated.nll, trained.nll, rtol=1e-5)
    assert (evaluated.correct, evaluated.tokens) == (trained.correct, trained.target_tokens)


def test_steps_export_with_symbolic_batch_and_lengths():
    run = trainer()
    b, s, t = jax.export.symbolic_shape("b, s, t")
    sizes = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in [(b, s), (b, t), (b, t)]]
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), run.plan)
    step, (seed,) = run.step.func, run.step.args
    jax.export.export(step)(seed, abstract, Batch(*sizes))
    jax.export.export(make_eval_step(experiment(), run.mesh))(abstract.params, Batch(*sizes))


def test_heads_and_random_bits_are_computed_twice_and_no_product_with_a_matrix_is():
    """tests/update/test_sharding.py has the numbers of such an update."""
    model = {"norm": "pre", "activation": "swiglu", "positions": "relative", "qk_norm": True, "dropout": 0.1}
    changes = {f"model__{name}": value for name, value in {**model, "attention_dropout": 0.1}.items()}

    def counts(rematerialize):
        run = Trainer(experiment(**SGD, **changes, train__rematerialize=rematerialize))
        text = run.step.func.lower(*run.step.args, run.plan, batch_of(sentences(8), 8)).as_text()
        matrices = re.findall(r"dot_general.*, tensor<[0-9]+x[0-9]+xf32>\) ->", text)
        return len(matrices), text.count("stablehlo.dot_general"), text.count("optimization_barrier")

    once, twice = counts("nothing"), counts("activations")
    assert once[0] == twice[0] > 0 and once[1] < twice[1] and once[2] < twice[2]


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
    resolved = decided_for(experiment(train__rematerialize=wanted), described_mesh(platform), is_training=True)
    assert (resolved.train.rematerialize == "activations") == is_computed_again


def test_both_gradients_of_each_product_are_computed_together_on_tpus():
    run, batch = trainer(), batch_of(sentences(8), 8)

    def barriers(platform):
        parts = run.config, objective_of(run.config), run.optimizer, described_mesh(platform), jax.random.key(0)
        update = functools.partial(train_step, *parts, batch=batch)
        return str(jax.make_jaxpr(update)(run.plan)).count("optimization_barrier")

    kernels = [path for path in params_of(run.new()) if path.endswith("kernel")]
    assert (barriers("tpu"), barriers("gpu")) == (len(kernels), 0)
