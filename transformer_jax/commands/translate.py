"""Translates text line by line, from files or stdin to stdout, in order and as soon as possible.

  transformer-jax translate --workdir=runs/demo < in.txt > out.txt
  transformer-jax translate --workdir=runs/demo --n-best=4 --scores in.txt
  transformer-jax translate --workdir=runs/demo --json --attention in.txt > out.jsonl
  transformer-jax translate --workdir=runs/demo --sample --temperature=0.7 --seed=3 < in.txt
  transformer-jax translate --workdir=runs/demo --config.decode.alpha=1 < in.txt

On a terminal without files, sentences can be typed. Words that were never seen in training are warned of on stderr. An
empty line gives an empty line. With --n-best=N every line gives N lines, with --scores each begins with its score and a
tab. --json writes an object a line, with all details.
"""

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell

if TYPE_CHECKING:
    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Hypothesis, Translation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=path, metavar="FILE", help="text, a sentence a line; none: stdin")
    model_choice.add_arguments(parser)
    parser.add_argument("--scores", action="store_true", help="write each translation's score before it")
    parser.add_argument("--json", action="store_true", help="write JSON lines: texts, tokens, scores")
    parser.add_argument("--attention", action="store_true", help="with --json: the attention weights too")


def run(arguments: argparse.Namespace) -> None:
    if arguments.attention and not arguments.json:
        raise BadInput("--attention: has no effect without --json")
    model, decode = model_choice.load(arguments)

    from transformer_jax.commands import interactive  # slow to import
    from transformer_jax.commands.training_words import TrainingWords

    words, is_typed = TrainingWords(model, arguments.workdir), text_input.is_typed(arguments.files)
    if is_typed:
        interactive.prepare(model, decode, arguments.workdir)
    done = empty = 0
    for block in text_input.blocks(arguments.files):
        if is_typed:
            interactive.warn(words, block.lines)
        else:
            words.count(block.lines)
        translations = model.translations(block.lines, first_id=done, decode=decode)
        for index, translation in enumerate(translations):
            model_choice.warn(block.place(index), translation, decode)
            empty += translation.is_empty
            if arguments.json:
                print(json.dumps(record(model, translation, arguments.attention), ensure_ascii=False))
            else:
                print(*lines(translation, decode.n_best, arguments.scores), sep="\n")
        done += len(block.lines)
        print(end="", flush=True)  # readers need not wait for the next block
    words.summarize()
    if empty:
        tell(f"warning: {empty:,} of {done:,} translations are empty, although their lines are not")


def lines(translation: "Translation", count: int, scores: bool) -> Iterator[str]:
    """As many lines as translations were asked for, even if the search found fewer."""
    for rank in range(count):
        best = translation.hypotheses[rank] if rank < len(translation.hypotheses) else None
        text = best.line if best else ""
        yield f"{best.score:.4f}\t{text}" if best and scores else text


def record(model: "Run", translation: "Translation", with_attention: bool) -> dict[str, Any]:
    source, hypotheses = translation.source, translation.hypotheses
    found: dict[str, Any] = {
        "source": source.text,
        "source_tokens": model.tokenizer.pieces(source.tokens),
        "translations": [_hypothesis(model, hypothesis) for hypothesis in hypotheses],
    }
    if with_attention and source.tokens:
        weights = model.attention(translation)._asdict()
        found["attention"] = {name.partition("_")[0]: values.round(4).tolist() for name, values in weights.items()}
    return found


def _hypothesis(model: "Run", hypothesis: "Hypothesis") -> dict[str, Any]:
    return {
        "text": hypothesis.text,
        "score": hypothesis.score,
        "log_probability": hypothesis.log_probability,
        "tokens": model.target_tokenizer.pieces(hypothesis.tokens),
    }
