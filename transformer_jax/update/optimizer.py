"""The optimizer (section 5.3): Adam with the warmup schedule of equation 3, or any other of optax."""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from transformer_jax.errors import BadInput
from transformer_jax.extension import file_of, load_function, load_object, running
from transformer_jax.optimizer_config import ENDING_WITH_THE_RUN, OptimizerConfig
from transformer_jax.schema import is_address, is_meant_as_address, nearest
from transformer_jax.update.sharding import path_name

# Options, and optax's names for them.
OPTAX_NAMES = {"beta1": "b1", "beta2": "b2", "epsilon": "eps"}
# The arguments that a custom schedule may take.
OPTIONAL = ("peak", "warmup_steps", "steps", "final_fraction", "d_model")
# The learning rate of a parameter as a multiple of the schedule's, by its path and shape.
Multiplier = Callable[[str, tuple[int, ...]], float]
# Devices count updates in int32. No run gets there, but a larger train.steps may mean "without end".
MOST_UPDATES = 2**31 - 1


def inverse_sqrt_schedule(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> optax.Schedule:
    """Equation 3: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), steps counted from 1.

    The argument of an optax schedule is the number of updates already made, so step = count + 1.
    """
    peak = scale * (d_model * warmup_steps) ** -0.5
    return _warmed_up(peak, warmup_steps, lambda step: peak * (warmup_steps / step) ** 0.5)


def make_schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate by number of updates made: a linear warmup to the peak, then the schedule of the config."""
    warmup, steps = config.warmup_steps, min(steps, MOST_UPDATES)
    peak = config.learning_rate or (d_model * max(warmup, 1)) ** -0.5
    if is_address(config.schedule):
        return _custom_schedule(config, peak, d_model, steps)
    after = max(steps - warmup, 1)
    # Of warmup, stable, decay (Hu et al. 2024): an exact number of updates, so that the last one has the final rate.
    decaying = max(round(config.decay_fraction * after), 1) if config.schedule == "wsd" else after
    if config.schedule == "inverse_sqrt":
        return _warmed_up(peak, warmup, lambda step: peak * (warmup / step) ** 0.5)
    if config.schedule == "constant":
        return _warmed_up(peak, warmup, lambda step: peak + 0.0 * step)
    if config.schedule == "cosine":
        decay = optax.schedules.cosine_decay_schedule(peak, after, alpha=config.final_fraction)
    else:
        decay = optax.schedules.linear_schedule(peak, peak * config.final_fraction, decaying, after - decaying)
    return _warmed_up(peak, warmup, lambda step: decay(step - warmup))


def ends_with_the_run(config: OptimizerConfig) -> bool:
    """Whether the schedule depends on the total number of updates, so that a longer run has different rates."""
    if is_address(config.schedule):
        return "steps" in load_function("optimizer.schedule", config.schedule, optional=OPTIONAL).optional
    return config.schedule in ENDING_WITH_THE_RUN


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, multiplier: Multiplier | None = None
) -> optax.GradientTransformation:
    """The optimizer of the config with the schedule's learning rate, after clipping.

    `multiplier` gives each parameter its multiple of the learning rate; its weight decay is multiplied too.
    """
    make = _find(config.name)
    arguments = _arguments(config, make)
    if _decays(config) and config.name == "adam":
        make, arguments = optax.adamw, {**arguments, "weight_decay": config.weight_decay, "mask": _matrices}
    try:
        with running(file_of(config.name)) if is_address(config.name) else contextlib.nullcontext():
            optimizer = make(learning_rate=schedule, **arguments)
            _check(optimizer, config.name)
    except BadInput:
        raise
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer.name = {config.name!r}: cannot be used here: {error}") from error
    if multiplier is not None:
        optimizer = optax.chain(optimizer, scale_by_parameter(multiplier))
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def scale_by_parameter(multiplier: Multiplier) -> optax.GradientTransformation:
    """Multiplies each update by multiplier(path, shape); a path is encoder/layers_0/feed_forward/inner/kernel."""

    def scaled(updates: Any, params: Any = None) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, update: update * multiplier(path_name(path), update.shape), updates
        )

    return optax.stateless(scaled)


def _check(optimizer: Any, name: str) -> None:
    """Refuses an optimizer whose update needs more than gradients and parameters, or changes shapes or types."""
    if not isinstance(optimizer, optax.GradientTransformation):
        raise BadInput(
            f"optimizer.name = {name}: made {type(optimizer).__name__}; an optax.GradientTransformation would be right"
        )
    params = {"kernel": jax.ShapeDtypeStruct((2, 2), "float32"), "bias": jax.ShapeDtypeStruct((2,), "float32")}
    state = jax.eval_shape(optimizer.init, params)
    updates, later_state = jax.eval_shape(lambda params, state: optimizer.update(params, state, params), params, state)
    for what, given, returned in (("updates", params, updates), ("state", state, later_state)):
        forms = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (given, returned)]
        if is_address(name) and forms[0] != forms[1]:
            raise BadInput(
                f"optimizer.name = {name}: the {what} it returns must have the shapes and types it was given"
            )


def _custom_schedule(config: OptimizerConfig, peak: float, d_model: int, steps: int) -> optax.Schedule:
    """The schedule that a custom function returns, tried on a few updates."""
    custom = load_function("optimizer.schedule", config.schedule, optional=OPTIONAL)
    values = (peak, config.warmup_steps, steps, config.final_fraction, d_model)
    rate_at = custom(**dict(zip(OPTIONAL, values, strict=True)))
    if not callable(rate_at):
        raise custom.refusal(f"returned {type(rate_at).__name__}; a function of the updates made would be right")

    def schedule(count: Any) -> Any:
        with custom.running():
            return rate_at(jax.numpy.asarray(count, "int32"))

    jax.eval_shape(schedule, jax.ShapeDtypeStruct((), "int32"))  # it must be traceable
    for count in dict.fromkeys((0, steps // 2, steps - 1)):
        rate = np.asarray(schedule(count))
        if rate.shape != () or not np.isfinite(rate) or rate < 0:
            raise custom.refusal(f"is {rate} at update {count}; one finite number, zero or more, would be right")
    return schedule


def _warmed_up(peak: float, warmup: int, after: Callable[[Any], Any]) -> optax.Schedule:
    def schedule(count: Any) -> Any:
        step = count + 1
        rising = peak * step / max(warmup, 1)
        return jax.numpy.where(step < warmup, rising, after(step))

    return schedule


def _find(name: str) -> Callable[..., Any]:
    """An optimizer of optax, which is a public function that takes learning_rate, or a custom one."""
    if is_meant_as_address(name):
        custom = load_object(name)
        if not callable(custom) or "learning_rate" not in _parameters(custom):
            raise BadInput(
                f"optimizer.name = {name}: must be a function that takes learning_rate (it gets the schedule) and "
                "returns an optax.GradientTransformation"
            )
        return custom
    for module in (optax, optax.contrib):
        found = getattr(module, name, None)
        if callable(found) and "learning_rate" in _parameters(found):
            return found
    functions = {name: each for name, each in vars(optax).items() if name[0] != "_" and inspect.isfunction(each)}
    known = [name for name, function in functions.items() if "learning_rate" in _parameters(function)]
    raise BadInput(f"optimizer.name = {name!r}: optax has no such optimizer; {nearest(name, known)}")


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _arguments(config: OptimizerConfig, make: Callable[..., Any]) -> dict[str, Any]:
    """The options of the config under optax's names; a value that this optimizer would ignore is refused."""
    takes, defaults = _parameters(make), OptimizerConfig()
    arguments: dict[str, Any] = {}
    for option, argument in OPTAX_NAMES.items():
        value = getattr(config, option)
        if argument in takes:
            arguments[argument] = value
        elif value != getattr(defaults, option):
            raise BadInput(f"optimizer.{option} = {value}: optimizer.name = {config.name!r} has none")
    if _decays(config) and config.name != "adam":
        if "weight_decay" not in takes:
            raise BadInput(f"optimizer.weight_decay = {config.weight_decay}: {config.name!r} has none; adam has")
        arguments |= {"weight_decay": config.weight_decay} | ({"mask": _matrices} if "mask" in takes else {})
    for text in config.arguments:
        name, separator, value = text.partition("=")
        if not separator or name not in takes or name in arguments or name == "learning_rate":
            free = [known for known in takes if known not in {*arguments, "learning_rate"}]
            raise BadInput(f"optimizer.arguments: {text!r}; must be NAME=VALUE, {nearest(name, free)}")
        arguments[name] = _literal(value)
    return arguments


def _decays(config: OptimizerConfig) -> bool:
    """Whether there is weight decay; it is an array where several runs train in one program."""
    return isinstance(config.weight_decay, jax.Array) or config.weight_decay > 0


def _literal(text: str) -> bool | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _matrices(params: Any) -> Any:
    """The mask of weight decay: matrices, but not biases or the scales of norms."""
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
