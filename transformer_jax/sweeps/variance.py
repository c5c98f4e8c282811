"""Which sources of variance differ between the seeds of a variant (Bouthillier et al. 2021).

The test pairs never do: all runs are compared on the same sentences, and the report's bootstrap adds what another
choice of these would change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import ConfigError

INITIALIZATION, ORDER, SPLIT = "initialization", "order", "split"
# What each of them is, in the words of reports.
SOURCES = {
    INITIALIZATION: "the initial parameters and dropout",
    ORDER: "the order of the training pairs",
    SPLIT: "which pairs are for training and which for validation",
}


def resolved(vary: Sequence[str] | None, base: ExperimentConfig) -> tuple[str, ...]:
    """The sources that vary; by default initialization and order, unless the base fixes the order."""
    if vary is None:
        return (INITIALIZATION, ORDER) if base.data.order_seed is None else (INITIALIZATION,)
    return tuple(source for source in SOURCES if source in vary)


def type_problems(vary: Any) -> list[str]:
    if vary is None:
        return []
    if isinstance(vary, str) or not isinstance(vary, Sequence) or not vary or not set(vary) <= set(SOURCES):
        return [f"vary = {vary!r}: must be a list of at least one of {', '.join(SOURCES)}"]
    return []


def problems(vary: Sequence[str] | None, base: ExperimentConfig, variants: Mapping[str, ExperimentConfig]) -> list[str]:
    """Sources that cannot vary here."""
    fixed = {ORDER: base.data.order_seed, SPLIT: base.data.split_seed}
    found = [
        f"vary has {source!r}, and the base sets data.{source}_seed = {seed}: leave one out"
        for source, seed in fixed.items()
        if vary is not None and source in vary and seed is not None
    ]
    if SPLIT in (vary or ()) and base.data.directory is not None:
        found.append(
            f"vary has {SPLIT!r}, and the base sets data.directory = {base.data.directory}, which has one split: "
            "leave one out"
        )
    for name, config in variants.items():
        try:
            seeded(config, vary or (), 0)
        except ConfigError as error:
            found += [f"variant {name!r}: vary has {SPLIT!r}: {problem}" for problem in error.problems]
    return found


def seeded(config: ExperimentConfig, vary: Sequence[str], seed: int) -> ExperimentConfig:
    """The config of the run with that seed. What does not vary is as in the base."""
    data = config.data
    if ORDER in vary:
        data = dataclasses.replace(data, order_seed=seed)
    if SPLIT in vary:
        data = dataclasses.replace(data, split_seed=seed)
    return dataclasses.replace(config, data=data, seed=seed if INITIALIZATION in vary else config.seed)


def listed(sources: Iterable[str]) -> str:
    """ "the initial parameters and dropout; the order of the training pairs"."""
    return "; ".join(SOURCES[source] for source in sources)
