"""Settings: values of options that are tried for each variant on validation data, before the variants are compared.

With `Sweep(tune=...)` a setting is the variant's learning rate times a factor. With `Sweep(search=...)` it has a value
for each option of the search: setting 0 is the variant's own, and the others are drawn from ranges, or returned one by
one by a custom function, which gets the losses of the earlier ones.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.extension import CustomFunction, load_function, read_code
from transformer_jax.sweeps.definition import Proposal, Setting, Sweep, Tuning, changed_config
from transformer_jax.sweeps.run import SweepRun

# The seeds of the runs that try settings. No other run has them, so that no setting is chosen for the luck of one.
TUNING_SEEDS = (1_000_000, 1_000_001)


def chosen(tuning: Tuning | None) -> Setting:
    """The setting that tuned.json has for a variant; its own if it has none."""
    if tuning is not None and "setting" in tuning:
        return Setting("setting", tuning["setting"], tuning["settings"][str(tuning["setting"])])
    return Setting("rate", 1.0 if tuning is None else tuning["factor"])


def drawn(sweep: Sweep, variant: str, number: int) -> Setting:
    """A setting with random values: a function of the sweep's name, the variant's and the number."""
    values = {}
    for path, (kind, *ends) in sweep.search.items() if number else ():
        share = random.Random(f"{sweep.name}\n{variant}\n{number}\n{path}").random()
        values[path] = ends[int(share * len(ends))] if kind == "choice" else _number(path, kind, ends, share)
    return Setting("setting", number, values)


def _number(path: str, kind: str, ends: Sequence[float], share: float) -> float:
    low, high = ends
    kinds = schema.find_option(ExperimentConfig, path).kinds
    is_whole = int in kinds and float not in kinds
    if kind == "uniform" and is_whole:
        return low + int(share * (high - low + 1))
    value = low + share * (high - low) if kind == "uniform" else low * (high / low) ** share
    return round(value) if is_whole else float(f"{value:.6g}")  # six digits are the same on every machine


def load_propose(address: str) -> CustomFunction:
    return load_function("propose", address, ("tried",), ("search", "variant"))


def proposed(sweep: Sweep, variant: str, config: ExperimentConfig, runs: Sequence[SweepRun]) -> Proposal:
    """The next setting of a variant, whose runs so far are over, from the custom function."""
    tried = [(dict(each.setting.values), each.mean) for each in _tried(runs)]
    function = load_propose(str(sweep.propose))
    values = function(tried, search=dict(sweep.search), variant=variant)
    place = f"returned {values!r} for variant {variant!r}"
    if not isinstance(values, Mapping) or values.keys() != sweep.search.keys():
        raise function.refusal(f"{place}; must return a dict with a value for each of {', '.join(sweep.search)}")
    found = {}
    for path, value in values.items():
        try:
            found[path] = schema.find_option(ExperimentConfig, path).converted(value)
        except BadInput as error:
            raise function.refusal(f"{place}: {path} = {error}") from None
    try:
        changed_config(config, found)
    except BadInput as error:
        raise function.refusal(f"{place}: {error}") from None
    return {"values": found, "code": read_code(function.address).digest}


class Tried(NamedTuple):
    """A setting with the validation losses of all seeds, infinite of those that diverged."""

    setting: Setting
    losses: list[float]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.losses) if all(map(math.isfinite, self.losses)) else None


def _tried(runs: Sequence[SweepRun]) -> list[Tried]:
    found: dict[str, Tried] = {}
    for run, setting in ((run, run.setting) for run in runs if run.setting is not None):
        found.setdefault(setting.name, Tried(setting, [])).losses.append(loss_of(run, setting))
    return [*found.values()]


def loss_of(run: SweepRun, setting: Setting) -> float:
    """The validation loss of a run that is over; infinite if it diverged.

    Settings of a search are compared by the logarithm of perplexity, which label smoothing does not change.
    """
    valid = (run.result() or {"valid": {}})["valid"]
    found = valid.get("loss" if setting.kind == "rate" else "perplexity")
    if found is None:
        return math.inf
    return found if setting.kind == "rate" else math.log(found)


def best(runs: Sequence[SweepRun]) -> dict[str, Any] | None:
    """The content of tuned.json for the variant of these runs, which are over; None if no setting has a loss.

    The choice is the setting nearest to the variant's own of those whose loss is within one standard error of the
    lowest. The error is the difference's, seed by seed: with two seeds, a setting is as good as the best unless it is
    worse in both.
    """
    tried = _tried(runs)
    means = {each.setting.name: each.mean for each in tried}
    whole = [(each.mean, each) for each in tried if each.mean is not None]
    if not whole:
        return None
    _, lowest = min(whole, key=lambda pair: pair[0])

    def is_as_good(each: Tried) -> bool:
        worse = [here - best for here, best in zip(each.losses, lowest.losses, strict=True)]
        return statistics.fmean(worse) <= statistics.stdev(worse) / len(worse) ** 0.5

    equals = [(each.setting.distance, mean, each.setting) for mean, each in whole if is_as_good(each)]
    *_, choice = min(equals, key=lambda found: found[:2])
    is_search = choice.kind == "setting"
    of_search = {"setting": choice.key, "settings": {each.setting.name: each.setting.values for each in tried}}
    results = [result for run in runs if (result := run.result()) is not None]
    return {
        "factor": 1.0 if is_search else choice.key,
        **(of_search if is_search else {}),
        "lowest": lowest.setting.key,
        "losses": means,
        "by_seed": {t.setting.name: [x if math.isfinite(x) else None for x in t.losses] for t in tried},
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "cost": {
            "runs": len(runs),  # of those that diverged only their number is known
            "updates": sum(result["steps"] for result in results),
            # Runs that train in one program all have the time of that program.
            "train_seconds": sum(result.get("train_seconds", 0) / result.get("together", 1) for result in results),
            "training_flops": sum(result.get("training_flops", 0) for result in results),
        },
    }
