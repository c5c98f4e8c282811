"""An ablation is data: a base config, named variants as differences from it, and seeds.

An experiment file (`experiments/*.py`) has a function `get_sweep(scale) -> Sweep`. `load` reads it and finds everything
that is wrong with any of its variants before anything runs; what it returns is a `Definition`.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax import config as configuration
from transformer_jax import extension, schema, shipped
from transformer_jax.config import MAX_SEED, ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FORMAT = 1
# What a sweep decides for itself, for every run, and a variant therefore cannot.
DECIDED = {
    "seed": "the sweep's seeds say it",
    "data.order_seed": "the sweep's seeds say it, or its base for all",
    "data.directory": "the sweep's runs share their prepared data",
}
# Whether each seed of a variant sees the training pairs in another order. What is held out is the same for all.
BY_SEED, SAME_FOR_ALL = "by seed", "same for all seeds"


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the ablation: what differs from the base."""

    name: str  # unique: "A h=4"
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # option -> value: {"model.num_heads": 4}
    group: str = ""  # the heading it stands under in tables
    note: str = ""  # a remark the report shows beside it
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)  # the literature's: "perplexity", "bleu"
    baseline: str | None = None  # the variant it is compared with; none = the sweep's baseline

    @property
    def slug(self) -> str:
        """The name as the name of a folder."""
        return re.sub(r"[^A-Za-z0-9._=+-]+", "-", self.name).strip("-.")


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A question, and the runs that are to answer it."""

    name: str
    question: str  # one or two sentences; heads the report
    base: ConfigDict | Mapping[str, Any] | ExperimentConfig
    variants: Sequence[Variant]
    seeds: int | Sequence[int] = 3  # n = 0 .. n-1
    tests: Sequence[str] = ("test",)  # the splits every run is measured on, the main one first
    baseline: str = "base"
    notes: Sequence[str] = ()  # limits the report must state
    analyses: Mapping[str, str] = dataclasses.field(default_factory=dict)  # name -> "path/to/file.py:function"


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
    """A sweep that was found to be in order, and how it is to be run."""

    sweep: Sweep
    file: str
    scale: str | None
    seeds: tuple[int, ...]
    base: ExperimentConfig
    experiments: Mapping[str, ExperimentConfig]  # of each variant, with the base's seed
    tune: tuple[float, ...] | None = None  # factors of the learning rate that are tried on validation data
    together: bool = False  # whether runs of one shape train in one program
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a digest for each address of custom code
    accept_changed_code: bool = False  # whether runs made by other code count as runs of this sweep
    data_order: str = BY_SEED

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.sweep.variants if variant.name == name)

    def chosen(self, only: str | None) -> list[str]:
        """The names of the variants that fit a pattern; none = of all."""
        names = [variant.name for variant in self.sweep.variants]
        found = [name for name in names if only is None or fnmatch.fnmatchcase(name, only)]
        if not found:
            raise BadInput(f"--only={only}: fits no variant; {schema.nearest(str(only), names)}")
        return found

    def experiment(self, variant: str, seed: int, factor: float = 1.0) -> ExperimentConfig:
        """The config of one run; `factor` is of the peak learning rate."""
        config = dataclasses.replace(self.experiments[variant], seed=seed)
        if self.data_order == BY_SEED:
            config = dataclasses.replace(config, data=dataclasses.replace(config.data, order_seed=seed))
        if factor == 1.0:
            return config
        rate = factor * peak_learning_rate(config)
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=rate))

    def to_json(self) -> dict[str, Any]:
        """What sweep.json holds: all that is needed to run the sweep, or go on with it, without its file."""
        from transformer_jax.sweeps.cost import parameters, training_flops

        sweep = self.sweep
        return {
            "format": FORMAT,
            "name": sweep.name,
            "question": sweep.question,
            "scale": self.scale,
            "file": self.file,
            "directory": os.getcwd(),  # where relative paths begin
            "baseline": sweep.baseline,
            "base": schema.to_dict(self.base),
            "seeds": list(self.seeds),
            "tests": list(sweep.tests),
            "notes": list(sweep.notes),
            "analyses": dict(sweep.analyses),
            "tune": None if self.tune is None else list(self.tune),
            "together": self.together,
            "code": dict(self.code),
            "accept_changed_code": self.accept_changed_code,
            "data_order": self.data_order,
            "variants": [
                {
                    **dataclasses.asdict(variant),
                    "slug": variant.slug,
                    "parameters": parameters(self.experiments[variant.name].model),
                    "training_flops": training_flops(self.experiments[variant.name]),
                }
                for variant in sweep.variants
            ],
        }


def from_json(record: Mapping[str, Any], place: str) -> Definition:
    """The definition that sweep.json holds; `place` names it in complaints."""
    variant_fields = {field.name for field in dataclasses.fields(Variant)}
    variants = [Variant(**{name: stored[name] for name in variant_fields}) for stored in record["variants"]]
    sweep_fields = {field.name for field in dataclasses.fields(Sweep)} - {"variants"}
    sweep = Sweep(variants=variants, **{name: record[name] for name in sweep_fields})
    tune = record["tune"]
    data_order = record.get("data_order", SAME_FOR_ALL)  # what sweeps had before there was a choice
    if data_order not in (BY_SEED, SAME_FOR_ALL):
        raise BadInput(f"{place}: data_order = {data_order!r}: must be {BY_SEED!r} or {SAME_FOR_ALL!r}")
    return dataclasses.replace(
        define(sweep, place, record["scale"], trying=False),
        file=record["file"],
        tune=None if tune is None else tuple(tune),
        together=record["together"],
        # Sweeps of earlier versions have neither.
        code=record.get("code", {}),
        accept_changed_code=record.get("accept_changed_code", False),
        data_order=data_order,
    )


def load(
    path: str,
    scale: str | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    seeds: int | Sequence[int] | None = None,
) -> Definition:
    """The sweep of an experiment file. `overrides` are (option, text) pairs that are laid over its base; `seeds` take
    the place of its own."""
    sweep, scale = _sweep_of(path, scale)
    if seeds is not None:
        sweep = dataclasses.replace(sweep, seeds=seeds)
    return define(sweep, path, scale, overrides)


def define(
    sweep: Sweep,
    place: str,
    scale: str | None,
    overrides: Sequence[tuple[str, str]] = (),
    trying: bool = True,
) -> Definition:
    """The definition, or a `ConfigError` with everything that is wrong in any variant.

    `trying` also builds what the variants name, their models' own parts for one: what was once found to be in order
    need not be built again.
    """
    problems = _shape_problems(sweep)
    if problems:  # of a kind that would have what follows fail
        raise ConfigError([f"{place}: {problem}" for problem in problems])
    base, problems = _base(sweep, place, overrides)
    problems += [f"{place}: {problem}" for problem in _seed_problems(sweep.seeds) + _name_problems(sweep)]
    experiments = {}
    general = {problem.partition(": ")[2] for problem in problems}
    for variant in sweep.variants:
        config, found = _experiment(base, variant, trying)
        problems += [f"{place}: variant {variant.name!r}: {line}" for line in found if line not in general]
        if config is not None:
            experiments[variant.name] = config
    problems = problems or configuration.unused_options([path for path, _ in overrides], experiments.values())
    if problems:
        raise ConfigError(problems)
    seeds = tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else tuple(sweep.seeds)
    config = configuration.from_config_dict(base)
    data_order = BY_SEED if config.data.order_seed is None else SAME_FOR_ALL
    return Definition(sweep, place, scale, seeds, config, experiments, data_order=data_order)


def peak_learning_rate(config: ExperimentConfig) -> float:
    """As given, or equation 3's at the end of the warmup."""
    rate = config.optimizer.learning_rate
    return rate if rate is not None else (config.model.d_model * max(config.optimizer.warmup_steps, 1)) ** -0.5


