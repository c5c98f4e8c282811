"""One update, pure: TrainState, its initialisation already divided among the devices, the train step, the eval step."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.model.precision import matmul_precision
from transformer_jax.model.transformer import Layout, Transformer
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.update import sharding
from transformer_jax.update.loss import TokenSums, output_loss, own_sums, token_sums
from transformer_jax.update.reduction import Slices, over_devices

PACKING = ("source_segments", "target_segments", "source_positions", "target_positions")


@flax.struct.dataclass
class IntervalSums:
    """What has added up since the last line of metrics. It lives on the devices: the loop never waits for it."""

    loss: jax.Array
    nll: jax.Array
    right: jax.Array
    target_tokens: jax.Array
    source_tokens: jax.Array
    gradient_norm: jax.Array
    steps: jax.Array

    @classmethod
    def zero(cls) -> "IntervalSums":
        zero, none = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
        return cls(
            loss=zero, nll=zero, right=zero, target_tokens=none, source_tokens=none, gradient_norm=zero, steps=none
        )


@flax.struct.dataclass
class TrainState:
    """All that a run is at one step; two runs with equal states go on alike."""

    step: jax.Array  # batches seen
    updates: jax.Array  # of them, those that changed the parameters: what the schedule counts
    bad_in_a_row: jax.Array  # steps since the last finite gradient
    params: Any
    optimizer: Any
    sums: IntervalSums

    @property
    def skipped(self) -> jax.Array:
        return self.step - self.updates


class Pulse(NamedTuple):
    """What the loop watches of each step, a little later."""

    loss: jax.Array
    bad_in_a_row: jax.Array


def abstract_state(config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """Shapes, types and places of the state, without the state: the plan that everything else is given."""
    shapes = jax.eval_shape(lambda: new_state(config, optimizer))
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        sharding.state_shardings(shapes, mesh, config.mesh.replicate),
    )


def init_state(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, plan: TrainState, params: Any = None
) -> TrainState:
    """The state at step 0, with random parameters or with these.

    Each device makes only its own part: the model never lies whole on one, unless it was given.
    """
    return jax.jit(lambda params: new_state(config, optimizer, params), out_shardings=_places(plan))(params)


def new_state(config: ExperimentConfig, optimizer: optax.GradientTransformation, params: Any = None) -> TrainState:
    if params is None:
        tokens_BT = jnp.ones((1, 2), jnp.int32)
        with matmul_precision(config.model):
            params = Transformer(config.model).init(jax.random.key(config.seed), tokens_BT, tokens_BT)["params"]
    none = jnp.zeros((), jnp.int32)
    return TrainState(none, none, none, params, optimizer.init(params), IntervalSums.zero())


def make_train_step(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh, plan: TrainState
) -> Callable[[TrainState, Any], tuple[TrainState, Pulse]]:
    """The jitted step (state, batch) -> (state, pulse). The old state's memory is given to the new one."""
    places = _places(plan)

    def update(state: TrainState, batch: Any) -> tuple[TrainState, Pulse]:  # its name is the program's in a trace
        return train_step(config, optimizer, state, batch, mesh)

    return jax.jit(
        update,
        in_shardings=(places, sharding.batch_sharding(mesh)),
        out_shardings=(places, NamedSharding(mesh, PartitionSpec())),
        donate_argnums=0,
        compiler_options=unfused_if_custom(mesh, config.model, config.optimizer, config.train),
    )


def _places(plan: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf.sharding, plan)


def train_step(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, state: TrainState, batch: Any, mesh: Mesh
) -> tuple[TrainState, Pulse]:
    """Gradient of the summed loss over all tokens, divided once; then one update, unless it is not finite."""
    rng = jax.random.fold_in(jax.random.key(config.seed), state.step)
    gradient = over_devices(functools.partial(_summed_gradients, config), mesh, config.mesh.replicate)
    with matmul_precision(config.model):
        gradients, (sums, source_tokens) = gradient(state.params, batch, rng)
    weight = jnp.where(sums.weight > 0, sums.weight, 1.0)
    gradients = jax.tree.map(lambda g: g / weight, gradients)
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(norm)

    with matmul_precision(config.model):  # some optimizers multiply matrices
        changes, moments = optimizer.update(gradients, state.optimizer, state.params)
    params = optax.apply_updates(state.params, changes)

    def kept(new: Any, old: Any) -> Any:
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    def counted(total: jax.Array, more: jax.Array) -> jax.Array:
        return total + jnp.where(finite, more, 0).astype(total.dtype)

    new = TrainState(
        step=state.step + 1,
        updates=counted(state.updates, jnp.ones((), jnp.int32)),
        bad_in_a_row=jnp.where(finite, 0, state.bad_in_a_row + 1),
        params=kept(params, state.params),
        optimizer=kept(moments, state.optimizer),
        sums=IntervalSums(
            loss=counted(state.sums.loss, _loss_by_tokens(config, sums, weight)),
            nll=counted(state.sums.nll, sums.nll),
            right=counted(state.sums.right, sums.right),
            target_tokens=counted(state.sums.target_tokens, sums.tokens),
            source_tokens=counted(state.sums.source_tokens, source_tokens),
            gradient_norm=counted(state.sums.gradient_norm, norm),
            steps=counted(state.sums.steps, jnp.ones((), jnp.int32)),
        ),
    )
    return new, Pulse(sums.loss / weight, new.bad_in_a_row)


