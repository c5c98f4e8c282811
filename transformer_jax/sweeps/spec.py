"""The definition of an ablation: a base config, named variants as differences from it, and seeds.

An experiment file (`experiments/*.py`) has a function `get_sweep(scale) -> Sweep`. `load` reads it, finds everything
that is wrong with any of its variants before anything runs, and returns a `Definition`.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import fnmatch
import inspect
import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from transformer_jax import config as configuration
from transformer_jax import extension, schema, shipped
from transformer_jax.config import MAX_SEED, ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.model import size
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.sweeps import checks, variance
from transformer_jax.update.optimizer import peak_rate

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FORMAT = 1
# Options that the sweep sets in every run, and that a variant therefore cannot.
SET_BY_SWEEP = {
    "seed": "the sweep's seeds set it",
    "data.order_seed": "the sweep's seeds set it, or its base for all",
    "data.split_seed": "the sweep's seeds set it (vary), or its base for all",
    "data.directory": "the sweep's runs share their prepared data",
}
# The seed of the runs that tune learning rates: no other run has it, so the rates are not chosen for the luck of one.
TUNING_SEED = 1_000_000
# Tokens of the sentences that FLOPs are estimated for before the data exists.
LENGTH = 32


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the ablation: what differs from the base."""

    name: str  # unique: "A h=4"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # option -> value: {"model.num_heads": 4}
    group: str = ""  # its heading in tables
    note: str = ""  # a remark that the report shows beside it
    # What the literature has: "perplexity", "bleu", "parameters" (65e6), "exact_match" (in percent).
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)
    baseline: str | None = None  # the variant it is compared with; none = the sweep's baseline
    unverified: Sequence[str] = ()  # the names of published scores that nobody has compared with their source

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^A-Za-z0-9._=+-]+", "-", self.name).strip("-.")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A question, and the runs that are to answer it."""

    name: str
    question: str  # one or two sentences, shown at the top of the report
    base: ConfigDict | Mapping[str, Any] | ExperimentConfig
    variants: Sequence[Variant]
    seeds: int | Sequence[int] = 3  # n = 0 .. n-1
    tests: Sequence[str] = ("test",)  # the splits that every run is evaluated on, the main one first
    baseline: str = "base"
    notes: Sequence[str] = ()  # limitations that the report must state
    analyses: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> "path/to/file.py:function"
    tune: Sequence[float] | None = None  # factors of the learning rate that are tried for each variant: (0.5, 1, 2)
    untuned: bool = False  # whether variants with a tuned rate are also trained at their own, for comparison
    # What differs between seeds: "initialization" (and dropout), "order" (of the training pairs), "split" (which pairs
    # are for training and which for validation); none = initialization and order.
    vary: Sequence[str] | None = None


def grid(axes: Mapping[str, Sequence[Any]], group: str = "") -> list[Variant]:
    """A variant for every combination: grid({"model.num_heads": [1, 2], "model.d_k": [8, 16]}) has four,
    "num_heads=1 d_k=8" and so on."""
    ends = collections.Counter(path.rpartition(".")[2] for path in axes)
    short = {path: path if ends[end := path.rpartition(".")[2]] > 1 else end for path in axes}
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return [
        Variant(" ".join(f"{short[path]}={value}" for path, value in changes.items()), changes, group)
        for changes in combinations
    ]


