"""Configuration options: typed, bounded, documented, with a clear error message for every wrong value.

`config.py` declares the options; nothing here knows any of them by name. A value is checked once, where its `Section`
is made: `build` makes sections from nested plain values, such as a config file's, and of the texts that
`lay_over` reads from a command line.
"""

import contextlib
import copy
import dataclasses
import functools
import json
import numbers
import operator
import os
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

from transformer_jax.errors import BadInput, ConfigError, did_you_mean
from transformer_jax.files import paths

LARGEST_INT = 2**63 - 1
# The range of float32, in which the programs compute; they round smaller numbers to 0.
SMALLEST_FLOAT, LARGEST_FLOAT = 2.0**-126, (2 - 2.0**-23) * 2.0**127
BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Random keys are made of 32 bits: larger seeds would repeat smaller ones.
MAX_SEED = 2**32 - 1
COMPARISONS = {"at_least": operator.ge, "at_most": operator.le, "above": operator.gt, "below": operator.lt}
ADDRESS, ADDRESS_FORM = re.compile(r".+\.py:[^\W\d]\w*"), "path/to/file.py:Name"

# The effects of an option. Code that needs the options that matter for its purpose selects them by these.
Effect = Literal[
    "corpus",  # which text there is
    "data",  # what is made of the text: training, validation and test pairs, and their tokens
    "result",  # the parameters after each update
    "stopping",  # when a run validates, saves and ends, and which checkpoint is best: may change when it is resumed
    "translation",  # which translations a trained model gives
    "output",  # what is logged, measured and printed besides
    "computation",  # how the same update is computed, up to rounding (and the dropout masks of train.accumulate)
    "environment",  # where files are and how long a process may take: may differ between machines
]

# Kinds of options, beside bool, int, float and str. `Literal`, `tuple[kind, ...]` and unions combine kinds.
Address = Annotated[str, ADDRESS_FORM]  # custom code
FilePath = Annotated[str, "path"]  # its `~` is expanded
Pattern = Annotated[str, "regular expression"]
Part = Address | type | None  # a custom class for a part of the model, or None for the library's
Settings = dict[str, Any]  # arguments by name, with values as in JSON
Groups = tuple[tuple[str, Settings], ...]  # settings for what a pattern matches, in order
NamedTexts = dict[str, dict[str, tuple[str, ...]]]  # the files of each side of texts that have names
SIDES = ("source", "target")


def is_address(text: str) -> bool:
    return ADDRESS.fullmatch(text) is not None


def is_meant_as_address(text: str) -> bool:
    """Whether a text is meant to name something in a file, even if it is malformed."""
    return ".py" in text


def _if(is_of_the_kind: bool, value: Any) -> Any:
    if not is_of_the_kind:
        raise TypeError
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)
        return float(value)
    return _if(isinstance(value, numbers.Real) and not isinstance(value, bool), value)  # also of numpy


def _at_home(value: Any) -> Any:
    """An address of custom code with the home directory in place of `~`; any other value as it is."""
    return os.path.expanduser(value) if is_address(value) else value


def _whole(value: Any) -> Any:
    number = _number(value)
    return _if(number == int(number), int(number))  # also of 1e5


def _settings(value: Any) -> Any:
    settings = _with_tuples(json.loads(value) if isinstance(value, str) else value)
    is_json = isinstance(settings, dict) and _with_tuples(json.loads(json.dumps(settings, allow_nan=False))) == settings
    return _if(is_json, settings)


def _groups(value: Any) -> Any:
    groups = _with_tuples(json.loads(value) if isinstance(value, str) else value)
    return tuple((re.compile(pattern).pattern, _settings(settings)) for pattern, settings in groups)


def _named_texts(value: Any) -> Any:
    def files(paths: Any) -> Any:
        if isinstance(paths, str):
            paths = [path for path in paths.split(",") if path]
        paths = [paths] if isinstance(paths, os.PathLike) else paths
        return _if(isinstance(paths, (list, tuple)), tuple(map(os.fspath, paths)))

    texts = json.loads(value) if isinstance(value, str) else value
    named = {name: {side: files(paths) for side, paths in sides.items()} for name, sides in texts.items()}
    return _if(all(isinstance(name, str) and set(sides) <= set(SIDES) for name, sides in named.items()), named)


