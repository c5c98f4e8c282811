"""Evaluates a trained run of a sweep on every test set, analyses it, and writes its result.json."""

import json
import statistics
from collections.abc import Mapping
from typing import Any

import jax

from transformer_jax import extension
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput, Failed
from transformer_jax.experiment import TestSet, evaluate_run, identity, split_of
from transformer_jax.files.atomic import explained, write_json, write_record
from transformer_jax.model.size import training_flops
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.runs.export import SavedWeights, write_export
from transformer_jax.runs.folder import identifying_versions, numerics
from transformer_jax.runs.metrics import is_validation, read_metrics
from transformer_jax.runs.records import IDENTITY, difference, translations
from transformer_jax.sweeps import provenance
from transformer_jax.sweeps.run import SweepRun, digest, read_json
from transformer_jax.sweeps.spec import ResolvedSweep
from transformer_jax.training.progress import count
from transformer_jax.translation.load import Run, load_run
from transformer_jax.update.optimizer import peak_rate

# The measures of a test set in a result.json, besides perplexity, exact match and custom metrics.
MEASURES = ("bleu", "chrf", "paper_bleu")


def finish(run: SweepRun, definition: ResolvedSweep, together: int, watch: CompileWatch) -> None:
    """Evaluates a trained run, as far as that is not done yet, and analyses it; writes result.json last."""
    weights = definition.sweep.weights
    if weights == "averaged":
        saved = SavedWeights(run.folder)
        steps = saved.regular_steps[-saved.config.train.keep_latest :]
        write_export(run.folder.averaged, saved.average(steps), replace=True)
    model = load_run(run.path, weights)
    config = run.folder.load_config()  # with the actual sizes of the vocabularies
    test_sets = {split: split_of(run.path, config, split) for split in run.tests}
    tests = {split: measured_on(run, model, test_set, weights) for split, test_set in test_sets.items()}
    for name in run.analyses:
        found = analyse(model, config, test_sets, name, definition.sweep.analyses[name])
        with explained(run.path):
            run.analysis(name).parent.mkdir(exist_ok=True)
            write_json(run.analysis(name), found)
    facts = numerics()
    result = {
        "variant": run.variant,
        "seed": run.seed,
        "config_digest": digest(run.experiment),
        "parameters": count(model.params),
        "learning_rate": peak_rate(config.optimizer, config.model.base_d_model),
        **training(run, config, model.steps[0] if weights == "best" else None),
        "tests": tests,
        "code": provenance.digests(definition, run),
        "versions": identifying_versions(),
        "together": together,
        "devices": f"{facts['cores']} CPU cores" if jax.default_backend() == "cpu" else str(facts["devices"]),
        "compile_seconds": watch.seconds,
    }
    with explained(run.path):
        write_record(run.path / "result.json", result)


def measured_on(run: SweepRun, model: Run, test_set: TestSet, weights: str) -> dict[str, Any]:
    """The scores on a split; it is translated now unless the same weights were evaluated in the same way before."""
    directory, name = run.path / "translations", f"{test_set.file_name}.{weights}"
    record = read_json(directory / f"{name}.json")
    wanted = identity(model, model.config.decode, test_set)
    if record is None or difference(record, wanted) or translations(directory / f"{name}.json", record) is None:
        evaluation = evaluate_run(model, model.config.decode, test_set, weights)
        evaluation.save(directory, name)
        record = evaluation.record
    return {
        "file": f"translations/{name}.json",
        **{key: wanted[key] for key in IDENTITY},
        **{name: scores["score"] for name, scores in record["measures"].items() if name in MEASURES},
        "perplexity_per_token": record["perplexity"]["per_token"],
        "exact_match": {key: record["exact_match"][key] for key in ("right", "total")},
        "custom_metrics": {name: record["measures"][name]["score"] for name in wanted["metrics"]},
    }


def analyse(model: Run, config: ExperimentConfig, tests: dict[str, TestSet], name: str, address: str) -> dict[str, Any]:
    """The result of an analysis, a function in a user's file, for a model."""
    with extension.running(extension.file_of(address)):
        found = extension.load_object(address)(model, config, tests)
    try:
        json.dumps({**found})
    except (TypeError, ValueError) as error:
        raise BadInput(f"analysis {name!r}: {address} must return a dict that can be stored as JSON: {error}") from None
    return dict(found)


def training(run: SweepRun, config: ExperimentConfig, at_step: int | None = None) -> dict[str, Any]:
    """Totals of the training from metrics.jsonl; the validation is the one at this step, or the last."""
    lines = read_metrics(run.folder.metrics)
    logged = [line for line in lines if "seconds" in line]
    if not logged:
        raise Failed(f"{run.folder.metrics}: has no line about the training; train.log_every may be too large")
    pairs = training_batches(config.data, Prepared.open(run.folder.data(config)).pairs("train")).statistics()
    lengths = (round(tokens / pairs.pairs) for tokens in (pairs.source_tokens, pairs.target_tokens))
    source_tokens = sum(line["source_tokens_per_second"] * line["seconds"] for line in logged)
    target_tokens = logged[-1]["target_tokens"]
    validations = [line for line in lines if is_validation(line) and at_step in (None, line["step"])]
    last: Mapping[str, Any] = validations[-1] if validations else {}
    names = ("valid_loss", "valid_perplexity", "valid_accuracy", "bleu", "exact_match")
    return {
        "steps": lines[-1]["step"],
        "target_tokens": target_tokens,
        "longest_target": pairs.longest_target,
        "train_seconds": sum(line["seconds"] for line in logged),
        # The median, because lines that include compilation or a restart say nothing about the speed.
        "tokens_per_second": statistics.median(line["target_tokens_per_second"] for line in logged),
        "training_flops": training_flops(config.model, *lengths).of(source_tokens, target_tokens),
        "valid": {name.removeprefix("valid_"): last[name] for name in names if name in last},
    }
