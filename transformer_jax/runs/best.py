"""The criterion for the best checkpoint: a metric, whether high or low is best, and how it is measured.

Scores by different criteria cannot be compared. A run that is resumed with another criterion begins a new best.
"""

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import schema
from transformer_jax.config import DecodeConfig, TrainConfig
from transformer_jax.extension import file_of, read_code

# Options of decoding on which scores of validation translations depend.
MEASURED_WITH = tuple(
    option.path for option in schema.options(DecodeConfig) if option.affects in ("translation", "stopping")
)


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


def best_of(scores: Mapping[int, float | None]) -> Best:
    """The best of validations, by step."""
    return functools.reduce(Best.and_then, (scores[step] for step in sorted(scores)), Best())


class Criterion(NamedTuple):
    """`measured` is a digest of what values of the metric depend on besides the parameters; "" if on nothing.

    The validations after the step `since` were scored by this criterion.
    """

    metric: str
    best_is: str
    measured: str = ""
    since: int = 0

    @classmethod
    def of(cls, train: TrainConfig, decode: DecodeConfig, references: str = "") -> "Criterion":
        """The criterion of a config; `references` is a digest of the validation texts."""
        return cls(train.best_metric, train.best_is, _measured(train.best_metric, decode, references))

    @classmethod
    def noted(cls, notes: Mapping[str, Any]) -> "Criterion":
        """The criterion in a checkpoint's notes."""
        best = notes["best"]
        measured, since = best["measured"], best.get("since", 0)
        if isinstance(measured, dict):  # of version 1.0.0: a digest and a step for each metric
            measured, since = measured.get(best["metric"], ("", 0))
        return cls(best["metric"], best["best_is"], measured, since)

    def compares_with(self, other: "Criterion") -> bool:
        """Whether scores by the two criteria can be compared."""
        return self[:3] == other[:3]

    def after(self, before: "Criterion", step: int) -> "Criterion":
        """This criterion in a run that had another one until `step`."""
        return self._replace(since=before.since if self.compares_with(before) else step)

    def score(self, value: float | None) -> float | None:
        """The score of a value of the metric, higher being better; None if it is not finite."""
        if value is None or not math.isfinite(value):
            return None
        return value if self.best_is == "highest" else -value

    def scores(self, lines: Sequence[Mapping[str, Any]], until: int) -> dict[int, float | None]:
        """The scores of the validations in metrics.jsonl that were scored by this criterion, by step."""
        return {
            line["step"]: self.score(line[self.metric])
            for line in lines
            if self.metric in line and is_validation(line) and self.since < line["step"] <= until
        }

    def __str__(self) -> str:
        return f"{self.best_is} {self.metric}"


def _measured(metric: str, decode: DecodeConfig, references: str) -> str:
    addresses = {address.rpartition(":")[2]: address for address in decode.metrics}
    if metric not in ("bleu", "exact_match", *addresses):
        return ""
    address = addresses.get(metric)
    code = read_code(address).digest if address and Path(file_of(address)).is_file() else ""
    how = {"references": references, "code": code, **{name: getattr(decode, name) for name in MEASURED_WITH}}
    return hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()[:16]
