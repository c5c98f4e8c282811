"""The interface of a corpus: sentence pairs in order, some at a time. And the corpus that a user's function yields."""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from transformer_jax import extension
from transformer_jax.config import SPLITS, TEST_NAME, DataConfig

Pair = tuple[str, str]
# The labels of a test example, such as {"category": "cp_recursion"}: results can be reported by group.
Labels = dict[str, str]
# A pair, perhaps with labels, or what is wrong with the text in its place.
Entry = Pair | tuple[str, str, Labels] | str
END: Any = object()
# A list of this name in the file of a custom corpus names more test sets, beside "test".
TESTS = "TESTS"


@dataclasses.dataclass
class Chunk:
    """Consecutive pairs of a split. An unreadable pair is empty; `faults` says where it is and why, by its index."""

    pairs: list[Pair]
    origin: str
    first: int  # the number of the first pair in `origin`
    faults: dict[int, str] = dataclasses.field(default_factory=dict)
    labels: list[Labels] = dataclasses.field(default_factory=list)  # of every pair, or empty; none in train
    target_origin: str = ""  # where the targets come from, if it is another file

    @classmethod
    def of(cls, entries: Iterable[Entry], origin: str, first: int) -> Chunk:
        chunk = cls([], origin, first)
        for index, entry in enumerate(entries):
            source, target, labels = ("", "", {}) if isinstance(entry, str) else (*entry, {})[:3]
            texts = (source, target, *labels, *labels.values())
            fault = entry if isinstance(entry, str) else next(filter(None, map(_fault, texts)), None)
            if fault:
                chunk.faults[index] = f"{chunk.place(index)}: {fault}"
            chunk.pairs.append(("", "") if fault else (source, target))
            chunk.labels.append(labels)
        if not any(chunk.labels):
            chunk.labels = []
        return chunk

    def place(self, index: int, side: int = 0) -> str:
        """Where a text of a pair comes from, as a person would look it up: "train.en:17"."""
        return f"{self.target_origin if side and self.target_origin else self.origin}:{self.first + index}"


def _fault(text: str) -> str | None:
    """Why a string cannot be stored as text; None if it can."""
    if "\0" in text:
        return f"has a NUL character at {text.index(chr(0)) + 1}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not Unicode text: lone surrogate at {error.start + 1}"
    return None


class Corpus(ABC):
    """A source of sentence pairs."""

    splits: tuple[str, ...]  # train, and whichever of valid, test and others the corpus has
    files: Collection[str] = ()  # the text files that the options name, whether or not they exist
    never_held_out: Collection[Pair] = ()  # training pairs that must not become validation pairs

    @abstractmethod
    def __init__(self, config: DataConfig):
        """The corpus that the options `data` describe."""

    @abstractmethod
    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        """The pairs of a split in order, at most `size` per chunk, so that no split need fit into memory."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Plain facts that change when, and only when, the text does."""

    def sources(self) -> list[dict[str, Any]]:
        """Where the text came from, for the manifest; complete after `identity`, and when every split has been read."""
        return [self.identity()]


class CustomCorpus(Corpus):
    """The pairs that `path/to/file.py:Name` yields for train, valid and test, and for what TESTS in its file names."""

    def __init__(self, config: DataConfig):
        self._function = extension.load_function("data.corpus", config.corpus, required=("split",))
        more = [*dict.fromkeys(extension.named_in(extension.file_of(self._function.address), TESTS))]
        if wrong := [name for name in more if not TEST_NAME.fullmatch(name) or name in SPLITS]:
            raise self._function.refusal(
                f"{TESTS} names {wrong[0]!r}; letters, digits and _ are expected, and no split"
            )
        found = [split for split in ("valid", "test") if any(True for _ in self._read(split))]
        if empty := [split for split in more if not any(True for _ in self._read(split))]:
            raise self._function.refusal(f"{TESTS} names {empty[0]!r}, for which it yields no pairs")
        self.splits, self._named_tests = ("train", *found, *more), more

    def identity(self) -> dict[str, Any]:
        """The code that defines it, and the files that FILES names."""
        code = extension.read_code(self._function.address)
        checksums = {f"checksum of {name}": digest for name, digest in {code.main: code.source, **code.files}.items()}
        tests = {"tests": self._named_tests} if self._named_tests else {}
        return {"function": self._function.address.rpartition(":")[2], **checksums, **tests}

    def sources(self) -> list[dict[str, Any]]:
        return [{"corpus": self._function.address, **self.identity()}]

    def chunks(self, split: str, size: int) -> Iterator[Chunk]:
        entries, first = self._read(split), 1
        while block := list(itertools.islice(entries, size)):
            yield Chunk.of(block, f"{self._function.address}/{split}", first)
            first += len(block)

    def _read(self, split: str) -> Iterator[Entry]:
        """The pairs that the function yields for a split; none for a split that does not exist."""
        with self._function.running():
            found = self._function(split)
            examples = iter(() if found is None else found)
        for number in itertools.count(1):
            with self._function.running():
                example = next(examples, END)
            if example is END:
                return
            if not _is_example(example) or (split == "train" and len(example) > 2 and example[2]):
                raise self._function.refusal(
                    f"pair {number} of {split} is {repr(example)[:60]}; (source, target), two strings, is expected, "
                    'or (source, target, {"label": "group"}) of validation and test'
                )
            yield tuple(example)


def _is_example(example: Any) -> bool:
    if not isinstance(example, (tuple, list)) or len(example) not in (2, 3):
        return False
    labels = example[2] if len(example) > 2 else {}
    texts = [*example[:2], *labels, *labels.values()] if isinstance(labels, dict) else [None]
    return all(isinstance(text, str) for text in texts)
