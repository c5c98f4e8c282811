"""Measures a model on a test set: BLEU, chrF, perplexity. Every sentence counts, once.

  transformer-jax evaluate --workdir=runs/demo --split=test
  transformer-jax evaluate --workdir=runs/demo --weights=averaged --against=runs/other
  transformer-jax evaluate --workdir=runs/demo --source=mine.en --target=mine.de
  transformer-jax evaluate --workdir=runs/demo --config.decode.metrics=mine.py:exact_match

Scores and translations are kept in RUN/translations/, those of another search (--beam ...) in files of their own.
--against tells whether the difference to another run, which was evaluated before on the same test set, is more than
chance (paired bootstrap).
"""

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.commands import model_choice, text_input
from transformer_jax.errors import BadInput
from transformer_jax.record import read_record

if TYPE_CHECKING:
    from transformer_jax.config import DecodeConfig
    from transformer_jax.decoding.run import Run
    from transformer_jax.runs import TestSet


# Options that change nothing about the translations.
NO_SEARCH = ("tokens_per_batch", "metrics")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_choice.add_arguments(parser, used=("metrics", *(name for name in model_choice.SEARCHING if name != "n_best")))
    parser.add_argument("--split", default="test", help="of the run's data: test (the default), valid ...")
    parser.add_argument("--source", metavar="FILE", help="in place of a split: text, a sentence a line")
    parser.add_argument("--target", metavar="FILE", help="and its reference translation, line by line")
    parser.add_argument(
        "--against", metavar="RUN", help="another run (or a .json of its translations/) to compare with"
    )


def run(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.target is None):
        raise BadInput("--source and --target: give both, or neither and a --split")
    model, decode = model_choice.load(arguments)
    test_set = _test_set(arguments, model)
    if not test_set.sources:
        raise BadInput(f"{test_set.name}: has no sentences to evaluate on")
    name = f"{test_set.file_name}.{Path(arguments.weights).name}{_changed(decode, model.config.decode)}"
    other = None if arguments.against is None else _other(arguments.against, name, test_set)

    from transformer_jax.evaluation import paired_bootstrap
    from transformer_jax.runs import evaluate_run
    from transformer_jax.training.run_folder import RunFolder

    evaluation = evaluate_run(model, decode, test_set, arguments.weights)
    if other is not None:
        tests = paired_bootstrap(evaluation.hypotheses, other, test_set.references)
        evaluation.record["against"] = {"run": arguments.against, **tests}
    directory = Path(arguments.workdir) / "translations"
    evaluation.save(directory, name)
    print(table(evaluation.record))
    for note in RunFolder(arguments.workdir).notes():
        print(f"note: {note}")
    print(f"\n{directory / name}.txt and .json")


def _changed(decode: "DecodeConfig", usual: "DecodeConfig") -> str:
    """How a search differs from the run's own, for a file name: the scores of one do not replace those of another."""
    differences = dataclasses.asdict(decode).items() - dataclasses.asdict(usual).items()
    return "".join(f".{name}={value}" for name, value in sorted(differences) if name not in NO_SEARCH)


def table(record: dict[str, Any]) -> str:
    """The scores for a reader."""
    steps = ", ".join(f"{step:,}" for step in record["steps"])
    lines = [f"{record['test_set']}: {record['n']:,} sentences; {record['weights']} weights, of step {steps}", ""]
    for name, measure in record["measures"].items():
        lines.append(f"{name:<24}{measure['score']:8.2f}   {measure['signature']}")
    for name in ("per_token", "per_word", "per_character"):
        lines.append(f"{'perplexity ' + name:<24}{record['perplexity'][name]:8.3f}")
    for name, result in record.get("against", {}).items():
        if name != "run":
            told = f"p = {result['p_value']:.4f}   {result['signature']}"
            lines.append(f"{name + ' of the other':<24}{result['other']:8.2f}   {told}")
    return "\n".join(lines)


def _test_set(arguments: argparse.Namespace, model: "Run") -> "TestSet":
    from transformer_jax.runs import TestSet, split_of

    if arguments.source is not None:
        sources, references = _lines(arguments.source), _lines(arguments.target)
        if len(sources) != len(references):
            raise BadInput(
                f"{arguments.source} has {len(sources):,} lines and {arguments.target} {len(references):,}: "
                "they must have as many"
            )
        return TestSet(f"{arguments.source} -> {arguments.target}", Path(arguments.source).name, sources, references)

    return split_of(arguments.workdir, model.config, arguments.split)


def _lines(path: str) -> list[str]:
    return [line for block in text_input.blocks([path]) for line in block.lines]


def _other(against: str, name: str, test_set: "TestSet") -> list[str]:
    """Another run's translations of the same test set."""
    path = Path(against) if against.endswith(".json") else Path(against) / "translations" / f"{name}.json"
    if not path.is_file():
        raise BadInput(f"--against={against}: there is no {path}; evaluate that run on the same test set first")
    try:
        same = read_record(path)["test_set_sha256"] == test_set.digest
    except KeyError:
        raise BadInput(f"{path}: is no record of an evaluation") from None
    if not same:
        raise BadInput(f"{path}: is of another test set than {test_set.name}")
    return _lines(str(path.with_suffix(".txt")))
