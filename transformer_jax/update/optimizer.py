"""Learning rates and the optimizer (section 5.3): equation 3 and Adam, or others.

The learning rate is a function of the number of updates made so far. Optax counts them itself, in its state.
"""

import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax.config import ADAM_FAMILY, ENDING_WITH_THE_RUN, ExperimentConfig, OptimizerConfig
from transformer_jax.errors import BadInput, did_you_mean
from transformer_jax.extension import CustomFunction, file_of, load_function, load_object, running
from transformer_jax.model.checks import check_positive
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.schema import is_address, is_meant_as_address, with_values
from transformer_jax.update.sharding import path_name

# The arguments that a custom schedule may take.
SCHEDULE_ARGUMENTS = ("peak", "warmup_steps", "steps", "final_fraction", "d_model")
# Devices count updates in int32. No run gets there, but a larger train.steps may mean "without end".
MOST_UPDATES = 2**31 - 1
# Muon's parameters: kernels of the stacks, but not embeddings, the output (tied or not) and tables of positions.
HIDDEN = re.compile(r"(^|/)(encoder|decoder)/(.*/)?kernel$")


def inverse_sqrt_schedule(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> optax.Schedule:
    """Equation 3: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), with step = count + 1."""
    check_positive(d_model=d_model, warmup_steps=warmup_steps)
    peak = scale * (d_model * warmup_steps) ** -0.5
    return _with_warmup(peak, warmup_steps, lambda step: peak * (warmup_steps / step) ** 0.5)


def make_schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate by the number of updates made: a linear warmup to the peak, then the config's schedule."""
    warmup, steps = min(config.warmup_steps, MOST_UPDATES), min(steps, MOST_UPDATES)
    peak = config.peak_rate(d_model)
    if is_address(config.schedule):
        return _custom_schedule(config, peak, d_model, steps)
    if config.schedule == "inverse_sqrt":
        return _with_warmup(peak, warmup, lambda step: peak * (warmup / step) ** 0.5)
    if config.schedule == "constant":
        return _with_warmup(peak, warmup, lambda step: peak)
    after = max(steps - warmup, 1)
    decaying = config.decaying(after)
    if config.schedule == "cosine":
        decay = optax.schedules.cosine_decay_schedule(peak, after, alpha=config.final_fraction)
    else:
        decay = optax.schedules.linear_schedule(peak, peak * config.final_fraction, decaying, after - decaying)
    return _with_warmup(peak, warmup, lambda update: decay(update - warmup))


def _with_warmup(peak: float, warmup: int, after: Callable[[Any], Any]) -> optax.Schedule:
    def schedule(count: Any) -> Any:
        update = count + 1
        return jnp.where(update < warmup, peak * update / jnp.maximum(warmup, 1), after(update))

    return schedule


def ends_with_the_run(config: OptimizerConfig) -> bool:
    """Whether the schedule depends on the total number of updates, so that a longer run has different rates."""
    if is_address(config.schedule):
        return "steps" in _load_schedule(config).optional
    return config.schedule in ENDING_WITH_THE_RUN


def refuse_without_peak(config: OptimizerConfig) -> None:
    """Raises BadInput if there is no known learning rate that tune can multiply."""
    problem = None
    if not config.has_known_peak:
        problem = f"optimizer.warmup_share = {config.warmup_share}: tune also needs optimizer.learning_rate"
    elif is_address(config.schedule) and "peak" not in _load_schedule(config).optional:
        problem = f"optimizer.schedule = {config.schedule}: takes no `peak`, the learning rate that tune multiplies"
    if problem:
        raise BadInput(problem)


def _load_schedule(config: OptimizerConfig) -> CustomFunction:
    return load_function("optimizer.schedule", config.schedule, optional=SCHEDULE_ARGUMENTS)


def _custom_schedule(config: OptimizerConfig, peak: float, d_model: int, steps: int) -> optax.Schedule:
    custom = _load_schedule(config)
    values = (peak, config.warmup_steps, steps, config.final_fraction, d_model)
    rate_at = custom(**dict(zip(SCHEDULE_ARGUMENTS, values, strict=True)))

    def schedule(count: Any) -> Any:
        with custom.running():
            return rate_at(jnp.asarray(count, "int32"))

    return schedule


def make_optimizer(config: ExperimentConfig) -> optax.GradientTransformation:
    """The optimizer of a config, with its clipping, groups, schedule over train.steps, and muP's learning rates."""
    check_experiment(config)
    steps = config.train.steps
    settings = dataclasses.replace(config.optimizer, warmup_steps=config.optimizer.warmup_of(steps))
    schedule = make_schedule(settings, config.model.base_d_model, steps)
    return optimizer_of(settings, schedule, mup_rate_factors(config.model))


def check_experiment(config: Any) -> None:
    if not isinstance(config, ExperimentConfig):
        hint = "from_config_dict({'model': {'vocab_size': 100, ...}}) in transformer_jax.config makes one"
        raise TypeError(f"config is a {type(config).__name__}: must be an ExperimentConfig; {hint}")


def optimizer_of(
    config: OptimizerConfig, schedule: optax.Schedule, rate_factors: Mapping[str, float] | None = None
) -> optax.GradientTransformation:
    """Clipping, then the config's optimizer with the schedule's learning rate.

    `rate_factors` multiply the learning rates of parameters, by path, but not their weight decay.
    """
    optimizer = _by_group(config, schedule)
    if rate_factors is not None:
        optimizer = _with_rate_factors(optimizer, rate_factors)
    if config.clip_norm is not None:
        optimizer = optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)
    return optimizer if config.ema is None else _with_average(optimizer, config.ema)


