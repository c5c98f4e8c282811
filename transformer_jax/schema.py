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
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from transformer_jax.errors import ConfigError
from transformer_jax.files import paths

LARGEST_INT = 2**63 - 1
# Of float32, in which the programs compute; between 0 and the smallest they round to 0.
SMALLEST_FLOAT, LARGEST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
COMPARISONS = {"at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt}
# The longest choice that is listed in full.
SHOWN_NAMES = 50
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


# Custom code: "path/to/file.py:Name".
Address = Annotated[str, ADDRESS_FORM]
# A path, whose `~` is expanded.
FilePath = Annotated[str, "path"]
# A custom class for a part of the model: the class itself, "path/to/file.py:Name", or None for the library's.
Part = str | type | None
# Arguments by name, with values as in JSON.
Settings = dict[str, Any]
# Settings for what a regular expression matches, in order.
Groups = tuple[tuple[str, Settings], ...]
# The kinds of options in plain words. `Literal` lists its names; unions join their alternatives.
IN_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Address: ADDRESS_FORM,
    FilePath: "a path",
    type(None): "none",
    Part: f"{ADDRESS_FORM} or none",
    Settings: 'names and values as in JSON: {"b1": 0.9}',
    Groups: 'patterns and their settings as in JSON: [["bias$", {"weight_decay": 0}]]',
    tuple[str, ...]: "comma-separated texts",
    tuple[Address, ...]: f"comma-separated {ADDRESS_FORM}",
    tuple[FilePath, ...]: "comma-separated paths",
}


class Condition(NamedTuple):
    """When an option has an effect, as a function of the whole config, and the same in words."""

    holds: Callable[[Any], bool]
    needs: str


def is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None


def is_meant_as_address(text: str) -> bool:
    """Whether a text is meant to name something in a file, even if it is malformed."""
    return ".py" in text


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the schema, by its full path."""

    path: str
    kind: Any
    default: Any
    meaning: str
    affects: Effect
    condition: Condition | None
    together: Together | None
    limits: Mapping[str, float]

    def has_effect(self, config: Any) -> bool:
        return self.condition is None or self.condition.holds(config)


def option(
    default: Any,
    meaning: str,
    *,
    affects: Effect | None = None,
    condition: Condition | None = None,
    together: Together | None = None,
    **limits: float,
) -> Any:
    """Declares one field of a `Section`: its default, its meaning, what it affects and when, its range (`COMPARISONS`).

    `affects` and `condition` default to those of the section.
    """
    metadata = {"option": Option("", None, default, meaning, cast(Effect, affects), condition, together, limits)}
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
    largest: ClassVar[int]  # of its whole numbers without a limit of their own

    def __init_subclass__(
        cls, affects: Effect = "result", condition: Condition | None = None, largest: int = LARGEST_INT
    ) -> None:
        cls.affects, cls.condition, cls.largest = affects, condition, largest

    def __new__(cls, *values: Any, **named: Any) -> Self:
        if unknown := _unknown(named, _fields(cls)):
            raise ConfigError(unknown)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name, (field, kind) in _fields(type(self)).items():
            if _is_section(kind):
                continue
            value = _normalised(getattr(self, name), kind)
            found = _value_problem(value, kind, field.metadata["option"].limits, self.largest)
            problems += [f"{name} = {found}"] if found else []
            # A default path stays the same text for every user and machine; whatever uses it expands it.
            if not problems and is_path(kind) and value and value != field.default:
                value = tuple(map(paths.expanded, value)) if isinstance(value, tuple) else paths.expanded(value)
            object.__setattr__(self, name, value)
        if problems:
            raise ConfigError(problems)
        if contradictions := list(self.contradictions()):
            raise Contradiction(contradictions)

    def contradictions(self) -> Iterable[str]:
        """Incompatible values: one line each, which begins with the name of an option and has both values."""
        return []


def options(section: type[Section], prefix: str = "") -> Iterator[Option]:
    """Every option of a section and of its nested sections, in the order of declaration."""
    for name, (field, kind) in _fields(section).items():
        if _is_section(kind):
            yield from options(kind, f"{prefix}{name}.")
        else:
            declared = field.metadata["option"]
            affects, condition = declared.affects or section.affects, declared.condition or section.condition
            yield dataclasses.replace(declared, path=prefix + name, kind=kind, affects=affects, condition=condition)


def find_option(section: type[Section], path: str) -> Option:
    """The option of a path. One below settings, such as `optimizer.kwargs.b1`, has the option of the settings."""
    known = {option.path: option for option in options(section)}
    above = path.rpartition(".")[0]
    if path not in known and above in known and known[above].kind == Settings:
        return known[above]
    if path not in known:
        raise ConfigError([f"{path}: no such option; {nearest(path, list(known))}"])
    return known[path]


def build(section: type, values: Any, path: str = "") -> Any:
    """The section with these nested values, or a `ConfigError` with all problems."""
    if not isinstance(values, Mapping):
        raise ConfigError([f"{path.rstrip('.')} = {values!r}: is a group of options, not a value"])
    fields = _fields(section)
    problems = _unknown(values, fields, path)
    known = {name: value for name, value in values.items() if name in fields}
    for name, (_, kind) in fields.items():
        if _is_section(kind):
            try:
                known[name] = build(kind, values.get(name, {}), f"{path}{name}.")
            except ConfigError as error:
                problems += error.problems
                known.pop(name, None)
    try:
        built = section(**known)
    except ConfigError as error:
        if not (problems and isinstance(error, Contradiction)):
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


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested plain values, such as those of a config.json, as option path -> value."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def value_at(section: Any, path: str) -> Any:
    """The value of an option by its path, such as `group.name`."""
    return operator.attrgetter(path)(section)


def with_values(section: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a section with these values by path, for programs that trace them. They are not checked."""
    changed = copy.copy(section)
    for path, value in values.items():
        name, _, inner = path.partition(".")
        object.__setattr__(changed, name, with_values(getattr(changed, name), {inner: value}) if inner else value)
    return changed


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


