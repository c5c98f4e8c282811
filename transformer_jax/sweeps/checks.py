"""The checks of a sweep before its first run: all errors at once."""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import extension, schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError, did_you_mean
from transformer_jax.files.paths import LONGEST_NAME
from transformer_jax.metric_names import COMPARED
from transformer_jax.runs.records import NAMED_WEIGHTS
from transformer_jax.schema import MAX_SEED
from transformer_jax.sweeps.definition import SOURCES, Sweep, Variant, base_values, changed, margins, repeated
from transformer_jax.sweeps.search import TUNING_SEEDS, drawn, load_propose

# Options that the sweep sets in every run, and that a variant therefore cannot.
SET_BY_SWEEP = {
    "seed": "the sweep's seeds set it",
    "data.order_seed": "the sweep's seeds set it, or its base for all",
    "data.directory": "the sweep's runs share their prepared data",
}
# The ranges of a search, as they are written.
RANGES = {
    "uniform": '("uniform", low, high)',
    "log_uniform": '("log_uniform", low, high)',
    "choice": '("choice", value, value, ...)',
}
MOST_TRIALS = 10_000
# The figures of a variant in the literature that a report shows or compares.
PUBLISHED = ("perplexity", "bleu", "parameters", "exact_match")


def validate(sweep: Sweep, file: str, overrides: Sequence[tuple[str, str]] = (), flags: Collection[str] = ()) -> None:
    """Raises a `ConfigError` with everything that is wrong in any variant.

    `flags` are the names of the fields that were typed on the command line.
    """
    with extension.running(file):  # for values of a wrong type, which nothing here expects
        mistyped, problems = _problems(sweep, overrides)
    typed = [path for path, _ in overrides]
    of_flags = [problem for problem in problems if problem.partition(" ")[0] in flags]
    of_file = [problem for problem in problems if problem not in of_flags]
    if problems := [f"--{line}" for line in of_flags] + mistyped + configuration.placed(of_file, typed, file):
        raise ConfigError(problems)