def _with_tuples(value: Any) -> Any:
    """The value with tuples for its lists: values are the same after a round trip through JSON."""
    if isinstance(value, Mapping):
        return {name: _with_tuples(inner) for name, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


# Each kind in words, and the function that makes a value of it: from what a config file may have, or from a text of a
# command line. Anything else becomes one of the errors `NOT_OF_THE_KIND`.
KINDS: dict[Any, tuple[str, Callable[[Any], Any]]] = {
    bool: ("true or false", lambda value: value if isinstance(value, bool) else BOOLS[value.lower()]),
    int: ("a whole number", _whole),
    float: ("a number", lambda value: float(_number(value))),
    str: ("a text", lambda value: _if(isinstance(value, str), _at_home(value))),
    Address: (ADDRESS_FORM, lambda value: _if(is_address(value), _at_home(value))),
    FilePath: ("a path", lambda value: _if(isinstance(value, str | os.PathLike), os.fspath(value))),
    Pattern: ("a regular expression", lambda value: re.compile(value).pattern),
    type: ("a class", lambda value: _if(isinstance(value, type), value)),
    types.NoneType: ("none", lambda value: _if(value is None, None)),
    Settings: ('names and values as in JSON: {"b1": 0.9}', _settings),
    Groups: ('regular expressions and settings as in JSON: [["bias$", {"weight_decay": 0}]]', _groups),
    NamedTexts: ('names and files as in JSON: {"long": {"source": "long.en", "target": "long.de"}}', _named_texts),
}
NOT_OF_THE_KIND = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, re.error)


class Condition(NamedTuple):
    """When an option has an effect, as a function of the whole config, and the same in words."""

    holds: Callable[[Any], bool]
    needs: str


def when(path: str, *values: Any) -> Condition:
    """The condition that an option has one of these values."""
    *names, last = (str({None: "none", True: "true", False: "false"}.get(value, value)) for value in values)
    words = " or ".join([", ".join(names), last] if names else [last])
    return Condition(lambda config: value_at(config, path) in values, f"{path} = {words}")


@dataclasses.dataclass(frozen=True)
class Option:
    """One option of the schema, by its full path."""

    path: str
    kind: Any
    default: Any
    meaning: str
    affects: Effect
    condition: Condition | None
    limits: Mapping[str, float]
    largest: int = LARGEST_INT  # if it is a whole number without a limit

    def has_effect(self, config: Any) -> bool:
        return self.condition is None or self.condition.holds(config)

    @property
    def is_tuple(self) -> bool:
        return typing.get_origin(self.kind) is tuple and self.kind not in KINDS

    @functools.cached_property
    def kinds(self) -> tuple[Any, ...]:
        """The kinds that a union joins, or the kinds of a tuple's items."""
        kind = typing.get_args(self.kind)[0] if self.is_tuple else self.kind
        is_union = isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
        return typing.get_args(kind) if is_union else (kind,)

    @property
    def choices(self) -> list[str]:
        """The names in a `Literal`, alone or as an alternative."""
        return [name for kind in self.kinds if kind not in KINDS for name in typing.get_args(kind)]

    @property
    def is_path(self) -> bool:
        """Whether it holds one or several paths."""
        return FilePath in self.kinds or self.kind == NamedTexts

    @property
    def kind_in_words(self) -> str:
        """Such as "a number or none"."""
        words = [KINDS[kind][0] for kind in self.kinds if kind in KINDS]
        kinds = " | ".join([*self.choices, *words]) if self.choices else " or ".join(words)
        return f"{kinds} (several with commas)" if self.is_tuple else kinds

    @property
    def limits_in_words(self) -> str:
        """Such as "at least 0 and below 1"; nothing without limits."""
        return " and ".join(f"{name.replace('_', ' ')} {limit:,.10g}" for name, limit in self.limits.items())

    def converted(self, value: Any) -> Any:
        """The value as it is stored; a text is read as on a command line. BadInput says what is wrong with it."""
        if self.is_path and isinstance(value, str) and value == self.default:
            return value  # the same text for every user and machine; whatever uses it expands it
        if not self.is_tuple:
            return self._converted(value)
        if isinstance(value, str):
            value = [] if value.lower() == "none" else [item for item in value.split(",") if item]
        return tuple(map(self._converted, value if isinstance(value, (list, tuple)) else [value]))

    def _converted(self, value: Any) -> Any:
        if isinstance(value, str) and value in ("none", "None", "") and types.NoneType in self.kinds:
            return None
        if isinstance(value, str) and value in self.choices:
            return value
        made, problem = self._of_a_kind(value)
        if problem := problem or self._outside(made):
            raise BadInput(f"{made!r}: {problem}")
        return each_text(made, self._expanded) if self.is_path else made

    def _expanded(self, path: str) -> str:
        in_bucket = self.affects == "corpus" and path.startswith(paths.BUCKETS)
        return paths.expanded(path) if path and not in_bucket else path

    def _of_a_kind(self, value: Any) -> tuple[Any, str]:
        """The value as one of its kinds, and what is wrong if it is of none."""
        for kind in self.kinds:
            with contextlib.suppress(*NOT_OF_THE_KIND):
                return KINDS[kind][1](value), ""
        return value, f"must be {self.kind_in_words}"

    def _outside(self, value: Any) -> str:
        """The error in a value of the right kind."""
        if isinstance(value, float) and value and not SMALLEST_FLOAT <= abs(value) <= LARGEST_FLOAT:
            return f"must be 0 or a finite number, in size {SMALLEST_FLOAT:.3g} to {LARGEST_FLOAT:.3g}"
        if isinstance(value, int) and "at_most" not in self.limits and value > self.largest:
            return f"must be at most {self.largest:,}"
        is_within = value is None or all(COMPARISONS[name](value, limit) for name, limit in self.limits.items())
        return "" if is_within else f"must be {self.limits_in_words}"


