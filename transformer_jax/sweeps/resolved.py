"""From an experiment file to the configs of all runs.

The file (`experiments/*.py`) has a function `get_sweep(scale) -> Sweep`. `load` reads it in three steps: `parse` calls
that function, `validate` reports everything that is wrong with any variant before anything runs, and `resolve` makes
the config of every variant. `ResolvedSweep.experiment` makes the config of one run from it; launch.py does the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax import extension, schema, shipped
from transformer_jax.config import ExperimentConfig, addresses, from_config_dict, training_addresses
from transformer_jax.errors import BadInput, Failed, did_you_mean
from transformer_jax.model import size
from transformer_jax.model_config import ModelConfig
from transformer_jax.sweeps.checks import validate
from transformer_jax.sweeps.definition import (
    FORMAT,
    SOURCES,
    Proposal,
    Setting,
    Sweep,
    Variant,
    base_values,
    changed_config,
    fields,
    is_chosen,
    margins,
    repeated,
)
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.search import drawn

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
    vary: tuple[str, ...] = ("initialization", "order")
    overrides: tuple[tuple[str, str], ...] = ()  # of the base, from the command line
    only: tuple[str, ...] | None = None  # patterns of the variants that were run; None is all
    began_together: bool = False  # started with --together, so that all seeds have one data order
    code: Mapping[str, str] = dataclasses.field(default_factory=dict)  # a digest for each reference to custom code
    accept_changed_code: bool = False  # whether runs of another version of that code count as runs of this sweep

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.sweep.variants if variant.name == name)

    def tuned_as(self, name: str) -> str:
        """The variant at whose setting a variant trains: of a control the one that it repeats."""
        return self.variant(name).same_as or name

    def chosen(self, only: Sequence[str] | None) -> list[str]:
        """The names of the variants that match any of the patterns; None matches all."""
        names = [variant.name for variant in self.sweep.variants]
        if only is None:
            return names
        for pattern in only:
            if not any(is_chosen(name, [pattern]) for name in names):
                raise BadInput(f"--only={pattern}: matches no variant; {did_you_mean(pattern, names)}")
        return [name for name in names if is_chosen(name, only)]

    @property
    def settings(self) -> int:
        """How many settings are tried for each variant before it is compared."""
        return self.sweep.trials or 0 if self.sweep.search else len(self.tune or ())

    def settings_of(self, variant: str, proposed: Sequence[Proposal], planned: bool = False) -> list[Setting]:
        """The settings that are tried for a variant; `proposed` are those of `propose` so far.

        With `planned`, random ones stand for those that are not proposed yet.
        """
        if not self.sweep.search:
            return [Setting("rate", factor) for factor in self.tune or ()]
        known = [{}, *(proposal["values"] for proposal in proposed)][: self.settings]
        settings = [Setting("setting", number, values) for number, values in enumerate(known)]
        if planned or self.sweep.propose is None:
            settings += [drawn(self.sweep, variant, number) for number in range(len(known), self.settings)]
        return settings

    def experiment(self, variant: str, seed: int, setting: Setting | None = None) -> ExperimentConfig:
        """The config of one run: what varies is set by the seed; without a setting it has the variant's own."""
        config = self.experiments[variant] if setting is None else setting.changed(self.experiments[variant])
        data = config.data
        if self.variant(variant).same_as is not None:  # a control, whose random numbers are no other run's
            seed = zlib.crc32(f"{variant}, seed {seed}".encode())
        if "order" in self.vary:
            data = dataclasses.replace(data, order_seed=seed)
        seed = seed if "initialization" in self.vary else config.seed
        return dataclasses.replace(config, seed=seed, data=data)

    def code_of(self, run: SweepRun | None = None) -> dict[str, str]:
        """A digest for each reference to custom code in the sweep or in one of its runs, analyses included."""
        configs = self.experiments.values() if run is None else [run.experiment]
        references = {code for config in configs for _, code in addresses(config)}
        references |= {self.sweep.analyses[name] for name in (self.sweep.analyses if run is None else run.analyses)}
        references |= {self.sweep.propose} if run is None and self.sweep.propose else set()
        return {code: extension.read_code(code).digest for code in sorted(references)}

    def measured_by(self, variant: str) -> dict[str, str]:
        """The digests of the code that only measures the runs of a variant; none if any version of it counts."""
        config = self.experiments[variant]
        trained_by = {code for _, code in training_addresses(config)}
        measuring = [code for _, code in addresses(config) if code not in trained_by] + [*self.sweep.analyses.values()]
        return {} if self.accept_changed_code else {code: self.code[code] for code in measuring if code in self.code}

    def refuse_edited(self, run: SweepRun | None = None) -> None:
        """Raises if code, of a run or of the whole sweep, was edited since the sweep was launched."""
        for code, digest in self.code_of(run).items():
            if digest != self.code.get(code, digest):
                raise Failed(f"{extension.file_of(code)} was edited after the sweep was launched; launch it again")

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
        resolved = {"base": dataclasses.asdict(self.base), "variants": variants, "command": self.command()}
        return {"format": FORMAT, "directory": os.getcwd(), **settings, **resolved}  # paths start there


