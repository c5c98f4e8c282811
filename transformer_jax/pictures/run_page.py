"""The page of a run: its scores, translations, curves and attention, in one HTML file."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.data.tokenizer import BOS
from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_typed
from transformer_jax.files.remote import name_of
from transformer_jax.pictures import pages, plots
from transformer_jax.pictures.pages import Picture, Sample, View
from transformer_jax.runs import records

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from transformer_jax.runs.folder import RunFolder
    from transformer_jax.translation.load import Run
    from transformer_jax.translation.translate import Translation

# The translations on the page.
SAMPLES = 12
NEXT_COMMANDS = """transformer-jax translate --workdir={run}
transformer-jax evaluate --workdir={run} --split=test
transformer-jax plot attention --workdir={run} --text="..." --output=attention.html"""
# The numbers in metrics.jsonl that are shown, in order of interest.
NUMBERS = {
    "bleu": ("validation BLEU", "{:.1f}"),
    "valid_perplexity": ("validation perplexity", "{:.3f}"),
    "valid_accuracy": ("validation accuracy", "{:.1%}"),
    "step": ("updates", "{:,}"),
    "epoch": ("epochs", "{:.1f}"),
    "target_tokens": ("target tokens", "{:,}"),
}


def run_page(folder: RunFolder, weights: str, matches: Callable[[Sequence[str], Sequence[str]], Sequence[int]]) -> str:
    """The page of the run in a folder, with these weights. `matches(translations, references)` has 1 for each that is
    right."""
    from transformer_jax.data.prepared import Prepared
    from transformer_jax.runs.metrics import metrics_lines
    from transformer_jax.translation.load import load_run

    run = load_run(folder.path, weights)
    lines = sorted(metrics_lines(folder.metrics), key=lambda line: line["step"])
    prepared = Prepared.open(folder.data(folder.stored_config()))
    split = next((split for split in ("test", "valid") if split in prepared.splits), None)
    sources, references = prepared.texts(split) if split else ([], [])
    translations = run.translations(sources[:SAMPLES], references=references[:SAMPLES], whole=True)
    steps = ", ".join(f"{step:,}" for step in run.steps)
    about = [run.config.model.in_words, f"{name_of(weights)} weights, of step {steps}", *folder.notes()]
    about += [f"the translations are of the first sentences of {split}"] if split else []
    texts = [translation.text for translation in translations], references[:SAMPLES]
    samples = zip(sources, *texts, matches(*texts), strict=False)
    return pages.run_page(
        title=Path(os.path.abspath(folder.path)).name,  # "." has no name
        about="; ".join(about),
        numbers=scores(folder.path, split or "", weights, run)
        | run_numbers(run, [line for line in lines if line["step"] <= max(run.steps)]),
        # The attention can be tall: it comes last.
        pictures=[*curves(lines), *sample_attention(run, translations)],
        samples=[Sample(*sample) for sample in samples],
        commands=NEXT_COMMANDS.format(run=shlex.quote(name_of(str(folder.path)))),
    )


def scores(run_path: Path, split: str, weights: str, run: Run) -> dict[str, str]:
    """The scores that `evaluate` stored for these weights; empty if there are none."""
    decode = run.config.decode
    found = run_path / "translations" / f"{records.named(split, weights, run.weights_sha256, decode, decode)}.json"
    record: Any = read_typed(found, records.Record) if found.is_file() else {}
    if records.difference(record, {"weights_sha256": run.weights_sha256, "decode": records.search(decode)}):
        return {}
    return {f"{name} on {split}": f"{record['measures'][name.lower()]['score']:.1f}" for name in ("BLEU", "chrF")}


def run_numbers(run: Run, lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The last values in metrics.jsonl, and the number of parameters."""
    from transformer_jax.runs.export import flat

    latest = {name: value for line in lines for name, value in line.items() if value is not None}
    numbers = {label: form.format(latest[name]) for name, (label, form) in NUMBERS.items() if name in latest}
    return {**numbers, "parameters": f"{sum(leaf.size for leaf in flat(run.params).values()):,}"}


def curves(lines: Sequence[Mapping[str, Any]]) -> list[Picture]:
    """Loss, perplexity and learning rate over the updates."""
    losses = plots.learning_curves(lines, {"loss": "training", "valid_loss": "validation"}, "Loss")
    perplexities = {"perplexity": "training", "valid_perplexity": "validation"}
    return [
        Picture(losses, "Per token; with label smoothing and dropout in training, as configured."),
        Picture(plots.learning_curves(lines, perplexities, "Perplexity", scale="log"), "Without label smoothing."),
        Picture(plots.learning_curves(lines, {"learning_rate": "now"}, "Learning rate"), "As logged so far."),
    ]


def sample_attention(run: Run, translations: Sequence[Translation]) -> list[Picture]:
    """The cross-attention of the first sentence that is not blank, if there is one and the model has weights."""
    for number, translation in enumerate(translations, start=1):
        if translation.source.tokens:
            with contextlib.suppress(BadInput):
                picture = attention_picture(attention_views(run, translation)["cross"], None, "mean")
                return [Picture(picture, f"Cross-attention of the last layer in sentence {number} above.")]
            break
    return []


def attention_views(run: Run, translation: Translation) -> dict[str, View]:
    """The three attentions of a translation, with their tokens.

    The rows of cross-attention are the tokens that the decoder writes; rows of its self-attention are tokens it reads.
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
    number = layer or layers
    if number > layers or head not in (None, "mean", *map(str, range(1, heads + 1))):
        raise BadInput(f"--layer={number} --head={head or 'all'}: must be 1 to {layers}, and mean or 1 to {heads}")
    weights_HTS, title = view.weights_NHTS[number - 1], f"{view.name}, layer {number}"
    if head is None:
        return plots.attention_heads(weights_HTS, view.keys, view.queries, title)
    if head == "mean":
        return plots.attention_map(weights_HTS.mean(0), view.keys, view.queries, f"{title}, mean of its heads")
    return plots.attention_map(weights_HTS[int(head) - 1], view.keys, view.queries, f"{title}, head {head}")