@dataclasses.dataclass(frozen=True)
class Definition:
    """A sweep that was checked, and how it is run."""

    sweep: Sweep
    file: str
    scale: str | None
    seeds: tuple[int, ...]
    base: ExperimentConfig
    experiments: Mapping[str, ExperimentConfig]  # of each variant, with the base's seed
    tune: tuple[float, ...] | None = None  # factors of the learning rate that are tried on validation data
    together: bool = False  # whether runs of one shape train in one program
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a digest for each address of custom code
    accept_changed_code: bool = False  # whether runs of another version of that code count as runs of this sweep
    vary: tuple[str, ...] = (variance.INITIALIZATION, variance.ORDER)

    @property
    def data_order(self) -> str:
        """What sweep.json called it before `vary`."""
        return variance.BY_SEED if variance.ORDER in self.vary else variance.SAME_FOR_ALL

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.sweep.variants if variant.name == name)

    def chosen(self, only: Sequence[str] | None) -> list[str]:
        """The names of the variants that match any of the patterns; None matches all."""
        names = [variant.name for variant in self.sweep.variants]
        if only is None:
            return names
        matching = {pattern: fnmatch.filter(names, pattern) for pattern in only}
        for pattern, found in matching.items():
            if not found:
                raise BadInput(f"--only={pattern}: matches no variant; {schema.nearest(pattern, names)}")
        return [name for name in names if any(name in found for found in matching.values())]

    def experiment(self, variant: str, seed: int, factor: float = 1.0) -> ExperimentConfig:
        """The config of one run; `factor` multiplies the peak learning rate."""
        config = variance.seeded(self.experiments[variant], self.vary, seed)
        if factor == 1.0:
            return config
        rate = factor * peak_rate(config.optimizer, config.model.base_d_model)
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=rate))

    def to_json(self) -> dict[str, Any]:
        """The content of sweep.json: all that is needed to run or resume the sweep without its file."""
        settings = {**vars(self.sweep), **vars(self), "data_order": self.data_order}
        del settings["sweep"], settings["experiments"]
        variants = [
            {
                **dataclasses.asdict(variant),
                "slug": variant.slug,
                "parameters": parameters(self.experiments[variant.name].model),
                "training_flops": training_flops(self.experiments[variant.name]),
            }
            for variant in self.sweep.variants
        ]
        checked = {"seeds": self.seeds, "base": schema.to_dict(self.base), "variants": variants}
        return {"format": FORMAT, "directory": os.getcwd(), **settings, **checked}  # paths start there


def from_json(record: Mapping[str, Any], place: str) -> Definition:
    """The definition in a sweep.json; `place` names the file in errors."""
    variant_fields = {field.name for field in dataclasses.fields(Variant)}
    variants = [
        Variant(**{name: stored[name] for name in variant_fields & stored.keys()}) for stored in record["variants"]
    ]
    if (vary := variance.of_record(record)) is None:
        raise BadInput(f"{place}: does not say what varies between seeds ('vary'): the file is damaged")
    later = {"vary": vary, "untuned": record.get("untuned", False)}  # of which earlier versions did not know
    sweep_fields = {field.name for field in dataclasses.fields(Sweep)} - {"variants", *later}
    sweep = Sweep(variants=variants, **{name: record[name] for name in sweep_fields}, **later)
    settings = {name: record[name] for name in ("file", "together", "code", "accept_changed_code")}
    return dataclasses.replace(define(sweep, place, record["scale"], trying=False), **settings)


def load(
    path: str,
    scale: str | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    seeds: int | Sequence[int] | None = None,
    tune: Sequence[float] | None = None,
) -> Definition:
    """The sweep of an experiment file. `overrides` are (option, text) pairs that change its base; `seeds` and `tune`
    replace its own."""
    try:
        sweep, scale = _sweep_of(path, scale)
    except extension.UserCodeError as error:
        if problem := checks.unknown_field(error.__cause__, (Sweep, Variant)):
            raise BadInput(f"{path}: {problem}") from None
        raise
    if seeds is not None:
        sweep = dataclasses.replace(sweep, seeds=seeds)
    if tune is not None:  # --tune=none leaves nothing that could be untuned
        sweep = dataclasses.replace(sweep, tune=tune, untuned=sweep.untuned and bool(tune))
    return define(sweep, path, scale, overrides)


