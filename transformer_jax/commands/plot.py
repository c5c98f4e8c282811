"""Plots figures, as PNG, SVG or PDF by the suffix of --output; `page` shows a whole run on one HTML page.

transformer-jax plot positions --length=50 --d-model=128 --output=positions.png
transformer-jax plot schedule --config=configs/base.py --output=schedule.svg
transformer-jax plot attention --workdir=runs/demo --text="the old teacher reads a book ." --output=attention.html
transformer-jax plot page --workdir=runs/demo
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.commands import configuration, model_choice
from transformer_jax.commands.arguments import add_run, add_weights, path, utf8
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizer import BOS
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import explained, write_atomically
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_record
from transformer_jax.pictures import plots
from transformer_jax.pictures.pages import Picture, Sample, View, attention_page, run_page
from transformer_jax.runs import records as evaluation_records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Translation

WHICH = ("cross", "encoder", "decoder")
# The most rows, or columns, of a picture.
LONGEST_SIDE = 10_000
# The translations on a run's page.
SAMPLES = 12
NEXT_COMMANDS = """transformer-jax translate --workdir={run}
transformer-jax evaluate --workdir={run} --split=test
transformer-jax plot attention --workdir={run} --text="..." --output=attention.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pictures = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True, parser_class=type(parser))

    def add(name: str, draw: Callable[[argparse.Namespace], str], help: str) -> argparse.ArgumentParser:
        picture = pictures.add_parser(name, help=help, allow_abbrev=False)
        picture.set_defaults(draw=draw, parser=picture)
        return picture

    positions = add("positions", draw_positions, "the paper's sinusoids as a heat map")
    positions.add_argument("--length", type=int, default=50, help="positions, the rows (default 50)")
    positions.add_argument("--d-model", type=int, default=128, help="dimensions, the columns (default 128)")
    _add_output(positions)

    schedule = add("schedule", draw_schedule, "a config's learning rate over its steps")
    configuration.add_arguments(schedule)
    add_run(schedule, "where the data is prepared, which determines the steps of train.epochs", required=False)
    _add_output(schedule)

    attention = add(
        "attention", draw_attention, "the attention of a run: one layer as a picture, or all as an HTML page"
    )
    add_run(attention)
    add_weights(attention)
    attention.add_argument("--text", type=utf8, required=True, help="the sentence to translate")
    attention.add_argument(
        "--which", choices=WHICH, help="cross-attention (the default), or the self-attention of encoder or decoder"
    )
    attention.add_argument("--layer", type=int, help="from 1 (default: the last)")
    attention.add_argument("--head", help="from 1, or mean (default: all heads side by side)")
    _add_output(attention, "a picture (.png, .svg, .pdf), or .html: all layers and heads, interactive")

    page = add("page", draw_page, "a run on one HTML page: scores, samples, curves")
    add_run(page)
    add_weights(page)
    page.add_argument("--output", type=path, metavar="FILE.html", help="the file to write (default: RUN/page.html)")


def _add_output(parser: argparse.ArgumentParser, help: str = "the file to write: .png, .svg or .pdf") -> None:
    parser.add_argument("--output", type=path, metavar="FILE", required=True, help=help)


def run(arguments: argparse.Namespace) -> None:
    print(f"wrote {arguments.draw(arguments)}")


def draw_positions(arguments: argparse.Namespace) -> str:
    plots.check_format(arguments.output)
    if not 1 <= arguments.length <= LONGEST_SIDE:
        raise BadInput(f"--length={arguments.length}: must be at least 1 and at most {LONGEST_SIDE:,}")
    if arguments.d_model not in range(2, LONGEST_SIDE + 1, 2):
        raise BadInput(
            f"--d-model={arguments.d_model}: must be an even number, as sines and cosines come in pairs, from 2 to "
            f"{LONGEST_SIDE:,}"
        )
    from transformer_jax.model.sinusoid import sinusoidal_positions

    table_LD = sinusoidal_positions(arguments.length, arguments.d_model)
    title = f"Sinusoidal positions, {arguments.length} × {arguments.d_model} (even dimensions sine, odd cosine)"
    plots.save(plots.positional_encoding(table_LD, title), arguments.output)
    return arguments.output


