"""Words of the input that a run's training text lacks."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import UNK
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.runs.folder import RunFolder

if TYPE_CHECKING:
    from transformer_jax.translation.load import Run

# Decoding more training tokens, for their words, would take seconds; of such a text only unknown tokens are warned of.
MOST_TRAINING_TOKENS = 3_000_000
SHOWN = 5


class TrainingWords:
    """The words of the text that a run was trained on, and a count of sentences with others."""

    def __init__(self, model: "Run", workdir: str):
        self._model = model
        self._words = {word for text in training_sources(workdir) for word in text.split()}
        self._sentences = self._affected = 0
        self._first: dict[str, None] = {}

    def unseen(self, line: str) -> list[str]:
        """The words of a line that the training text lacks, each with its lower-case form if the text has that one."""
        found = {}
        for word in line.split():
            if word not in self._words if self._words else UNK in self._model.tokenizer.encode(word):
                lower = word.lower()
                found[word] = f"{word} (but {lower} was)" if lower in self._words else word
        return list(found.values())

    def count(self, lines: Sequence[str]) -> None:
        for line in lines:
            unseen = self.unseen(line)
            self._sentences += bool(line.strip())
            self._affected += bool(unseen)
            for word in itertools.islice(unseen, SHOWN):
                if len(self._first) < SHOWN:
                    self._first[word] = None

    def summarize(self) -> None:
        """One line about all that was counted, if words were never seen in training."""
        if self._affected:
            of_all = f"{self._affected:,} of {self._sentences:,} sentences"
            tell(f"warning: never seen in training: words in {of_all}, the first of them {', '.join(self._first)}")


def training_sources(workdir: str) -> Iterator[str]:
    """The source sentences that a model was trained on; none if some of them are not there, or if there are many."""
    with contextlib.suppress(BadInput, OSError):
        found = corpora(Path(workdir))
        if sum(len(prepared.pairs("train").source_tokens) for prepared in found) <= MOST_TRAINING_TOKENS:
            for prepared in found:
                pairs = prepared.pairs("train")
                tokens, offsets = pairs.source_tokens.tolist(), pairs.source_offsets.tolist()
                for begin, end in itertools.pairwise(offsets):
                    yield prepared.tokenizer.decode(tokens[begin:end])


def corpora(workdir: Path) -> list[Prepared]:
    """The data of a run, and of the run with whose weights it started."""
    folder = RunFolder(workdir)
    config = folder.stored_config()
    own = Prepared.open(folder.data(config))
    if config.data.tokenizer_file is None:
        return [own]
    # --init-from takes the tokenizer of the other run, which is in the folder of that run's data.
    other = Path(config.data.tokenizer_file).parent
    is_of_run = (other.parent / "config.json").is_file()
    return [own, *(corpora(other.parent) if is_of_run else [Prepared.open(other)])]
