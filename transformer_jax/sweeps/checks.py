"""What can be wrong with a sweep: all of it is found before the first run starts."""

from __future__ import annotations

import collections
import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import extension, schema
from transformer_jax.config import MAX_SEED, ExperimentConfig
from transformer_jax.data.corpora import known_splits
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.sweeps import variance
from transformer_jax.sweeps.definition import Sweep, Variant

# Options that the sweep sets in every run, and that a variant therefore cannot.
SET_BY_SWEEP = {
    "seed": "the sweep's seeds set it",
    "data.order_seed": "the sweep's seeds set it, or its base for all",
    "data.split_seed": "the sweep's seeds set it (vary), or its base for all",
    "data.directory": "the sweep's runs share their prepared data",
}
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


def type_problems(sweep: Sweep) -> list[str]:
    """Values of the wrong type, which no other check could read."""
    problems = []
    if not isinstance(sweep.name, str) or not isinstance(sweep.question, str) or not sweep.name.strip():
        problems.append(f"name = {sweep.name!r}: name and question must be strings, the name not empty")
    if not isinstance(sweep.base, (Mapping, ExperimentConfig)) and not hasattr(sweep.base, "to_dict"):
        problems.append(f"base = {type(sweep.base).__name__}: must be a ConfigDict, a dict or an ExperimentConfig")
    problems += [*variance.type_problems(sweep.vary), *_tune_types(sweep.tune, sweep.untuned)]
    if isinstance(sweep.variants, (str, Mapping)) or not isinstance(sweep.variants, Sequence) or not sweep.variants:
        return [*problems, "variants: must be a list of at least one Variant"]
    for number, variant in enumerate(sweep.variants, start=1):
        if not isinstance(variant, Variant):
            problems.append(f"variants: number {number} is {variant!r}; it must be a Variant")
        elif not isinstance(variant.name, str) or not variant.slug:
            problems.append(f"variants: number {number} has the name {variant.name!r}; it must have letters or digits")
        elif not isinstance(variant.changes, Mapping):
            problems.append(f"variant {variant.name!r}: changes = {variant.changes!r}: must be a dict of options")
    return problems


def _tune_types(tune: Any, untuned: Any) -> list[str]:
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


def sweep_problems(sweep: Sweep, tuning_seed: int) -> list[str]:
    """What is wrong with a sweep whatever its variants change."""
    return [
        *_seed_problems(sweep.seeds, tuning_seed if sweep.tune else None),
        *_name_problems(sweep),
        *_analysis_problems(sweep.analyses),
        *_tuning_problems(sweep.tune, sweep.untuned),
    ]


def _seed_problems(seeds: Any, taken: int | None) -> list[str]:
    seed_list = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else [seeds]
    if not all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seed_list):
        return [f"seeds = {seeds!r}: must be a whole number, or a list of different ones, from 0 to {MAX_SEED}"]
    if not seed_list or seeds == 0:
        return [f"seeds = {seeds!r}: there must be at least one seed; 3 is usual"]
    if taken in seed_list:
        return [f"seeds = {seeds!r}: {taken} is the seed of the runs that tune learning rates"]
    twice = _repeated(seed_list)
    return [f"seeds = {seed_list}: {', '.join(map(str, twice))} is repeated"] if twice else []


def _repeated(items: Sequence[Any]) -> list[Any]:
    return [item for item, times in collections.Counter(items).items() if times > 1]


def _name_problems(sweep: Sweep) -> list[str]:
    """Names that are not unique, and names of nothing."""
    names = [variant.name for variant in sweep.variants]
    problems = [f"{names.count(name)} variants are called {name!r}" for name in _repeated(names)]
    folders = {variant.name: variant.slug.lower() for variant in sweep.variants}  # some file systems ignore case
    for folder in _repeated(list(folders.values())):
        alike = " and ".join(repr(name) for name in folders if folders[name] == folder)
        problems.append(f"variants {alike} would have the same folder; rename one")
    baselines = {f"variant {variant.name!r}: baseline": variant.baseline for variant in sweep.variants}
    for where, name in {"baseline": sweep.baseline, **baselines}.items():
        if name is not None and name not in names:
            problems.append(f"{where} = {name!r}: no such variant; {schema.nearest(str(name), names)}")
    if isinstance(sweep.tests, str) or not sweep.tests or _repeated(sweep.tests):
        problems.append(f"tests = {sweep.tests!r}: must be a list of different splits, such as ['test']")
    return problems