def draw_schedule(arguments: argparse.Namespace) -> str:
    plots.check_format(arguments.output)
    from transformer_jax.runs.folder import RunFolder
    from transformer_jax.training.setup import updates
    from transformer_jax.update.schedule import make_schedule

    experiment = configuration.load(arguments.config, arguments.overrides)
    steps = None
    if arguments.workdir or experiment.data.directory or experiment.train.epochs is None:  # otherwise ./data is not its
        steps = updates(experiment, lambda: RunFolder(arguments.workdir or "").data(experiment))
    if steps is None:
        raise BadInput(
            f"train.epochs = {experiment.train.epochs:g}: how many updates these are depends on the data, and none is "
            "prepared here; give --workdir=RUN or --config.data.directory=DIR after transformer-jax prepare"
        )
    rate = make_schedule(experiment.optimizer, experiment.model.base_d_model, steps)
    plots.save(plots.schedule(rate, steps, f"Learning rate, {experiment.optimizer.schedule}"), arguments.output)
    return arguments.output


def draw_attention(arguments: argparse.Namespace) -> str:
    is_page = Path(arguments.output).suffix == ".html"
    (plots.check_directory if is_page else plots.check_format)(arguments.output)
    for name in ("which", "layer", "head") if is_page else ():
        if (value := getattr(arguments, name)) is not None:
            raise BadInput(f"--{name}={value}: has no effect on an .html page, which shows them all")
    if not arguments.text.strip():
        raise BadInput("--text: is blank; a sentence is needed")
    from transformer_jax.translation.load import load_run

    run = load_run(arguments.workdir, arguments.weights)
    (translation,) = run.translations([arguments.text], eos="normal")
    model_choice.warn("--text", translation, run.config.decode)
    print(translation.line)
    views = attention_views(run, translation)
    if is_page:
        write_page(arguments.output, attention_page(arguments.text, list(views.values())))
    else:
        plots.save(
            attention_picture(views[arguments.which or "cross"], arguments.layer, arguments.head), arguments.output
        )
    return arguments.output


def attention_views(run: Run, translation: Translation) -> dict[str, View]:
    """The three attentions of a translation, with their tokens.

    The rows of cross-attention are the tokens that the decoder writes, those of its self-attention the tokens it reads.
    """
    weights, written = run.attention(translation), translation.hypotheses[0].tokens
    source = run.tokenizer.pieces(translation.source.tokens)
    target = run.target_tokenizer.pieces(written)
    read = run.target_tokenizer.pieces([BOS, *written[:-1]])
    return {
        "cross": View("cross-attention", target, source, weights.cross_NHTS),
        "encoder": View("encoder self-attention", source, source, weights.encoder_NHSS),
        "decoder": View("decoder self-attention", read, read, weights.decoder_NHTT),
    }


def attention_picture(view: View, layer: int | None, head: str | None) -> Figure:
    """A figure of one layer: all of its heads, one, or their mean."""
    layers, heads = view.weights_NHTS.shape[:2]
    number = layers if layer is None else layer
    if not 1 <= number <= layers:
        raise BadInput(f"--layer={layer}: this model has layers 1 to {layers}")
    weights_HTS, title = view.weights_NHTS[number - 1], f"{view.name}, layer {number}"
    if head is None:
        return plots.attention_heads(weights_HTS, view.keys, view.queries, title)
    if head == "mean":
        return plots.attention_map(weights_HTS.mean(0), view.keys, view.queries, f"{title}, mean of its heads")
    if not head.isdecimal() or not 1 <= int(head) <= heads:
        raise BadInput(f"--head={head}: this model has heads 1 to {heads}; or mean")
    return plots.attention_map(weights_HTS[int(head) - 1], view.keys, view.queries, f"{title}, head {head}")


def write_page(path: str | Path, text: str) -> None:
    with explained(Path(path)), write_atomically(Path(path)) as file:
        file.write(text.encode())


def draw_page(arguments: argparse.Namespace) -> str:
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.runs.folder import RunFolder
    from transformer_jax.runs.metrics import read_metrics
    from transformer_jax.training.setup import updates
    from transformer_jax.translation.load import load_run

    folder = RunFolder(arguments.workdir)
    folder.load_config()  # refuses what is not a run
    output = arguments.output or str(folder.path / "page.html")
    plots.check_directory(output)
    run = load_run(folder.path, arguments.weights)
    lines = read_metrics(folder.metrics)
    prepared = Prepared.open(folder.data(run.config))
    split = next((split for split in ("test", "valid") if split in prepared.splits), None)
    sources, references = prepared.texts(split) if split else ([], [])
    translations = run.translations(sources[:SAMPLES], references=references[:SAMPLES])
    samples = [Sample(t.source.text, t.text, reference) for t, reference in zip(translations, references, strict=False)]
    model = run.config.model
    about = [
        model.in_words,
        *([f"the translations are of the first sentences of {split}"] if samples else []),
        *folder.notes(),
    ]
    page = run_page(
        title=folder.path.name,
        about="; ".join(about),
        numbers=(scores(folder.path, split, arguments.weights, run) if split else {}) | run_numbers(run, lines),
        pictures=run_pictures(run, updates(run.config, lambda: prepared.directory), lines, translations),
        samples=samples,
        commands=NEXT_COMMANDS.format(run=shlex.quote(str(folder.path))),
    )
    write_page(output, page)
    return output


