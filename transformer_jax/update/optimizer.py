"""The optimizer (section 5.3): Adam, or any other of optax."""

import contextlib
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from transformer_jax import schema
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.extension import file_of, load_object, running
from transformer_jax.optimizer_config import OptimizerConfig, changed
from transformer_jax.schema import is_address, is_meant_as_address, nearest
from transformer_jax.update import schedule_free
from transformer_jax.update.parameter_groups import Group, by_group, hidden_and_rest, multiple
from transformer_jax.update.sharding import path_name

# Options, and optax's names for them.
OPTAX_NAMES = {"beta1": "b1", "beta2": "b2", "epsilon": "eps"}
# The arguments of optax.contrib.muon that concern its matrices, and not how it finds them, and their values.
MUON_ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "ns_coeffs": (lambda value: value in ("standard", "dion"), "standard or dion"),
    "ns_steps": (lambda value: _is_number(value) and value >= 1 and value % 1 == 0, "a whole number, at least 1"),
    "beta": (lambda value: _is_number(value) and 0 <= value < 1, "a number, at least 0 and below 1"),
    "nesterov": (lambda value: isinstance(value, bool), "true or false"),
    "adaptive": (lambda value: isinstance(value, bool), "true or false"),
    "preconditioning": (
        lambda value: value in ("frobenius", "spectral", "aol", "schatten"),
        "frobenius, spectral, aol or schatten",
    ),
    "consistent_rms": (lambda value: value is None or (_is_number(value) and value > 0), "a number above 0, or none"),
    "weight_decay": (lambda value: _is_number(value) and value >= 0, "a number, at least 0"),
}
# Optimizers of optax that cannot train here, with the reason.
UNUSABLE = {
    **dict.fromkeys(("lbfgs", "momo", "momo_adam", "sophia"), "it needs values of the loss beside gradients"),
    **dict.fromkeys(("optimistic_adam", "rprop", "sm3"), "its learning rate cannot follow a schedule"),
    "dpsgd": "it needs the gradient of each example",
    "schedule_free": "it wraps another optimizer; there are schedule_free_adamw and schedule_free_sgd",
}
# The learning rate of a parameter as a multiple of the schedule's, by its path and shape.
Multiplier = Callable[[str, tuple[int, ...]], float]


def make_optimizer(
    config: OptimizerConfig, schedule: optax.Schedule, multiplier: Multiplier | None = None
) -> optax.GradientTransformation:
    """The optimizer of the config with the schedule's learning rate, after clipping.

    `multiplier` gives each parameter its multiple of the learning rate; its weight decay is not multiplied.
    """
    is_averaged = config.name in schedule_free.STEPS
    optimizer = _grouped(schedule_free.of_steps(config) if is_averaged else config, schedule)
    if multiplier is not None:
        optimizer = with_multiples(optimizer, multiplier)
    if is_averaged:
        optimizer = schedule_free.averaged(optimizer, config, schedule)
    if config.clip_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), optimizer)


