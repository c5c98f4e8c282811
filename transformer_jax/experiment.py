"""One run from start to end: config checked, data prepared, config completed, model trained; and test sets scored."""

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import bootstrap, evaluation, extension
from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.data.batching import training_batches
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepare import prepare
from transformer_jax.data.prepared import MANIFEST, Prepared
from transformer_jax.data.tokenizer import UNK
from transformer_jax.errors import BadInput, Diverged
from transformer_jax.files import output
from transformer_jax.files.atomic import explained, write_atomically, write_record
from transformer_jax.files.paths import plain_folder
from transformer_jax.files.record import read_if_sound
from transformer_jax.metric_names import TRANSLATIONS, VALIDATION
from transformer_jax.model.transformer import Transformer, abstract_params
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes.compilation import use_cache
from transformer_jax.processes.distributed import processes
from transformer_jax.processes.hardware import keep_freed_memory, restart_clock
from transformer_jax.runs import records as evaluation_records
from transformer_jax.runs.export import other_shapes
from transformer_jax.runs.folder import RunFolder, facts_of
from transformer_jax.runs.tracking import maker
from transformer_jax.schema import is_address, is_meant_as_address
from transformer_jax.training.debugging import Debugging
from transformer_jax.training.kernels import with_checked_attention
from transformer_jax.training.recorder import Ending
from transformer_jax.training.together import refuse_incompatible
from transformer_jax.training.train import train
from transformer_jax.translation.load import Run
from transformer_jax.update.loss import check_loss
from transformer_jax.update.optimizer import make_schedule, optimizer_of
from transformer_jax.version import __version__

# Options that are known once the data is.
FROM_DATA = ("model.vocab_size", "model.target_vocab_size")


def train_run(
    experiment: ExperimentConfig,
    folder: RunFolder | str | Path,
    params: Any = None,
    debugging: Debugging | None = None,
) -> Ending:
    """Prepares the data if necessary, and trains in a folder or resumes the run there; returns how it ended.

    A new run starts from `params`, or else from random parameters. A `RunFolder` says more about the folder than its
    path, such as whether a run is resumed whose custom code was edited. Raises Diverged if the run diverges.

    An interrupt (Ctrl-C, or the stop button of a notebook) raises KeyboardInterrupt after a checkpoint is saved, and a
    second one at once. After SIGTERM, SIGUSR1, SIGHUP and `train.hours` the ending is not `final`: the same call
    resumes the run. Programs are cached in `train.compile_cache`, unless JAX has a compilation cache already.
    """
    (ending,) = _train([experiment], [_as_folder(folder)], params, debugging)
    if ending.diverged:
        raise Diverged(ending.why)
    return ending


def train_runs_together(
    experiments: Sequence[ExperimentConfig], workdirs: Sequence[RunFolder | str | Path]
) -> list[Ending]:
    """Trains several runs in one program, as `train_run` does one; returns how each of them ended.

    Raises BadInput if they cannot train together; training/together.py says what may differ.
    """
    refuse_incompatible(experiments)
    folders = [_as_folder(folder) for folder in workdirs]
    saved = [folder.saved_steps() for folder in folders]
    has_common = bool(set.intersection(*saved))
    # Without a common checkpoint, as when runs were added, those with the same newest one train together.
    groups: dict[int, list[int]] = {}
    for number, steps in enumerate(saved):
        groups.setdefault(0 if has_common else max(steps, default=0), []).append(number)
    endings: dict[int, Ending] = {}
    for group in groups.values():
        stopped = [ending for ending in endings.values() if not ending.final]
        found = stopped[:1] * len(group)
        if not stopped:
            found = _train([experiments[number] for number in group], [folders[number] for number in group])
            found = [dataclasses.replace(ending, together=len(group)) for ending in found]
        endings.update(zip(group, found, strict=True))
    return [endings[number] for number in range(len(folders))]


def _as_folder(folder: RunFolder | str | Path) -> RunFolder:
    return folder if isinstance(folder, RunFolder) else RunFolder(folder, processes().is_first)