def _analysis_problems(analyses: Mapping[str, str]) -> list[str]:
    problems = []
    for name, reference in analyses.items():
        try:
            if not callable(extension.load_object(reference)):
                problems.append(f"analysis {name!r}: {reference} is not a function")
        except extension.UserCodeError:
            raise
        except BadInput as problem:
            problems.append(f"analysis {name!r}: {problem}")
    return problems


def _tuning_problems(tune: Sequence[float] | None, untuned: bool) -> list[str]:
    """Tuning that chooses among nothing, or that is not there to compare with."""
    if tune is not None and len(tune) == 1:
        return [f"tune = {tuple(tune)!r}: needs at least two factors to choose among, as in (0.5, 1, 2)"]
    if untuned and not tune:
        return [f"untuned = True and tune = {tune!r}: no variant has a tuned rate; give tune, as in (0.5, 1, 2)"]
    return []


def change_problems(changes: Mapping[str, Any]) -> dict[str, str]:
    """A message for each change of an option that does not exist, or that a variant cannot change."""
    problems = {}
    for path in changes:
        try:
            schema.find_option(ExperimentConfig, path)
        except ConfigError as error:
            problems[path] = str(error)
        if path in SET_BY_SWEEP:
            problems[path] = f"{path}: a variant cannot change it; {SET_BY_SWEEP[path]}"
    return problems


def classes(config: ExperimentConfig) -> list[str]:
    """Custom modules that are given as classes, which a worker process could not find."""
    return [
        f"model.parts.{name} = {part.__name__}: is a class; the processes that train must find it by name, "
        f"as in '{inspect.getsourcefile(part)}:{part.__name__}'"
        for name, part in schema.to_dict(config.model.parts).items()
        if isinstance(part, type)
    ]


def building_problems(config: ExperimentConfig, is_tuned: bool) -> list[str]:
    """What is wrong with what a config names, such as custom modules: they are built."""
    from transformer_jax.experiment import try_out  # slow to import
    from transformer_jax.update.optimizer import refuse_without_peak

    try:
        try_out(config)
        if is_tuned:
            refuse_without_peak(config.optimizer)
    except extension.UserCodeError:
        raise
    except BadInput as problem:
        return str(problem).splitlines()
    return []


def unknown_field(error: BaseException | None, kinds: Sequence[type]) -> str | None:
    """What to say of the TypeError that an unknown argument of one of these dataclasses raised; None for any other."""
    by_name = {kind.__name__: kind for kind in kinds}
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(error, TypeError) or found is None or found[1] not in by_name:
        return None
    known = [field.name for field in dataclasses.fields(by_name[found[1]])]
    return f"{found[1]} has no field {found[2]!r}; {schema.nearest(found[2], known)}"


def unused_changes(changes: Iterable[str], config: ExperimentConfig) -> list[str]:
    """A message for each option that a variant sets to no effect. Its default may be there to undo the base's value."""
    options = {path: schema.find_option(ExperimentConfig, path) for path in changes}
    set_here = [path for path, option in options.items() if schema.value_at(config, option.path) != option.default]
    reasons = {path: configuration.why_unused(options[path].path, [config]) for path in set_here}
    return [f"{path} {why}" for path, why in reasons.items() if why is not None]


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
    problems = []
    for name, config in experiments.items():
        if (known := known_splits(config.data)) is not None:
            problems += [(name, problem) for problem in missing_splits(tests, [*known])]
    return listed(problems)


def missing_splits(tests: Sequence[str], known: Sequence[str]) -> list[str]:
    known = [split for split in known if split != "train"]
    return [
        f"tests = {split!r}: its data has no such sentences; {schema.nearest(str(split), known)}"
        for split in tests
        if split not in known
    ]


def listed(problems: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each problem, given as pairs of a variant and a problem, with all variants that have it."""
    variants: dict[str, dict[str, None]] = {}
    for name, problem in problems:
        variants.setdefault(problem, {})[name] = None
    return [
        f"variant{'s' * (len(names) > 1)} {', '.join(map(repr, names))}: {problem}"
        for problem, names in variants.items()
    ]
