"""Custom corpora: a function of the split's name that yields pairs, in a file of the user's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from transformer_jax import extension
from transformer_jax.code_digest import read_code
from transformer_jax.config import DataConfig
from transformer_jax.data.corpora.corpus import Chunk, Corpus, Pair, text_fault

SPLITS = ("train", "valid", "test")
END: Any = object()


class CustomCorpus(Corpus):
    """What `path/to/file.py:Name` yields for train and, if it yields anything, for valid and test."""

    def __init__(self, config: DataConfig):
        self._function = extension.load_function("data.corpus", config.corpus, required=("split",))
        self._file = extension.file_of(config.corpus)
        self.splits = tuple(split for split in SPLITS if next(self._read(split), None) is not None)
        if "train" not in self.splits:
            raise self._function.refusal("yields no pair for the split train")

    def identity(self) -> dict[str, Any]:
        """The code of its file and of the modules it imports, and the data files that it lists."""
        code = read_code(self._file)
        checksums = {f"checksum of {name}": digest for name, digest in {**code.modules, **code.data}.items()}
        return {"function": self._function.address.rpartition(":")[2], **checksums}

    def sources(self) -> list[dict[str, Any]]:
        return [{"corpus": self._function.address, **self.identity()}]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        pairs, first = self._read(split), 1
        while block := list(itertools.islice(pairs, size)):
            yield Chunk.of(map(_checked, block), f"{self._function.address}/{split}", first)
            first += len(block)

    def _read(self, split: str) -> Iterator[Pair]:
        """The pairs of a split, each checked to be one; none for a split that does not exist."""
        given = self._function(split)
        try:
            pairs = iter(() if given is None else given)
        except TypeError:
            raise self._function.refusal(f"returned {type(given).__name__}; an iterable of pairs is expected") from None
        for number in itertools.count(1):
            with self._function.running():
                pair = next(pairs, END)
            if pair is END:
                return
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise self._function.refusal(
                    f"pair {number} of {split} is {repr(pair)[:60]}; (source, target), two strings, is expected"
                )
            yield pair[0], pair[1]


def _checked(pair: Pair) -> Pair | str:
    """The pair, or what is wrong with it."""
    faults = [(side, text_fault(text)) for side, text in zip(("source", "target"), pair, strict=True)]
    return next((f"the {side} {fault}" for side, fault in faults if fault), pair)
