"""What a configuration option is: typed, bounded, documented, with a clear error message for every wrong value.

`config.py` declares the options; nothing here knows any of them by name.
"""

import contextlib
import copy
import dataclasses
import difflib
import json
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypedDict, Unpack

from transformer_jax.errors import ConfigError
from transformer_jax.files import paths

LARGEST_INT = 2**63 - 1
# Of float32, in which the programs compute; between 0 and the smallest they round to 0.
SMALLEST_FLOAT, LARGEST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
COMPARISONS = {"at least": operator.ge, "at most": operator.le, "above": operator.gt, "below": operator.lt}
# The longest choice that is listed in full.
SHOWN_NAMES = 50
# A custom class for a part of the model: the class itself, "path/to/file.py:Name", or None for the library's.
Part = str | type | None
# Arguments by name, with values as in JSON.
Settings = dict[str, Any]
# Settings for what a regular expression matches, in order.
Groups = tuple[tuple[str, Settings], ...]
# What an `Address` looks like, as a pattern and in messages.
ADDRESS, ADDRESS_FORM = re.compile(r".+\.py:[^\W\d]\w*"), "path/to/file.py:Name"


# What an option affects. Everything that asks which options matter for its purpose derives the answer from these.
Effect = Literal[
    "corpus",  # which text there is
    "data",  # what is made of the text: training, validation and test pairs, and their tokens
    "result",  # the parameters after each update
    "stopping",  # when a run validates, saves and ends, and which checkpoint is best: may change when it is resumed
    "translation",  # which translations a trained model gives
    "output",  # what is logged, measured and printed besides
    "computation",  # how the same numbers are computed, up to rounding
    "environment",  # where files are and how long a process may take: may differ between machines
]
# How runs that train in one program may differ in an option: a number each (or none for all), a learning rate each.
Together = Literal["number", "number or none", "rate"]


class Condition(NamedTuple):
    """When an option has an effect, as a function of the whole config, and the same in words."""

    holds: Callable[[Any], bool]
    needs: str


class Address(str):
    """Marks options that may name custom code: "path/to/file.py:Name"."""


if TYPE_CHECKING:
    FilePath = str
else:

    class FilePath(str):
        """Marks options that are paths. Their values are plain strings, with `~` expanded."""


def is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None


def is_meant_as_address(text: str) -> bool:
    """Whether a text is meant to name something in a file, even if it is malformed."""
    return ".py" in text


class Limits(TypedDict, total=False):
    at_least: float
    at_most: float
    above: float
    below: float


def option(
    default: Any,
    meaning: str,
    *,
    affects: Effect | None = None,
    condition: Condition | None = None,
    together: Together | None = None,
    **limits: Unpack[Limits],
) -> Any:
    """Declares one field of a `Section`: its default, its meaning, its range, what it affects and when.

    `affects` and `condition` default to those of the section.
    """
    by_words = {name.replace("_", " "): limit for name, limit in limits.items()}
    metadata = {
        "default": default,
        "meaning": meaning,
        "limits": {words: by_words[words] for words in COMPARISONS if words in by_words},
        "affects": affects,
        "condition": condition,
        "together": together,
    }
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata, hash=False)
    return dataclasses.field(default=default, metadata=metadata)


def group(section: type) -> Any:
    """Declares a nested `Section`, with that section's defaults."""
    return dataclasses.field(default_factory=section)


class Contradiction(ConfigError):
    """Values that are valid, each for itself, but incompatible."""


class Section:
    """Base of the schema's frozen dataclasses. Its constructor is where options are checked."""

    affects: ClassVar[Effect]
    condition: ClassVar[Condition | None]

    def __init_subclass__(cls, affects: Effect = "result", condition: Condition | None = None) -> None:
        cls.affects, cls.condition = affects, condition

    def __new__(cls, *values: Any, **named: Any) -> Self:
        if unknown := _unknown(named, [field.name for field, _ in _fields(cls)]):
            raise ConfigError(unknown)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        problems = []
        for field, kind in _fields(type(self)):
            if _is_section(kind):
                continue
            value = _normalised(getattr(self, field.name), kind)
            problems += _value_problems(field.name, value, kind, field.metadata["limits"])
            # A default path stays the same text for every user and machine; whatever uses it expands it.
            if not problems and is_path(kind) and value and value != field.default:
                value = tuple(map(paths.expanded, value)) if isinstance(value, tuple) else paths.expanded(value)
            object.__setattr__(self, field.name, value)
        if problems:
            raise ConfigError(problems)
        if contradictions := self.contradictions():
            raise Contradiction(contradictions)

    def contradictions(self) -> list[str]:
        """Incompatible values: one line each, which begins with the name of an option and has both values."""
        return []


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the schema, by its full path."""

    path: str
    kind: Any
    default: Any
    meaning: str
    limits: Mapping[str, float]
    affects: Effect
    condition: Condition | None
    together: Together | None

    def has_effect(self, config: Any) -> bool:
        return self.condition is None or self.condition.holds(config)


def options(section: type[Section], prefix: str = "") -> Iterator[Option]:
    """Every option of a section and of its nested sections, in the order of declaration."""
    for field, kind in _fields(section):
        if _is_section(kind):
            yield from options(kind, f"{prefix}{field.name}.")
        else:
            inherited = {name: field.metadata[name] or getattr(section, name) for name in ("affects", "condition")}
            yield Option(prefix + field.name, kind, **{**field.metadata, **inherited})


def find_option(section: type[Section], path: str) -> Option:
    """The option of a path. One below settings, such as `optimizer.kwargs.b1`, has the option of the settings."""
    known = {option.path: option for option in options(section)}
    above = path.rpartition(".")[0]
    if path not in known and above in known and known[above].kind == Settings:
        return known[above]
    if path not in known:
        raise ConfigError([f"{path}: no such option; {nearest(path, list(known))}"])
    return known[path]


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain values, such as those of a config.json, as option path -> value."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def value_at(section: Any, path: str) -> Any:
    """The value of an option by its path, such as `group.name`."""
    for name in path.split("."):
        section = getattr(section, name)
    return section


def with_values(section: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a section with these values by path, for programs that trace them. They are not checked."""
    changed = copy.copy(section)
    for path, value in values.items():
        name, _, inner = path.partition(".")
        object.__setattr__(changed, name, with_values(getattr(changed, name), {inner: value}) if inner else value)
    return changed


