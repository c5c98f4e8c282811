"""The definition of an ablation: a base config, named variants as differences from it, and seeds.

An experiment file (`experiments/*.py`) has a function `get_sweep(scale) -> Sweep`. `load` reads it in three steps:
`parse` calls that function, `validate` reports everything that is wrong with any variant before anything runs, and
`resolve` makes the config of every variant.
"""

from __future__ import annotations

import copy
import dataclasses
import fnmatch
import inspect
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from transformer_jax import config as configuration
from transformer_jax import extension, schema, shipped
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.model import size
from transformer_jax.model.transformer import abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.sweeps import checks, variance
from transformer_jax.sweeps.definition import Sweep, Variant
from transformer_jax.update.optimizer import peak_rate

FORMAT = 1
# The seed of the runs that tune learning rates: no other run has it, so the rates are not chosen for the luck of one.
TUNING_SEED = 1_000_000
# Tokens of the sentences that FLOPs are estimated for before the data exists.
LENGTH = 32


@dataclasses.dataclass(frozen=True)
class ResolvedSweep:
    """A validated sweep with the config of every variant, and how it is run."""

    sweep: Sweep
    file: str
    scale: str | None
    seeds: tuple[int, ...]
    base: ExperimentConfig
    experiments: Mapping[str, ExperimentConfig]  # of each variant, with the base's seed
    tune: tuple[float, ...] | None = None  # factors of the learning rate that are tried on validation data
    vary: tuple[str, ...] = (variance.INITIALIZATION, variance.ORDER)
    overrides: tuple[tuple[str, str], ...] = ()  # of the base, from the command line
    only: tuple[str, ...] | None = None  # patterns of the variants that were run; None is all
    began_together: bool = False  # started with --together, so that all seeds have one data order
    together: bool = False  # whether runs of one shape train in one program
    cores: int | None = None  # CPU cores of each run, which its last digits depend on; None is unknown
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a digest for each reference to custom code
    accept_changed_code: bool = False  # whether runs of another version of that code count as runs of this sweep

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.sweep.variants if variant.name == name)

    def baselines(self) -> set[str]:
        """The names of the variants that others are compared with."""
        return {variant.baseline or self.sweep.baseline for variant in self.sweep.variants}

    def chosen(self, only: Sequence[str] | None) -> list[str]:
        """The names of the variants that match any of the patterns; None matches all."""
        names = [variant.name for variant in self.sweep.variants]
        if only is None:
            return names
        for pattern in only:
            if not fnmatch.filter(names, pattern):
                raise BadInput(f"--only={pattern}: matches no variant; {schema.nearest(pattern, names)}")
        return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in only)]

    def experiment(self, variant: str, seed: int, factor: float = 1.0) -> ExperimentConfig:
        """The config of one run; `factor` multiplies the peak learning rate."""
        config = variance.seeded(self.experiments[variant], self.vary, seed)
        if factor == 1.0:
            return config
        rate = factor * peak_rate(config.optimizer, config.model.base_d_model)
        return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, learning_rate=rate))

    def command(self) -> list[str]:
        """The arguments of `transformer-jax` that define this sweep again in an empty folder, without --workdir."""
        words = ["sweep", self.file, *([f"--scale={self.scale}"] if self.scale else [])]
        words.append(f"--seeds={','.join(map(str, self.seeds))}" + "," * (len(self.seeds) == 1))
        words += [f"--tune={tune_text(self.tune)}"] if self.tune is not None else []
        words += [f"--only={pattern}" for pattern in self.only or ()]
        words += ["--together"] if self.began_together else []
        return words + [f"--config.{path}={text}" for path, text in self.overrides]

    def to_json(self) -> dict[str, Any]:
        """The content of sweep.json: all that is needed to run or resume the sweep without its file."""
        settings = {**vars(self.sweep), **vars(self)}
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
        resolved = {"base": schema.to_dict(self.base), "variants": variants, "command": self.command()}
        return {"format": FORMAT, "directory": os.getcwd(), **settings, **resolved}  # paths start there


def from_json(record: Mapping[str, Any], place: str) -> ResolvedSweep:
    """The sweep in a sweep.json, which was validated when it was written; `place` names the file in errors."""
    variant_fields = {field.name for field in dataclasses.fields(Variant)}
    variants = [
        Variant(**{name: stored[name] for name in variant_fields & stored.keys()}) for stored in record["variants"]
    ]
    sweep_fields = {field.name for field in dataclasses.fields(Sweep)} - {"variants"}
    sweep = Sweep(variants=variants, **{name: record[name] for name in sweep_fields})
    # Sweeps of 1.0.0 lack some of these.
    settings = {name: record[name] for name in ("code", "accept_changed_code", "together", "began_together", "cores")
                if name in record}  # fmt: skip
    overrides = tuple((path, text) for path, text in record.get("overrides", ()))
    only = record.get("only")
    try:
        resolved = resolve(sweep, record["file"], record["scale"])
    except ConfigError as error:
        raise ConfigError([f"{place}: {problem}" for problem in error.problems]) from None
    return dataclasses.replace(resolved, overrides=overrides, only=None if only is None else tuple(only), **settings)


def load(
    path: str,
    scale: str | None = None,
    overrides: Sequence[tuple[str, str]] = (),
    seeds: int | Sequence[int] | None = None,
    tune: Sequence[float] | None = None,
) -> ResolvedSweep:
    """The sweep of an experiment file. `overrides` are (option, text) pairs that change its base; `seeds` and `tune`
    replace its own."""
    sweep, scale = parse(path, scale)
    if seeds is not None:
        sweep = dataclasses.replace(sweep, seeds=seeds)
    if tune is not None:  # --tune=none leaves nothing that could be untuned
        sweep = dataclasses.replace(sweep, tune=tune, untuned=sweep.untuned and bool(tune))
    validate(sweep, path, overrides)
    return resolve(sweep, path, scale, overrides)


