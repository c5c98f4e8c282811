"""The definition of a sweep: a question, a base config, named variants as differences from it, and seeds."""

from __future__ import annotations

import collections
import copy
import dataclasses
import fnmatch
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, from_config_dict
from transformer_jax.errors import BadInput
from transformer_jax.files.paths import file_name

if TYPE_CHECKING:
    from ml_collections import ConfigDict

FORMAT = 1  # of sweep.json
# What may differ between the seeds of a variant (Bouthillier et al. 2021), in the words of reports. The test pairs
# never do: all runs are compared on the same sentences, and a report's bootstrap adds what other ones would change.
SOURCES = {
    "initialization": "the initial parameters and dropout",
    "order": "the order of the training pairs",
}


class StoredVariant(TypedDict):
    """A variant in sweep.json."""

    name: str
    slug: str
    changes: dict[str, Any]
    group: str
    note: str
    published: dict[str, float]
    baseline: str | None
    same_as: str | None
    unverified: NotRequired[list[str]]
    levels: NotRequired[dict[str, str]]
    label: NotRequired[str]


class Definition(TypedDict):
    """The content of sweep.json."""

    format: int
    name: str
    question: str
    scale: str | None
    file: str
    command: list[str]
    baseline: str
    base: dict[str, Any]
    variants: list[StoredVariant]
    seeds: list[int]
    tests: list[str]
    notes: list[str]
    analyses: dict[str, str]
    primary: str | None
    margin: dict[str, float]
    tune: list[float] | None
    vary: list[str]
    overrides: list[list[str]]
    only: list[str] | None
    contrasts: NotRequired[dict[str, dict[str, float]]]
    weights: NotRequired[str]
    answered_by: NotRequired[str]
    directory: NotRequired[str]
    search: NotRequired[dict[str, list[Any]]]
    trials: NotRequired[int | None]
    propose: NotRequired[str | None]


class Tuning(TypedDict):
    """How the setting of a variant was chosen, in tuned.json."""

    factor: float  # of the learning rate
    setting: NotRequired[int]  # the number in a search, and the values of all by theirs
    settings: NotRequired[dict[str, dict[str, Any]]]
    lowest: float
    losses: dict[str, float | None]
    cost: dict[str, float]
    seeds: list[int]


class Proposal(TypedDict):
    """A setting that a custom function has proposed, in proposed.json, and the digest of its code then."""

    values: dict[str, Any]
    code: str


class Look(TypedDict):
    seeds: list[int]
    compared: list[int]  # those that all variants had
    finished: NotRequired[list[int]]  # those that any variant had


class Looks(TypedDict):
    """The content of looks.json: the seeds that were planned, and compared, in reports."""

    looks: list[Look]


@dataclasses.dataclass(frozen=True)
class Variant:
    """One row of the ablation: what differs from the base.

    - `name`: unique, such as "A h=4".
    - `changes`: values of options, by path: {"model.num_heads": 4}.
    - `group`: its heading in tables.
    - `note`: a remark that the report shows beside it.
    - `published`: what the literature has: "perplexity", "bleu", "parameters" (65e6), "exact_match" (in percent).
    - `baseline`: the variant it is compared with; None is the sweep's baseline.
    - `unverified`: the names of published scores that nobody has compared with their source.
    - `same_as`: the variant that this one, a control (A/A), repeats with other random seeds; it has no changes.
    - `levels`: its level of each factor, in a factorial design. `grid` sets it.
    - `label`: its name in LaTeX tables and in figures, if it is another one there.
    """

    name: str
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    group: str = ""
    note: str = ""
    published: Mapping[str, float] = dataclasses.field(default_factory=dict)
    baseline: str | None = None
    unverified: Sequence[str] = ()
    same_as: str | None = None
    levels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    label: str = ""

    @property
    def shown_name(self) -> str:
        return self.label or self.name

    @property
    def slug(self) -> str:
        """The name of its folder."""
        return file_name(self.name)


