"""What an experiment file states: a question, a base config, named variants as differences from it, and seeds."""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# What may differ between the seeds of a variant (Bouthillier et al. 2021), in the words of reports. The test pairs
# never do: all runs are compared on the same sentences, and a report's bootstrap adds what other ones would change.
SOURCES = {
    "initialization": "the initial parameters and dropout",
    "order": "the order of the training pairs",
    "split": "which pairs are for training and which for validation",
}


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


def base_values(sweep: Sweep, overrides: Sequence[tuple[str, str]] = ()) -> tuple[dict[str, Any], list[str]]:
    """The base's nested values with the command line's changes, and what is wrong with these."""
    if isinstance(sweep.base, ExperimentConfig):
        values = dataclasses.asdict(sweep.base)
    else:
        values = copy.deepcopy(sweep.base.to_dict() if hasattr(sweep.base, "to_dict") else dict(sweep.base))
    return values, [f"--config.{line}" for line in schema.lay_over(ExperimentConfig, values, overrides)]


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with some options changed."""
    result = copy.deepcopy(dict(values))
    for path, value in changes.items():
        schema.put(result, path, value)
    return result


def seeded(config: ExperimentConfig, vary: Sequence[str], seed: int) -> ExperimentConfig:
    """The config of the run with that seed. What does not vary is as in the base."""
    seeds: dict[str, Any] = {f"{source}_seed": seed for source in ("order", "split") if source in vary}
    data = dataclasses.replace(config.data, **seeds)
    return dataclasses.replace(config, data=data, seed=seed if "initialization" in vary else config.seed)
