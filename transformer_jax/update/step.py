"""One update of the parameters, as pure functions of arrays. training/compiled.py jits them, for one run or several.

The path of a batch: `train_step` passes it to `batch_gradient`, which gives every device its rows. `rows_gradient` cuts
them into microbatches, and `batch_sums` runs the model and the loss on each. The gradients of all rows are summed,
divided by the weight of all tokens, and go to the optimizer.

Sums over devices. The loss is a sum over rows, so its gradient is the sum of the gradients of the devices' rows:

| a parameter is | in every microbatch | after the last one |
|---|---|---|
| whole | | `psum` over `data` and `fsdp` |
| divided over `fsdp` | gathered where it is used; the derivative sums over `fsdp` and scatters | `psum` over `data` |

Both columns read the same shardings (in `sharding.gathered` and `batch_gradient`). Being divided over `tensor`, too,
changes nothing here: there XLA keeps the meaning of the undivided program. So it does in the rest of a step, outside
the `shard_map`: the norm of the gradient, clipping and the optimizer.

Dropout depends neither on the devices nor on where a run was interrupted. Its mask follows from the seed and the step
(the key), the number of the microbatch, the module's path and its number of calls (flax), the element's row (of the
microbatch, or of its blocks in a window), its place in the row, and the row's length (model/dropout.py). With A
microbatches, row g of a batch is row g // A of microbatch g % A: each device has a multiple of A rows, takes every A-th
of them, and counts on from the devices before it. Empty rows, which fill up a batch, come last.

A *step* takes one batch. An *update* is a step whose gradient had a finite norm, so that it changed the parameters.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.core import unfreeze
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import Batch
from transformer_jax.errors import BadInput
from transformer_jax.model.checks import check_type
from transformer_jax.model.dropout import rows_divided_over
from transformer_jax.model.layers import RESIDUAL
from transformer_jax.model.products import WEIGHTS
from transformer_jax.model.tpu import LOGITS_AT_ONCE, products_for_tpus
from transformer_jax.model.transformer import AttentionInputs, Transformer, abstract_params, matmul_precision
from transformer_jax.model_config import ModelConfig
from transformer_jax.update import sharding
from transformer_jax.update.loss import LIMITS, LogitLimits, Objective, TokenSums, sliced_loss, zero_sums
from transformer_jax.update.optimizer import check_experiment, make_optimizer
from transformer_jax.update.sharding import path_name

Optimizer: TypeAlias = optax.GradientTransformation
PACKING = ("source_segments", "target_segments", "source_positions", "target_positions")


@flax.struct.dataclass
class IntervalSums:
    """Sums over the updates since the last line of metrics, with their number."""

    loss: jax.Array
    nll: jax.Array
    correct: jax.Array
    target_tokens: jax.Array
    source_tokens: jax.Array
    gradient_norm: jax.Array
    updates: jax.Array

    @classmethod
    def zero(cls) -> "IntervalSums":
        zero, count = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return cls(zero, zero, zero, target_tokens=count, source_tokens=count, gradient_norm=zero, updates=count)


@flax.struct.dataclass
class TrainState:
    """The complete state of a run at one step; from equal states training continues identically."""

    step: jax.Array  # batches seen
    updates: jax.Array  # steps that changed the parameters; optax counts the same in `optimizer`, for the schedule
    bad_in_a_row: jax.Array  # steps since the last finite gradient
    params: Any
    optimizer: Any
    sums: IntervalSums

    @classmethod
    def create(
        cls,
        config: ExperimentConfig,
        optimizer: Optimizer | None = None,
        mesh: Mesh | None = None,
        params: Any = None,
        abstract: "TrainState | None" = None,
    ) -> "TrainState":
        """The state at step 0, with random parameters or the given ones, which must be float32.

        It is sharded over the mesh, and each device initializes only its own shards. The optimizer is that of
        `make_train_step`.
        """
        optimizer = optimizer or make_optimizer(config)
        abstract = abstract or cls.abstract(config, optimizer, mesh)
        if params is not None:
            params = unfreeze(params)
            check_params(params, abstract.params)

        def new(seed: jax.Array, params: Any) -> TrainState:
            params = initial_params(config.model, jax.random.key(seed)) if params is None else params
            return new_state(optimizer, params)

        shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        return jax.jit(new, out_shardings=shardings)(np.uint32(config.seed), params)

    @classmethod
    def abstract(
        cls, config: ExperimentConfig, optimizer: Optimizer | None = None, mesh: Mesh | None = None
    ) -> "TrainState":
        """The shapes, types and shardings of the state, from which orbax restores one."""
        optimizer = optimizer or make_optimizer(config)
        check_experiment(config)
        mesh = mesh or sharding.make_mesh(config.mesh)
        shapes = jax.eval_shape(functools.partial(new_state, optimizer), abstract_params(config.model))
        shardings = sharding.state_shardings(shapes, mesh, config.model, config.mesh.replicate)
        return jax.tree.map(
            lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, shardings
        )


class StepOutcome(NamedTuple):
    """The numbers of a step that the loop reads a few steps later."""

    loss: jax.Array
    updates: jax.Array
    bad_in_a_row: jax.Array


def initial_params(model: ModelConfig, key: jax.Array) -> Any:
    """Random parameters."""
    tokens_BT = jnp.ones((1, 2), jnp.int32)
    with matmul_precision(model):
        return Transformer(model).init(key, tokens_BT, tokens_BT)["params"]


def new_state(optimizer: Optimizer, params: Any) -> TrainState:
    """The state at step 0."""
    none = jnp.zeros((), jnp.int32)
    return TrainState(none, none, none, params, optimizer.init(params), IntervalSums.zero())


def check_params(params: Any, expected: Any) -> None:
    """Raises BadInput unless the parameters have the names, types and shapes that the model has."""
    given, right = (
        {path_name(path): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for path, leaf in leaves}
        for leaves in map(jax.tree_util.tree_leaves_with_path, (params, expected))
    )
    wrong = [name for name in sorted({*given, *right}) if given.get(name) != right.get(name)]
    if wrong:
        name, more = wrong[0], f"; {len(wrong) - 1} more differ" if len(wrong) > 1 else ""
        found, wanted = given.get(name, "missing"), right.get(name, "left out")
        raise BadInput(f"params: {name} is {found}: must be {wanted}{more}")


def as_batch(batch: Any) -> Batch:
    needed, others = Batch._fields[:3], Batch._fields[3:]
    if isinstance(batch, Mapping) and {*needed} <= batch.keys() <= {*Batch._fields}:
        batch = Batch(**batch)
    if not isinstance(batch, Batch):
        raise TypeError(f"batch: must be a Batch or a dict with {', '.join(needed)}; it may have {', '.join(others)}")
    source, given, expected = map(jnp.shape, batch[:3])
    if given != expected or source[:1] != given[:1] or 0 in given:
        raise ValueError(
            f"source, target_input and target_output have the shapes {source}, {given} and {expected}: must have as "
            "many rows each, at least one, and the last two be of one length, at least 1"
        )
    check_type(jnp.integer, **{name: getattr(batch, name) for name in needed})
    return batch


def train_step(
    config: ExperimentConfig,
    objective: Objective,
    optimizer: Optimizer,
    mesh: Mesh,
    key: jax.Array,
    state: TrainState,
    batch: Batch,
) -> tuple[TrainState, StepOutcome]:
    """One step with the gradient of the mean loss over all tokens: an update, unless the gradient is not finite.

    `key` is the run's, the same for all steps.
    """
    key = jax.random.fold_in(key, state.step)
    with matmul_precision(config.model), products_for_tpus(mesh.devices.flat[0].platform == "tpu"):
        gradients, (sums, source_tokens) = batch_gradient(config, objective, mesh, state.params, batch, key)
    # All are sums over the tokens of all microbatches and devices. Here the gradients become means.
    weight = jnp.where(sums.weight > 0, sums.weight, 1.0)
    gradients = jax.tree.map(lambda g: g / weight, gradients)
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(norm)

    with matmul_precision(config.model):  # some optimizers multiply matrices
        changes, optimizer_state = optimizer.update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, changes)

    def if_finite(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    def add(total: jax.Array, summand: Any) -> jax.Array:
        return total + jnp.where(finite, summand, 0).astype(total.dtype)

    summands = IntervalSums(
        # Divided by tokens later, while a custom loss has its own weight.
        loss=sums.loss if objective.function is None else sums.loss / weight * sums.tokens,
        nll=sums.nll,
        correct=sums.correct,
        target_tokens=sums.tokens,
        source_tokens=source_tokens,
        gradient_norm=norm,
        updates=jnp.int32(1),
    )
    new = TrainState(
        step=state.step + 1,
        updates=add(state.updates, 1),
        bad_in_a_row=jnp.where(finite, 0, state.bad_in_a_row + 1),
        params=if_finite(params, state.params),
        optimizer=if_finite(optimizer_state, state.optimizer),
        sums=jax.tree.map(add, state.sums, summands),
    )
    return new, StepOutcome(sums.loss / weight, new.updates, new.bad_in_a_row)


def batch_gradient(
    config: ExperimentConfig, objective: Objective, mesh: Mesh, params: Any, batch: Batch, key: jax.Array
) -> tuple[Any, tuple[TokenSums, jax.Array]]:
    """The gradient of the loss summed over a batch, with the sums and the source tokens of the batch.

    The sums over devices are in a `shard_map`: XLA alone would sum each use of a parameter (the tied embedding has
    three) in every microbatch. Over `tensor` XLA partitions the matrix products.
    """
    if sharding.batch_shards(mesh) == 1:
        return rows_gradient(config, objective, mesh, params, batch, key)
    shardings = sharding.param_shardings(params, mesh, config.model, config.mesh.replicate)
    fsdp_specs = sharding.specs_over("fsdp", shardings)

    def summed(gradient: jax.Array, spec: PartitionSpec) -> jax.Array:
        return jax.lax.psum(gradient, "data" if "fsdp" in spec else sharding.BATCH_AXES)

    def on_each_device(params: Any, rows: Batch, key: jax.Array) -> Any:
        with rows_divided_over(sharding.BATCH_AXES):
            gather = functools.partial(sharding.gathered, shardings=shardings)
            gradient, sums = rows_gradient(config, objective, mesh, params, rows, key, gather)
        return jax.tree.map(summed, gradient, fsdp_specs), jax.lax.psum(sums, sharding.BATCH_AXES)

    everywhere, by_row = PartitionSpec(), PartitionSpec(sharding.BATCH_AXES)
    # XLA cannot partition cuDNN's attention, not even over an axis of one device: then no axis is left to it.
    manual_axes = mesh.axis_names if mesh.shape["tensor"] == 1 else sharding.BATCH_AXES
    # check_vma=False: with the check JAX would itself sum the gradient of a whole parameter, at each of its uses. So
    # nothing verifies `out_specs`: `summed` must make a gradient equal along batch axes that its spec does not name.
    return jax.shard_map(
        on_each_device,
        mesh=mesh,
        axis_names=set(manual_axes),
        in_specs=(fsdp_specs, by_row, everywhere),
        out_specs=(fsdp_specs, everywhere),
        check_vma=False,
    )(params, batch, key)


def rows_gradient(
    config: ExperimentConfig,
    objective: Objective,
    mesh: Mesh,
    params: Any,
    batch: Batch,
    key: jax.Array,
    gather: Callable[[Any], Any] = lambda params: params,
) -> tuple[Any, tuple[TokenSums, jax.Array]]:
    """The gradient of a device's rows, in `train.accumulate` microbatches, with their sums and source tokens."""

    limits = LogitLimits(computed=LOGITS_AT_ONCE.get(mesh.devices.flat[0].device_kind))

    def loss(params: Any, batch: Batch, key: jax.Array) -> tuple[jax.Array, tuple[TokenSums, jax.Array]]:
        sums = batch_sums(config, objective, params, batch, key, limits, gather)
        return sums.loss, (sums, jnp.sum(batch.source != config.model.pad_id, dtype=jnp.float32))

    gradient, count = jax.grad(loss, has_aux=True), config.train.accumulate
    if count == 1:
        return gradient(params, batch, jax.random.fold_in(key, 0))

    def add(total: Any, numbered: Any) -> tuple[Any, None]:
        number, microbatch = numbered
        summand = gradient(params, microbatch, jax.random.fold_in(key, number))
        return jax.tree.map(jnp.add, total, summand), None

    # Microbatch n has every count-th row, from row n.
    microbatches = jax.tree.map(lambda rows: jnp.swapaxes(rows.reshape(-1, count, *rows.shape[1:]), 0, 1), batch)
    zero = (jax.tree.map(jnp.zeros_like, params), (zero_sums(), jnp.zeros((), jnp.float32)))
    return jax.lax.scan(add, zero, (jnp.arange(count), microbatches))[0]