def differing(old: Section, new: Section) -> Iterator[tuple[Option, Any, Any]]:
    """The options with different values that have an effect in at least one of two sections, with both values."""
    for option in options(type(old)):
        before, now = value_at(old, option.path), value_at(new, option.path)
        if before != now and (option.has_effect(old) or option.has_effect(new)):
            yield option, before, now


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


def type_name(kind: Any) -> str:
    """A type in plain words."""
    if kind in IN_WORDS:
        return IN_WORDS[kind]
    others = [IN_WORDS[alternative] for alternative in _alternatives(kind) if alternative in IN_WORDS]
    choices = _choices(kind)
    return " | ".join([*choices, *others]) if choices else " or ".join(others)


def in_words(limits: Mapping[str, float]) -> str:
    """Such as "at least 1 and at most 1,000,000"; nothing for an option without limits."""
    return " and ".join(f"{name.replace('_', ' ')} {limit:,.10g}" for name, limit in limits.items())


def is_path(kind: Any) -> bool:
    """Whether an option holds one or several paths."""
    return FilePath in (*_alternatives(kind), *typing.get_args(kind))


def parse(text: str, kind: Any, path: str) -> Any:
    """The value of an option as typed on a command line, read by its type annotation."""
    alternatives = _alternatives(kind)
    if text.lower() in ("none", "") and type(None) in alternatives:
        return None
    if typing.get_origin(kind) is tuple and kind != Groups:
        return () if text.lower() == "none" else tuple(item for item in text.split(",") if item)
    readers: tuple[Callable[[str], Any], ...] = (lambda text: BOOLS[text.lower()], int, float, str)
    for read in (json.loads,) if kind in (Settings, Groups) else readers:
        with contextlib.suppress(ValueError, KeyError):
            value = _normalised(read(text), kind)
            if _is_instance(value, kind):
                return value
    if Address in alternatives or _choices(kind):
        return text  # the section says what there is
    raise ConfigError([f"{path} = {text!r}: must be {type_name(kind)}"])


def _parse_setting(text: str) -> Any:
    """One of `Settings` as typed on a command line: JSON, Python's True, False and None, or a text."""
    with contextlib.suppress(ValueError):
        return json.loads({"true": "true", "false": "false", "none": "null"}.get(text.lower(), text))
    return text


def _normalised(value: Any, kind: Any) -> Any:
    """Accepts a list or a string for a tuple, 1e5 for a whole number and a whole number for any number."""
    if kind in (Settings, Groups):
        return _with_tuples(value)
    if typing.get_origin(kind) is tuple:
        return parse(value, kind, "") if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
    alternatives = _alternatives(kind)
    if int in alternatives and isinstance(value, float) and value.is_integer():
        return int(value)
    if float in alternatives and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < LARGEST_FLOAT else math.inf
    return value