def seeds_of(text: str) -> int | list[int]:
    """Seeds as they are typed: 3 means 0, 1 and 2; a list stands for itself, and so does a single seed with a comma."""
    try:
        return [int(item) for item in text.split(",") if item] if "," in text else int(text)
    except ValueError:
        raise BadInput(f"--seeds={text}: must be how many (3) or which (0,1,5)") from None


def _sweep_of(path: str, scale: str | None) -> tuple[Sweep, str | None]:
    """What get_sweep() of the file returns at that scale; where none is asked for, the first the file names."""
    module = extension.load_module(_file(path), "experiment file")
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
        raise BadInput(f"{path}: get_sweep() returned {type(sweep).__name__}; a Sweep would be right")
    return sweep, scale


def _file(path: str) -> str:
    """The file that is meant: a path, or the name of one that comes with the package."""
    known = shipped.experiments()
    if not path.startswith(shipped.PRESET):
        if Path(path).stem in known and not Path(path).exists():
            raise BadInput(f"{path}: no such experiment file; {shipped.PRESET}{Path(path).stem} is there by name")
        return path
    if (name := path.removeprefix(shipped.PRESET)) not in known:
        raise BadInput(f"{path}: there is no such preset; there are: {', '.join(known)}")
    return str(known[name])


def _shape_problems(sweep: Sweep) -> list[str]:
    """What is not of the type it must be."""
    problems = []
    if not isinstance(sweep.name, str) or not isinstance(sweep.question, str) or not sweep.name.strip():
        problems.append(f"name = {sweep.name!r}: name and question must be texts, the name not empty")
    if not isinstance(sweep.base, (Mapping, ExperimentConfig)) and not hasattr(sweep.base, "to_dict"):
        problems.append(f"base = {type(sweep.base).__name__}: must be a ConfigDict, a dict or an ExperimentConfig")
    if isinstance(sweep.variants, (str, Mapping)) or not isinstance(sweep.variants, Sequence) or not sweep.variants:
        problems.append("variants: must be a list of at least one Variant")
        return problems
    for number, variant in enumerate(sweep.variants, start=1):
        if not isinstance(variant, Variant):
            problems.append(f"variants: number {number} is {variant!r}; a Variant would be right")
        elif not isinstance(variant.name, str) or not variant.slug:
            problems.append(
                f"variants: number {number} has the name {variant.name!r}; a text with letters would be right"
            )
        elif not isinstance(variant.changes, Mapping):
            problems.append(f"variant {variant.name!r}: changes = {variant.changes!r}: must be a dict of options")
    return problems


