"""Custom corpora: a function of the split's name that yields pairs, perhaps with labels, in a file of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from transformer_jax import extension
from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Labels, Pair, text_fault

SPLITS = ("train", "valid", "test")
END: Any = object()


class CustomCorpus(Corpus):
    """What `path/to/file.py:Name` yields for train and, if it yields anything, for valid and test."""

    def __init__(self, config: DataConfig):
        self._function = extension.load_function("data.corpus", config.corpus, required=("split",))
        self.splits = tuple(split for split in SPLITS if next(self._read(split), None) is not None)
        if "train" not in self.splits:
            raise self._function.refusal("yields no pair for the split train")

    def identity(self) -> dict[str, Any]:
        """The code that defines it, and the files that FILES names."""
        code = extension.read_code(self._function.address)
        checksums = {f"checksum of {name}": digest for name, digest in {code.main: code.source, **code.files}.items()}
        return {"function": self._function.address.rpartition(":")[2], **checksums}

    def sources(self) -> list[dict[str, Any]]:
        return [{"corpus": self._function.address, **self.identity()}]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        examples, first = self._read(split), 1
        while block := list(itertools.islice(examples, size)):
            chunk = Chunk.of((_checked(*example) for example in block), f"{self._function.address}/{split}", first)
            if any(labels for _, labels in block):
                chunk.labels = [labels for _, labels in block]
            yield chunk
            first += len(block)

    def _read(self, split: str) -> Iterator[tuple[Pair, Labels]]:
        """The pairs of a split with their labels, each checked to be one; none for a split that does not exist."""
        given = self._function(split)
        try:
            pairs = iter(() if given is None else given)
        except TypeError:
            raise self._function.refusal(f"returned {type(given).__name__}; an iterable of pairs is expected") from None
        for number in itertools.count(1):
            with self._function.running():
                example = next(pairs, END)
            if example is END:
                return
            labelled = _labelled(example)
            if labelled is None:
                raise self._function.refusal(
                    f"pair {number} of {split} is {repr(example)[:60]}; (source, target), two strings, is expected, "
                    'or (source, target, {"label": "group"})'
                )
            if labelled[1] and split == "train":
                raise self._function.refusal(f"pair {number} of train has labels; only validation and test pairs have")
            yield labelled


def _labelled(example: Any) -> tuple[Pair, Labels] | None:
    """A pair and its labels, which are optional; None if it is something else."""
    if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
        return None
    source, target, labels = (*example, {})[:3]
    texts = (source, target, *labels, *labels.values()) if isinstance(labels, dict) else (None,)
    return ((source, target), labels) if all(isinstance(text, str) for text in texts) else None


def _checked(pair: Pair, labels: Labels) -> Pair | str:
    """The pair, or what is wrong with it."""
    texts = [("source", pair[0]), ("target", pair[1]), *(("label", text) for text in (*labels, *labels.values()))]
    faults = ((name, text_fault(text)) for name, text in texts)
    return next((f"the {name} {fault}" for name, fault in faults if fault), pair)
