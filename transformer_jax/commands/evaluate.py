"""Evaluates a model on a test set: BLEU, chrF, exact match, perplexity. Every sentence counts once.

  transformer-jax evaluate --workdir=runs/demo --split=test
  transformer-jax evaluate --workdir=runs/demo --weights=averaged --against=runs/other
  transformer-jax evaluate --workdir=runs/demo --source=mine.en --target=mine.de
  transformer-jax evaluate --workdir=runs/demo --config.decode.metrics=mine.py:length_ratio
  transformer-jax evaluate --workdir=runs/cogs --split=test_gen --clusters=category

Scores and translations are written to RUN/translations/; another search (--beam ...), texts given by --source and
exported folders have separate files. --against tests the difference from another run, evaluated before on the same test
set, with a two-sided paired bootstrap over its sentences, for exact match over its clusters if it has them; p = 1 if
the scores are equal.
"""

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput, visible
from transformer_jax.exact_match import CONFIDENCE
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_record
from transformer_jax.runs import records as evaluation_records

if TYPE_CHECKING:
    from transformer_jax.experiment import TestSet
    from transformer_jax.translation.load import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_choice.add_arguments(parser, used=("metrics", *model_choice.SEARCHING))
    parser.add_argument("--split", help="of the run's data: test (the default), valid ...")
    parser.add_argument("--source", type=path, metavar="FILE", help="instead of a split: text, a sentence a line")
    parser.add_argument("--target", type=path, metavar="FILE", help="and its reference translation, line by line")
    for flag, what in (
        ("clusters", "examples with one value of it count as one"),
        ("strata", "each value keeps its share"),
    ):
        parser.add_argument(
            f"--{flag}", metavar="LABEL", help=f"of the examples, for the intervals of exact match: {what}"
        )
    parser.add_argument(
        "--against", type=path, metavar="RUN", help="another run (or a .json of its translations/) to compare with"
    )


def run(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.target is None):
        raise BadInput("--source and --target: give both, or neither and a --split")
    if arguments.source is not None and arguments.split is not None:
        raise BadInput(f"--split={arguments.split} and --source={arguments.source}: both name a test set; give one")
    model, decode = model_choice.load(arguments)
    test_set = _test_set(arguments, model)
    if not test_set.sources:
        raise BadInput(f"{test_set.name}: has no sentences to evaluate on")
    clusters, strata = (_values(test_set, flag, getattr(arguments, flag)) for flag in ("clusters", "strata"))
    test_set = dataclasses.replace(test_set, clusters=clusters or test_set.clusters, strata=strata)
    name = usual = evaluation_records.named(
        test_set.file_name, arguments.weights, model.weights_sha256, decode, model.config.decode
    )
    for flag in ("clusters", "strata"):  # with other intervals than a sweep's results have
        name += f".{flag}={quote(label, safe='')}" if (label := getattr(arguments, flag)) else ""
    other, their_hypotheses = (None, []) if arguments.against is None else _other(arguments, usual, test_set)

    from transformer_jax.evaluation import paired_bootstrap
    from transformer_jax.experiment import evaluate_run
    from transformer_jax.runs.folder import RunFolder

    evaluation = evaluate_run(model, decode, test_set, arguments.weights)
    if other is not None:
        texts = evaluation.hypotheses, their_hypotheses, test_set.references
        tests = paired_bootstrap(*texts, test_set.clusters, decode.bleu_tokenize)
        facts = {key: other.get(key) for key in ("weights", "steps", "decode", "weights_sha256")}
        evaluation.record["against"] = {"run": arguments.against, **facts, **tests}
    directory = Path(arguments.workdir) / "translations"
    evaluation.save(directory, name)
    print(table(evaluation.record))
    for note in RunFolder(arguments.workdir).notes():
        print(f"note: {note}")
    print(f"\n{directory / name}.txt and .json")


def table(record: dict[str, Any]) -> str:
    """The scores as text."""
    about = f"{record['n']:,} sentences; {record['weights']} weights, of step {_listed(record['steps'])}"
    lines = [f"{record['test_set']}: {about}", *_cut(record), ""]
    for name, measure in record["measures"].items():
        lines.append(f"{name:<24}{measure['score']:8.2f}   {measure['signature']}")
    for name in ("per_token", "per_word", "per_character"):
        lines.append(f"{'perplexity ' + name:<24}{record['perplexity'][name]:8.3f}")
    lines += _exact_match(record["exact_match"])
    return "\n".join([*lines, *_compared(record)] if "against" in record else lines)


def _cut(record: Mapping[str, Any]) -> list[str]:
    """How many sentences were truncated and how many tokens are unknown, where any are."""
    told = {
        "cut_sources": "sources truncated (decode.max_source_length, or the end of learned positions)",
        "cut_translations": "translations cut off at the maximum length (decode.extra_length, decode.max_length)",
        "empty_translations": "translations are empty",
        "unknown_tokens": "tokens of the references are unknown: perplexity compares only between equal vocabularies",
    }
    return [f"{record[name]:,} {what}" for name, what in told.items() if record.get(name)]


