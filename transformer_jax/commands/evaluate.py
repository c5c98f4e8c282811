"""Evaluates a model on a test set: BLEU, chrF, exact match, perplexity. Every sentence counts once.

  transformer-jax evaluate --workdir=runs/demo --split=test
  transformer-jax evaluate --workdir=runs/demo --weights=averaged --against=runs/other
  transformer-jax evaluate --workdir=runs/demo --source=mine.en --target=mine.de
  transformer-jax evaluate --workdir=runs/demo --config.decode.metrics=mine.py:length_ratio

Scores and translations are written to RUN/translations/; another search (--beam ...), texts given by --source and
exported folders have separate files. --against tests the difference from another run, evaluated before on the same test
set, with a two-sided paired bootstrap over sentences (for exact match over clusters, if there are any); p = 1 if the
scores are equal.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.commands import model_choice, text_input
from transformer_jax.commands.arguments import path
from transformer_jax.errors import BadInput, visible
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_typed
from transformer_jax.files.remote import name_of
from transformer_jax.metric_names import OF_THE_OTHER
from transformer_jax.runs import records

if TYPE_CHECKING:
    from transformer_jax.bootstrap import Scored
    from transformer_jax.experiment import TestSet

# Counts in a record: sentences that were cut, and unknown tokens.
CUT = {
    "cut_sources": "sources truncated (decode.max_source_length)",
    "cut_translations": "translations cut off at the maximum length (decode.extra_length, decode.max_length)",
    "empty_translations": "translations are empty",
    "unknown_tokens": "tokens of the references are unknown: compare perplexity only with runs of the same vocabulary",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    model_choice.add_arguments(parser, used=("metrics", "bleu_tokenize", *model_choice.SEARCHING))
    parser.add_argument("--split", help="a split of the run's data: test (the default), valid ...")
    parser.add_argument("--source", type=path, metavar="FILE", help="instead of a split: text, one sentence per line")
    parser.add_argument("--target", type=path, metavar="FILE", help="the references of --source, line by line")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON, and no table")
    against = "another run (or a .json of its translations/) to compare with"
    parser.add_argument("--against", type=path, metavar="RUN", help=against)


def run(arguments: argparse.Namespace) -> None:
    if (arguments.source is None) != (arguments.target is None) or None not in (arguments.source, arguments.split):
        raise BadInput("--split, --source, --target: give --split=NAME, or both --source=FILE and --target=FILE")
    test_set = _test_set(arguments)
    model, decode = model_choice.load(arguments)
    naming = test_set.file_name, arguments.weights, model.weights_sha256, decode, model.config.decode
    name, other, their_hypotheses = records.named(*naming), None, list[str]()
    if arguments.against is not None:
        weights = arguments.weights if arguments.weights in records.NAMED_WEIGHTS else "latest"
        their_name = records.named(test_set.file_name, weights, *naming[2:])
        other, their_hypotheses = _other(arguments.against, their_name, test_set)

    from transformer_jax.bootstrap import paired_bootstrap
    from transformer_jax.experiment import evaluate_run
    from transformer_jax.runs.folder import RunFolder

    evaluation = evaluate_run(model, decode, test_set, name_of(arguments.weights))
    if other is not None:
        texts = evaluation.hypotheses, their_hypotheses, test_set.references
        metrics = _scored_by_both(evaluation.record, other)
        for metric in evaluation.record["sentence_scores"].keys() - metrics:
            tell(f"note: {metric} is not compared: {name_of(arguments.against)} has no scores by the same code")
        tests = paired_bootstrap(*texts, test_set.clusters, decode.bleu_tokenize, metrics)
        facts = {key: other.get(key) for key in OF_THE_OTHER} | {"run": name_of(arguments.against)}
        evaluation.record["against"] = {**facts, **tests}
    directory = Path(arguments.workdir) / "translations"
    if arguments.json:
        shown = {key: value for key, value in evaluation.record.items() if "sentence" not in key}
        print(json.dumps(shown, ensure_ascii=False, indent=1))
        evaluation.save(directory, name)
        return
    print(table(evaluation.record))  # first: the folder may be read-only, or the disk full
    for note in RunFolder(arguments.workdir).notes():
        print(f"note: {note}")
    evaluation.save(directory, name)
    print(f"\n{name_of(str(directory / name))}.txt and .json")


def _scored_by_both(record: Mapping[str, Any], other: Mapping[str, Any]) -> "dict[str, Scored]":
    """The custom metrics with scores of sentences that the same code gave both runs."""
    from transformer_jax.bootstrap import Scored

    found = {}
    for name, ours in record["sentence_scores"].items():
        signature, theirs = record["measures"][name]["signature"], other.get("sentence_scores", {}).get(name)
        if theirs is not None and other["measures"][name]["signature"] == signature:
            found[name] = Scored(ours, theirs, signature)
    return found


def table(record: Mapping[str, Any]) -> str:
    """The scores as text."""
    from transformer_jax.bootstrap import CONFIDENCE

    exact, perplexity = record["exact_match"], record["perplexity"]
    lines = [f"{record['test_set']}: {record['n']:,} sentences; {_weights(record)}"]
    lines += [f"{record[name]:,} {what}" for name, what in CUT.items() if record.get(name)]
    lines.append("")
    lines += [f"{name:<24}{found['score']:8.2f}   {found['signature']}" for name, found in record["measures"].items()]
    lines += [
        f"{f'perplexity {unit}':<24} {perplexity[unit]:7.3f}" for unit in ("per_token", "per_word", "per_character")
    ]
    lines += ["", f"equal to the reference, with intervals of {CONFIDENCE:.0%} over {exact['resampled']}"]
    rows = {"all": exact}
    for label, groups in exact.get("groups", {}).items():
        rows |= {visible(f"{label}: {value}"): counts for value, counts in groups.items()}
    width = max(24, *(len(title) + 2 for title in rows))
    for title, counts in rows.items():
        interval = "" if counts["low"] is None else f"   [{counts['low']:.1f}, {counts['high']:.1f}]"
        share = f"{100 * counts['right'] / counts['total']:8.2f} %   {counts['right']:,} of {counts['total']:,}"
        lines.append(f"{title:<{width}}{share}{interval}")
    if (other := record.get("against")) is not None:
        search = {name: value for name, value in record["decode"].items() if name in records.SEARCH}
        changed = records.search_difference(other, search)
        another = f"; with another search: {changed}" if changed else ""
        lines += ["", f"against {other['run']}: {_weights(other)}{another}"]
        for name, test in other.items():
            if isinstance(test, dict) and "p_value" in test:
                p_value = f"p = {test['p_value']:.4f}   {test['signature']}"
                lines.append(f"{name + ' of the other':<24}{test['other']:8.2f}   {p_value}")
    return "\n".join(lines)


def _weights(record: Mapping[str, Any]) -> str:
    return f"{record['weights']} weights, of step {', '.join(f'{step:,}' for step in record['steps'])}"


def _test_set(arguments: argparse.Namespace) -> "TestSet":
    """The split or the files to evaluate on."""
    from transformer_jax.experiment import TestSet, split_of
    from transformer_jax.runs.folder import WEIGHTS, RunFolder

    if arguments.source is None and (Path(arguments.workdir) / WEIGHTS).is_file():
        raise BadInput(f"{arguments.workdir}: has no test sets, as an exported folder; give --source and --target")
    if arguments.source is None:
        config = RunFolder(arguments.workdir).stored_config()  # an exported model's is that of another run
        test_set = split_of(arguments.workdir, config, "test" if arguments.split is None else arguments.split)
    else:
        sources, references = text_input.parallel(arguments.source, arguments.target)
        digest = records.texts_sha256(sources, references)[: records.SHORT]
        file_name = f"{Path(arguments.source).name}.{digest}"  # must not replace the record of a split of that name
        name = f"{name_of(arguments.source)} -> {name_of(arguments.target)}"
        test_set = TestSet(name, file_name, sources, references)
    if not test_set.sources:
        raise BadInput(f"{test_set.name}: has no sentences to evaluate on")
    return test_set


def _other(against: str, name: str, test_set: "TestSet") -> tuple[dict[str, Any], list[str]]:
    """The record and the translations that --against names."""
    path = Path(against) if against.endswith(".json") else Path(against, "translations", f"{name}.json")
    if not path.is_file():
        first = "evaluate that run first, on the same test set, or give the .json that evaluate has written there"
        raise BadInput(f"--against={against}: there is no {path}; {first}")
    record: Any = read_typed(path, records.Record)
    hypotheses = records.translations(path, record)
    problem = records.difference(record, {"test_set_sha256": test_set.digest})
    if hypotheses is None or problem:
        problem = problem or f"its translations in {path.stem}.txt are missing or have changed"
        raise BadInput(f"{path}: {problem}; evaluate that run on {test_set.name}")
    return record, hypotheses