def option(
    default: Any,
    meaning: str,
    *,
    affects: Effect | None = None,
    condition: Condition | None = None,
    **limits: float,
) -> Any:
    """Declares one field of a `Section`: its default, its meaning, what it affects and when, its range (`COMPARISONS`).

    `affects` and `condition` default to the section's.
    """
    metadata = {"option": Option("", None, default, meaning, cast(Effect, affects), condition, limits)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata, hash=False)
    return dataclasses.field(default=default, metadata=metadata)


# Limits that options of several sections share.
SEED: dict[str, Any] = {"at_least": 0, "at_most": MAX_SEED}
PROBABILITY: dict[str, Any] = {"at_least": 0, "below": 1}


def group(section: type) -> Any:
    """Declares a nested `Section`, with that section's defaults."""
    return dataclasses.field(default_factory=section)


class Contradiction(ConfigError):
    """Values that are valid, each for itself, but incompatible."""


class Section:
    """Base of the schema's frozen dataclasses. Its constructor is where options are checked."""

    affects: ClassVar[Effect]
    condition: ClassVar[Condition | None]
    largest: ClassVar[int]

    def __init_subclass__(
        cls, affects: Effect = "result", condition: Condition | None = None, largest: int = LARGEST_INT
    ) -> None:
        cls.affects, cls.condition, cls.largest = affects, condition, largest
        fields = [(name, field) for name, field in vars(cls).items() if isinstance(field, dataclasses.Field)]
        declared = [(name, field.metadata["option"]) for name, field in fields if "option" in field.metadata]
        cls.__doc__ = "\n".join([f"{cls.__doc__}\n", *(f"- `{name}`: {option.meaning}" for name, option in declared)])

    def __new__(cls, *values: Any, **named: Any) -> Self:
        if unknown := _unknown(named, _declared(cast(type, cls))):
            raise ConfigError(unknown)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name, option in _declared(cast(type, type(self))).items():
            value = getattr(self, name)
            try:
                if isinstance(option, Option):
                    object.__setattr__(self, name, option.converted(value))
                elif not isinstance(value, option):
                    object.__setattr__(self, name, build(option, value, f"{name}."))
            except ConfigError as error:
                problems += error.problems
            except BadInput as error:
                problems.append(f"{name} = {error}")
        found = ConfigError(problems) if problems else Contradiction([*self.contradictions()])
        if found.problems:
            raise found

    def contradictions(self) -> Iterable[str]:
        """Incompatible values, a line each, made by `clash` for example."""
        return []

    def clash(self, *paths: str, hint: str) -> str:
        """The line about options whose values are incompatible: "min_length = 9 and max_length = 8: the hint"."""
        lines = []
        for path in paths:
            value = value_at(self, path)
            text = ", ".join(value) if isinstance(value, tuple) else value
            lines.append(f"{path} = {'none' if text in (None, '') else text}")
        return f"{' and '.join(lines)}: {hint}"


