"""What a configuration option is: typed, bounded, documented, and refused with a helpful line when it is wrong.

`config.py` declares the options with these few words; nothing here knows any of them by name.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from transformer_jax.errors import ConfigError
from transformer_jax.files import paths

# What 64 bits hold: a larger number fits nowhere, be it a count of steps or of tokens.
LARGEST_WHOLE = 2**63 - 1
# The longest choice that is told in full.
SHOWN_NAMES = 40
# A part of the model that may be a user's own class: the class itself, or "path/to/file.py:Name", or None for ours.
Part = str | type | None
# What `Address` looks like, and how that is told.
ADDRESS, ADDRESS_FORM = re.compile(r".+\.py:[^\W\d]\w*"), "path/to/file.py:Name"


class Address(str):
    """Marks options that may name something in a Python file of the user's own: "path/to/file.py:Name"."""


if TYPE_CHECKING:
    FilePath = str  # what a caller may give
else:

    class FilePath(str):
        """Marks options that are paths of files or folders. Their values are plain texts in which `~` is expanded."""


def is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None


def is_meant_as_address(text: str) -> bool:
    """Whether a text names something in a file, be it rightly or not, and not something that we know by name."""
    return ".py" in text


def option(
    default: Any,
    meaning: str,
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> Any:
    """Declares one field of a `Section`: its default, what it means, and the range it must lie in."""
    limits = {"at least": at_least, "at most": at_most, "above": above, "below": below}
    metadata = {"meaning": meaning, "limits": {word: limit for word, limit in limits.items() if limit is not None}}
    return dataclasses.field(default=default, metadata=metadata)


def group(section: type) -> Any:
    """Declares a nested `Section`, with that section's own defaults."""
    return dataclasses.field(default_factory=section)


class Section:
    """Base of the frozen dataclasses of the schema: an instance that exists is valid, and `~` in it expanded."""

    def __post_init__(self) -> None:
        problems = []
        for field, kind in _fields(type(self)):
            if not _is_section(kind):
                problems += _value_problems(field.name, getattr(self, field.name), kind, _limits(field))
        problems = problems or self.contradictions()
        if problems:
            raise ConfigError(problems)
        for field, kind in _fields(type(self)):
            value = getattr(self, field.name)
            # A default is the same text for every user and on every machine; who uses it expands it.
            if is_path(kind) and value and value != field.default:
                object.__setattr__(self, field.name, _each(paths.expanded, value))

    def contradictions(self) -> list[str]:
        """Values that are each fine but cannot stand together; one line a contradiction, with both numbers."""
        return []


@dataclasses.dataclass(frozen=True)
class Option:
    """One leaf of the schema as a user sees it."""

    path: str
    kind: Any
    default: Any
    meaning: str
    limits: Mapping[str, float]

    @property
    def type_name(self) -> str:
        return type_name(self.kind)


def options(section: type, prefix: str = "") -> Iterator[Option]:
    """Every option of a section and of the sections inside it, in the order of declaration."""
    for field, kind in _fields(section):
        if _is_section(kind):
            yield from options(kind, f"{prefix}{field.name}.")
        else:
            meaning = field.metadata["meaning"]
            yield Option(prefix + field.name, kind, field.default, meaning, _limits(field))


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Option path -> value, of nested plain values such as those of a config.json."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def value_at(section: Any, path: str) -> Any:
    """The value of the option `group.name` of a section."""
    for name in path.split("."):
        section = getattr(section, name)
    return section


def build(section: type, values: Mapping[str, Any], path: str = "") -> Any:
    """The section that these nested values describe, or a `ConfigError` with every problem in them."""
    result, problems = _try_build(section, values, path)
    if problems:
        raise ConfigError(problems)
    return result


def to_dict(section: Any) -> dict[str, Any]:
    """A section as nested plain values; `build` is the inverse."""
    return {
        field.name: to_dict(value) if isinstance(value := getattr(section, field.name), Section) else value
        for field in dataclasses.fields(section)
    }


def is_path(kind: Any) -> bool:
    """Whether an option's values are paths, one or several."""
    return FilePath in (*_alternatives(kind), *typing.get_args(kind))


def with_paths(section: Any, change: Callable[[str], str]) -> Any:
    """The section with every path in it changed; options that are none, or empty, stay so."""
    changes = {}
    for field, kind in _fields(type(section)):
        value = getattr(section, field.name)
        if _is_section(kind):
            changes[field.name] = with_paths(value, change)
        elif is_path(kind) and value:
            changes[field.name] = _each(change, value)
    return dataclasses.replace(section, **changes)


def parse(text: str, kind: Any, path: str) -> Any:
    """The value of an option as it is typed on a command line: the annotation decides how the text is read."""
    if text.lower() in ("none", "") and type(None) in typing.get_args(kind):
        return None
    if typing.get_origin(kind) is tuple:
        return tuple(item for item in text.split(",") if item)
    for candidate in (bool, int, float):
        if candidate in _alternatives(kind):
            value = _NUMBER_READERS[candidate](text)
            if value is not None:
                return value
    if {str, Address, FilePath} & set(_alternatives(kind)) or _choices(kind):
        return text
    raise ConfigError([f"{path} = {text!r}: must be {type_name(kind)}"])


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets the option `group.name` in nested plain values."""
    *groups, name = path.split(".")
    for key in groups:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return  # there is a value where a group belongs; `build` says so
    values[name] = value


def lay_over(section: type, values: dict[str, Any], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Sets options as they are typed on a command line, (path, text) each; returns what is wrong with them."""
    known = {option.path: option for option in options(section)}
    problems: list[str] = []
    for path, text in texts:
        try:
            if path not in known:
                raise ConfigError([f"{path}: no such option; {nearest(path, list(known))}"])
            put(values, path, parse(text, known[path].kind, path))
        except ConfigError as error:
            problems += error.problems
    return problems


def nearest(name: str, names: list[str]) -> str:
    """Ends a complaint about an unknown name: the closest known one, or the whole choice."""
    same_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    if same_end:
        return f"did you mean {same_end[0]}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    if len(names) > SHOWN_NAMES:
        return "transformer-jax inspect --options lists what there is"
    return f"there are: {', '.join(names)}"


def shown(value: int) -> str:
    """A whole number, however long: Python refuses to write more than some thousands of digits."""
    return str(value) if abs(value) < 10**40 else "a number of more than 40 digits"


def type_name(kind: Any) -> str:
    """A type in the words of a person who edits a config."""
    if kind == Part:
        return f"{ADDRESS_FORM} or none"
    if choices := _choices(kind):
        return " | ".join([*choices, *([ADDRESS_FORM] if Address in _alternatives(kind) else [])])
    if typing.get_origin(kind) is tuple:
        plural = {Address: ADDRESS_FORM, FilePath: "paths"}
        return f"comma-separated {plural.get(typing.get_args(kind)[0], 'texts')}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    names |= {Address: ADDRESS_FORM, FilePath: "a path"}
    return " or ".join(names[alternative] for alternative in _alternatives(kind))


def _try_build(section: type, values: Any, path: str) -> tuple[Any, list[str]]:
    if not isinstance(values, Mapping):
        return None, [f"{path.rstrip('.')} = {values!r}: is a group of options, not a value"]
    fields = {field.name: (field, kind) for field, kind in _fields(section)}
    problems = [
        f"{path}{name}: no such option; {nearest(path + str(name), [path + known for known in fields])}"
        for name in values
        if name not in fields
    ]
    chosen: dict[str, Any] = {}
    for name, (field, kind) in fields.items():
        if name not in values and not _is_section(kind):
            continue
        if _is_section(kind):
            chosen[name], found = _try_build(kind, values.get(name, {}), f"{path}{name}.")
        else:
            chosen[name] = _normalised(values[name], kind)
            found = _value_problems(path + name, chosen[name], kind, _limits(field))
        problems += found
    if problems:
        return None, problems
    try:
        return section(**chosen), []
    except ConfigError as error:
        where = path.rstrip(".")
        return None, [f"{where}: {problem}" if where else problem for problem in error.problems]


def _value_problems(path: str, value: Any, kind: Any, limits: Mapping[str, float]) -> list[str]:
    if not _is_instance(value, kind):
        if (choices := _choices(kind)) and isinstance(value, str) and not is_meant_as_address(value):
            or_own = f", or {ADDRESS_FORM}" if Address in _alternatives(kind) else ""
            return [f"{path} = {value!r}: {nearest(value, choices)}{or_own}"]
        return [f"{path} = {value!r}: must be {type_name(kind)}"]
    if is_path(kind) and value:
        items = value if isinstance(value, tuple) else (value,)
        return [f"{path} = {item}: {problem}" for item in items if (problem := paths.problem(item))]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path} = {value}: must be a finite number"]
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return [f"{path} = {shown(value)}: must be at most {LARGEST_WHOLE:,}"]
    if value is not None and not all(_HOLDS[word](value, limit) for word, limit in limits.items()):
        wanted = " and ".join(f"{word} {limit:g}" for word, limit in limits.items())
        return [f"{path} = {value}: must be {wanted}"]
    return []


