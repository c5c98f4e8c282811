"""The options of the optimizer. Part of the schema, which is `config.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

from transformer_jax import schema
from transformer_jax.errors import ConfigError, did_you_mean
from transformer_jax.schema import PROBABILITY, Address, Condition, Groups, Section, Settings, option

# The optimizers for which beta1, beta2 and epsilon are meant. All others have optax's own defaults, or kwargs.
ADAM_FAMILY = ("adam", "adamw", "nadam", "nadamw", "amsgrad", "adamax", "adamaxw", "radam")
# Their learning rates depend on the total number of updates.
ENDING_WITH_THE_RUN = ("cosine", "linear", "wsd")
# What a parameter group may set.
GROUP_OPTIONS = ("name", "kwargs", "beta1", "beta2", "epsilon", "weight_decay")
GROUP_SETTINGS = (*GROUP_OPTIONS, "learning_rate_factor")

ANNEALING = Condition(
    lambda config: config.optimizer.schedule in ENDING_WITH_THE_RUN or schema.is_address(config.optimizer.schedule),
    "optimizer.schedule = cosine, linear, wsd or a custom one",
)
WITHOUT_SHARE = Condition(lambda config: config.optimizer.warmup_share is None, "optimizer.warmup_share = none")
WSD = Condition(lambda config: config.optimizer.schedule == "wsd", "optimizer.schedule = wsd")
ADAM = Condition(
    lambda config: not {*ADAM_FAMILY, "muon"}.isdisjoint(config.optimizer.names),
    f"an optimizer of Adam's family ({', '.join(ADAM_FAMILY)}) or muon; others have optimizer.kwargs",
)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule. The defaults are those of section 5.3."""

    name: str = option(
        "adam",
        "adam; muon, for hidden matrices, and adam for the rest; any other of optax or optax.contrib by its name "
        "there, but schedule-free ones; or path/to/file.py:Name",
    )
    beta1: float = option(0.9, "b1 of Adam and its variants", **PROBABILITY, condition=ADAM)
    beta2: float = option(0.98, "b2 of Adam and its variants", **PROBABILITY, condition=ADAM)
    epsilon: float = option(1e-9, "eps of Adam and its variants", above=0, condition=ADAM, together="number")
    kwargs: Settings = option({}, 'keyword arguments for optax: {"momentum": 0.9, "nesterov": true}')
    groups: Groups = option(
        (),
        "other settings for the parameters whose path matches a pattern, of which the first counts: "
        '[["embedding/table$", {"learning_rate_factor": 0.3, "weight_decay": 0}]]',
    )

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | Address = option(
        "inverse_sqrt",
        "learning rate after a linear warmup (inverse_sqrt: equation 3; wsd: constant, then linear)",
        together="rate",
    )
    learning_rate: float | None = option(
        None, "peak learning rate; none = that of equation 3, (d_model * warmup)^-0.5", above=0, together="rate"
    )
    warmup_steps: int = option(
        4000, "updates over which the rate rises to its peak", at_least=0, condition=WITHOUT_SHARE, together="rate"
    )
    warmup_share: float | None = option(
        None, "share of the run over which it rises; none = optimizer.warmup_steps", above=0, at_most=1, together="rate"
    )
    final_fraction: float = option(
        0.0, "final rate as a fraction of the peak", at_least=0, at_most=1, condition=ANNEALING, together="rate"
    )
    decay_fraction: float = option(
        0.1, "share of the updates after the warmup that decay", above=0, at_most=1, condition=WSD, together="rate"
    )

    clip_norm: float | None = option(None, "clip gradients to this global norm", above=0, together="number or none")
    weight_decay: float = option(0.0, "decoupled weight decay of matrices", at_least=0, together="number or none")

    @property
    def names(self) -> list[str]:
        """The optimizers of all parameters: `name`, and those of groups."""
        return [self.name, *(settings["name"] for _, settings in self.groups if "name" in settings)]

    def contradictions(self) -> Iterator[str]:
        if self.warmup_steps == 0 and self.schedule == "inverse_sqrt":
            yield self.clash("warmup_steps", "schedule", hint="there is no rate without a warmup; 1 is the least")
        for pattern, settings in self.groups:
            yield from (f"groups: {pattern!r}: {problem}" for problem in self._group_problems(settings))

    def _group_problems(self, settings: Settings) -> Iterator[str]:
        factor, name = settings.get("learning_rate_factor", 1.0), settings.get("name", self.name)
        if not isinstance(factor, (int, float)) or factor < 0:
            yield f"learning_rate_factor = {factor!r}: must be a number, at least 0"
        for setting in settings:
            if setting not in GROUP_SETTINGS:
                yield f"{setting}: no such setting; {did_you_mean(setting, GROUP_SETTINGS)}"
        try:
            options = {name: value for name, value in settings.items() if name in GROUP_OPTIONS}
            schema.build(OptimizerConfig, {"schedule": "constant", **options})
        except ConfigError as error:
            yield from error.problems
            return
        if schema.is_meant_as_address(name) and name != self.name:
            yield f"name = {name}: a custom optimizer can only be optimizer.name"
        if name not in (*ADAM_FAMILY, "muon") and (given := {"beta1", "beta2", "epsilon"} & settings.keys()):
            yield f"{min(given)} is for Adam's family; {name} has kwargs"

    def decaying(self, after: int) -> int:
        """How many of the updates after the warmup decay. Of wsd (Hu et al. 2024) the last one has the final rate."""
        return max(round(self.decay_fraction * after), 1) if self.schedule == "wsd" else after

    def same_until(self, *ends: int) -> int:
        """How many updates have the same rates whichever of these is the last one: with wsd those before any decay."""
        if self.schedule != "wsd":
            return 0
        after = [max(end - self.warmup_steps, 1) for end in ends]
        return self.warmup_steps + min(updates - self.decaying(updates) for updates in after)