def from_json(record: Mapping[str, Any]) -> ResolvedSweep:
    """The sweep in a sweep.json, which was validated when it was written."""
    variants = [Variant(**fields(Variant, stored)) for stored in record["variants"]]
    sweep = Sweep(**{**fields(Sweep, record), "variants": variants})
    settings = {name: value for name, value in fields(ResolvedSweep, record).items() if not hasattr(sweep, name)}
    return dataclasses.replace(resolve(sweep, record["file"], record["scale"]), **settings)


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
    if tune is not None:
        sweep = dataclasses.replace(sweep, tune=tune)
    validate(sweep, path, overrides, [name for name, value in (("seeds", seeds), ("tune", tune)) if value is not None])
    return resolve(sweep, path, scale, overrides)


def parse(path: str, scale: str | None = None) -> tuple[Sweep, str | None]:
    """The result of the file's get_sweep(), and the scale it was called with: by default the first of its SCALES."""
    module = extension.load_module(shipped.resolve(path, shipped.experiments(), "experiment file"), "experiment file")
    with extension.running(path):
        function: Any = getattr(module, "get_sweep", lambda: None)
        scales = list(getattr(module, "SCALES", ()))
        parameters = inspect.signature(function).parameters.values()
        takes_scale = bool(parameters)
        scale = scale or (scales[0] if scales and takes_scale else None)
        if scale is not None and (not takes_scale or (scales and scale not in scales)):
            hint = did_you_mean(scale, scales) if takes_scale else "get_sweep() takes no scale"
            raise BadInput(f"--scale={scale}: {path} has no such scale; {hint}")
        if scale is None and any(parameter.default is parameter.empty for parameter in parameters):
            raise BadInput(f"{path}: its get_sweep() needs a scale: give --scale=NAME")
        sweep = function() if scale is None else function(scale)
    if not isinstance(sweep, Sweep):
        raise BadInput(f"{path}: must have a function get_sweep() that returns a Sweep")
    return sweep, scale


def resolve(
    sweep: Sweep, file: str, scale: str | None = None, overrides: Sequence[tuple[str, str]] = ()
) -> ResolvedSweep:
    """The configs of a valid sweep, and its defaults that depend on others."""
    names = [variant.name for variant in sweep.variants]
    sweep = dataclasses.replace(
        sweep,
        baseline=sweep.baseline or ("base" if "base" in names else names[0]),
        variants=[
            dataclasses.replace(v, baseline=v.baseline or v.same_as, changes=_converted(v.changes))
            for v in sweep.variants
        ],
        margin={str(metric): margin for metric, margin in margins(sweep).items()},
    )
    base = from_config_dict(base_values(sweep, overrides)[0])
    experiments = {v.name: changed_config(base, repeated(sweep, v).changes) for v in sweep.variants}
    varied = sweep.vary or (["initialization", "order"] if base.data.order_seed is None else ["initialization"])
    return ResolvedSweep(
        sweep,
        file,
        scale,
        seeds=tuple(range(sweep.seeds)) if isinstance(sweep.seeds, int) else tuple(sweep.seeds),
        base=base,
        experiments=experiments,
        tune=None if sweep.tune is None else tuple(sweep.tune),
        vary=tuple(source for source in SOURCES if source in varied),
        overrides=tuple(overrides),
    )


def _converted(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes with values that sweep.json can have: paths as texts, numbers of numpy as Python's."""
    options = {path: schema.find_option(ExperimentConfig, path) for path in changes}
    return {
        path: option.converted(changes[path]) if option.path == path else changes[path]
        for path, option in options.items()
    }


def tune_text(factors: Sequence[float] | None) -> str:
    """The factors as --tune takes them, exactly."""
    return ",".join(repr(float(factor)).removesuffix(".0") for factor in factors or ()) or "none"


@functools.cache  # the model is traced to count them
def parameters(model: ModelConfig) -> int:
    """The number of parameters, with the vocabulary that the config asks for."""
    return sum(size.parameter_counts(model).values())


def training_flops(config: ExperimentConfig, updates: int | None = None) -> float:
    """The FLOPs of a run of full batches with sentences of `LENGTH` tokens; a run that ends early needs fewer.

    `updates`: the most that the run makes, if that is known better than by `train.steps`.
    """
    tokens = (config.train.steps if updates is None else updates) * config.data.tokens_per_batch
    return size.training_flops(config.model, LENGTH, LENGTH).of(tokens, tokens)
