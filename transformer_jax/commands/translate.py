"""Translates text line by line, from files or stdin to stdout, in order and as soon as possible.

  transformer-jax translate --workdir=runs/demo < in.txt > out.txt
  transformer-jax translate --workdir=runs/demo --n-best=4 --scores in.txt
  transformer-jax translate --workdir=runs/demo --json --attention in.txt > out.jsonl
  transformer-jax translate --workdir=runs/demo --sample --temperature=0.7 --seed=3 < in.txt
  transformer-jax translate --workdir=runs/demo --config.decode.alpha=1 < in.txt

On a terminal without files, sentences can be typed. A warning on stderr names words that do not occur in the training
text. An empty line gives an empty line. --n-best=N writes N lines per line, and --scores begins each with its score and
a tab. --json writes one object per line, with all details.
"""

import argparse
import contextlib
import itertools
import json
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path, refuse_alone
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import require_file
from transformer_jax.files.output import check_results
from transformer_jax.files.progress import tell
from transformer_jax.runs import records

if TYPE_CHECKING:
    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Translation

# Decoding more training tokens, for their words, would take seconds.
MOST_TRAINING_TOKENS = 3_000_000
SHOWN_WORDS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=path, metavar="FILE", help="text, one sentence per line; none: stdin")
    model_choice.add_arguments(parser)
    parser.add_argument("--scores", action="store_true", help="write each translation's score before it")
    parser.add_argument("--json", action="store_true", help="write JSON lines: texts, tokens, scores")
    parser.add_argument("--attention", action="store_true", help="with --json: the attention weights too")


def run(arguments: argparse.Namespace) -> None:
    from transformer_jax.data.tokenizer import UNK

    refuse_alone(arguments, "json", "attention")
    for file in arguments.files:
        require_file(file)
    model, decode = model_choice.load(arguments)
    # The text that an exported model was trained on is not in this folder.
    seen = training_words(arguments.workdir) if arguments.weights in records.NAMED_WEIGHTS else set[str]()
    if not arguments.files and sys.stdin.isatty():
        tell("Type a sentence and press Enter; Ctrl-D ends. The first translations wait for compilation.")
    done = empty = 0
    for block in text_input.blocks(arguments.files):
        words = dict.fromkeys(" ".join(block.lines).split()) if seen else ()
        if unseen := [word for word in words if word not in seen and not seen.issuperset(as_read(model, word))]:
            seen.update(unseen)  # which are warned of once
            others = f" and {len(unseen) - SHOWN_WORDS:,} more" if len(unseen) > SHOWN_WORDS else ""
            tell(f"warning: never seen in training: {', '.join(unseen[:SHOWN_WORDS])}{others}")
        elif unknown := [i for i, line in enumerate(block.lines) if UNK in model.tokenizer.encode(line)]:
            others = f", and {len(unknown) - 1:,} more lines" if len(unknown) > 1 else ""
            tell(f"warning: {block.place(unknown[0])}{others}: tokens that the vocabulary lacks, perhaps white space")
        translations = model.translations(block.lines, first_id=done, decode=decode)
        for index, translation in enumerate(translations):
            model_choice.warn(block.place(index), translation, decode)
            empty += translation.is_empty
            if arguments.json:
                print(json.dumps(record(model, translation, arguments.attention), ensure_ascii=False))
            else:
                print(*lines(translation, decode.n_best, arguments.scores), sep="\n")
        done += len(block.lines)
        check_results()
    if empty:
        tell(f"warning: {empty:,} of {done:,} translations are empty, although their lines are not")


def as_read(model: "Run", word: str) -> list[str]:
    """The words that the tokenizer makes of a word: of another case, or normalized; itself if a part is unknown."""
    from transformer_jax.data.tokenizer import UNK

    tokens = model.tokenizer.encode(word)
    return [word] if UNK in tokens else model.tokenizer.decode(tokens).split()


def training_words(workdir: str) -> set[str]:
    """The source words that a model was trained on; none if the text is not there, incomplete or large."""
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.runs.folder import RunFolder

    with contextlib.suppress(BadInput, OSError):
        folder = RunFolder(workdir)
        config = folder.stored_config()
        prepared = Prepared.open(folder.data(config))
        pairs = prepared.pairs("train")
        # A tokenizer_file may come from the run it started from (--init-from), which saw other text before.
        if config.data.tokenizer_file is None and len(pairs.source_tokens) <= MOST_TRAINING_TOKENS:
            tokens, offsets = pairs.source_tokens.tolist(), pairs.source_offsets.tolist()
            texts = (prepared.tokenizer.decode(tokens[begin:end]) for begin, end in itertools.pairwise(offsets))
            return {word for text in texts for word in text.split()}
    return set()


def lines(translation: "Translation", count: int, scores: bool) -> Iterator[str]:
    """A line for each translation that was asked for, even if the search found fewer."""
    found = [(best.score, best.line) for best in translation.hypotheses]
    for score, text in [*found, *[(-math.inf, "")] * (count - len(found))]:
        yield f"{score:.4f}\t{text}" if scores else text


def record(model: "Run", translation: "Translation", with_attention: bool) -> dict[str, Any]:
    source = translation.source
    translations = [
        {
            "text": hypothesis.text,
            "score": hypothesis.score,
            "log_probability": hypothesis.log_probability,
            "tokens": model.target_tokenizer.pieces(hypothesis.tokens),
        }
        for hypothesis in translation.hypotheses
    ]
    tokens = model.tokenizer.pieces(source.tokens)
    found: dict[str, Any] = {"source": source.text, "source_tokens": tokens, "translations": translations}
    if with_attention and source.tokens:
        weights = model.attention(translation)._asdict()
        found["attention"] = {name.partition("_")[0]: values.round(4).tolist() for name, values in weights.items()}
    return found