def _train(
    experiments: Sequence[ExperimentConfig],
    folders: Sequence[RunFolder],
    params: Any = None,
    debugging: Debugging | None = None,
) -> list[Ending]:
    """The way of one run, or of several that train together: checked, prepared, completed, trained."""
    keep_freed_memory()
    if not output.is_command:
        restart_clock()
    for experiment in experiments:
        try_out(experiment)
    if output.is_command or not jax.config.values["jax_compilation_cache_dir"]:
        use_cache(experiments[0].train.compile_cache)
    with contextlib.ExitStack() as stack:
        for experiment, folder in zip(experiments, folders, strict=True):
            stack.enter_context(folder.held())
            folder.compare_run(experiment, unknown=FROM_DATA)  # raises for another run, before data is prepared
        # Without data.directory each run has the data in its folder.
        places = {folder.data(config): (config, folder) for config, folder in zip(experiments, folders, strict=True)}
        prepared, *others = [
            processes().on_first_then_on_others(
                functools.partial(prepared_data, config, folder), seen_by_all=place / MANIFEST
            )
            for place, (config, folder) in places.items()
        ]
        if any(other.fingerprint != prepared.fingerprint for other in others):
            raise BadInput(f"runs that train together need the same data: {', '.join(map(str, places))}")
        experiments = [
            with_checked_attention(in_updates(with_vocabulary(experiment, prepared), prepared, folder))
            for experiment, folder in zip(experiments, folders, strict=True)
        ]
        processes().compare(
            {**facts_of(experiments[0]), "the data": prepared.fingerprint, "--init-from": params is not None}
        )
        if params is not None and (differences := other_shapes(experiments[0], params)):
            raise BadInput(f"--init-from: weights of another model than the config's: {differences[0]}")
        evaluator = (
            evaluation.bleu_evaluator(experiments[0], prepared) if experiments[0].decode.bleu_sentences else None
        )
        endings = train(experiments, prepared, folders, evaluator, params, debugging)
    if not output.is_command and any(ending.why == "stopped by SIGINT" for ending in endings):
        raise KeyboardInterrupt
    return endings


def try_out(config: ExperimentConfig) -> None:
    """Checks what the schema cannot, before data is prepared: names of optax, measured metrics, custom code."""
    schedule = make_schedule(config.optimizer, config.model.base_d_model, config.train.steps)
    optimizer = optimizer_of(config.optimizer, schedule)
    check_loss(config.train, config.model.target_vocab_size or config.model.vocab_size)
    custom = evaluation.load_metrics(config.decode.metrics)
    measured = [*VALIDATION, *([*TRANSLATIONS, *custom] if config.decode.bleu_sentences else ())]
    if config.train.best_metric not in measured:
        raise BadInput(
            f"train.best_metric = {config.train.best_metric!r} is not among the validation metrics: "
            f"{', '.join(measured)}; bleu, exact_match and custom metrics need decode.bleu_sentences above 0"
        )
    evaluation.load_bleu(config.decode.bleu_tokenize)
    if config.train.tracker is not None:
        maker(config.train.tracker)
    if is_meant_as_address(config.data.corpus):
        open_corpus(config.data)
    parts = {name: part for name, part in dataclasses.asdict(config.model.parts).items() if part is not None}
    for name, part in parts.items():
        if isinstance(part, type):
            address = f"'path/to/file.py:{part.__name__}'"
            raise BadInput(f"model.parts.{name}: is a class, which the run could not find again; give {address}")
    if parts:
        # All layers are alike, and a machine without a GPU may try them.
        shallow = dataclasses.replace(
            config.model, num_encoder_layers=1, num_decoder_layers=1, attention_implementation="plain"
        )
        with extension.running(*map(extension.file_of, parts.values())):
            _try_model(shallow)
    if config.optimizer.groups or is_address(config.optimizer.name):  # each group must have parameters
        params = abstract_params(config.model)
        jax.eval_shape(lambda params: optimizer.update(params, optimizer.init(params), params), params)