def _loss_by_tokens(config: ExperimentConfig, sums: TokenSums, weight: jax.Array) -> jax.Array:
    """What is added up to be divided by tokens later, for a line of metrics: a loss of one's own has its own weight."""
    return sums.loss if config.train.loss is None else sums.loss / weight * sums.tokens


def make_eval_step(config: ExperimentConfig, mesh: Mesh) -> Callable[[Any, Any], TokenSums]:
    """The jitted evaluation (params, batch) -> sums, without dropout."""
    return jax.jit(
        lambda params, batch: evaluation_sums(config, params, batch),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
        compiler_options=unfused_if_custom(mesh, config.model, config.train),
    )


def evaluation_sums(config: ExperimentConfig, params: Any, batch: Any) -> TokenSums:
    """The model over one batch of an evaluation: no dropout."""
    with matmul_precision(config.model):
        return batch_sums(config, params, batch, rng=None)


def batch_sums(config: ExperimentConfig, params: Any, batch: Any, rng: jax.Array | None) -> TokenSums:
    """The model over one batch, with dropout if there is an rng for it."""

    def run(model: Transformer) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
        layout = Layout(**{name: getattr(batch, name) for name in PACKING})
        features = model.features(batch.source, batch.target_input, layout, deterministic=rng is None)
        return features, model.output_table(), model.output_bias()

    rngs = {} if rng is None else {"dropout": rng}
    model, variables, train = Transformer(config.model), {"params": params}, config.train
    features_BTD, table_ND, bias_N = nn.apply(run, model)(variables, rngs=rngs)
    weights_BT = batch.target_output != config.model.pad_id
    if train.loss is not None:
        own_logits_BTN: Any = model.apply(variables, features_BTD, method="logits")
        return own_sums(train, own_logits_BTN, batch.target_output, weights_BT)
    smoothing = (batch.target_output, weights_BT, train.label_smoothing, train.smoothing_over)
    if table_ND is not None:
        if bias_N is not None:  # one more column of the table, against one more feature that is 1
            features_BTD = jnp.pad(features_BTD, ((0, 0), (0, 0), (0, 1)), constant_values=1)
            table_ND = jnp.concatenate([table_ND, bias_N[:, None]], axis=1)
        return output_loss(features_BTD, table_ND, *smoothing)
    logits_BTN: Any = model.apply(variables, features_BTD, method="logits")
    return token_sums(logits_BTN, *smoothing)


def _summed_gradients(
    config: ExperimentConfig, params: Any, batch: Any, rng: jax.Array, slices: Slices | None = None
) -> tuple[Any, tuple[TokenSums, jax.Array]]:
    """Gradient of the loss summed over the batch, its sums and its source tokens; in `train.accumulate` parts.

    All that devices add up goes with the gradients: a sum beside them would be sent by itself.
    """

    def loss(params: Any, part: Any, rng: jax.Array) -> tuple[jax.Array, tuple[TokenSums, jax.Array]]:
        sums = batch_sums(config, params if slices is None else slices.whole(params, part), part, rng)
        return sums.loss, (sums, jnp.sum(part.source != config.model.pad_id, dtype=jnp.float32))

    gradient = jax.grad(loss if slices is None else slices.gathered_again(loss, params), has_aux=True)
    count = config.train.accumulate
    if count == 1:
        return gradient(params, batch, jax.random.fold_in(rng, 0))

    def add(total: Any, number_and_part: Any) -> tuple[Any, None]:
        number, part = number_and_part
        more = gradient(params, part, jax.random.fold_in(rng, number))
        return jax.tree.map(jnp.add, total, more), None

    # Every count-th row: each device cuts its own rows, and nothing moves between devices.
    parts = jax.tree.map(lambda rows: jnp.swapaxes(rows.reshape(-1, count, *rows.shape[1:]), 0, 1), batch)
    none = jnp.zeros((), jnp.float32)
    zero = (jax.tree.map(jnp.zeros_like, params), (TokenSums(*(none for _ in TokenSums._fields)), none))
    return jax.lax.scan(add, zero, (jnp.arange(count), parts))[0]
