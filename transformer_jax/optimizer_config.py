"""The options of the optimizer. Part of the schema, which is `config.py`."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

from transformer_jax.schema import Address, Condition, Section, is_address, option

# Their learning rates depend on the total number of updates.
ENDING_WITH_THE_RUN = ("cosine", "linear", "wsd")
ANNEALING = Condition(
    lambda config: config.optimizer.schedule in ENDING_WITH_THE_RUN or is_address(config.optimizer.schedule),
    "optimizer.schedule = cosine, linear, wsd or a custom one",
)
WITHOUT_SHARE = Condition(lambda config: config.optimizer.warmup_share is None, "optimizer.warmup_share = none")
WSD = Condition(lambda config: config.optimizer.schedule == "wsd", "optimizer.schedule = wsd")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Section):
    """The optimizer and its learning-rate schedule. The defaults are those of section 5.3."""

    name: str = option(
        "adam",
        "adam; muon, for hidden matrices, and adam for the rest; schedule_free_adamw; any optimizer of optax or "
        "optax.contrib by its name there; or path/to/file.py:Name",
    )
    beta1: float = option(0.9, "for optimizers with an argument b1", at_least=0, below=1, together="number")
    beta2: float = option(0.98, "for optimizers with an argument b2", at_least=0, below=1, together="number")
    epsilon: float = option(1e-9, "for optimizers with an argument eps", above=0, together="number")
    arguments: tuple[str, ...] = option((), "more arguments of the optimizer: momentum=0.9,nesterov=true")
    groups: tuple[str, ...] = option(
        (),
        "other settings for the parameters whose path has a pattern, of which the first counts: "
        "embedding/table$: name=adam learning_rate=0.3x weight_decay=0",
    )

    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] | Address = option(
        "inverse_sqrt",
        "learning rate after a linear warmup (inverse_sqrt is equation 3; wsd: constant, then linear), or a custom "
        "schedule including the warmup",
        together="rate",
    )
    learning_rate: float | None = option(
        None,
        "peak learning rate; none = that of equation 3, (d_model * warmup)^-0.5, under muP with the base's d_model",
        above=0,
        together="rate",
    )
    warmup_steps: int = option(
        4000,
        "updates over which the learning rate rises from zero",
        at_least=0,
        condition=WITHOUT_SHARE,
        together="rate",
    )
    warmup_share: float | None = option(
        None,
        "share of the run's updates over which the learning rate rises from zero; none = optimizer.warmup_steps",
        above=0,
        at_most=1,
        together="rate",
    )
    final_fraction: float = option(
        0.0,
        "final learning rate of cosine, linear and wsd, as a fraction of the peak",
        at_least=0,
        at_most=1,
        condition=ANNEALING,
        together="rate",
    )
    decay_fraction: float = option(
        0.1,
        "share of the updates after the warmup in which wsd decays, the last ones",
        above=0,
        at_most=1,
        condition=WSD,
        together="rate",
    )

    clip_norm: float | None = option(None, "clip gradients to this global norm", above=0, together="number or none")
    weight_decay: float = option(
        0.0, "decoupled weight decay of matrices, not of biases and norms", at_least=0, together="number or none"
    )

    def contradictions(self) -> list[str]:
        if self.warmup_steps == 0 and self.schedule == "inverse_sqrt":
            return ["warmup_steps = 0: inverse_sqrt needs at least 1: its rate at step 0 is infinite"]
        return []

    def decaying(self, after: int) -> int:
        """How many of the updates after the warmup decay. Of wsd (Hu et al. 2024) the last one has the final rate."""
        return max(round(self.decay_fraction * after), 1) if self.schedule == "wsd" else after

    def same_until(self, *ends: int) -> int:
        """How many updates have the same rates whichever of these is the last one: with wsd those before any decay."""
        if self.schedule != "wsd":
            return 0
        after = [max(end - self.warmup_steps, 1) for end in ends]
        return self.warmup_steps + min(updates - self.decaying(updates) for updates in after)


def changed(config: OptimizerConfig, **values: Any) -> OptimizerConfig:
    """The config with other values, which may be traced and are not checked."""
    other = copy.copy(config)
    for name, value in values.items():
        object.__setattr__(other, name, value)
    return other
