"""Parts of the model that are a user's own class: found, and checked before anything is built from them."""

import dataclasses
import difflib
import inspect
from typing import Any

from flax import linen as nn

from transformer_jax import extension
from transformer_jax.errors import BadInput
from transformer_jax.schema import Part


def choose(
    part: Part,
    ours: type,
    role: str,
    methods: tuple[str, ...] = ("__call__",),
    at_least_one_of: tuple[str, ...] = (),
) -> Any:
    """Our class, or the user's in its place: given as a class, or as `path/to/file.py:Name`.

    `at_least_one_of`: methods that do nothing in ours, so that the user's must override one of them.
    """
    if part is None:
        return ours
    chosen = extension.load_once(part) if isinstance(part, str) else part
    if problem := _unfit(chosen, ours, methods) or _idle(chosen, ours, at_least_one_of):
        raise BadInput(f"model.parts.{role} = {told(part)}: {problem}")
    return chosen


def told(part: Part) -> str:
    """How a part that was given is called in complaints."""
    return part.__name__ if isinstance(part, type) else str(part)


def _unfit(chosen: Any, ours: type, methods: tuple[str, ...]) -> str | None:
    """Why the class cannot stand where ours does: it must be built and called in the same way."""
    if not (isinstance(chosen, type) and issubclass(chosen, nn.Module)):
        return "is not a class derived from flax.linen.Module"
    missing = [name for name in _fields(ours) if name not in _fields(chosen)]
    if missing:
        return f"lacks the field {missing[0]} that {ours.__name__} has (deriving from {ours.__name__} inherits them)"
    for method in methods:
        if not callable(getattr(chosen, method, None)):
            return f"lacks the method {method} that {ours.__name__} has"
        takes = inspect.signature(getattr(chosen, method)).parameters
        if any(kind.kind is kind.VAR_KEYWORD for kind in takes.values()):
            continue
        wanted = inspect.signature(getattr(ours, method)).parameters
        lacking = [argument for argument in wanted if argument not in takes]
        if lacking:
            return f"{method} lacks the argument {lacking[0]} that {ours.__name__}'s has"
    return None


def _idle(chosen: type, ours: type, methods: tuple[str, ...]) -> str | None:
    """Why the class would do nothing: none of these methods is its own. More often than not, a name is mistyped."""
    if not methods or any(getattr(chosen, method) is not getattr(ours, method) for method in methods):
        return None
    own = [name for name in dir(chosen) if not hasattr(ours, name)]
    close = {name: difflib.get_close_matches(name, methods, n=1) for name in own}
    meant = next((f"; {name}: did you mean {found[0]}?" for name, found in close.items() if found), "")
    return f"overrides none of {', '.join(methods)}, so that it would do nothing{meant}"


def _fields(module: type) -> list[str]:
    return [field.name for field in dataclasses.fields(module) if field.name not in ("parent", "name")]