def _is_kept(primitive: Any, *inputs: Any, **_: Any) -> bool:
    has_matrix = primitive.name == "dot_general" and len(inputs[1].shape) == 2
    return has_matrix or primitive.name.startswith("dot_product_attention")


# The policy of train.rematerialize. Kept are products with a matrix of two axes, fused attention, attention's weights,
# and the residual sums. Computed again are norms, activation functions, dropout with its random bits, and products of
# heads, which TPUs would pad in memory.
KEPT = jax.checkpoint_policies.save_from_both_policies(
    _is_kept, jax.checkpoint_policies.save_only_these_names(WEIGHTS, RESIDUAL)
)


def batch_sums(
    config: ExperimentConfig,
    objective: Objective,
    params: Any,
    batch: Any,
    key: jax.Array | None = None,
    limits: LogitLimits = LIMITS,
    gather: Callable[[Any], Any] = lambda params: params,
) -> TokenSums:
    """The sums of one batch. With a key, which is dropout's, they are for training.

    `gather` is applied to the parameters before they are used, again in a backward pass that recomputes activations.
    """

    def features(params: Any) -> Any:
        inputs = AttentionInputs(**{name: getattr(batch, name) for name in PACKING})
        options: Any = {"rngs": {} if key is None else {"dropout": key}, "deterministic": key is None}
        variables, sides = {"params": gather(params)}, (batch.source, batch.target_input)
        return Transformer(config.model).apply(variables, *sides, inputs, method="features", **options)

    # `auto` has been decided by training/compiled.py. The loss is outside: its own gradient keeps no logits.
    if key is not None and config.train.rematerialize == "activations":
        features = jax.checkpoint(features, policy=KEPT)
    with matmul_precision(config.model):
        decoded_BTD, table_ND, bias_N = features(params)
        targets_BT, weights_BT = batch.target_output, batch.target_output != config.model.pad_id
        if objective.function is None and table_ND is not None:
            return sliced_loss(decoded_BTD, table_ND, bias_N, targets_BT, weights_BT, objective, limits)
        logits_BTN: Any = Transformer(config.model).apply({"params": gather(params)}, decoded_BTD, method="logits")
        return objective.of_logits(logits_BTN, targets_BT, weights_BT)