class Averaged(NamedTuple):
    """The state of an optimizer, and a moving average of the parameters that began at zero."""

    optimizer: Any
    updates: jax.Array
    average: Any


def _with_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformation:
    """The optimizer, whose state also has average = decay average + (1 - decay) parameters after each update."""

    def init(params: Any) -> Averaged:
        return Averaged(optimizer.init(params), jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(gradients: Any, state: Averaged, params: Any = None) -> tuple[Any, Averaged]:
        changes, inner = optimizer.update(gradients, state.optimizer, params)
        params = optax.apply_updates(params, changes)
        average = jax.tree.map(lambda old, new: decay * old + (1 - decay) * new, state.average, params)
        return changes, Averaged(inner, state.updates + 1, average)

    return optax.GradientTransformation(init, update)


def averaged_params(state: Averaged, decay: float) -> Any:
    """The average as parameters: the weights of all updates, of which there must be one, are scaled to sum to 1."""
    total = 1 - decay ** int(state.updates)
    return jax.tree.map(lambda leaf: np.asarray(leaf / total, np.float32), jax.device_get(state.average))


def _by_group(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizers of the groups for their parameters, and the config's for the rest."""
    optimizers = {"rest": _single(config, schedule)}
    for number, (_, settings) in enumerate(config.groups):
        values = {"kwargs": config.kwargs if settings.get("name", config.name) == config.name else {}, **settings}
        factor = values.pop("learning_rate_factor", 1.0)
        rate = functools.partial(lambda factor, count: factor * schedule(count), factor)
        optimizers[f"group_{number}"] = _single(with_values(config, values), rate)

    def label(path: Any, _: Any) -> str:
        matching = (n for n, (pattern, _) in enumerate(config.groups) if re.search(pattern, path_name(path)))
        return next((f"group_{number}" for number in matching), "rest")

    def labels(params: Any) -> Any:
        labels = jax.tree_util.tree_map_with_path(label, params)
        for number, (pattern, _) in enumerate(config.groups):
            if f"group_{number}" not in jax.tree.leaves(labels):
                raise BadInput(f"optimizer.groups: {pattern!r} matches no parameter that earlier groups leave")
        return labels

    return optax.partition(optimizers, labels) if config.groups else optimizers["rest"]


def _single(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer that the config names."""
    if config.name == "muon":
        return _muon(config, schedule)
    make = optax.adamw if config.name == "adam" and _decays(config) else _find(config.name)
    adam = {"b1": config.beta1, "b2": config.beta2, "eps": config.epsilon} if config.name in ADAM_FAMILY else {}
    return _make(config, make, schedule, config.kwargs, **adam)


def _weight_decay(config: OptimizerConfig, make: Callable[..., Any]) -> dict[str, Any]:
    """optimizer.weight_decay as arguments. Some optimizers of optax decay by default; here none does."""
    takes = inspect.signature(make).parameters
    if _decays(config):
        are_matrices = functools.partial(jax.tree.map, lambda leaf: leaf.ndim >= 2)
        masks = {name: are_matrices for name in ("mask", "weight_decay_mask") if name in takes}
        if "weight_decay" in takes and not masks and not is_address(config.name):
            raise BadInput(f"optimizer.weight_decay: {config.name} has none of matrices only; see optimizer.kwargs")
        return {"weight_decay": config.weight_decay, **masks}
    return {"weight_decay": 0.0} if "weight_decay" in takes and "weight_decay" not in config.kwargs else {}


def _decays(config: OptimizerConfig) -> bool:
    """Whether there is weight decay. It is an array where several runs train in one program."""
    return isinstance(config.weight_decay, jax.Array) or config.weight_decay > 0


def _muon(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Muon (Jordan 2024) for hidden matrices, and Adam for the rest.

    With consistent_rms = 0.2 updates are as large as Adam's (Liu et al. 2025): one learning rate suits both.
    """
    if any(name.startswith("adam_") for name in config.kwargs):
        raise BadInput("optimizer.kwargs: adam_*: set optimizer.beta1, beta2, epsilon and weight_decay instead")
    hidden = _make(config, optax.contrib.muon, schedule, {"consistent_rms": 0.2, **config.kwargs})
    rest = _single(with_values(config, {"name": "adam", "kwargs": {}}), schedule)

    def label(path: Any, leaf: Any) -> str:
        return "hidden" if leaf.ndim == 2 and HIDDEN.search(path_name(path)) else "rest"

    optimizers = {"hidden": hidden, "rest": rest}
    return optax.partition(optimizers, lambda params: jax.tree_util.tree_map_with_path(label, params))


def _make(
    config: OptimizerConfig, make: Callable[..., Any], schedule: optax.Schedule, kwargs: Mapping[str, Any], **adam: Any
) -> optax.GradientTransformation:
    """Calls the function that makes an optimizer; one of optax is tried on a parameter."""
    options = {"learning_rate": schedule, **adam, **_weight_decay(config, make)}
    matrix, vector = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((2, 3), (3,)))
    params = [matrix] if config.groups else [matrix, vector]  # a group may be of matrices only
    try:
        if is_address(config.name):
            with running(file_of(config.name)):
                return _custom(config.name, make(**options, **kwargs))
        optimizer: optax.GradientTransformation = make(**options, **kwargs)
        jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params), params)
    except BadInput:  # by custom code
        raise
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError) as error:
        raise BadInput(f"optimizer.name = {config.name!r}: cannot be used here: {error}") from error
    return optimizer