def _seed_problems(seeds: Any) -> list[str]:
    is_number = isinstance(seeds, int) and not isinstance(seeds, bool)
    listed = [seeds] if is_number or isinstance(seeds, (str, bool)) or not isinstance(seeds, Sequence) else list(seeds)
    if not all(isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed <= MAX_SEED for seed in listed):
        return [f"seeds = {seeds!r}: must be a whole number, or a list of different ones, from 0 to {MAX_SEED}"]
    if (is_number and seeds == 0) or not listed:
        return [f"seeds = {seeds!r}: without a seed there is no run; 3 would be right"]
    twice = [str(seed) for seed, times in collections.Counter(listed).items() if times > 1]
    return [f"seeds = {list(listed)}: {', '.join(twice)} stands there twice"] if twice else []


def _name_problems(sweep: Sweep) -> list[str]:
    """Names that are not unique, or not those of anything."""
    problems = []
    names = [variant.name for variant in sweep.variants]
    problems += [
        f"{times} variants are called {name!r}" for name, times in collections.Counter(names).items() if times > 1
    ]
    folders = collections.defaultdict(list)
    for variant in {variant.name: variant for variant in sweep.variants}.values():
        folders[variant.slug.lower()].append(variant.name)  # some file systems do not tell A from a
    problems += [
        f"variants {' and '.join(map(repr, alike))} would have the same folder; rename one"
        for alike in folders.values()
        if len(alike) > 1
    ]
    baselines = {f"variant {variant.name!r}: baseline": variant.baseline for variant in sweep.variants}
    for where, name in {"baseline": sweep.baseline, **baselines}.items():
        if name is not None and name not in names:
            problems.append(f"{where} = {name!r}: no such variant; {schema.nearest(str(name), names)}")
    if isinstance(sweep.tests, str) or not sweep.tests or len(set(sweep.tests)) < len(sweep.tests):
        problems.append(f"tests = {sweep.tests!r}: must be a list of different splits, such as ['test']")
    for name, address in sweep.analyses.items():
        try:
            if not callable(extension.load_object(address)):
                problems.append(f"analysis {name!r}: {address} is no function")
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
        schema_base = configuration.from_config_dict(values)
    except ConfigError as error:
        return values, problems + [f"{place}: {line}" for line in error.problems]
    return schema.to_dict(schema_base), problems


def _experiment(base: Mapping[str, Any], variant: Variant, trying: bool) -> tuple[ExperimentConfig | None, list[str]]:
    known = [option.path for option in schema.options(ExperimentConfig)]
    values, problems = copy.deepcopy(dict(base)), []
    for path, value in variant.changes.items():
        if path in DECIDED:
            problems.append(f"{path}: is no variant's to change; {DECIDED[path]}")
        elif path not in known:
            problems.append(f"{path}: no such option; {schema.nearest(str(path), known)}")
        else:
            schema.put(values, path, value)
    try:
        config = configuration.from_config_dict(values)
    except ConfigError as error:
        return None, problems + list(error.problems)
    for name, part in schema.to_dict(config.model.parts).items():
        if isinstance(part, type):
            problems.append(
                f"model.parts.{name} = {part.__name__}: is a class; the processes that train must find it by name, "
                f"as in '{inspect.getsourcefile(part)}:{part.__name__}'"
            )
    if trying and not problems:
        from transformer_jax.experiment import try_out

        try:
            try_out(config)
        except extension.UserCodeError:
            raise
        except BadInput as problem:
            problems += str(problem).splitlines()
    return config, problems


def factors_of(text: str) -> tuple[float, ...]:
    """Factors of the learning rate as they are typed: 0.5,1,2."""
    try:
        factors = tuple(float(item) for item in text.split(",") if item)
    except ValueError:
        factors = ()
    if (
        not factors
        or not all(math.isfinite(factor) and factor > 0 for factor in factors)
        or len(set(factors)) < len(factors)
    ):
        raise BadInput(f"--tune={text}: must be different factors of the learning rate, as in --tune=0.5,1,2")
    return factors