def _with_tuples(value: Any) -> Any:
    """The value with tuples for its lists, as they compare equal after a round trip through JSON."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


def _is_instance(value: Any, kind: Any) -> bool:
    arguments = typing.get_args(kind)
    if len(alternatives := _alternatives(kind)) > 1:
        return any(_is_instance(value, alternative) for alternative in alternatives)
    if typing.get_origin(kind) is Literal:
        return isinstance(value, str) and value in arguments
    if kind == Settings:
        return isinstance(value, dict) and _is_json(value)
    if typing.get_origin(kind) is tuple:
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) and isinstance(value, tuple) else arguments
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_is_instance, value, kinds))
    if kind in (Address, FilePath):
        return isinstance(value, str) and (kind == FilePath or is_address(value))
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _is_json(settings: Mapping[str, Any]) -> bool:
    """Whether settings can be written as JSON and read back."""
    try:
        return bool(_with_tuples(json.loads(json.dumps(settings, allow_nan=False))) == settings)
    except (TypeError, ValueError):
        return False


def _value_problem(value: Any, kind: Any, limits: Mapping[str, float], largest: int) -> str | None:
    """What is wrong with a value, after the value; None if nothing is."""
    if not _is_instance(value, kind):
        choices = _choices(kind)
        if choices and isinstance(value, str) and not is_meant_as_address(value):
            or_address = f", or {ADDRESS_FORM}" if Address in _alternatives(kind) else ""
            return f"{value!r}: {nearest(value, choices)}{or_address}"
        return f"{value!r}: must be {type_name(kind)}"
    if kind == Groups:
        return next((problem for pattern, _ in value if (problem := pattern_problem(pattern))), None)
    if is_path(kind) and value:
        items = value if isinstance(value, tuple) else (value,)
        return next((f"{item}: {problem}" for item in items if (problem := paths.problem(item))), None)
    if isinstance(value, float) and value and not SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT:
        return f"{value}: must be 0 or a finite number, in size {SMALLEST_FLOAT:.3g} to {LARGEST_FLOAT:.3g} (float32)"
    if isinstance(value, int) and "at_most" not in limits and value > largest:
        return f"{value}: must be at most {largest:,}"
    if value is not None and not all(COMPARISONS[name](value, limit) for name, limit in limits.items()):
        return f"{value}: must be {in_words(limits)}"
    return None


def pattern_problem(pattern: str) -> str | None:
    """Why a text is not a regular expression; None if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r}: is not a regular expression: {error}"
    return None


def nearest(name: str, names: list[str]) -> str:
    """The hint for an unknown name: the closest known one, or the whole choice."""
    same_end = [known for known in names if known.rpartition(".")[2] == name.rpartition(".")[2]]
    if close := same_end or difflib.get_close_matches(name, names, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    if len(names) > SHOWN_NAMES:
        return "transformer-jax inspect --options lists what there is"
    return f"there are: {', '.join(names)}"


def _unknown(given: Iterable[str], known: Iterable[str], path: str = "") -> list[str]:
    """A problem for each given name of an option that there is not."""
    known = [path + name for name in known]
    return [
        f"{name}: no such option; {nearest(name, known)}"
        for name in (f"{path}{name}" for name in given)
        if name not in known
    ]


def _alternatives(kind: Any) -> tuple[Any, ...]:
    is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
    return typing.get_args(kind) if is_union else (kind,)


def _choices(kind: Any) -> list[str]:
    """The names in a `Literal`, alone or as an alternative."""
    literals = [part for part in _alternatives(kind) if typing.get_origin(part) is Literal]
    return [choice for literal in literals for choice in typing.get_args(literal)]


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


_known_fields: dict[type, dict[str, tuple[dataclasses.Field, Any]]] = {}


def _fields(section: type) -> dict[str, tuple[dataclasses.Field, Any]]:
    """The fields of a section by name, with their kinds."""
    if section not in _known_fields:
        kinds = typing.get_type_hints(section, include_extras=True)
        _known_fields[section] = {field.name: (field, kinds[field.name]) for field in dataclasses.fields(section)}
    return _known_fields[section]