def _exact_match(found: Mapping[str, Any]) -> list[str]:
    """How many translations equal their references, in all and in each group, with intervals."""
    by_label = found.get("groups", {})
    rows = [
        ("all", found),
        *((f"{name}: {value}", each) for name in by_label for value, each in by_label[name].items()),
    ]
    width = max(24, *(len(visible(title)) + 2 for title, _ in rows))
    lines = ["", f"equal to the reference, with intervals of {CONFIDENCE:.0%} over {found['resampled']}"]
    for title, each in rows:
        interval = "" if each["low"] is None else f"   [{each['low']:.1f}, {each['high']:.1f}]"
        share = f"{100 * each['right'] / each['total']:8.2f} %   {each['right']:,} of {each['total']:,}"
        lines.append(f"{visible(title):<{width}}{share}{interval}")
    return lines


def _compared(record: dict[str, Any]) -> list[str]:
    """The comparison as text."""
    other = record["against"]
    about = f"{other['run']}: {other['weights']} weights, of step {_listed(other['steps'])}"
    search = {name: value for name, value in record["decode"].items() if name in evaluation_records.SEARCH}
    if changed := evaluation_records.search_difference(other, search):
        about += f"; with another search: {changed}"
    lines = ["", f"against {about}"]
    for name in ("bleu", "chrf", "exact_match"):
        test = f"p = {other[name]['p_value']:.4f}   {other[name]['signature']}"
        lines.append(f"{name + ' of the other':<24}{other[name]['other']:8.2f}   {test}")
    return lines


def _test_set(arguments: argparse.Namespace, model: "Run") -> "TestSet":
    from transformer_jax.experiment import TestSet, split_of

    if arguments.source is not None:
        sources, references = text_input.parallel(arguments.source, arguments.target)
        digest = evaluation_records.texts_sha256(sources, references)[: evaluation_records.SHORT]
        file_name = f"{Path(arguments.source).name}.{digest}"  # must not replace the record of a split of that name
        return TestSet(f"{arguments.source} -> {arguments.target}", file_name, sources, references)

    return split_of(arguments.workdir, model.config, arguments.split or "test")


def _values(test_set: "TestSet", flag: str, label: str | None) -> list[str] | None:
    """The value of a label for each example; refused unless every example has it. None if none was asked for."""
    if label is None:
        return None
    groups = test_set.groups or []
    common = set.intersection(*map(set, groups)) if groups else set()
    if label not in common:
        known = (
            f"; all of its examples have {', '.join(sorted(common))}" if common else ", whose examples have no labels"
        )
        raise BadInput(f"--{flag}={label}: is no label of {test_set.name}{known}")
    return [labels[label] for labels in groups]


def _other(arguments: argparse.Namespace, name: str, test_set: "TestSet") -> tuple[dict[str, Any], list[str]]:
    """The record and the translations that --against names; refused if of another test set or incomplete."""
    exact = arguments.against.endswith(".json")
    path = Path(arguments.against) if exact else Path(arguments.against, "translations", f"{name}.json")
    if not path.is_file():
        exported = arguments.weights not in evaluation_records.NAMED_WEIGHTS
        hint = "; for an exported folder, give the .json itself" if exported else ""
        raise BadInput(
            f"--against={arguments.against}: {path} does not exist; evaluate that run on the same test set first{hint}"
        )
    record = read_record(path)
    if not isinstance(record.get("test_set_sha256"), str) or not isinstance(record.get("steps"), list):
        raise BadInput(f"{path}: is not a record of an evaluation")
    if problem := evaluation_records.difference(record, {"test_set_sha256": test_set.digest}):
        raise BadInput(f"{path}: {problem}, not of {test_set.name}")
    if not exact:
        _warn_if_old(arguments, path, record["steps"])
    hypotheses = evaluation_records.translations(path, record)
    if hypotheses is None:
        raise BadInput(
            f"{path.with_suffix('.txt')}: is missing, or does not belong to {path.name}; evaluate that run again"
        )
    return record, hypotheses


def _warn_if_old(arguments: argparse.Namespace, path: Path, steps: list[int]) -> None:
    """Warns if the run was trained further since it was evaluated."""
    from transformer_jax.translation.load import newest_steps

    now = newest_steps(arguments.against, arguments.weights)
    if now is not None and now != steps:
        tell(
            f"warning: {path} is of step {_listed(steps)}, but the {arguments.weights} weights of {arguments.against} "
            f"are of step {_listed(now)} now; evaluate that run again to compare with these"
        )


def _listed(steps: list[int]) -> str:
    return ", ".join(f"{step:,}" for step in steps)