def differing(old: Section, new: Section) -> Iterator[tuple[Option, Any, Any]]:
    """The options with different values that have an effect in at least one of two sections, with both values."""
    for option in options(type(old)):
        before, now = value_at(old, option.path), value_at(new, option.path)
        if before != now and (option.has_effect(old) or option.has_effect(new)):
            yield option, before, now


def build(section: type, values: Any, path: str = "") -> Any:
    """The section with these nested values, or a `ConfigError` with all problems."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{path.rstrip('.')} = {values!r}: is a group of options, not a value"])
    kinds = {field.name: kind for field, kind in _fields(section)}
    problems = _unknown(values, list(kinds), path)
    known = {name: value for name, value in values.items() if name in kinds}
    for name, kind in kinds.items():
        if _is_section(kind):
            try:
                known[name] = build(kind, values.get(name, {}), f"{path}{name}.")
            except ConfigError as error:
                problems += error.problems
                known.pop(name, None)
    try:
        built = section(**known)
    except Contradiction as error:
        problems += [] if problems else [path + problem for problem in error.problems]
    except ConfigError as error:
        problems += [path + problem for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return built


def to_dict(section: Any) -> dict[str, Any]:
    """A section as nested plain values: the inverse of `build`."""
    return {
        field.name: to_dict(value) if isinstance(value := getattr(section, field.name), Section) else value
        for field in dataclasses.fields(section)
    }


def is_path(kind: Any) -> bool:
    """Whether an option holds one or several paths."""
    return FilePath in (*_alternatives(kind), *typing.get_args(kind))


def with_texts(section: Any, change: Callable[[Option, str], str]) -> Any:
    """The section with `change(option, text)` in place of each text."""
    values = to_dict(section)
    for option in options(type(section)):
        value = value_at(section, option.path)
        if isinstance(value, str):
            put(values, option.path, change(option, value))
        elif isinstance(value, tuple) and all(isinstance(item, str) for item in value):
            put(values, option.path, tuple(change(option, text) for text in value))
    return build(type(section), values)


def parse(text: str, kind: Any, path: str) -> Any:
    """The value of an option as typed on a command line, read by its type annotation."""
    if text.lower() in ("none", "") and type(None) in _alternatives(kind):
        return None
    if kind in (Settings, Groups):
        with contextlib.suppress(ValueError):
            return json.loads(text)
        raise ConfigError([f"{path} = {text!r}: must be {type_name(kind)}"])
    if typing.get_origin(kind) is tuple:
        return () if text.lower() == "none" else tuple(item for item in text.split(",") if item)
    for read in (lambda text: BOOLS[text.lower()], int, float):
        with contextlib.suppress(ValueError, KeyError):
            value = _normalised(read(text), kind)
            if _is_instance(value, kind):
                return value
    if {str, Address, FilePath} & set(_alternatives(kind)) or _choices(kind):
        return text
    raise ConfigError([f"{path} = {text!r}: must be {type_name(kind)}"])


def _parse_setting(text: str) -> Any:
    """One of `Settings` as typed on a command line: JSON, Python's True, False and None, or a text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def put(values: dict[str, Any], path: str, value: Any) -> None:
    """Sets an option by its path in nested plain values."""
    *groups, name = path.split(".")
    for key in groups:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return  # a value where a group belongs: `build` reports it
    values[name] = value


def lay_over(section: type, values: dict[str, Any], texts: Iterable[tuple[str, str]]) -> list[str]:
    """Sets options as typed on a command line, as (path, text) pairs; returns the problems."""
    problems: list[str] = []
    for path, text in texts:
        try:
            option = find_option(section, path)
            put(values, path, parse(text, option.kind, path) if option.path == path else _parse_setting(text))
        except ConfigError as error:
            problems += error.problems
    return problems