def is_chosen(name: str, only: Sequence[str]) -> bool:
    """Whether the patterns of --only choose a variant of this name, which may have signs of patterns: "x [1, 2]"."""
    return name in only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A question, and the runs that are to answer it.

    - `name`: its name, the title of the report.
    - `question`: one or two sentences, shown at the top of the report.
    - `base`: the config that the variants change.
    - `variants`: a list of `Variant`; `grid` makes all combinations of some values.
    - `seeds`: how many, or a list of them.
    - `tests`: the splits that every run is evaluated on, the main one first.
    - `baseline`: the name of the variant that others are compared with; None is "base", or else the first.
    - `notes`: limitations that the report must state.
    - `analyses`: "path/to/file.py:function" by name; each is called with a trained run (docs/experiments.md).
    - `tune`: factors of the learning rate that are tried for each variant: (0.5, 1, 2).
    - `search`: ranges of options, from which settings are drawn and tried for each variant:
      {"optimizer.learning_rate": ("log_uniform", 1e-4, 1e-2), "model.dropout": ("uniform", 0, 0.3),
      "model.activation": ("choice", "relu", "gelu")}.
    - `trials`: how many settings of a search are tried for each variant, its own included.
    - `propose`: "path/to/file.py:function" that gives the next setting of a search, in place of a random one.
    - `vary`: what differs between seeds: "initialization" (and dropout), "order" (of the training pairs); None is both.
    - `primary`: the metric that answers the question, on the first of `tests`: "bleu", "perplexity", "exact_match",
      "chrf", "paper_bleu", or the name of one in decode.metrics or of an analysis that returns a "score".
    - `answered_by`: the family of comparisons that answers it: "differences" from the baseline, "effects" or
      "simple_effects" of a `grid`, or "contrasts".
    - `contrasts`: weights of variants, which sum to 0, by name: {"rotary helps": {"rotary": 1, "sinusoidal": -1}}.
    - `margin`: the largest difference that does not matter, of the primary metric or by metric: {"bleu": 0.5}; of
      perplexity relative: 0.02 is 2 %.
    - `weights`: what is evaluated: "latest", "best" (by train.best_metric), "ema" (of variants without optimizer.ema
      "latest"), or "averaged": the last train.keep_latest checkpoints, as in the paper.
    """

    name: str
    question: str
    base: ConfigDict | Mapping[str, Any] | ExperimentConfig
    variants: Sequence[Variant]
    seeds: int | Sequence[int] = 3
    tests: Sequence[str] = ("test",)
    baseline: str | None = None
    notes: Sequence[str] = ()
    analyses: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tune: Sequence[float] | None = None
    search: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    trials: int | None = None
    propose: str | None = None
    vary: Sequence[str] | None = None
    primary: str | None = None
    answered_by: str = "differences"
    contrasts: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    margin: float | Mapping[str, float] | None = None
    weights: str = "latest"


def grid(axes: Mapping[str, Sequence[Any] | Mapping[str, Mapping[str, Any]]], group: str = "") -> list[Variant]:
    """A variant for every combination: grid({"model.num_heads": [1, 2], "model.d_k": [8, 16]}) has four,
    "num_heads=1 d_k=8" and so on.

    An axis may also have named levels, each with its changes: grid({"depth": {"2": {}, "4":
    {"model.num_encoder_layers": 4, "model.num_decoder_layers": 4}}, "model.positions": ["sinusoidal", "rotary"]}).
    Axes are the factors of a design: reports have main effects and interactions.
    """
    ends = collections.Counter(path.rpartition(".")[2] for path in axes)
    names = [path if ends[end := path.rpartition(".")[2]] > 1 else end for path in axes]
    levels_by_axis = [
        [*values.items()] if isinstance(values, Mapping) else [(value, {path: value}) for value in values]
        for path, values in axes.items()
    ]
    if odd := [level for levels in levels_by_axis for level, to in levels if not isinstance(to, Mapping)]:
        raise BadInput(f"grid: the level {odd[0]!r} must have a dict of changes, such as {{'model.num_heads': 4}}")
    variants = []
    for combination in itertools.product(*levels_by_axis):
        levels = {name: str(level) for name, (level, _) in zip(names, combination, strict=True)}
        paths = [path for _, changes in combination for path in changes]
        if twice := [path for path, count in collections.Counter(paths).items() if count > 1]:
            raise BadInput(f"grid: two factors change {', '.join(twice)}")
        changes = {path: value for _, changes in combination for path, value in changes.items()}
        name = " ".join(f"{factor}={level}" for factor, level in levels.items())
        variants.append(Variant(name, changes, group, levels=levels if len(axes) > 1 else {}))
    return variants


def repeated(sweep: Sweep, variant: Variant) -> Variant:
    """The variant whose changes it has: of a control the one that it repeats, of any other itself."""
    return next((other for other in sweep.variants if other.name == variant.same_as), variant)


def margins(sweep: Sweep) -> Mapping[Any, float]:
    """The margins by metric; one that is alone is of the primary metric."""
    if isinstance(sweep.margin, Mapping):
        return sweep.margin
    return {} if sweep.margin is None else {sweep.primary: sweep.margin}


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


def changed_config(config: ExperimentConfig, changes: Mapping[str, Any]) -> ExperimentConfig:
    """The validated config with some options changed."""
    return from_config_dict(changed(dataclasses.asdict(config), changes)) if changes else config


class Setting(NamedTuple):
    """What is tried for a variant before it is compared (search.py)."""

    kind: Literal["rate", "setting"]
    key: float  # a factor of the learning rate, or the number in a search
    values: Mapping[str, Any] = {}  # in a search: of options, by path; empty in the variant's own

    @property
    def name(self) -> str:
        return f"{self.key:g}"

    @property
    def title(self) -> str:
        return f"rate x {self.name}" if self.kind == "rate" else f"setting {self.name}"

    @property
    def prefix(self) -> str:
        """What the name of the folder of a run that is compared at this setting begins with."""
        return f"{self.kind}-{self.name}-" if self.distance else ""

    @property
    def distance(self) -> float:
        """How far it is from the variant's own setting, which is preferred where differences may be chance."""
        return abs(math.log(self.key)) if self.kind == "rate" else float(self.key > 0)

    def changed(self, config: ExperimentConfig) -> ExperimentConfig:
        """A variant's config at this setting."""
        if self.kind == "setting" or self.key == 1:
            return changed_config(config, self.values)
        peak = config.optimizer.peak_rate(config.model.base_d_model)
        return changed_config(config, {"optimizer.learning_rate": self.key * peak})


def fields(kind: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The stored form of the fields of a dataclass."""
    return {field.name: stored[field.name] for field in dataclasses.fields(kind) if field.name in stored}