def _problems(sweep: Sweep, overrides: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Errors on the command line, and in the file."""
    if not _is_list(sweep.variants) or not all(isinstance(variant, Variant) for variant in sweep.variants):
        return [], [f"variants = {sweep.variants!r}: must be a list of at least one Variant"]
    base, mistyped = base_values(sweep, overrides)
    of_base = problems_of(configuration.from_config_dict, base)
    # Errors on the command line must not hide errors in variants.
    below_variants = base_values(sweep)[0] if of_base else base
    problems = [*of_base, *_sweep_problems(sweep)]
    experiments = {}
    for variant in sweep.variants:
        changes = repeated(sweep, variant).changes
        values = changed(below_variants, changes)
        found = problems_of(configuration.from_config_dict, values)
        if not found:
            experiments[variant.name] = config = configuration.from_config_dict(values)
            found = _config_problems(sweep, changes, config)
        found = [*_variant_problems(sweep, variant), *found]
        problems += [f"variant {variant.name!r}: {line}" for line in found if line not in of_base]
    problems += _metric_problems(sweep, list(experiments.values()))
    if sweep.search or sweep.trials is not None or sweep.propose is not None:
        problems += _search_problems(sweep, experiments)
    if problems or mistyped:
        return mistyped, problems
    typed = [path for path, _ in overrides]
    mistyped = configuration.unused_options(typed, experiments.values())
    if "seed" in typed and "initialization" in (sweep.vary or SOURCES):
        mistyped.append("--config.seed: has no effect on a sweep, whose seeds are set by --seeds")
    problems, order = _twins(sweep, experiments), configuration.from_config_dict(base).data.order_seed
    if order is not None and "order" in (sweep.vary or ()):
        problems.append(f"vary has 'order', and the base sets data.order_seed = {order}: leave one out")
    return mistyped, problems


def problems_of(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """The problems that a call raises. An exception of custom code is not caught: it has a traceback."""
    try:
        function(*arguments)
    except extension.UserCodeError:
        raise
    except BadInput as problem:
        return list(problem.problems) if isinstance(problem, ConfigError) else [str(problem)]
    return []


def _sweep_problems(sweep: Sweep) -> list[str]:
    """Errors in a sweep, whatever its variants change."""
    names, folders = [variant.name for variant in sweep.variants], [variant.slug.lower() for variant in sweep.variants]
    seeds: Any = [sweep.seeds - 1] if type(sweep.seeds) is int else sweep.seeds
    are_seeds = _are_different(seeds) and all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in seeds)
    problems = []
    if not are_seeds:
        problems.append(
            f"seeds = {sweep.seeds!r}: must be how many, at least one, or a list of different ones from 0 to {MAX_SEED}"
        )
    elif (sweep.tune or sweep.search) and {*TUNING_SEEDS} & {*seeds}:
        problems.append(f"seeds = {sweep.seeds!r}: {TUNING_SEEDS} are the seeds of the runs that try settings")
    for folder in sorted({folder for folder in folders if folders.count(folder) > 1}):  # some ignore case
        alike = " and ".join(repr(name) for name, own in zip(names, folders, strict=True) if own == folder)
        problems.append(f"variants {alike} would have the same folder; rename one")
    for name in dict.fromkeys([sweep.baseline, *(variant.baseline for variant in sweep.variants)]):
        if name not in (None, *names):
            problems.append(f"baseline = {name!r}: no such variant; {did_you_mean(str(name), names)}")
    if not _are_different(sweep.tests):
        problems.append(f"tests = {sweep.tests!r}: must be a list of different splits, such as ['test']")
    for name, address in sweep.analyses.items():
        if not name or "/" in name or len(os.fsencode(f"{name}.json.01234567.unfinished")) > LONGEST_NAME:
            problems.append(f"analyses[{name!r}]: must be the name of a file, shorter and without /")
            continue
        problems += problems_of(extension.load_function, f"analyses[{name!r}]", address, ("run", "config", "tests"))
    if sweep.vary is not None and (not _is_list(sweep.vary) or not set(sweep.vary) <= set(SOURCES)):
        problems.append(f"vary = {sweep.vary!r}: must be a list of at least one of {', '.join(SOURCES)}")
    if sweep.tune and not _are_factors(sweep.tune):
        problems.append(f"tune = {sweep.tune!r}: must be two or more different positive factors, as in (0.5, 1, 2)")
    if sweep.answered_by not in (answers := ("differences", "effects", "simple_effects", "contrasts")):
        problems.append(f"answered_by = {sweep.answered_by!r}: must be one of {', '.join(answers)}")
    elif "effects" in sweep.answered_by and not any(variant.levels for variant in sweep.variants):
        problems.append(f"answered_by = {sweep.answered_by!r}: no variant has levels; grid sets them")
    elif sweep.answered_by == "contrasts" and not sweep.contrasts:
        problems.append("answered_by = 'contrasts': there are none")
    cells = collections.defaultdict[Any, list[str]](list)
    for variant in (variant for variant in sweep.variants if variant.levels):
        cells[tuple(variant.levels.items())].append(variant.name)
    for same in (" and ".join(map(repr, of_cell)) for of_cell in cells.values() if len(of_cell) > 1):
        problems.append(f"variants {same} have the same levels; name what differs as a factor")
    if sweep.weights not in NAMED_WEIGHTS:
        problems.append(f"weights = {sweep.weights!r}: must be one of {', '.join(NAMED_WEIGHTS)}")
    for contrast, weights in sweep.contrasts.items():
        for name in (name for name in weights if name not in names):
            problems.append(f"contrasts[{contrast!r}]: no variant {name!r}; {did_you_mean(str(name), names)}")
        values = [*weights.values()]
        if not all(map(_is_number, values)) or not min(values, default=0) < 0 < max(values) or abs(sum(values)) > 1e-6:
            problems.append(f"contrasts[{contrast!r}] = {dict(weights)!r}: must be weights, not all 0, that sum to 0")
    return problems


def _metric_problems(sweep: Sweep, experiments: Sequence[ExperimentConfig]) -> list[str]:
    """Errors in the primary metric, the margins and the weights that are measured."""
    custom = [{address.rpartition(":")[2] for address in config.decode.metrics} for config in experiments]
    known = [*COMPARED, *sorted(set.intersection(*custom) if custom else ()), *sweep.analyses]
    named = {f"margin[{name!r}]": name for name in margins(sweep)} | {"primary": sweep.primary}
    problems = [
        f"{place} = {name!r}: must be a metric of all variants: {', '.join(known)} (others: decode.metrics, analyses)"
        for place, name in named.items()
        if name is not None and name not in known
    ]
    if sweep.weights == "ema" and experiments and all(config.optimizer.ema is None for config in experiments):
        problems.append("weights = 'ema': needs optimizer.ema in a variant")
    for name in sweep.analyses.keys() & {"word_perplexity", *set().union(*custom)}:
        problems.append(f"analyses[{name!r}]: is the name of a metric; choose another one")
    if not all(_is_number(margin) and margin > 0 for margin in margins(sweep).values()):
        problems.append(f"margin = {sweep.margin!r}: must be positive")
    if None in margins(sweep):
        problems.append(f"margin = {sweep.margin!r}: needs primary, whose margin it is; or give {{'bleu': 0.5}}")
    return problems


def _search_problems(sweep: Sweep, experiments: Mapping[str, ExperimentConfig]) -> list[str]:
    """Errors in a search: its ranges, and the settings that are drawn from them."""
    problems = []
    if sweep.tune:
        problems.append("tune and search: leave one out; search may have optimizer.learning_rate")
    if type(sweep.trials) is not int or not 2 <= sweep.trials <= MOST_TRIALS:
        limits = f"at least 2, with the variant's own setting, and at most {MOST_TRIALS:,}"
        problems.append(f"trials = {sweep.trials!r}: must be the number of settings to try: {limits}")
    if not isinstance(sweep.search, Mapping) or not sweep.search:
        return [*problems, f"search = {sweep.search!r}: must have a range for at least one option"]
    if sweep.propose is not None:
        problems += problems_of(load_propose, sweep.propose)
    for path, given in sweep.search.items():
        changing = [variant.name for variant in sweep.variants if path in variant.changes]
        problem = _range_problem(path, given) or (f"the variant {changing[0]!r} changes it" if changing else "")
        problems += [f"search[{path!r}] = {given!r}: {problem}"] * bool(problem)
    if problems:
        return problems
    tried: list[ExperimentConfig] = []
    for name, config in experiments.items():
        for setting in (drawn(sweep, name, number) for number in range(1, sweep.trials or 0)):
            if found := problems_of(lambda config, setting: tried.append(setting.changed(config)), config, setting):
                return [f"search: {setting.title} of variant {name!r}, {dict(setting.values)}: {found[0]}"]
    options = [schema.find_option(ExperimentConfig, path) for path in sweep.search]
    unused = [option for option in options if not any(map(option.has_effect, tried))]
    return [f"search[{o.path!r}]: has no effect here: it needs {o.condition.needs}" for o in unused if o.condition]


def _range_problem(path: str, given: Any) -> str:
    """What is wrong with the range of an option in a search, if anything is."""
    if found := problems_of(schema.find_option, ExperimentConfig, path):
        return found[0]
    option = schema.find_option(ExperimentConfig, path)
    if path in SET_BY_SWEEP or option.affects != "result":
        return "cannot be searched: a search is of options that change the training, on the same data"
    parts: list[Any] = list(given) if _is_list(given) else [""]
    kind, *ends = parts
    are_ends = len(ends) >= 2 if kind == "choice" else len(ends) == 2 and all(map(_is_number, ends))
    if kind not in RANGES or not are_ends:
        return f"must be one of {', '.join(RANGES.values())}"
    if kind != "choice" and not (ends[0] < ends[1] and (kind == "uniform" or ends[0] > 0)):
        return "the first number must be below the second" + ", and above 0" * (kind == "log_uniform")
    if not all(value is None or isinstance(value, (bool, int, float, str)) for value in ends):
        return "choices must be numbers, texts, True, False or None"
    return next((problem for value in ends for problem in problems_of(option.converted, value)), "")


def _variant_problems(sweep: Sweep, variant: Variant) -> list[str]:
    """Errors in a variant besides the values of its options."""
    problems = [
        f"{path}: a variant cannot change it; {SET_BY_SWEEP[path]}" for path in SET_BY_SWEEP.keys() & variant.changes
    ]
    if not variant.slug:
        problems.append("name: must have letters or digits")
    elif (long := len(os.fsencode(variant.slug))) > LONGEST_NAME:
        problems.append(f"name: is {long} bytes long as the name of its folder; must be at most {LONGEST_NAME}")
    if variant.same_as is not None:
        if variant.same_as not in [other.name for other in sweep.variants if other.same_as is None]:
            problems.append(f"same_as = {variant.same_as!r}: must be a variant that is no control itself")
        elif variant.changes or variant.levels:
            problems.append("same_as: a control has no changes and no levels")
    for key, value in variant.published.items():
        if key not in PUBLISHED:
            problems.append(f"published[{key!r}]: no report shows it; there are: {', '.join(PUBLISHED)}")
        elif not _is_number(value):
            problems.append(f"published[{key!r}] = {value!r}: must be a finite number")
        elif key == "perplexity" and value <= 0:
            problems.append(f"published[{key!r}] = {value!r}: must be positive")
    if isinstance(variant.unverified, str) or not set(variant.unverified) <= set(variant.published):
        problems.append(f"unverified = {variant.unverified!r}: must be a list of keys of published")
    return problems


def _config_problems(sweep: Sweep, changes: Iterable[str], config: ExperimentConfig) -> list[str]:
    """Errors in a variant with a valid config: changes without effect, modules that cannot be built."""
    if unknown := [line for path in changes for line in problems_of(schema.find_option, ExperimentConfig, path)]:
        return unknown
    options = {path: schema.find_option(ExperimentConfig, path) for path in changes}
    # A default may be there to undo the base's value.
    set_here = [path for path, option in options.items() if schema.value_at(config, option.path) != option.default]
    unused = {path: configuration.why_unused(options[path].path, [config]) for path in set_here}
    if problems := [f"{path} {why}" for path, why in unused.items() if why is not None]:
        return problems

    from transformer_jax.experiment import try_out  # slow to import
    from transformer_jax.update.optimizer import refuse_without_peak

    problems = problems_of(try_out, config)
    if sweep.tune:
        problems += problems_of(refuse_without_peak, config.optimizer)
    if any(address.rpartition(":")[2] == "exact_match" for address in config.decode.metrics):
        problems.append("decode.metrics: a sweep compares the library's exact_match; choose another name for that one")
    if sweep.weights == "best" and config.train.keep_best == 0:
        problems.append("weights = 'best' and train.keep_best = 0: the best checkpoint is not kept")
    if sweep.weights == "averaged" and config.train.keep_latest == 1:
        problems.append("weights = 'averaged' and train.keep_latest = 1: there is only one checkpoint to average")
    return problems


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0


def _are_different(items: Any) -> bool:
    return _is_list(items) and len(set(items)) == len(items)


def _are_factors(tune: Any) -> bool:
    """Whether these are factors of a learning rate whose names, of six digits, differ."""
    is_positive = _is_list(tune) and all(_is_number(factor) and factor > 0 for factor in tune)
    return is_positive and len(tune) > 1 and _are_different([f"{factor:g}" for factor in tune])


def _twins(sweep: Sweep, experiments: Mapping[str, ExperimentConfig]) -> list[str]:
    """Variants that would train the same runs: the options that have an effect are the same."""
    by_config: dict[str, list[str]] = {}
    options = list(schema.options(ExperimentConfig))
    for variant in (variant for variant in sweep.variants if variant.same_as is None):
        config = experiments[variant.name]
        values = [schema.value_at(config, option.path) if option.has_effect(config) else None for option in options]
        by_config.setdefault(repr(values), []).append(variant.name)
    return [
        f"variants {' and '.join(map(repr, names))}: differ in no option that has an effect; leave one out "
        "(a control repeats a variant with Variant(name, same_as=...))"
        for names in by_config.values()
        if len(names) > 1
    ]