def _unknown(given: Iterable[str], known: list[str], path: str = "") -> list[str]:
    """A problem for each given name of an option that there is not."""
    paths_known = [path + name for name in known]
    return [
        f"{path}{name}: no such option; {nearest(f'{path}{name}', paths_known)}" for name in given if name not in known
    ]


def nearest(name: str, names: list[str]) -> str:
    """The hint for an unknown name: the closest known one, or the whole choice."""
    same_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    if same_end:
        return f"did you mean {same_end[0]}?"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    if len(names) > SHOWN_NAMES:
        return "transformer-jax inspect --options lists what there is"
    return f"there are: {', '.join(names)}"


def type_name(kind: Any) -> str:
    """A type in plain words."""
    if kind == Part:
        return f"{ADDRESS_FORM} or none"
    if kind == Settings:
        return 'names and values as in JSON: {"b1": 0.9}'
    if kind == Groups:
        return 'patterns and their settings as in JSON: [["bias$", {"weight_decay": 0}]]'
    if typing.get_origin(kind) is tuple:
        plural = {Address: ADDRESS_FORM, FilePath: "paths"}
        return f"comma-separated {plural.get(typing.get_args(kind)[0], 'texts')}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "none"}
    names |= {Address: ADDRESS_FORM, FilePath: "a path"}
    if choices := _choices(kind):
        return " | ".join([*choices, *(names[other] for other in _alternatives(kind) if other in names)])
    return " or ".join(names[alternative] for alternative in _alternatives(kind))


def _value_problems(path: str, value: Any, kind: Any, limits: Mapping[str, float]) -> list[str]:
    if not _is_instance(value, kind):
        if (choices := _choices(kind)) and isinstance(value, str) and not is_meant_as_address(value):
            or_address = f", or {ADDRESS_FORM}" if Address in _alternatives(kind) else ""
            return [f"{path} = {value!r}: {nearest(value, choices)}{or_address}"]
        return [f"{path} = {value!r}: must be {type_name(kind)}"]
    if kind == Groups:
        return [f"{path}: {problem}" for pattern, _ in value if (problem := pattern_problem(pattern))]
    if is_path(kind) and value:
        items = value if isinstance(value, tuple) else (value,)
        return [f"{path} = {item}: {problem}" for item in items if (problem := paths.problem(item))]
    if isinstance(value, float) and not math.isfinite(value):
        return [f"{path} = {value}: must be a finite number"]
    if isinstance(value, float) and value and not SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT:
        return [f"{path} = {value}: must be 0 or a float32, in size {SMALLEST_FLOAT:.3g} to {LARGEST_FLOAT:.3g}"]
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        shown = value if abs(value) < 10**40 else "a number of more than 40 digits"  # Python prints no larger ones
        return [f"{path} = {shown}: must be at most {LARGEST_INT:,}"]
    if value is not None and not all(COMPARISONS[word](value, limit) for word, limit in limits.items()):
        return [f"{path} = {value}: must be {in_words(limits)}"]
    return []


def pattern_problem(pattern: str) -> str | None:
    """Why a text is not a regular expression; None if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}"
    return None


def in_words(limits: Mapping[str, float]) -> str:
    """Such as "at least 1 and at most 1,000,000"; nothing for an option without limits."""
    return " and ".join(f"{word} {limit:,.10g}" for word, limit in limits.items())


def _is_instance(value: Any, kind: Any) -> bool:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if len(alternatives := _alternatives(kind)) > 1:
        return any(_is_instance(value, alternative) for alternative in alternatives)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if kind == Settings:
        return isinstance(value, dict) and _is_plain(value)
    if origin is tuple and arguments[1:] == (...,):
        return isinstance(value, tuple) and all(_is_instance(item, arguments[0]) for item in value)
    if origin is tuple:
        is_long_enough = isinstance(value, tuple) and len(value) == len(arguments)
        return is_long_enough and all(map(_is_instance, value, arguments))
    if kind is Address:
        return isinstance(value, str) and is_address(value)
    if kind is FilePath:
        return isinstance(value, str)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_plain(value: Any) -> bool:
    """Whether a value, normalised, can be written as JSON and read back."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(inner) for name, inner in value.items())
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (bool, int, str))


def _normalised(value: Any, kind: Any) -> Any:
    """Accepts a list or a string for a tuple, and 1e5 for an integer."""
    if kind in (Settings, Groups):
        return _with_tuples(value)
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


def _with_tuples(value: Any) -> Any:
    """The value with tuples for its lists, as they compare equal after a round trip through JSON."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _choices(kind: Any) -> list[str]:
    """The names in a `Literal`, alone or as an alternative."""
    literals = [part for part in _alternatives(kind) if typing.get_origin(part) is Literal]
    return [str(choice) for literal in literals for choice in typing.get_args(literal)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def _fields(section: type) -> list[tuple[dataclasses.Field, Any]]:
    kinds = typing.get_type_hints(section)
    return [(field, kinds[field.name]) for field in dataclasses.fields(section)]