def _try_model(config: ModelConfig) -> None:
    """Traces a model with custom modules: its parameters, and then its output, in training and without dropout."""
    params = abstract_params(config)
    source, target = jnp.ones((2, 3), jnp.int32), jnp.ones((2, 2), jnp.int32)
    for deterministic in (True, False):
        apply = functools.partial(Transformer(config).apply, deterministic=deterministic)
        jax.eval_shape(apply, {"params": params}, source, target, rngs={"dropout": jax.random.key(0)})


def prepared_data(experiment: ExperimentConfig, folder: RunFolder) -> Prepared:
    """The data of a run, prepared if necessary, and checked against its digests by the first of several processes."""
    directory = folder.data(experiment)
    if not folder.writes:
        return Prepared.open(directory)
    prepared = prepare(experiment, directory)
    prepared.verify()
    return prepared


def with_vocabulary(experiment: ExperimentConfig, prepared: Prepared) -> ExperimentConfig:
    """The experiment with the actual vocabulary sizes."""
    # Marian may segment source and target differently into the same tokens, which have one table.
    one_table = experiment.model.tie_embeddings == "all" and prepared.same_tokens
    target_size = None if one_table else prepared.target_vocab_size
    model = dataclasses.replace(experiment.model, vocab_size=prepared.vocab_size, target_vocab_size=target_size)
    return dataclasses.replace(experiment, model=model)