_HOLDS = {
    "at least": lambda value, limit: value >= limit,
    "at most": lambda value, limit: value <= limit,
    "above": lambda value, limit: value > limit,
    "below": lambda value, limit: value < limit,
}


def _is_instance(value: Any, kind: Any) -> bool:
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind) and not isinstance(value, bool)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, tuple) and all(_is_instance(item, typing.get_args(kind)[0]) for item in value)
    if Address in _alternatives(kind) and isinstance(value, str):
        return is_address(value) or value in _choices(kind)
    if isinstance(value, bool):
        return bool in _alternatives(kind)
    if isinstance(value, int) and float in _alternatives(kind):
        return True
    if FilePath in _alternatives(kind) and isinstance(value, str):
        return True
    return isinstance(value, tuple(_alternatives(kind)))


def _normalised(value: Any, kind: Any) -> Any:
    """Accepts what JSON and a hurried hand write: lists or one text for a tuple, 1e5 for a whole number."""
    if typing.get_origin(kind) is tuple:
        if isinstance(value, str):
            return parse(value, kind, "")
        return tuple(value) if isinstance(value, list) else value
    alternatives = _alternatives(kind)
    if isinstance(value, float) and value.is_integer() and int in alternatives and float not in alternatives:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and float in alternatives and int not in alternatives:
        try:
            return float(value)
        except OverflowError:
            return math.inf  # which is then refused
    return value


def _read_bool(text: str) -> bool | None:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())


def _read_int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        number = _read_float(text)
    return int(number) if number is not None and number.is_integer() else None


def _read_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_NUMBER_READERS: dict[type, Any] = {bool: _read_bool, int: _read_int, float: _read_float}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _choices(kind: Any) -> list[str]:
    """The names that a `Literal`, alone or as an alternative, lets one choose from."""
    literals = [part for part in (kind, *_alternatives(kind)) if typing.get_origin(part) is Literal]
    return [str(choice) for choice in typing.get_args(literals[0])] if literals else []


def _each(change: Callable[[str], str], value: Any) -> Any:
    """One text changed, or each of several."""
    return tuple(map(change, value)) if isinstance(value, tuple) else change(value)


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _fields(section: type) -> list[tuple[dataclasses.Field, Any]]:
    kinds = typing.get_type_hints(section)
    return [(field, kinds[field.name]) for field in dataclasses.fields(section)]


def _limits(field: dataclasses.Field) -> Mapping[str, float]:
    return field.metadata.get("limits", {})
