"""The criterion for the best checkpoint: a metric, whether high or low is best, and how it is measured.

Scores by different criteria cannot be compared, so every checkpoint records the criterion of its score. When a run is
resumed with another criterion, scores by it are read from metrics.jsonl, which has every metric of every validation.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import schema
from transformer_jax.code_digest import read_code
from transformer_jax.config import DecodeConfig, TrainConfig
from transformer_jax.extension import file_of

# Options of decoding on which scores of validation translations depend.
MEASURED_WITH = tuple(
    option.path for option in schema.options(DecodeConfig) if option.affects in ("translation", "stopping")
)
# Of these, those that earlier versions did not have, and did not digest.
ADDED = {"eos": "normal"}


def is_validation(line: Mapping[str, Any]) -> bool:
    """Whether a line of metrics.jsonl is a validation's."""
    return "valid_loss" in line or "bleu" in line


class Best(NamedTuple):
    """The best score so far, higher being better, and how many validations ago it was."""

    score: float | None = None
    validations_since: int = 0

    def and_then(self, score: float | None) -> "Best":
        """After one more validation; None is a score that is not finite."""
        if score is not None and (self.score is None or score > self.score):
            return Best(score)
        return Best(self.score, self.validations_since + 1)


@dataclasses.dataclass(frozen=True)
class Criterion:
    """`measured`: for each metric of translations, a digest of all that its values depend on besides the parameters,
    and the step since which it has been this one. Other metrics depend on nothing that may change during a run."""

    metric: str
    best_is: str
    measured: Mapping[str, tuple[str, int]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, train: TrainConfig, decode: DecodeConfig, references: str = "") -> "Criterion":
        """The criterion of a config from the first step on; `references` is a digest of the validation texts."""
        measured = {name: (digest, 0) for name, digest in measured_by(decode, references).items()}
        return cls(train.best_metric, train.best_is, measured)

    @classmethod
    def noted(cls, notes: Mapping[str, Any]) -> "Criterion":
        """The criterion in a checkpoint's notes."""
        best = notes["best"]
        return cls(best["metric"], best["best_is"], {name: tuple(facts) for name, facts in best["measured"].items()})

    def after(self, before: "Criterion", step: int) -> "Criterion":
        """This criterion in a run that had another one until `step`."""
        since = {
            name: (digest, before.measured[name][1] if before.digest(name) == digest else step)
            for name, (digest, _) in self.measured.items()
        }
        return dataclasses.replace(self, measured=since)

    def digest(self, metric: str) -> str | None:
        return self.measured.get(metric, (None, 0))[0]

    def compares_with(self, other: "Criterion") -> bool:
        """Whether scores by the two criteria can be compared."""
        mine, others = ((each.metric, each.best_is, each.digest(each.metric)) for each in (self, other))
        return mine == others

    def score(self, value: float | None) -> float | None:
        """The score of a value of the metric, higher being better; None if it is not finite."""
        if value is None or not math.isfinite(value):
            return None
        return value if self.best_is == "highest" else -value

    def looked_up(self, lines: Sequence[Mapping[str, Any]], until: int) -> dict[int, float | None]:
        """The scores of all comparable validations in metrics.jsonl, by step."""
        since = self.measured.get(self.metric, ("", -1))[1]
        return {
            line["step"]: self.score(line[self.metric])
            for line in lines
            if self.metric in line and is_validation(line) and since < line["step"] <= until
        }

    def scores(self, records: Mapping[int, Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> dict[int, float]:
        """The scores of checkpoints, from metrics.jsonl or from their records, as far as they can be compared."""
        found, looked_up = {}, self.looked_up(lines, max(records, default=0))
        for step, record in records.items():
            recorded = record["score"] if Criterion.noted(record["notes"]).compares_with(self) else None
            if (score := looked_up.get(step, recorded)) is not None:
                found[step] = score
        return found

    def __str__(self) -> str:
        return f"{self.best_is} {self.metric}"


def best_of(scores: Mapping[int, float | None]) -> Best:
    """The best of validations, by step."""
    return functools.reduce(Best.and_then, (scores[step] for step in sorted(scores)), Best())


def resumed(
    here: Criterion, before: Criterion, best: Best, lines: Sequence[Mapping[str, Any]], step: int
) -> tuple[Best, str]:
    """The best score so far of a run that is resumed at a step, and a message if it is another criterion's now.

    `best` is by the criterion `before`; by another, it is that of the comparable validations in metrics.jsonl.
    """
    if here.compares_with(before):
        return best, ""
    scores = here.looked_up(lines, step)
    other = (here.metric, here.best_is) != (before.metric, before.best_is)
    change = f"best is the {here} now, it was the {before}" if other else f"{here.metric} is measured differently now"
    if not scores:
        return Best(), f"{change}: no earlier validation can be compared, there is no best yet"
    return best_of(scores), f"{change}: the best so far is that of {len(scores)} validations in metrics.jsonl"


def measured_by(decode: DecodeConfig, references: str) -> dict[str, str]:
    """For each metric of translations, a digest of all that its values depend on besides the parameters."""
    if not decode.bleu_sentences:
        return {}
    values = {name: getattr(decode, name) for name in sorted(MEASURED_WITH)}
    how = {"references": references} | {
        name: value for name, value in values.items() if (name, value) not in ADDED.items()
    }
    code = {"bleu": "", "exact_match": ""} | {address.rpartition(":")[2]: _code(address) for address in decode.metrics}
    return {name: hashlib.sha256(json.dumps([how, each]).encode()).hexdigest()[:16] for name, each in code.items()}


def _code(address: str) -> str:
    file = Path(file_of(address))
    return read_code(file).digest if file.is_file() else "not there"