def _custom(address: str, optimizer: Any) -> optax.GradientTransformation:
    """A custom optimizer, whose exceptions name its file."""
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        found = type(optimizer).__name__
        raise BadInput(f"optimizer.name = {address}: must return an optax.GradientTransformation, not {found}")
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        with running(file_of(address)):
            return inner.init(params)

    def update(updates: Any, state: Any, params: Any = None, **more: Any) -> tuple[Any, Any]:
        with running(file_of(address)):
            return inner.update(updates, state, params, **more)

    return optax.GradientTransformationExtraArgs(init, update)


def _find(name: str) -> Callable[..., Any]:
    """A function of optax that takes learning_rate and makes an optimizer, or a custom one."""
    if is_meant_as_address(name):
        custom = load_object(name)
        if not callable(custom):
            raise BadInput(f"optimizer.name = {name}: must be a function of learning_rate, not {type(custom).__name__}")
        return custom
    makers = {
        key: value
        for key, value in {**vars(optax.contrib), **vars(optax)}.items()
        if (inspect.isfunction(value) or isinstance(value, functools.partial))
        and not key.startswith(("_", "scale_by_", "schedule_free"))  # which are evaluated with other weights
        and "learning_rate" in inspect.signature(value).parameters
    }
    if name not in makers:
        raise BadInput(f"optimizer.name = {name!r}: optax has no such optimizer; {did_you_mean(name, makers)}")
    return makers[name]


def mup_rate_factors(model: ModelConfig) -> dict[str, float] | None:
    """muP's factors of learning rates (Yang et al. 2022, table 8, Adam); None in the standard parametrisation.

    A factor is base fan_in / fan_in, so a narrow model, the base, and wider ones have the same best rate. The last axis
    of a parameter is its fan_out, the others are fan_in. Comparing the shapes with the base's shows how much it grew,
    also in custom modules. The fan_in of vectors and of tables of vectors (embeddings, positions) does not grow. The
    other rules are in the model: initial sizes, scores times 1 / d_k, and the output divided by d_model.
    """
    if model.mup_base_d_model is None:
        return None
    fan_in, base = (
        {path_name(path): math.prod(leaf.shape[:-1]) for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
        for params in (abstract_params(model), abstract_params(model.mup_base()))
    )
    return {path: base[path] / fan_in[path] for path in fan_in}


def _with_rate_factors(
    optimizer: optax.GradientTransformation, factors: Mapping[str, float]
) -> optax.GradientTransformation:
    """Multiplies each update. Weight decay stays as it is: it sees parameters divided by the factor."""

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        by = jax.tree_util.tree_map_with_path(lambda path, _: factors[path_name(path)], gradients)
        updates, state = optimizer.update(gradients, state, jax.tree.map(lambda leaf, by: leaf / by, params, by))
        return jax.tree.map(lambda leaf, by: leaf * by, updates, by), state

    return optax.GradientTransformation(optimizer.init, update)