def with_multiples(optimizer: optax.GradientTransformation, multiplier: Multiplier) -> optax.GradientTransformation:
    """Multiplies each update by multiplier(path, shape); a path is encoder/layers_0/feed_forward/inner/kernel.

    Weight decay stays as it is: it sees parameters divided by the multiple.
    """

    def update(gradients: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        multiples = jax.tree_util.tree_map_with_path(
            lambda path, leaf: multiplier(path_name(path), leaf.shape), gradients
        )
        divided = None if params is None else jax.tree.map(lambda leaf, by: leaf / by, params, multiples)
        updates, state = optimizer.update(gradients, state, divided, **extra)
        return jax.tree.map(lambda leaf, by: leaf * by, updates, multiples), state

    return optax.GradientTransformation(optimizer.init, update)


def _grouped(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer of the config, and those of its groups for their parameters."""
    groups, rest = list(map(Group.read, config.groups)), _single(config, schedule)
    if not groups:
        return rest
    optimizers = []
    for group in groups:
        try:
            factor = multiple("learning_rate", group.settings.get("learning_rate", "1x"), config.learning_rate)
            optimizers.append(_single(_of_group(config, group), _scaled(schedule, factor)))
        except BadInput as error:
            reason = str(error).removeprefix("optimizer.arguments: ")
            raise BadInput(f"optimizer.groups: {group.text!r}: {reason}") from error
    return by_group(groups, optimizers, rest, config.name)


def _of_group(config: OptimizerConfig, group: Group) -> OptimizerConfig:
    """The config with the settings of a group."""
    settings = dict(group.settings)
    settings.pop("learning_rate", None)
    name = settings.pop("name", config.name)
    if name != config.name and {name, config.name} & set(schedule_free.STEPS):
        raise BadInput(f"name={name} beside optimizer.name = {config.name}: all are schedule-free, or none is")
    takes = _parameters(optax.adam if name == "muon" else _find(name))
    known = ["name", "learning_rate", "weight_decay", *(key for key, each in OPTAX_NAMES.items() if each in takes)]
    known += [each for each in _taken(name) if each not in known]
    for key, text in settings.items():
        if key not in (*known, *OPTAX_NAMES):
            raise BadInput(f"{key}={text}: {name} has no such setting; {nearest(key, known)}")
    changes: dict[str, Any] = {"name": name}
    for option in ("weight_decay", *OPTAX_NAMES):
        if option in settings:
            changes[option] = _number(option, settings.pop(option))
        elif option in OPTAX_NAMES and OPTAX_NAMES[option] not in takes:
            changes[option] = getattr(OptimizerConfig(), option)
    inherited = dict(text.partition("=")[::2] for text in config.arguments) if name == config.name else {}
    changes["arguments"] = tuple(f"{key}={value}" for key, value in {**inherited, **settings}.items())
    return changed(config, **changes)


def _number(option: str, text: str) -> float:
    """The value of an option, as the schema checks it."""
    try:
        return float(getattr(OptimizerConfig(**{option: schema.parse(text, float, option)}), option))
    except ConfigError as error:
        raise BadInput(error.problems[0]) from None


def _scaled(schedule: optax.Schedule, factor: Any) -> optax.Schedule:
    return lambda count: factor * schedule(count)


def _single(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer that the name of the config stands for."""
    if config.name == "muon":
        return _muon(config, schedule)
    make = _find(config.name)
    _check_arguments(config)
    arguments = _arguments(config, _parameters(make))
    if _decays(config) and config.name == "adam":
        make, arguments = optax.adamw, {**arguments, "weight_decay": config.weight_decay, "mask": _matrices}
    return _made(config.name, make, schedule, arguments)


def _muon(config: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Muon (Jordan 2024) for hidden matrices, Adam for the rest; arguments that begin with adam_ are Adam's.

    With consistent_rms = 0.2 updates are as large as Adam's (Liu et al. 2025): one learning rate suits both.
    """
    _check_arguments(config)
    of_adam = [text.removeprefix("adam_") for text in config.arguments if text.startswith("adam_")]
    rates = [text for text in of_adam if text.startswith("learning_rate=")]
    if rates:
        rate = rates[-1].partition("=")[2]
        factor = multiple("optimizer.arguments: adam_learning_rate", rate, config.learning_rate)
    adam = changed(config, name="adam", arguments=tuple(text for text in of_adam if text not in rates))
    others = tuple(text for text in config.arguments if not text.startswith("adam_"))
    unused = {option: getattr(OptimizerConfig(), option) for option in OPTAX_NAMES}  # they are options of Adam
    arguments = _arguments(changed(config, arguments=others, **unused), list(MUON_ARGUMENTS))
    for text in others:
        is_right, wanted = MUON_ARGUMENTS[text.partition("=")[0]]
        if not is_right(_literal(text.partition("=")[2])):
            raise BadInput(f"optimizer.arguments: {text}: must be {wanted}")
    hidden = _made("muon", _orthogonalizing, schedule, arguments)
    return hidden_and_rest(hidden, _single(adam, _scaled(schedule, factor) if rates else schedule))


def _orthogonalizing(
    learning_rate: optax.Schedule, ns_steps: float = 5, consistent_rms: float | None = 0.2, **arguments: Any
) -> optax.GradientTransformation:
    """Muon for matrices."""
    if arguments.get("ns_coeffs") == "dion" and ns_steps != 5:
        raise BadInput(f"optimizer.arguments: ns_steps={ns_steps:g}: ns_coeffs=dion has coefficients for 5")
    return optax.contrib.muon(learning_rate, ns_steps=int(ns_steps), consistent_rms=consistent_rms, **arguments)


def _made(
    name: str, make: Callable[..., Any], schedule: optax.Schedule, arguments: dict[str, Any]
) -> optax.GradientTransformation:
    """The optimizer that a function makes, checked."""
    try:
        with running(file_of(name)) if is_address(name) else contextlib.nullcontext():
            optimizer = make(learning_rate=schedule, **arguments)
            _check(optimizer, name)
    except BadInput:
        raise
    except (TypeError, ValueError) as error:
        raise BadInput(f"optimizer.name = {name!r}: cannot be used here: {error}") from error
    return optimizer


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
    if name in schedule_free.STEPS:
        return schedule_free.STEPS[name]
    if name in UNUSABLE:
        raise BadInput(f"optimizer.name = {name!r}: cannot be used here: {UNUSABLE[name]}")
    for module in (optax, optax.contrib):
        found = getattr(module, name, None)
        if callable(found) and "learning_rate" in _parameters(found):
            return found
    found = {**vars(optax), **vars(optax.contrib)}
    known = [each for each in found if not each.startswith(("_", "scale_by_")) and each not in UNUSABLE]
    known = [each for each in known if inspect.isfunction(found[each]) and "learning_rate" in _parameters(found[each])]
    raise BadInput(f"optimizer.name = {name!r}: optax has no such optimizer; {nearest(name, known)}")


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _arguments(config: OptimizerConfig, takes: Sequence[str]) -> dict[str, Any]:
    """The options of the config under optax's names; a value that an optimizer with these would ignore is refused."""
    defaults = OptimizerConfig()
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
    elif "weight_decay" in takes and not any(text.startswith("weight_decay=") for text in config.arguments):
        arguments["weight_decay"] = 0.0  # optax's adamw and lion would decay by default, norms too
    for text in config.arguments:
        name, _, value = text.partition("=")
        arguments[name] = _literal(value)
    return arguments


def _taken(name: str) -> list[str]:
    """The names that optimizer.arguments may have for an optimizer; other options set the rest."""
    if name == "muon":
        return [*MUON_ARGUMENTS, "adam_learning_rate", *(f"adam_{each}" for each in _taken("adam"))]
    others = {"learning_rate", "mask", *OPTAX_NAMES.values()}
    return [each for each in _parameters(_find(name)) if each not in others]


def _check_arguments(config: OptimizerConfig) -> None:
    """Refuses arguments that the optimizer does not have, or that are set otherwise."""
    known, prefix = _taken(config.name), "adam_" if config.name == "muon" else ""
    if config.name in schedule_free.STEPS:
        known.append(schedule_free.POWER.removesuffix("="))
    options = {prefix + argument: option for option, argument in OPTAX_NAMES.items()}
    options |= {"learning_rate": "learning_rate"} | ({"weight_decay": "weight_decay"} if _decays(config) else {})
    names = [text.partition("=")[0] for text in config.arguments]
    for name, text in zip(names, config.arguments, strict=True):
        if "=" not in text:
            raise BadInput(f"optimizer.arguments: {text!r}: must be NAME=VALUE")
        if name in options:
            raise BadInput(f"optimizer.arguments: {text!r}: is set by optimizer.{options[name]}")
        if name not in known:
            raise BadInput(f"optimizer.arguments: {text!r}: {config.name} has no such argument; {nearest(name, known)}")
        if names.count(name) > 1:
            raise BadInput(f"optimizer.arguments: {text!r}: {name} is set twice")


def _is_number(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _decays(config: OptimizerConfig) -> bool:
    """Whether there is weight decay; it is an array where several runs train in one program."""
    return isinstance(config.weight_decay, jax.Array) or config.weight_decay > 0


def _literal(text: str) -> bool | float | str | None:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError:
        return text


def _matrices(params: Any) -> Any:
    """The mask of weight decay: matrices, but not biases or the scales of norms."""
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
