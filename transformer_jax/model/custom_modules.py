"""Which module has each role: the built-in one or a custom one, checked before anything is built from it."""

import dataclasses
import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from flax import linen as nn

from transformer_jax import extension
from transformer_jax.errors import BadInput
from transformer_jax.model_config import ModelConfig
from transformer_jax.schema import Part


def choose(
    config: ModelConfig,
    role: str,
    default: type,
    methods: tuple[str, ...] = ("__call__",),
    at_least_one_of: tuple[str, ...] = (),
    fields: tuple[str, ...] | None = None,
) -> Any:
    """The class of one role of `model.parts`: the built-in one, or the custom one that the config names.

    `at_least_one_of`: methods that do nothing in the default, so that a custom class must override one of them.
    `fields`: those that it is built with, by default all of the default's.
    """
    part = getattr(config.parts, role)
    if part is None:
        return default
    custom = _load(part)
    fields = fields or _fields(default)
    if problem := _misfit(custom, default, methods, fields) or _no_effect(custom, default, at_least_one_of):
        raise unfit(config, role, problem)
    return custom


def loaded(config: ModelConfig) -> ModelConfig:
    """The config with custom modules as classes, so that programs read no files while they are traced."""
    classes = {field.name: _load(getattr(config.parts, field.name)) for field in dataclasses.fields(config.parts)}
    return dataclasses.replace(config, parts=dataclasses.replace(config.parts, **classes))


def _load(part: Part) -> Any:
    return extension.load_object(part) if isinstance(part, str) else part


def unfit(config: ModelConfig, role: str, problem: str) -> BadInput:
    part = getattr(config.parts, role)
    return BadInput(f"model.parts.{role} = {part.__name__ if isinstance(part, type) else part}: {problem}")


def overrides(custom: type, default: type, method: str) -> bool:
    return getattr(custom, method, None) is not getattr(default, method)


def refuse_ignored_fields(
    config: ModelConfig,
    role: str,
    custom: type,
    default: type,
    fields: Mapping[str, Any],
    uses: Mapping[str, tuple[str, ...]],
) -> None:
    """Raises BadInput if the class may ignore a field that it inherits and that is not at its default.

    That is where it overrides one of the methods that use the field, without declaring the field itself.
    """
    for field, methods in uses.items():
        overridden = [method for method in methods if overrides(custom, default, method)]
        declared = any(field in inspect.get_annotations(base) for base in custom.__mro__ if base is not default)
        if overridden and not declared and fields.get(field, getattr(default, field)) != getattr(default, field):
            problem = f"overrides {overridden[0]}, which uses {field}: "
            remedy = f"declare the field {field} in the class if it uses it, too (docs/parts.md)"
            raise unfit(config, role, problem + remedy)


def _misfit(custom: Any, default: type, methods: tuple[str, ...], fields: tuple[str, ...]) -> str | None:
    """Why the class cannot replace the default: it must be built and called in the same way."""
    if not (isinstance(custom, type) and issubclass(custom, nn.Module)):
        return "is not a class derived from flax.linen.Module"
    missing = [name for name in fields if name not in _fields(custom)]
    if missing:
        name = default.__name__
        return f"lacks the field {missing[0]} that {name} has (deriving from {name} inherits them)"
    for method in methods:
        if not callable(getattr(custom, method, None)):
            return f"lacks the method {method} that {default.__name__} has (docs/parts.md)"
        takes = inspect.signature(getattr(custom, method)).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
            continue
        lacking = [name for name in inspect.signature(getattr(default, method)).parameters if name not in takes]
        if lacking:
            return f"{method} lacks the argument {lacking[0]} that {default.__name__}'s has (docs/parts.md)"
    return None


def _no_effect(custom: type, default: type, methods: tuple[str, ...]) -> str | None:
    """Why the class would do nothing: it overrides none of these methods, often because a name is misspelt."""
    if not methods or any(overrides(custom, default, method) for method in methods):
        return None
    added = [name for name in dir(custom) if not hasattr(default, name)]
    close = {name: difflib.get_close_matches(name, methods, n=1) for name in added}
    meant = next((f"; {name}: did you mean {found[0]}?" for name, found in close.items() if found), "")
    return f"overrides none of {', '.join(methods)}, so that it would do nothing{meant}"


def _fields(module: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name"))
