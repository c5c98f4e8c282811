"""A prepared corpus on disk: token arrays to be mapped, tokenizers, reference texts, and a manifest of it all."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

from transformer_jax.data import arrays
from transformer_jax.data.arrays import PREPARE_AGAIN, TokenPairs
from transformer_jax.data.tokenizer import Tokenizer, load_tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.files.record import plain_name, read_record

MANIFEST = "manifest.json"
FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What `prepare` made of a corpus. Opening it maps the arrays; nothing is read before it is used."""

    directory: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, directory: str | Path) -> Prepared:
        """The prepared corpus in a directory, refused if a file is missing, cut short, or from another preparation."""
        directory = Path(directory)
        prepared = cls(directory, read_manifest(directory))
        try:
            prepared._require_whole()
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"{directory / MANIFEST}: is damaged; {PREPARE_AGAIN}") from None
        return prepared

    def _require_whole(self) -> None:
        for split in self.splits:
            self.pairs(split)
        for name, facts in self.manifest["tokenizers"].items():
            path = self._tokenizer_file(name)
            if not path.is_file():
                raise BadInput(f"{path}: is missing; {PREPARE_AGAIN}")
            if hashlib.sha256(path.read_bytes()).hexdigest() != facts["fingerprint"]:
                raise BadInput(f"{path}: is not the {name} tokenizer that this data was made with; {PREPARE_AGAIN}")

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(self.manifest["splits"])

    def pairs(self, split: str) -> TokenPairs:
        return TokenPairs.open(self.directory, split, self._facts(split)["arrays"])

    def texts(self, split: str) -> tuple[list[str], list[str]]:
        """The sources and references of any split but train, as they were given: they never passed a tokenizer."""
        facts = self._facts(split)
        path = texts_path(self.directory, split)
        if not path.is_file():
            raise BadInput(f"{path}: there is no such file; texts are kept of every split but train")
        content = path.read_bytes()
        wanted = facts.get("texts_sha256")  # data of earlier versions have none
        try:
            if wanted is not None and hashlib.sha256(content).hexdigest() != wanted:
                raise ValueError
            records = [json.loads(line) for line in content.decode().split("\n")[:-1]]
            return [record["source"] for record in records], [record["target"] for record in records]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadInput(f"{path}: is damaged; {PREPARE_AGAIN}") from None

    def texts_digest(self, split: str) -> str:
        """Of the texts of a split; "" where there is no such split, or in data of earlier versions."""
        return self.manifest["splits"].get(split, {}).get("texts_sha256", "")

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer("source")

    @functools.cached_property
    def target_tokenizer(self) -> Tokenizer:
        """The source's own where they share one vocabulary."""
        return self._tokenizer("target") if "target" in self.manifest["tokenizers"] else self.tokenizer

    @property
    def vocab_size(self) -> int:
        return self.manifest["tokenizers"]["source"]["vocab_size"]

    @property
    def target_vocab_size(self) -> int | None:
        """None where source and target share one tokenizer."""
        return self.manifest["tokenizers"].get("target", {}).get("vocab_size")

    @property
    def same_tokens(self) -> bool:
        """Whether source and target are cut, by one tokenizer or by two, into the tokens of one vocabulary."""
        return self.manifest["tokenizers"].get("target", {"same_tokens": True}).get("same_tokens", False)

    @property
    def fingerprint(self) -> str:
        """Equal for equal tokens under equal tokenizers, wherever they lie and whatever they were made from."""
        content = {
            "tokenizers": {name: facts["fingerprint"] for name, facts in self.manifest["tokenizers"].items()},
            "splits": {split: self._facts(split)["arrays"] for split in self.splits},
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def summary(self) -> str:
        """What was prepared, what was left out and why, for a person."""
        lines = [str(self.directory)]
        for split in self.splits:
            pairs, facts = self.pairs(split), self._facts(split)
            sizes = f"{len(pairs.source_tokens):,} source and {len(pairs.target_tokens):,} target tokens"
            lines.append(f"  {split}: {len(pairs):,} pairs, {sizes}")
            for reason, rejected in facts.get("rejected", {}).items():
                first = ", ".join(rejected["first"][:3])
                lines.append(f"    left out: {rejected['pairs']:,} {reason} (first: {first})")
            for oddity, count in facts.get("oddities", {}).items():
                lines.append(f"    {oddity}: {count:,}")
        target = "" if self.target_vocab_size is None else f" source and {self.target_vocab_size:,} target"
        lines.append(f"  vocabulary: {self.vocab_size:,}{target} tokens")
        return "\n".join(lines)

    def verify(self) -> None:
        """Reads all of it through and refuses what has changed since it was written (opening checks sizes)."""
        for split in self.splits:
            facts = self._facts(split)
            for name, array in facts["arrays"].items():
                arrays.verify(self.directory / f"{split}.{name}", array["sha256"])
            if "texts_sha256" in facts:  # data of earlier versions have none
                arrays.verify(texts_path(self.directory, split), facts["texts_sha256"])

    def _facts(self, split: str) -> dict[str, Any]:
        if split not in self.manifest["splits"]:
            raise BadInput(f"{self.directory}: has no split {split!r}; there are: {', '.join(self.splits)}")
        return self.manifest["splits"][split]

    def _tokenizer(self, side: str) -> Tokenizer:
        return load_tokenizer(self._tokenizer_file(side))

    @property
    def tokenizer_files(self) -> dict[str, Path]:
        """By side; where both share one vocabulary and one way to cut, only the source's."""
        return {side: self._tokenizer_file(side) for side in self.manifest["tokenizers"]}

    def _tokenizer_file(self, side: str) -> Path:
        return self.directory / plain_name(self.manifest["tokenizers"][side]["file"], self.directory / MANIFEST)


def read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not path.is_file():
        raise BadInput(f"{directory}: is no prepared corpus (it has no {MANIFEST}); transformer-jax prepare makes one")
    try:
        manifest = read_record(path)
        found = manifest["format"]
        parts = (manifest["recipe"]["options"], manifest["recipe"]["corpus"], manifest["splits"]["train"]["arrays"])
        if found == FORMAT and not all(isinstance(part, dict) for part in (*parts, *manifest["sources"])):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{path}: is damaged; {PREPARE_AGAIN}") from None
    if found != FORMAT:
        raise BadInput(f"{path}: has format {found}, this version reads {FORMAT}; {PREPARE_AGAIN}")
    return manifest


def texts_path(directory: Path, split: str) -> Path:
    return directory / f"{split}.texts.jsonl"