def scores(run_path: Path, split: str, weights: str, run: Run) -> dict[str, str]:
    """The scores that `evaluate` stored for these weights and texts; empty if there are none."""
    from transformer_jax.experiment import identity, split_of

    decode = run.config.decode
    name = evaluation_records.named(split, weights, run.weights_sha256, decode, decode)
    found = run_path / "translations" / f"{name}.json"
    if not found.is_file():
        return {}
    report = read_record(found)
    wanted = identity(run, dataclasses.replace(decode, metrics=()), split_of(run_path, run.config, split))
    wanted = {key: wanted[key] for key in evaluation_records.IDENTITY}  # the version does not matter here
    if problem := evaluation_records.difference(report, wanted):
        tell(f"note: the page shows no scores: {found} {problem}; `evaluate` replaces it")
        return {}
    try:
        return {
            f"{label} on {split}": f"{report['measures'][label.lower()]['score']:.1f}" for label in ("BLEU", "chrF")
        }
    except (KeyError, TypeError, ValueError):
        raise BadInput(f"{found}: is not a record of an evaluation") from None


def run_numbers(run: Run, lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The last values in metrics.jsonl, in order of interest."""
    from transformer_jax.runs.export import flat

    latest = {name: value for line in lines for name, value in line.items() if value is not None}
    formats = {
        "bleu": ("validation BLEU", "{:.1f}"),
        "valid_perplexity": ("validation perplexity", "{:.3f}"),
        "valid_accuracy": ("validation accuracy", "{:.1%}"),
        "step": ("updates", "{:,}"),
        "epoch": ("epochs", "{:.1f}"),
        "target_tokens": ("target tokens", "{:,}"),
    }
    numbers = {label: form.format(latest[name]) for name, (label, form) in formats.items() if name in latest}
    return {**numbers, "parameters": f"{sum(leaf.size for leaf in flat(run.params).values()):,}"}


def run_pictures(
    run: Run, steps: int | None, lines: Sequence[Mapping[str, Any]], translations: Sequence[Translation]
) -> list[Picture]:
    import jax.numpy as jnp

    from transformer_jax.model.sinusoid import sinusoid
    from transformer_jax.update.schedule import make_schedule

    config = run.config
    steps = steps or config.train.steps
    rate = make_schedule(config.optimizer, config.model.base_d_model, steps)
    losses = {"loss": "training", "valid_loss": "validation"}
    perplexities = {"perplexity": "training", "valid_perplexity": "validation"}
    loss = plots.learning_curves(lines, losses, "Loss")
    perplexity = plots.learning_curves(lines, perplexities, "Perplexity", scale="log")
    pictures = [
        Picture(loss, about_losses(config)),
        Picture(perplexity, "Per token, without label smoothing."),
        Picture(plots.schedule(rate, steps), f"The learning rate: {config.optimizer.schedule}, after a warmup."),
    ]
    if config.model.positions == "sinusoidal" and config.model.parts.positions is None:
        table_LD = sinusoid(jnp.arange(50), config.model.d_model, config.model.sinusoids)
        pictures.append(Picture(plots.positional_encoding(table_LD), "What is added to the embeddings (section 3.5)."))
    return [*pictures, *sample_attention(run, translations)]  # it can be tall: beside several others on the page


def about_losses(config: ExperimentConfig) -> str:
    is_smoothed = config.train.loss is None and config.train.label_smoothing > 0
    smoothing = "Label-smoothed, per token" if is_smoothed else "Per token"
    return f"{smoothing}; training has dropout." if config.model.dropout else f"{smoothing}."


def sample_attention(run: Run, translations: Sequence[Translation]) -> list[Picture]:
    """The cross-attention of the first sentence that is not blank, if there is one."""
    for number, translation in enumerate(translations, start=1):
        if translation.source.tokens:
            picture = attention_picture(attention_views(run, translation)["cross"], None, "mean")
            return [Picture(picture, f"Cross-attention of the last layer in sentence {number} above.")]
    return []
