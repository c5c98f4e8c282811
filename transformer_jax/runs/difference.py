"""How two runs differ: options, code, data, and the metrics side by side. Only reads files."""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax import schema
from transformer_jax.data.prepared import read_manifest
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_record
from transformer_jax.model.size import parameter_counts
from transformer_jax.runs.folder import PACKAGES, SOURCE_DIGEST, RunFolder, with_plain_addresses
from transformer_jax.runs.metrics import read_metrics

# Hexadecimal digits of a digest that are shown.
SHORT = 8
# What versions.json says of the process that trained, besides the packages.
ENVIRONMENT = ("python", "platform", "xla_flags")
OF_VALIDATION = ("valid_loss", "valid_perplexity", "valid_accuracy", "bleu", "exact_match")
OF_TRAINING = ("loss", "learning_rate", "target_tokens", "target_tokens_per_second")


class Row(NamedTuple):
    """A fact about two runs; None where a run does not have it."""

    name: str
    first: Any
    second: Any


class RecordedRun:
    """What the files of a run say about it."""

    def __init__(self, path: str | Path):
        self.folder = RunFolder(path)
        if (self.folder.path / "sweep.json").is_file():
            one = next(iter(sorted(self.folder.path.glob("runs/*/*/config.json"))), None)
            runs = f", such as {one.parent}" if one else ""
            raise BadInput(f"{path}: is a sweep, not a run; give one of its runs{runs}")
        self.config = self.folder.stored_config()
        self.versions = self.folder.versions()

    def code(self) -> dict[str, str]:
        """Versions and digests, by what they are of."""
        found = {name: str(self.versions[name]) for name in (*PACKAGES, *ENVIRONMENT) if name in self.versions}
        if digest := self.versions.get(SOURCE_DIGEST):
            found["source of transformer_jax"] = str(digest)[:SHORT]
        custom = self.folder.code.latest() or {}
        return found | {use: f"{code.main} {code.digest[:SHORT]}" for use, code in custom.items()}

    def data(self) -> dict[str, str]:
        """Vocabularies, and the size and a digest of each split; empty if the prepared data is gone."""
        try:
            manifest = read_manifest(self.folder.data(self.config))
        except BadInput:
            return {}
        found = {}
        for split, facts in manifest["splits"].items():
            arrays, texts = facts["arrays"], facts.get("texts_sha256", "")
            digest = hashlib.sha256("".join([*(arrays[name]["sha256"] for name in sorted(arrays)), texts]).encode())
            found[f"{split} pairs"] = f"{arrays['source.offsets']['count'] - 1:,} ({digest.hexdigest()[:SHORT]})"
        for side, facts in manifest["tokenizers"].items():
            found[f"{side} vocabulary"] = f"{facts['vocab_size']:,} ({facts['fingerprint'][:SHORT]})"
        return found

    def metrics(self) -> dict[str, float]:
        """The size, the last metrics of training and of validation, and the scores on test sets."""
        found: dict[str, float] = {}
        if not any(schema.to_dict(self.config.model.parts).values()):  # whose file may be gone
            found["parameters"] = sum(parameter_counts(self.config.model).values())
        lines = read_metrics(self.folder.metrics)
        if lines:
            found["updates"] = lines[-1]["step"]
            found["training seconds"] = sum(line.get("seconds") or 0 for line in lines)
        for names in (OF_TRAINING, OF_VALIDATION):
            last: dict[str, Any] = next((line for line in reversed(lines) if names[0] in line), {})
            found |= {name: last[name] for name in names if last.get(name) is not None}
        losses = [line["valid_loss"] for line in lines if line.get("valid_loss") is not None]
        if losses:
            found["valid_loss, lowest"] = min(losses)
        for name, record in self.evaluations().items():
            scores = {measure: facts["score"] for measure, facts in record["measures"].items()}
            scores["perplexity per token"] = record["perplexity"]["per_token"]
            found |= {f"{name}: {measure}": score for measure, score in scores.items()}
        return {f"{name}, %" if name.endswith("exact_match") else name: value for name, value in found.items()}

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The records in translations/, by the names of their files; damaged ones are left out."""
        found = {}
        for path in sorted((self.folder.path / "translations").glob("*.json")):
            with contextlib.suppress(OSError, BadInput):
                record = read_record(path)
                if {"measures", "perplexity", "test_set_sha256"} <= record.keys():
                    found[path.stem] = record
        return found


def options(first: RecordedRun, second: RecordedRun) -> list[Row]:
    """The options with different values that have an effect in at least one of the runs."""
    configs = (with_plain_addresses(run.config) for run in (first, second))
    return [Row(option.path, before, now) for option, before, now in schema.differing(*configs)]


def code(first: RecordedRun, second: RecordedRun) -> list[Row]:
    """Versions, digests of the source, and custom code."""
    return _beside(first.code(), second.code())


def data(first: RecordedRun, second: RecordedRun) -> list[Row]:
    return _beside(first.data(), second.data())


def metrics(first: RecordedRun, second: RecordedRun) -> list[Row]:
    return _beside(first.metrics(), second.metrics())


def notes(first: RecordedRun, second: RecordedRun) -> list[str]:
    """What makes metrics of the same name incomparable, and what is known about how each run was made."""
    there, here = first.data(), second.data()
    data = [name for name in there.keys() & here.keys() if there[name] != here[name]]
    vocabularies = sorted(name for name in data if name.endswith(" vocabulary"))
    lines = []
    if different := ["valid pairs"] * ("valid pairs" in data) + vocabularies:
        lines.append(f"metrics of validation: not comparable: the {' and the '.join(different)} are not the same")
    evaluations = first.evaluations(), second.evaluations()
    for name in evaluations[0].keys() & evaluations[1].keys():
        one, other = (records[name] for records in evaluations)
        what = [("test_set_sha256", "sentences"), ("decode", "options of decode.*")]
        changed = [words for key, words in what if one.get(key) != other.get(key)]
        if changed:
            lines.append(f"{name}: not comparable: the {' and the '.join(changed)} are not the same")
        elif vocabularies:
            lines.append(f"{name}: perplexity per token: not comparable: the vocabularies are not the same")
    return lines + [f"{run.folder.path}: {note}" for run in (first, second) for note in run.folder.notes()]


def _beside(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Row]:
    return [Row(name, first.get(name), second.get(name)) for name in {**first, **second}]
