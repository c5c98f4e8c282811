"""Checks of a sweep: what would train runs that answer nothing, or that fail only after the data is prepared."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.corpora import known_splits

# The figures of a variant in the literature that a report shows or compares.
PUBLISHED = ("perplexity", "bleu", "parameters", "exact_match")


def published_problems(published: Any, unverified: Any = ()) -> list[str]:
    """What is wrong with the `published` and `unverified` of a variant."""
    if not isinstance(published, Mapping):
        return [f"published = {published!r}: must be a dict of figures, as in {{'bleu': 25.8}}"]
    problems = []
    for key, value in published.items():
        if key not in PUBLISHED:
            close = schema.nearest(str(key), list(PUBLISHED))
            hint = close if close.startswith("there are") else f"{close} There are: {', '.join(PUBLISHED)}"
            problems.append(f"published[{key!r}]: no report shows it; {hint}")
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            problems.append(f"published[{key!r}] = {value!r}: must be a finite number")
    if isinstance(unverified, str) or not set(unverified) <= set(published):
        problems.append(f"unverified = {unverified!r}: must be a list of keys of published: {', '.join(published)}")
    return problems


def unknown_field(error: BaseException | None, kinds: Sequence[type]) -> str | None:
    """What to say of the TypeError that an unknown argument of one of these dataclasses raised; None for any other."""
    by_name = {kind.__name__: kind for kind in kinds}
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(error, TypeError) or found is None or found[1] not in by_name:
        return None
    known = [field.name for field in dataclasses.fields(by_name[found[1]])]
    return f"{found[1]} has no field {found[2]!r}; {schema.nearest(found[2], known)}"


def tune_types(tune: Any, untuned: Any) -> list[str]:
    problems = []
    if tune is not None and (
        isinstance(tune, str)
        or not isinstance(tune, Sequence)
        or not all(isinstance(factor, (int, float)) and 0 < factor < math.inf for factor in tune)
        or len({f"{factor:g}" for factor in tune}) < len(tune)  # their names, in folders and reports
    ):
        problems.append(
            f"tune = {tune!r}: must be factors of the learning rate that differ in six digits, as in (0.5, 1, 2)"
        )
    if not isinstance(untuned, bool):
        problems.append(f"untuned = {untuned!r}: must be True or False")
    return problems


def tuning_problems(tune: Sequence[float] | None, untuned: bool) -> list[str]:
    """Tuning that chooses among nothing, or that is not there to compare with."""
    if tune is not None and len(tune) == 1:
        return [f"tune = {tuple(tune)!r}: needs at least two factors to choose among, as in (0.5, 1, 2)"]
    if untuned and not tune:
        return [f"untuned = True and tune = {tune!r}: no variant has a tuned rate; give tune, as in (0.5, 1, 2)"]
    return []


def unused_changes(changes: Iterable[str], config: ExperimentConfig) -> list[str]:
    """A message for each option that a variant sets to no effect. Its default may be there to undo the base's value."""
    default = ExperimentConfig()
    set_here = [path for path in changes if schema.value_at(config, path) != schema.value_at(default, path)]
    found = {path: configuration.why_unused(path, [config]) for path in set_here}
    return [f"{path} {why}" for path, why in found.items() if why is not None]


def twins(experiments: Mapping[str, ExperimentConfig]) -> list[str]:
    """Variants that would train the same runs: the options that have an effect are the same."""
    by_config: dict[str, list[str]] = {}
    options = list(schema.options(ExperimentConfig))
    for name, config in experiments.items():
        with_effect = [
            schema.value_at(config, option.path) if option.has_effect(config) else None for option in options
        ]
        by_config.setdefault(repr(with_effect), []).append(name)
    return [
        f"variants {' and '.join(map(repr, names))}: all that has an effect is the same in them; leave one out"
        for names in by_config.values()
        if len(names) > 1
    ]


def split_problems(tests: Sequence[str], experiments: Mapping[str, ExperimentConfig]) -> list[str]:
    """Test splits that the data will not have, where that is known before it is prepared."""
    found = []
    for name, config in experiments.items():
        if (known := known_splits(config.data)) is not None:
            found += [(name, problem) for problem in missing_splits(tests, [*known])]
    return listed(found)


def missing_splits(tests: Sequence[str], known: Sequence[str]) -> list[str]:
    known = [split for split in known if split != "train"]
    return [
        f"tests = {split!r}: its data has no such sentences; {schema.nearest(str(split), known)}"
        for split in tests
        if split not in known
    ]


def listed(found: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each problem, given as pairs of a variant and a problem, with all variants that have it."""
    variants: dict[str, dict[str, None]] = {}
    for name, problem in found:
        variants.setdefault(problem, {})[name] = None
    return [
        f"variant{'s' * (len(names) > 1)} {', '.join(map(repr, names))}: {problem}"
        for problem, names in variants.items()
    ]
