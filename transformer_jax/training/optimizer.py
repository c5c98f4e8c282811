"""The optimizer (section 5.3): Adam, the warmup schedule of equation 3, and the others, all of them optax."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import optax

from transformer_jax.config import OptimizerConfig
from transformer_jax.errors import BadInput
from transformer_jax.schema import nearest

# The options that are handed to an optimizer under the name optax has for them.
OWN_NAMES = {"beta1": "b1", "beta2": "b2", "epsilon": "eps"}


def inverse_sqrt_schedule(d_model: int, warmup_steps: int = 4000, scale: float = 1.0) -> optax.Schedule:
    """Equation 3: scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5), steps counted from 1.

    An optax schedule is asked with the number of updates already made, so step = count + 1.
    """
    peak = scale * (d_model * warmup_steps) ** -0.5
    return _warmed_up(peak, warmup_steps, lambda step: peak * (warmup_steps / step) ** 0.5)


def make_schedule(config: OptimizerConfig, d_model: int, steps: int) -> optax.Schedule:
    """The learning rate by number of updates made: a linear warmup to the peak, then the course the config names."""
    warmup = config.warmup_steps
    peak = config.learning_rate or (d_model * max(warmup, 1)) ** -0.5
    after = max(steps - warmup, 1)
    if config.schedule == "inverse_sqrt":
        return _warmed_up(peak, warmup, lambda step: peak * (warmup / step) ** 0.5)
    if config.schedule == "constant":
        return _warmed_up(peak, warmup, lambda step: peak + 0.0 * step)
    if config.schedule == "cosine":
        decay = optax.schedules.cosine_decay_schedule(peak, after, alpha=config.final_fraction)
    else:
        decay = optax.schedules.linear_schedule(peak, peak * config.final_fraction, after)
    return _warmed_up(peak, warmup, lambda step: decay(step - warmup))


def make_optimizer(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Clipping, then the optimizer that the config names, at the schedule's rate."""
    make = _find(config.name)
    arguments = _arguments(config, make)
    if _decays(config) and config.name == "adam":
        make, arguments = optax.adamw, {**arguments, "weight_decay": config.weight_decay, "mask": _matrices}
    try:
        optimizer = make(learning_rate=schedule, **arguments)
        _try(optimizer)
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer.name = {config.name!r}: cannot be used here: {error}") from error
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def _try(optimizer: optax.GradientTransformation) -> None:
    """Some optimizers want more at each update than gradients and parameters: better to know it now than later."""
    params = {"kernel": jax.ShapeDtypeStruct((2, 2), "float32"), "bias": jax.ShapeDtypeStruct((2,), "float32")}
    jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params), params)


def _warmed_up(peak: float, warmup: int, after: Callable[[Any], Any]) -> optax.Schedule:
    def schedule(count: Any) -> Any:
        step = count + 1
        rising = peak * step / max(warmup, 1)
        return jax.numpy.where(step < warmup, rising, after(step))

    return schedule


def _find(name: str) -> Callable[..., Any]:
    """An optimizer of optax: a public function that takes a learning rate."""
    for module in (optax, optax.contrib):
        found = getattr(module, name, None)
        if callable(found) and "learning_rate" in _parameters(found):
            return found
    known = [known for known in dir(optax) if known[0] != "_" and _is_optimizer(getattr(optax, known))]
    raise BadInput(f"optimizer.name = {name!r}: optax has no such optimizer; {nearest(name, known)}")


def _is_optimizer(candidate: Any) -> bool:
    return inspect.isfunction(candidate) and "learning_rate" in _parameters(candidate)


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _arguments(config: OptimizerConfig, make: Callable[..., Any]) -> dict[str, Any]:
    """What the config says, in optax's names; a value that this optimizer would ignore is refused."""
    takes, defaults = _parameters(make), OptimizerConfig()
    arguments: dict[str, Any] = {}
    for ours, theirs in OWN_NAMES.items():
        value = getattr(config, ours)
        if theirs in takes:
            arguments[theirs] = value
        elif value != getattr(defaults, ours):
            raise BadInput(f"optimizer.{ours} = {value}: optimizer.name = {config.name!r} has none")
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
    """An array is the decay of several runs that train together; all of them have one."""
    return isinstance(config.weight_decay, jax.Array) or config.weight_decay > 0


def _literal(text: str) -> bool | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text)
    except ValueError:
        return text


def _matrices(params: Any) -> Any:
    """Weight decay is for matrices: shrinking a bias or a norm's scale is no regularisation."""
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