def options(section: type, prefix: str = "") -> Iterator[Option]:
    """Every option of a section and of its nested sections, in the order of declaration."""
    for name, option in _declared(section).items():
        if isinstance(option, Option):
            yield dataclasses.replace(option, path=prefix + name)
        else:
            yield from options(option, f"{prefix}{name}.")


def find_option(section: type, path: str) -> Option:
    """The option of a path. Texts with names have paths of their own, such as `group.tests.long.source`."""
    known = {option.path: option for option in options(section)}
    owner, _, side = path.rpartition(".")
    texts = known.get(owner.rpartition(".")[0])
    if texts is not None and texts.kind == NamedTexts and side in SIDES:
        return texts
    if path not in known:
        raise ConfigError(_unknown([path], known))
    return known[path]


def build(section: type, values: Any, path: str = "") -> Any:
    """The section with these nested values, or a `ConfigError` with all problems."""
    declared = _declared(section)
    known: dict[str, Any] = {}
    if isinstance(values, Mapping):
        problems = _unknown(values, declared, path)
    else:
        problems, values = [f"{path.rstrip('.')} = {values!r}: is a group of options, not a value"], {}
    for name, option in declared.items():
        if isinstance(option, Option):
            known |= {name: values[name]} if name in values else {}
            continue
        try:
            known[name] = build(option, values.get(name, {}), f"{path}{name}.")
        except ConfigError as error:
            problems += error.problems
    try:
        built = section(**known)
    except ConfigError as error:
        if not (problems and isinstance(error, Contradiction)):
            problems += [path + problem for problem in error.problems]
    if problems:
        raise ConfigError(problems)
    return built


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
    """The section with `change(option, text)` in place of each text, except in settings."""
    values = {
        option.path: each_text(value_at(section, option.path), functools.partial(change, option))
        for option in options(type(section))
        if option.kind not in (Settings, Groups)
    }
    return with_values(section, values)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The value of an option with `change(text)` in place of each text in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(each_text(item, change) for item in value)
    if isinstance(value, dict):
        return {name: each_text(item, change) for name, item in value.items()}
    return value


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
    """Sets options as typed on a command line, as (path, text) pairs; returns a problem for each unknown one."""
    problems: list[str] = []
    for path, text in texts:
        try:
            option = find_option(section, path)
            value: Any = text
            if option.kind == NamedTexts and path == option.path:
                with contextlib.suppress(*NOT_OF_THE_KIND):
                    value = _named_texts(text)  # to which further options may add a name
            put(values, path, value)
        except ConfigError as error:
            problems += error.problems
    return problems


def _unknown(given: Iterable[str], known: Iterable[str], path: str = "") -> list[str]:
    """A problem for each given name of an option that there is not."""
    known = [path + name for name in known]
    return [
        f"{name}: no such option; {did_you_mean(name, known)}"
        for name in (f"{path}{name}" for name in given)
        if name not in known
    ]


@functools.cache
def _declared(section: Any) -> dict[str, Option | type[Section]]:
    """The options and the nested sections of a section, by name."""
    declared: dict[str, Option | type[Section]] = {}
    kinds = typing.get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        if option := field.metadata.get("option"):
            affects, condition = option.affects or section.affects, option.condition or section.condition
            facts = {"path": field.name, "kind": kinds[field.name], "largest": section.largest}
            declared[field.name] = dataclasses.replace(option, affects=affects, condition=condition, **facts)
        else:
            declared[field.name] = kinds[field.name]
    return declared
