"""A corpus of the user's own: a function of the split's name that yields pairs, in a file of the user's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from transformer_jax import extension
from transformer_jax.config import DataConfig
from transformer_jax.custom_code import read_code
from transformer_jax.data.corpora.chunks import Chunk

SPLITS = ("train", "valid", "test")
END: Any = object()


class OwnCorpus:
    """What `path/to/file.py:Name` yields for train and, where it yields anything, for valid and test."""

    def __init__(self, config: DataConfig):
        self._pairs = extension.load_function("data.corpus", config.corpus, given=("split",))
        self._file = extension.file_of(config.corpus)
        self.splits = tuple(split for split in SPLITS if next(self._read(split), None) is not None)
        if "train" not in self.splits:
            raise self._pairs.refusal("yields no pair for the split train")

    def identity(self) -> dict[str, Any]:
        """The code of its file and of the modules that it imports, and the files that it says it reads."""
        code = read_code(self._file)
        checksums = {f"checksum of {name}": digest for name, digest in {**code.modules, **code.data}.items()}
        return {"function": self._pairs.address.rpartition(":")[2], **checksums}

    def sources(self) -> list[dict[str, Any]]:
        return [{"corpus": self._pairs.address, **self.identity()}]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        pairs, start = self._read(split), 0
        while block := list(itertools.islice(pairs, size)):
            yield self._chunk(block, split, start)
            start += len(block)

    def _read(self, split: str) -> Iterator[tuple[str, str]]:
        """The pairs of a split, each seen to be one. A split that there is not yields none."""
        given = self._pairs(split)
        try:
            pairs = iter(() if given is None else given)
        except TypeError:
            raise self._pairs.refusal(f"returned {type(given).__name__}; pairs to go through would be right") from None
        for number in itertools.count(1):
            with self._pairs.running():
                pair = next(pairs, END)
            if pair is END:
                return
            if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(text, str) for text in pair):
                raise self._pairs.refusal(
                    f"pair {number} of {split} is {repr(pair)[:60]}; (source, target), two texts, would be right"
                )
            yield pair[0], pair[1]

    def _chunk(self, block: list[tuple[str, str]], split: str, start: int) -> Chunk:
        def place(index: int) -> str:
            return f"{self._pairs.address}/{split}:{start + index + 1}"

        faults = {index: f"{place(index)}: {fault}" for index, pair in enumerate(block) if (fault := _fault(*pair))}
        pairs = [("", "") if index in faults else pair for index, pair in enumerate(block)]
        return Chunk([source for source, _ in pairs], [target for _, target in pairs], place, faults)


def _fault(source: str, target: str) -> str | None:
    """Why a pair is no text."""
    for side, text in (("source", source), ("target", target)):
        if "\0" in text:
            return f"the {side} has a NUL character"
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"the {side} is not Unicode text: lone surrogate at {error.start + 1}"
    return None