def define(
    sweep: Sweep, place: str, scale: str | None, overrides: Sequence[tuple[str, str]] = (), trying: bool = True
) -> Definition:
    """The definition, or a `ConfigError` with everything that is wrong in any variant.

    `trying` also builds what the variants name, such as custom modules. What was stored has been checked before.
    """
    if problems := _type_problems(sweep):  # what follows relies on these types
        raise ConfigError([f"{place}: {problem}" for problem in problems])
    base, problems = _base(sweep, place, overrides)
    found = [*_seed_problems(sweep.seeds, bool(sweep.tune)), *_name_problems(sweep)]
    if trying:
        found += checks.tuning_problems(sweep.tune, sweep.untuned)
    problems += [f"{place}: {line}" for line in found]
    experiments = {}
    of_base = {problem.partition(": ")[2] for problem in problems}
    for variant in sweep.variants:
        config, found = _experiment(base, variant, trying, bool(sweep.tune))
        problems += [f"{place}: variant {variant.name!r}: {line}" for line in found if line not in of_base]
        if config is not None:
            experiments[variant.name] = config
    if problems := problems or configuration.unused_options([path for path, _ in overrides], experiments.values()):
        raise ConfigError(problems)
    seeds = tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else tuple(sweep.seeds)
    config = configuration.from_config_dict(base)
    found = variance.problems(sweep.vary, config, experiments)
    if trying:
        found += [*checks.twins(experiments), *checks.split_problems(sweep.tests, experiments)]
    if found:
        raise ConfigError([f"{place}: {line}" for line in found])
    tune = None if sweep.tune is None else tuple(sweep.tune)
    return Definition(
        sweep, place, scale, seeds, config, experiments, tune=tune, vary=variance.resolved(sweep.vary, config)
    )


def tune_text(factors: Sequence[float] | None) -> str:
    """The factors as --tune takes them, exactly."""
    return ",".join(repr(float(factor)).removesuffix(".0") for factor in factors or ()) or "none"


def parameters(model: ModelConfig) -> int:
    """The number of parameters, with the vocabulary that the config asks for."""
    if all(part is None for part in schema.to_dict(model.parts).values()):
        return sum(size.parameter_counts(model).values())
    leaves = jax.tree.leaves(abstract_params(model))  # no formula knows custom modules
    return sum(math.prod(leaf.shape) for leaf in leaves)


def training_flops(config: ExperimentConfig, updates: int | None = None) -> float:
    """The FLOPs of a run of full batches with sentences of `LENGTH` tokens; a run that ends early needs fewer.

    `updates`: the most that the run makes, if that is known better than by `train.steps`.
    """
    tokens = (updates or config.train.steps) * config.data.tokens_per_batch
    return size.training_flops(config.model, LENGTH, LENGTH).of(tokens, tokens)


def _sweep_of(path: str, scale: str | None) -> tuple[Sweep, str | None]:
    """What get_sweep() of the file returns at that scale, by default the first that the file names."""
    module = extension.load_module(shipped.resolve(path, shipped.experiments(), "experiment file"), "experiment file")
    function, scales = getattr(module, "get_sweep", None), getattr(module, "SCALES", None)
    if not callable(function):
        raise BadInput(f"{path}: has no function get_sweep()")
    arguments = inspect.signature(function).parameters.values()
    if not arguments:
        if scale is not None:
            raise BadInput(f"--scale={scale}: get_sweep() of {path} takes no scale")
    elif scale is None and scales:
        scale = scales[0]
    elif scale is None and all(argument.default is argument.empty for argument in arguments):
        raise BadInput(f"{path}: get_sweep() takes a scale; give --scale=NAME")
    elif scale is not None and scales and scale not in scales:
        raise BadInput(f"--scale={scale}: {path} has no such scale; {schema.nearest(scale, list(scales))}")
    with extension.running(path):
        sweep = function() if scale is None else function(scale)
    if not isinstance(sweep, Sweep):
        raise BadInput(f"{path}: get_sweep() returned {type(sweep).__name__}; it must return a Sweep")
    return sweep, scale


def _type_problems(sweep: Sweep) -> list[str]:
    problems = []
    if not isinstance(sweep.name, str) or not isinstance(sweep.question, str) or not sweep.name.strip():
        problems.append(f"name = {sweep.name!r}: name and question must be strings, the name not empty")
    if not isinstance(sweep.base, (Mapping, ExperimentConfig)) and not hasattr(sweep.base, "to_dict"):
        problems.append(f"base = {type(sweep.base).__name__}: must be a ConfigDict, a dict or an ExperimentConfig")
    problems += [*variance.type_problems(sweep.vary), *checks.tune_types(sweep.tune, sweep.untuned)]
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