def in_updates(experiment: ExperimentConfig, prepared: Prepared, folder: RunFolder) -> ExperimentConfig:
    """The experiment with the updates that optimizer.warmup_share and train.validations come to on this data.

    A run that is resumed keeps its warmup, so that it can be made longer.
    """
    train, optimizer = experiment.train, experiment.optimizer
    if optimizer.warmup_share is None and train.validations is None:
        return experiment
    updates = train.last_step(training_batches(experiment.data, prepared.pairs("train")).steps_per_epoch)
    if optimizer.warmup_share is not None:
        warmup_steps = optimizer.warmup_of(updates)
        is_resumed = folder.config.is_file() and folder.saved_steps()
        stored = folder.stored_config().optimizer if is_resumed else None
        if stored is not None and stored.warmup_share == optimizer.warmup_share:
            warmup_steps = stored.warmup_steps
        optimizer = dataclasses.replace(optimizer, warmup_steps=warmup_steps)
    if train.validations is not None and (every := max(1, updates // train.validations)) < train.eval_every:
        checkpoint_every, log_every = min(train.checkpoint_every, every), min(train.log_every, every)
        train = dataclasses.replace(train, eval_every=every, checkpoint_every=checkpoint_every, log_every=log_every)
    return dataclasses.replace(experiment, optimizer=optimizer, train=train)


@dataclasses.dataclass(frozen=True)
class TestSet:
    """A named test set."""

    __test__: ClassVar[bool] = False  # pytest collects what is called Test...

    name: str
    file_name: str
    sources: list[str]
    references: list[str]
    # For each example, if known: its labels, and its cluster of dependent examples (see bootstrap.py).
    groups: list[dict[str, str]] | None = None
    clusters: list[str] | None = None

    @property
    def digest(self) -> str:
        return evaluation_records.texts_sha256(self.sources, self.references)


def split_of(workdir: str | Path, experiment: ExperimentConfig, split: str) -> TestSet:
    """A split of the prepared data of a run."""
    data = experiment.data
    name = f"{split} of {data.corpus_name}"
    if not data.corpus:
        _, files, _ = data.texts.get(split, ("", (), ()))
        name = ", ".join(files) or f"{split} pairs held out of {', '.join(data.source)}"
    prepared = Prepared.open(RunFolder(workdir).data(experiment))
    return TestSet(name, split, *prepared.texts(split), prepared.groups(split), prepared.clusters(split))


class Evaluation(NamedTuple):
    """The scores of a test set, and its translations."""

    record: dict[str, Any]
    hypotheses: list[str]

    def save(self, directory: Path, name: str) -> None:
        """Writes the translations, one per line, then the scores: where there are scores, there are translations.

        Scores that other custom metrics have given the same translations are kept.
        """
        record = {**self.record}
        before: Any = read_if_sound(directory / f"{name}.json", evaluation_records.Record) or {}
        if all(before.get(key) == record[key] for key in ("test_set_sha256", "hypotheses_sha256")):
            others = before.get("measures", {}).keys() - record["measures"]
            for key in ("metrics", "measures", "sentence_scores"):
                kept = {name: each for name, each in before.get(key, {}).items() if name in others}
                record[key] = {**kept, **record[key]}
        with explained(directory):
            plain_folder(directory).mkdir(exist_ok=True)
            lines = "".join(f"{hypothesis}\n" for hypothesis in self.hypotheses)
            write_atomically(directory / f"{name}.txt", lines.encode())
            write_record(directory / f"{name}.json", record)


def evaluate_run(
    model: Run,
    decode: DecodeConfig,
    test_set: TestSet,
    weights: str = "latest",
    metrics: Mapping[str, evaluation.Metric] | None = None,
) -> Evaluation:
    """Translates and scores a test set, every sentence once; with the metrics of `decode`, unless they are given."""
    evaluation.load_bleu(decode.bleu_tokenize)  # first, because it may be refused, like the metrics
    metrics = evaluation.load_metrics(decode.metrics) if metrics is None else metrics
    known_by = identity(model, decode, test_set, metrics)
    # First: a pair that is longer than learned positions is an error.
    scores = model.score(list(zip(test_set.sources, test_set.references, strict=True)))
    translations = model.translations(test_set.sources, decode=decode, references=test_set.references, whole=True)
    hypotheses = [translation.line for translation in translations]
    measured = evaluation.measures(hypotheses, test_set.references, decode.bleu_tokenize)
    measured |= evaluation.custom_scores(metrics, test_set.sources, hypotheses, test_set.references)
    right = evaluation.matches(hypotheses, test_set.references)
    log_probabilities = [np.asarray(score.token_log_probabilities) for score in scores]
    record: dict[str, Any] = {
        "test_set": test_set.name,
        **known_by,
        "n": len(hypotheses),
        "weights": weights,
        "decode": dataclasses.asdict(decode),
        "measures": {name: {"score": each.score, "signature": each.signature} for name, each in measured.items()},
        "exact_match": bootstrap.counts(right, test_set.groups, test_set.clusters),
        "perplexity": evaluation.perplexities(log_probabilities, test_set.references),
        "hypotheses_sha256": evaluation_records.lines_sha256(hypotheses),
        "cut_sources": sum(t.source.full_length > len(t.source.tokens) for t in translations),
        "cut_translations": sum(t.hypotheses[0].at_limit for t in translations) if decode.eos == "normal" else 0,
        "empty_translations": sum(1 for t in translations if t.is_empty),
        "unknown_tokens": sum(score.tokens.count(UNK) for score in scores),  # of the references
        # For each sentence, so that two runs can be compared without their texts.
        "sentences": {
            "bleu_statistics": evaluation.bleu_statistics(hypotheses, test_set.references, decode.bleu_tokenize),
            "log_probabilities": [round(float(values.sum()), 5) for values in log_probabilities],
            "tokens": [len(values) for values in log_probabilities],
            "exact_match": right,
        },
        "sentence_scores": {name: each.sentences for name, each in measured.items() if each.sentences is not None},
    }
    if test_set.clusters:
        record["sentences"]["clusters"] = np.unique(test_set.clusters, return_inverse=True)[1].tolist()
    return Evaluation(record, hypotheses)


def identity(
    model: Run, decode: DecodeConfig, test_set: TestSet, metrics: Mapping[str, evaluation.Metric]
) -> dict[str, Any]:
    """The key of the record of an evaluation: model, search, test set and metrics."""
    return {
        "test_set_sha256": test_set.digest,
        "weights_sha256": model.weights_sha256,
        "steps": list(model.steps),
        "decode": evaluation_records.search(decode),
        "bleu_tokenize": decode.bleu_tokenize,
        "metrics": {name: metric.signature for name, metric in metrics.items()},
        "version": __version__,
    }
