"""One update of the parameters: the state, its initialization, the training step and the evaluation step."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.config import ExperimentConfig
from transformer_jax.extension import CustomFunction
from transformer_jax.model import build, fused
from transformer_jax.model.linear import gradients_at_once
from transformer_jax.model.transformer import AttentionInputs, Features, Transformer, matmul_precision
from transformer_jax.processes.compilation import unfused_if_custom
from transformer_jax.schema import with_values
from transformer_jax.update import sharding
from transformer_jax.update.loss import (
    Loss,
    Objective,
    TokenSums,
    custom_sums,
    held_logits_on,
    load_loss,
    output_loss,
    token_sums,
    zero_sums,
)
from transformer_jax.update.optimizer import averages, evaluated
from transformer_jax.update.reduction import Slices, over_devices
from transformer_jax.update.rematerialization import keeps_products, recomputes_activations

PACKING = ("source_segments", "target_segments", "source_positions", "target_positions")


@flax.struct.dataclass
class IntervalSums:
    """Sums since the last line of metrics. They stay on the devices: the loop never waits for them."""

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
    """The complete state of a run at one step; from equal states training continues identically."""

    step: jax.Array  # batches seen
    updates: jax.Array  # the steps that changed the parameters; the schedule counts these
    bad_in_a_row: jax.Array  # steps since the last finite gradient
    params: Any
    optimizer: Any
    sums: IntervalSums

    @property
    def is_averaged(self) -> bool:
        """Whether the optimizer is schedule-free, so that `evaluated_params` are not `params`."""
        return bool(averages(self.optimizer))

    @property
    def evaluated_params(self) -> Any:
        """The parameters to validate, translate and export with: `params`, or their average if it is schedule-free."""
        return evaluated(self.params, self.optimizer)


class Pulse(NamedTuple):
    """What the loop reads of each step, a few steps later."""

    loss: jax.Array
    bad_in_a_row: jax.Array


def abstract_state(config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh) -> TrainState:
    """The shapes, types and shardings of the state."""
    shapes = jax.eval_shape(lambda: new_state(config, optimizer))
    return jax.tree.map(
        lambda leaf, spec: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=spec),
        shapes,
        sharding.state_shardings(shapes, mesh, config.mesh.replicate),
    )


def init_state(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, plan: TrainState, params: Any = None
) -> TrainState:
    """The state at step 0, with random parameters or the given ones. Each device initializes only its own part."""

    def new(seed: jax.Array, params: Any) -> TrainState:
        return new_state(with_values(config, {"seed": seed}), optimizer, params)

    return jax.jit(new, out_shardings=_shardings(plan))(np.uint32(config.seed), params)


def new_state(config: ExperimentConfig, optimizer: optax.GradientTransformation, params: Any = None) -> TrainState:
    if params is None:
        tokens_BT = jnp.ones((1, 2), jnp.int32)
        with matmul_precision(config.model):
            params = Transformer(config.model).init(jax.random.key(config.seed), tokens_BT, tokens_BT)["params"]
    none = jnp.zeros((), jnp.int32)
    return TrainState(none, none, none, params, optimizer.init(params), IntervalSums.zero())


def make_train_step(
    config: ExperimentConfig, optimizer: optax.GradientTransformation, mesh: Mesh, plan: TrainState
) -> Callable[[Any, TrainState, Any], tuple[TrainState, Pulse]]:
    """The jitted step (seed, state, batch) -> (state, pulse). The old state is donated: the new one reuses its memory.

    `config.seed` is not used: runs that differ only in their seeds share the compiled program.
    """
    shardings, everywhere = _shardings(plan), NamedSharding(mesh, PartitionSpec())
    loss = load_loss(config.train)
    config = for_mesh(config, mesh, is_divided=True)

    def update(seed: jax.Array, state: TrainState, batch: Any) -> tuple[TrainState, Pulse]:  # profiles show this name
        return train_step(with_values(config, {"seed": seed}), optimizer, loss, state, batch, mesh)

    return jax.jit(
        update,
        in_shardings=(everywhere, shardings, sharding.batch_sharding(mesh)),
        out_shardings=(shardings, everywhere),
        donate_argnums=1,
        compiler_options=unfused_if_custom(mesh, config.model, config.optimizer, config.train),
    )


def for_mesh(config: ExperimentConfig, mesh: Mesh, is_divided: bool) -> ExperimentConfig:
    """The config of programs for this mesh: with custom modules loaded, and what its devices decide."""
    device, train = mesh.devices.flat[0], config.train
    model = fused.resolved(build.with_loaded_modules(config.model), device, is_divided)
    chosen: Any = "activations" if recomputes_activations(train.rematerialize, device.platform) else "nothing"
    return dataclasses.replace(config, model=model, train=dataclasses.replace(train, rematerialize=chosen))


def _shardings(plan: TrainState) -> TrainState:
    return jax.tree.map(lambda leaf: leaf.sharding, plan)


def train_step(
    config: ExperimentConfig,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    state: TrainState,
    batch: Any,
    mesh: Mesh,
) -> tuple[TrainState, Pulse]:
    """One update with the gradient of the mean loss over all tokens, skipped if the gradient is not finite.

    `loss` is train.loss, loaded by `load_loss`.
    """
    rng = jax.random.fold_in(jax.random.key(config.seed), state.step)
    device = mesh.devices.flat[0]
    held = held_logits_on(device.device_kind)
    # With fsdp XLA would then sum some gradients whole that it otherwise sums in slices.
    at_once = gradients_at_once(device.platform == "tpu" and mesh.shape["fsdp"] == 1)
    gradient = over_devices(functools.partial(_summed_gradients, config, loss, held), mesh, config.mesh.replicate)
    with matmul_precision(config.model), at_once:
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
            # Divided by tokens later, while a custom loss has its own weight.
            loss=counted(state.sums.loss, sums.loss if loss is None else sums.loss / weight * sums.tokens),
            nll=counted(state.sums.nll, sums.nll),
            right=counted(state.sums.right, sums.right),
            target_tokens=counted(state.sums.target_tokens, sums.tokens),
            source_tokens=counted(state.sums.source_tokens, source_tokens),
            gradient_norm=counted(state.sums.gradient_norm, norm),
            steps=counted(state.sums.steps, jnp.ones((), jnp.int32)),
        ),
    )
    return new, Pulse(sums.loss / weight, new.bad_in_a_row)


def make_eval_step(config: ExperimentConfig, mesh: Mesh) -> Callable[[Any, Any], TokenSums]:
    """The jitted evaluation (params, batch) -> sums, without dropout."""
    loss = load_loss(config.train)
    config = for_mesh(config, mesh, is_divided=mesh.size == 1)
    return jax.jit(
        lambda params, batch: evaluation_sums(config, loss, params, batch),
        out_shardings=NamedSharding(mesh, PartitionSpec()),
        compiler_options=unfused_if_custom(mesh, config.model, config.train),
    )


def evaluation_sums(config: ExperimentConfig, loss: Loss, params: Any, batch: Any) -> TokenSums:
    """The sums of one batch without dropout."""
    with matmul_precision(config.model):
        return batch_sums(config, loss, params, batch, rng=None)


def batch_sums(
    config: ExperimentConfig,
    loss: Loss,
    params: Any,
    batch: Any,
    rng: jax.Array | None,
    held_logits: int | None = None,
) -> TokenSums:
    """The sums of one batch of cross-entropy, with dropout if there is an rng for it."""
    smoothing = Objective(config.train.label_smoothing, config.train.smoothing_over)
    found = _features(config, params, batch, rng)
    return _sums(config, loss or smoothing, lambda: params, batch, found, held_logits)


def _features(config: ExperimentConfig, params: Any, batch: Any, rng: jax.Array | None) -> Features:
    def run(model: Transformer) -> Features:
        inputs = AttentionInputs(**{name: getattr(batch, name) for name in PACKING})
        return model.features(batch.source, batch.target_input, inputs, deterministic=rng is None)

    rngs = {} if rng is None else {"dropout": rng}
    return nn.apply(run, Transformer(config.model))({"params": params}, rngs=rngs)


def _sums(
    config: ExperimentConfig,
    loss: CustomFunction | Objective,
    params: Callable[[], Any],
    batch: Any,
    features: Features,
    held_logits: int | None,
) -> TokenSums:
    """The sums of a batch; `params` are needed only where the logits themselves are."""
    decoded_BTD, table_ND, bias_N = features
    targets_BT, weights_BT = batch.target_output, batch.target_output != config.model.pad_id
    if isinstance(loss, Objective) and table_ND is not None:
        if bias_N is not None:  # more columns of the table, against more features that are 1
            columns_NP = _in_parts(bias_N, decoded_BTD.dtype)
            decoded_BTD = jnp.pad(decoded_BTD, ((0, 0), (0, 0), (0, columns_NP.shape[1])), constant_values=1)
            table_ND = jnp.concatenate([table_ND, columns_NP], axis=1)
        return output_loss(decoded_BTD, table_ND, targets_BT, weights_BT, loss, held_logits)
    logits_BTN: Any = Transformer(config.model).apply({"params": params()}, decoded_BTD, method="logits")
    if isinstance(loss, Objective):
        return token_sums(logits_BTN, targets_BT, weights_BT, loss)
    return custom_sums(loss, config.train, logits_BTN, targets_BT, weights_BT)


def _in_parts(x_N: jax.Array, dtype: Any) -> jax.Array:
    """Columns that survive a cast to the type and add up to x: in bfloat16 three, of 8 bits each."""
    kept = jnp.finfo(dtype)
    parts, rest_N = [], x_N
    for _ in range(-(-(jnp.finfo(x_N.dtype).nmant + 1) // (kept.nmant + 1))):
        parts.append(jax.lax.reduce_precision(rest_N, kept.nexp, kept.nmant))
        rest_N = rest_N - parts[-1]
    return jnp.stack(parts, axis=1)


def _summed_gradients(
    config: ExperimentConfig,
    loss: Loss,
    held_logits: int | None,
    params: Any,
    batch: Any,
    rng: jax.Array,
    slices: Slices | None = None,
) -> tuple[Any, tuple[TokenSums, jax.Array]]:
    """Gradient of the loss summed over the batch, its sums and its source tokens; in `train.accumulate` parts.

    The sums are returned with the gradients, so that devices add up all of them in one message.
    """
    train = config.train
    objective = loss or Objective(train.label_smoothing, train.smoothing_over, train.z_loss)

    def total_loss(params: Any, part: Any, rng: jax.Array) -> tuple[jax.Array, tuple[TokenSums, jax.Array]]:
        def whole(params: Any) -> Any:
            return params if slices is None else slices.whole(params, part)

        def features(params: Any) -> Features:
            return _features(config, whole(params), part, rng)

        # Without the loss, which keeps its own gradients only.
        found = (features if policy is None else jax.checkpoint(features, policy=policy))(params)
        sums = _sums(config, objective, lambda: whole(params), part, found, held_logits)
        return sums.loss, (sums, jnp.sum(part.source != config.model.pad_id, dtype=jnp.float32))

    policy = keeps_products if train.rematerialize == "activations" else None
    if slices is not None:
        policy = slices.policy(params, policy or jax.checkpoint_policies.everything_saveable)
    gradient = jax.grad(total_loss, has_aux=True)
    count = train.accumulate
    if count == 1:
        return gradient(params, batch, jax.random.fold_in(rng, 0))

    def add(total: Any, number_and_part: Any) -> tuple[Any, None]:
        number, part = number_and_part
        more = gradient(params, part, jax.random.fold_in(rng, number))
        return jax.tree.map(jnp.add, total, more), None

    # A part is every count-th row: each device divides its own rows, and nothing moves between devices.
    parts = jax.tree.map(lambda rows: jnp.swapaxes(rows.reshape(-1, count, *rows.shape[1:]), 0, 1), batch)
    zero = (jax.tree.map(jnp.zeros_like, params), (zero_sums(), jnp.zeros((), jnp.float32)))
    return jax.lax.scan(add, zero, (jnp.arange(count), parts))[0]
