"""Translation of sentences as they are typed: compiled before the first one, with sentences of the training text as
examples of the form, and warnings of words that it lacks."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from transformer_jax.commands.training_words import TrainingWords, training_sources
from transformer_jax.files.progress import tell

if TYPE_CHECKING:
    from transformer_jax.config import DecodeConfig
    from transformer_jax.translation.load import Run

# Sentences of up to this many tokens share one compiled program; longer ones are compiled when they come.
TOKENS = 32
EXAMPLES = 2


def prepare(model: "Run", decode: "DecodeConfig", workdir: str) -> None:
    """What comes before the prompt."""
    tell("compiling the search, once ...")
    model.compile_search(TOKENS, decode)
    of_several_words = (text for text in training_sources(workdir) if len(text.split()) > 1)
    if examples := [*itertools.islice(of_several_words, EXAMPLES)]:
        tell("The model was trained on sentences in this form:")
        tell("\n".join(f"    {example}" for example in examples))


def warn(words: TrainingWords, lines: Sequence[str]) -> None:
    for line in lines:
        if unseen := words.unseen(line):
            tell(f"warning: never seen in training: {', '.join(unseen)}")
