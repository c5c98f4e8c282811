"""The record of an evaluation: what its scores belong to, and the name of its file.

Scores belong to a test set (its texts), to weights (their bits), to a search, and to the code of custom metrics.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from transformer_jax import schema
from transformer_jax.config import DecodeConfig
from transformer_jax.files.digests import sha256


class Measure(TypedDict):
    """A score as text has it, and how it was measured."""

    score: float
    signature: NotRequired[str]


class Record(TypedDict):
    """What others than the command that wrote it read of the record of an evaluation."""

    test_set: str
    test_set_sha256: str
    n: int
    weights: str
    steps: list[int]
    measures: dict[str, Measure]
    perplexity: dict[str, float]
    weights_sha256: NotRequired[str]
    decode: NotRequired[dict[str, Any]]
    metrics: NotRequired[dict[str, str]]  # custom ones, with their signatures
    hypotheses_sha256: NotRequired[str]
    exact_match: NotRequired[dict[str, Any]]
    sentences: NotRequired[dict[str, list[Any]]]
    sentence_scores: NotRequired[dict[str, list[Any]]]  # by custom metrics that score sentences
    cut_translations: NotRequired[int]
    unknown_tokens: NotRequired[int]


# Options of decoding that affect the best translation.
SEARCH = tuple(option.path for option in schema.options(DecodeConfig) if option.affects == "translation")
# Weights in a run's folder. All others are exported folders, of which many may have the same name.
NAMED_WEIGHTS = ("latest", "best", "averaged", "ema")
# The fields of a record and of a sweep's result.json that identify the scores.
IDENTITY = ("test_set_sha256", "weights_sha256", "steps", "decode", "metrics")
# Other fields that a record is compared by, and what it is if they differ.
DIFFERENCES = {
    "test_set_sha256": "is of another test set",
    "steps": "is of another step",
    "weights_sha256": "is of other weights",
    "bleu_tokenize": "has another tokenizer of BLEU",
    "version": "was made by another version",
}
# Hexadecimal digits of a digest in a file name.
SHORT = 8


def texts_sha256(sources: Sequence[str], references: Sequence[str]) -> str:
    """The digest of a test set."""
    return sha256(json.dumps([list(sources), list(references)], ensure_ascii=False))


def lines_sha256(lines: Sequence[str]) -> str:
    """The digest of translations."""
    return sha256("".join(f"{line}\n" for line in lines))


def search(decode: DecodeConfig) -> dict[str, Any]:
    """The options that affect the translations."""
    return {name: value for name, value in dataclasses.asdict(decode).items() if name in SEARCH}


def named(test_set: str, weights: str, weights_sha256: str, decode: DecodeConfig, usual: DecodeConfig) -> str:
    """The name of a record's files, with the exported weights and the options of a search that are not the usual."""
    if weights not in NAMED_WEIGHTS:
        weights = f"{Path(weights).resolve().name}.{weights_sha256[:SHORT]}"
    ours, theirs = ({**search(each), "bleu_tokenize": each.bleu_tokenize}.items() for each in (decode, usual))
    changed = "".join(f".{name}={value}" for name, value in sorted(ours - theirs))
    return f"{test_set}.{weights}{changed}"


def difference(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How a record differs from the wanted one; empty if it does not."""
    for key, words in DIFFERENCES.items():
        if key in wanted and record.get(key) != wanted[key]:
            return f"{words} ({str(record.get(key))[:12]})"
    for name, signature in wanted.get("metrics", {}).items():
        if record.get("measures", {}).get(name, {}).get("signature") != signature:
            return f"has no {name} of {signature}"
    changed = search_difference(record, wanted.get("decode", {}))
    return f"is of another search: {changed}" if changed else ""


def search_difference(record: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """How a record's search differs from the wanted one: beam = 2, not 4."""
    found = record.get("decode", {})
    return ", ".join(
        f"{name} = {found.get(name)}, not {value}" for name, value in wanted.items() if found.get(name) != value
    )


def translations(path: Path, record: Mapping[str, Any]) -> list[str] | None:
    """The translations beside a record; None if they are missing, or not those that were scored."""
    try:
        lines = path.with_suffix(".txt").read_bytes().decode(errors="replace").split("\n")[:-1]
    except OSError:
        return None
    whole = record.get("hypotheses_sha256") in (None, lines_sha256(lines))
    return lines if whole and len(lines) == record.get("n", len(lines)) else None