def _seed_problems(seeds: Any, is_tuned: bool) -> list[str]:
    listed = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else [seeds]
    if not all(type(seed) is int and 0 <= seed <= MAX_SEED for seed in listed):
        return [f"seeds = {seeds!r}: must be a whole number, or a list of different ones, from 0 to {MAX_SEED}"]
    if not listed or seeds == 0:
        return [f"seeds = {seeds!r}: there must be at least one seed; 3 is usual"]
    if is_tuned and TUNING_SEED in listed:
        return [f"seeds = {seeds!r}: {TUNING_SEED} is the seed of the runs that tune learning rates"]
    return [f"seeds = {listed}: {', '.join(map(str, twice))} is repeated"] if (twice := _repeated(listed)) else []


def _repeated(items: Sequence[Any]) -> list[Any]:
    return [item for item, times in collections.Counter(items).items() if times > 1]


def _name_problems(sweep: Sweep) -> list[str]:
    """Names that are not unique, and names of nothing."""
    names = [variant.name for variant in sweep.variants]
    problems = [f"{names.count(name)} variants are called {name!r}" for name in _repeated(names)]
    folders = {name: variant.slug.lower() for name, variant in zip(names, sweep.variants, strict=True)}
    for folder in _repeated(list(folders.values())):  # some file systems ignore case
        alike = " and ".join(repr(name) for name in folders if folders[name] == folder)
        problems.append(f"variants {alike} would have the same folder; rename one")
    baselines = {f"variant {variant.name!r}: baseline": variant.baseline for variant in sweep.variants}
    for where, name in {"baseline": sweep.baseline, **baselines}.items():
        if name is not None and name not in names:
            problems.append(f"{where} = {name!r}: no such variant; {schema.nearest(str(name), names)}")
    if isinstance(sweep.tests, str) or not sweep.tests or _repeated(sweep.tests):
        problems.append(f"tests = {sweep.tests!r}: must be a list of different splits, such as ['test']")
    for name, address in sweep.analyses.items():
        try:
            if not callable(extension.load_object(address)):
                problems.append(f"analysis {name!r}: {address} is not a function")
        except extension.UserCodeError:
            raise
        except BadInput as problem:
            problems.append(f"analysis {name!r}: {problem}")
    return problems


def _base(sweep: Sweep, place: str, overrides: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """The base's nested values with the command line's changes, and what is wrong with them."""
    if isinstance(sweep.base, ExperimentConfig):
        values = schema.to_dict(sweep.base)
    else:
        values = copy.deepcopy(sweep.base.to_dict() if hasattr(sweep.base, "to_dict") else dict(sweep.base))
    problems = [f"--config.{line}" for line in schema.lay_over(ExperimentConfig, values, overrides)]
    try:
        values = schema.to_dict(configuration.from_config_dict(values))
    except ConfigError as error:
        problems += [f"{place}: {line}" for line in error.problems]
    return values, problems


def _experiment(
    base: Mapping[str, Any], variant: Variant, trying: bool, is_tuned: bool
) -> tuple[ExperimentConfig | None, list[str]]:
    """The config of a variant, and what is wrong with it."""
    known = [option.path for option in schema.options(ExperimentConfig)]
    values, problems = (
        copy.deepcopy(dict(base)),
        checks.published_problems(variant.published, variant.unverified) if trying else [],
    )
    for path, value in variant.changes.items():
        if path in SET_BY_SWEEP:
            problems.append(f"{path}: a variant cannot change it; {SET_BY_SWEEP[path]}")
        elif path not in known:
            problems.append(f"{path}: no such option; {schema.nearest(str(path), known)}")
        else:
            schema.put(values, path, value)
    try:
        config = configuration.from_config_dict(values)
    except ConfigError as error:
        return None, problems + list(error.problems)
    if trying and not problems:
        problems += checks.unused_changes(variant.changes, config)
    for name, part in schema.to_dict(config.model.parts).items():
        if isinstance(part, type):
            problems.append(
                f"model.parts.{name} = {part.__name__}: is a class; the processes that train must find it by name, "
                f"as in '{inspect.getsourcefile(part)}:{part.__name__}'"
            )
    if trying and not problems:
        from transformer_jax.experiment import try_out  # slow to import
        from transformer_jax.update.optimizer import refuse_without_peak

        try:
            try_out(config)
            if is_tuned:
                refuse_without_peak(config.optimizer)
        except extension.UserCodeError:
            raise
        except BadInput as problem:
            problems += str(problem).splitlines()
    return config, problems