def parse(path: str, scale: str | None = None) -> tuple[Sweep, str | None]:
    """What get_sweep() of the file returns at that scale, by default the first that the file names."""
    try:
        module = extension.load_module(
            shipped.resolve(path, shipped.experiments(), "experiment file"), "experiment file"
        )
        scale = _scale(module, path, scale)
        with extension.running(path):
            sweep = module.get_sweep() if scale is None else module.get_sweep(scale)
    except extension.UserCodeError as error:
        if problem := checks.unknown_field(error.__cause__, (Sweep, Variant)):
            raise BadInput(f"{path}: {problem}") from None
        raise
    if not isinstance(sweep, Sweep):
        raise BadInput(f"{path}: get_sweep() returned {type(sweep).__name__}; it must return a Sweep")
    return sweep, scale


def _scale(module: Any, path: str, scale: str | None) -> str | None:
    """The argument of the file's get_sweep(); None if it takes none."""
    function, scales = getattr(module, "get_sweep", None), getattr(module, "SCALES", None)
    if not callable(function):
        raise BadInput(f"{path}: has no function get_sweep()")
    arguments = inspect.signature(function).parameters.values()
    if not arguments and scale is not None:
        raise BadInput(f"--scale={scale}: get_sweep() of {path} takes no scale")
    if not arguments or (scale is None and not scales and all(a.default is not a.empty for a in arguments)):
        return None
    if scale is None and not scales:
        raise BadInput(f"{path}: get_sweep() takes a scale; give --scale=NAME")
    if scale is not None and scales and scale not in scales:
        raise BadInput(f"--scale={scale}: {path} has no such scale; {schema.nearest(scale, list(scales))}")
    return scale if scale is not None or not scales else scales[0]


def validate(sweep: Sweep, file: str, overrides: Sequence[tuple[str, str]] = ()) -> None:
    """Raises a `ConfigError` with everything that is wrong in any variant."""
    if problems := checks.type_problems(sweep):  # what follows relies on these types
        raise ConfigError([f"{file}: {problem}" for problem in problems])
    base, mistyped = _base_values(sweep, overrides)
    of_base = _config_or_problems(base)[1]
    problems = [*of_base, *checks.sweep_problems(sweep, TUNING_SEED)]
    experiments = {}
    for variant in sweep.variants:
        config, found = _checked_variant(base, variant, bool(sweep.tune))
        problems += [f"variant {variant.name!r}: {line}" for line in found if line not in of_base]
        if config is not None:
            experiments[variant.name] = config
    if problems := mistyped + [f"{file}: {problem}" for problem in problems]:
        raise ConfigError(problems)
    if problems := configuration.unused_options([path for path, _ in overrides], experiments.values()):
        raise ConfigError(problems)
    problems = [
        *variance.problems(sweep.vary, configuration.from_config_dict(base), experiments),
        *checks.twins(experiments),
        *checks.split_problems(sweep.tests, experiments),
    ]
    if problems:
        raise ConfigError([f"{file}: {problem}" for problem in problems])


def resolve(
    sweep: Sweep, file: str, scale: str | None = None, overrides: Sequence[tuple[str, str]] = ()
) -> ResolvedSweep:
    """The configs of a valid sweep."""
    values, _ = _base_values(sweep, overrides)
    base = configuration.from_config_dict(values)
    values = schema.to_dict(base)
    return ResolvedSweep(
        sweep,
        file,
        scale,
        seeds=tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else tuple(sweep.seeds),
        base=base,
        experiments={
            variant.name: configuration.from_config_dict(_changed(values, variant.changes))
            for variant in sweep.variants
        },
        tune=None if sweep.tune is None else tuple(sweep.tune),
        vary=variance.resolved(sweep.vary, base),
        overrides=tuple(overrides),
    )


def _base_values(sweep: Sweep, overrides: Sequence[tuple[str, str]]) -> tuple[dict[str, Any], list[str]]:
    """The base's nested values with the command line's changes, and what is wrong with these."""
    if isinstance(sweep.base, ExperimentConfig):
        values = schema.to_dict(sweep.base)
    else:
        values = copy.deepcopy(sweep.base.to_dict() if hasattr(sweep.base, "to_dict") else dict(sweep.base))
    mistyped = [f"--config.{line}" for line in schema.lay_over(ExperimentConfig, values, overrides)]
    return values, mistyped


def _changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with some options changed."""
    changed = copy.deepcopy(dict(values))
    for path, value in changes.items():
        schema.put(changed, path, value)
    return changed


def _config_or_problems(values: Mapping[str, Any]) -> tuple[ExperimentConfig | None, list[str]]:
    try:
        return configuration.from_config_dict(values), []
    except ConfigError as error:
        return None, list(error.problems)


def _checked_variant(
    base: Mapping[str, Any], variant: Variant, is_tuned: bool
) -> tuple[ExperimentConfig | None, list[str]]:
    """The config of a variant, and what is wrong with it."""
    unknown = checks.change_problems(variant.changes)
    known = {path: value for path, value in variant.changes.items() if path not in unknown}
    config, found = _config_or_problems(_changed(base, known))
    problems = [*checks.published_problems(variant.published, variant.unverified), *unknown.values(), *found]
    if config is None:
        return None, problems
    problems = problems or checks.unused_changes(variant.changes, config)
    problems += checks.classes(config)
    return config, problems or checks.building_problems(config, is_tuned)


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
