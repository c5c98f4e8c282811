"""Translation of sentences as they are typed: compiled before the first one, with sentences of the training text as
examples of the form, and warnings of words that it lacks."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import UNK
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_jax.config import DecodeConfig
    from transformer_jax.translation.load import Run

# Sentences of up to this many tokens share one compiled program; longer ones are compiled when they come.
TOKENS = 32
# Decoding more training tokens, for their words, would take seconds; of such a text only unknown tokens are warned of.
MOST_TRAINING_TOKENS = 3_000_000
EXAMPLES = 2


class Session:
    """Prepares for sentences to be typed, and warns of their words."""

    def __init__(self, model: "Run", decode: "DecodeConfig", workdir: str):
        self._model = model
        self._words: set[str] = set()
        examples: list[str] = []
        for text in training_sources(workdir):
            self._words.update(text.split())
            if len(examples) < EXAMPLES and len(text.split()) > 1:
                examples.append(text)
        tell("compiling the search, once ...")
        model.compile_search(TOKENS, decode)
        if examples:
            tell("The model was trained on sentences in this form:")
            tell("\n".join(f"    {example}" for example in examples))

    def warn(self, lines: Sequence[str]) -> None:
        for line in lines:
            if unseen := self.unseen(line):
                tell(f"warning: never seen in training: {', '.join(unseen)}")

    def unseen(self, line: str) -> list[str]:
        """The words of a line that the training text lacks, each with its lower-case form if the text has that one."""
        found = {}
        for word in line.split():
            if word not in self._words if self._words else UNK in self._model.tokenizer.encode(word):
                lower = word.lower()
                found[word] = f"{word} (but {lower} was)" if lower in self._words else word
        return list(found.values())


def training_sources(workdir: str) -> Iterator[str]:
    """The source sentences that a run was trained on; none if its data is not there, or large."""
    with contextlib.suppress(BadInput, OSError):
        folder = RunFolder(workdir)
        prepared = Prepared.open(folder.data(folder.stored_config()))
        pairs = prepared.pairs("train")
        if len(pairs.source_tokens) <= MOST_TRAINING_TOKENS:
            tokens, offsets = pairs.source_tokens.tolist(), pairs.source_offsets.tolist()
            for begin, end in itertools.pairwise(offsets):
                yield prepared.tokenizer.decode(tokens[begin:end])
