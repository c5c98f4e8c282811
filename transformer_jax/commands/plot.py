"""Plots figures, as PNG, SVG or PDF by the suffix of --output; `page` shows a whole run on one HTML page.

transformer-jax plot positions --length=50 --d-model=128 --output=positions.png
transformer-jax plot attention --workdir=runs/demo --text="the old teacher reads a book ." --output=attention.html
transformer-jax plot page --workdir=runs/demo
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from transformer_jax.commands import model_choice
from transformer_jax.commands.arguments import add_run, add_weights, at_least, path, utf8
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import write_text
from transformer_jax.files.remote import name_of
from transformer_jax.pictures import plots, run_page
from transformer_jax.pictures.pages import attention_page

LONGEST_SIDE = 10_000  # rows or columns of a picture
PICTURE = "the file to write: .png, .svg or .pdf"
PAGE_OR_PICTURE = "a picture (.png, .svg, .pdf), or .html: all layers and heads, interactive"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pictures = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True, parser_class=type(parser))

    def add(name: str, draw: Callable[[argparse.Namespace], str], help: str) -> argparse.ArgumentParser:
        picture = pictures.add_parser(name, help=help, allow_abbrev=False)
        picture.set_defaults(draw=draw, parser=picture)
        return picture

    positions = add("positions", draw_positions, "the paper's sinusoids as a heat map")
    positions.add_argument("--length", type=at_least(1), default=50, help="number of rows: positions (default 50)")
    positions.add_argument("--d-model", type=at_least(2), default=128, help="number of columns: width (default 128)")
    positions.add_argument("--output", type=path, metavar="FILE", required=True, help=PICTURE)

    about = "the attention of a run: one layer as a picture, or all as an HTML page"
    attention = add("attention", draw_attention, about)
    add_run(attention)
    add_weights(attention)
    attention.add_argument("--text", type=utf8, required=True, help="the sentence to translate")
    about = "cross-attention (the default), or the self-attention of encoder or decoder"
    attention.add_argument("--which", choices=("cross", "encoder", "decoder"), help=about)
    attention.add_argument("--layer", type=at_least(1), help="from 1 (default: the last)")
    attention.add_argument("--head", help="from 1, or mean (default: all heads side by side)")
    attention.add_argument("--output", type=path, metavar="FILE", required=True, help=PAGE_OR_PICTURE)

    page = add("page", draw_page, "a run on one HTML page: scores, samples, curves")
    add_run(page)
    add_weights(page)
    page.add_argument("--output", type=path, metavar="FILE.html", help="the file to write (default: RUN/page.html)")


def run(arguments: argparse.Namespace) -> None:
    print(f"wrote {name_of(arguments.draw(arguments))}")


def draw_positions(arguments: argparse.Namespace) -> str:
    plots.check_format(arguments.output)
    length, d_model = arguments.length, arguments.d_model
    if d_model % 2 or max(length, d_model) > LONGEST_SIDE:
        why = f"must be at most {LONGEST_SIDE:,}, and --d-model even, as sines and cosines come in pairs"
        raise BadInput(f"--length={length} --d-model={d_model}: {why}")
    from transformer_jax.model.positions import sinusoidal_positions

    title = f"Sinusoidal positions, {length} × {d_model} (even dimensions sine, odd cosine)"
    plots.save(plots.positional_encoding(sinusoidal_positions(length, d_model), title), arguments.output)
    return arguments.output


def draw_attention(arguments: argparse.Namespace) -> str:
    is_page = Path(arguments.output).suffix.lower() == ".html"
    plots.check_format(arguments.output, (*plots.FORMATS, ".html"))
    if is_page and (arguments.which or arguments.layer or arguments.head):
        raise BadInput("--which, --layer and --head have no effect on an .html page, which shows them all")
    from transformer_jax.translation.load import load_run

    run = load_run(arguments.workdir, arguments.weights)
    (translation,) = run.translations([arguments.text], eos="normal")
    model_choice.warn("--text", translation, run.config.decode)
    print(translation.line)
    views = run_page.attention_views(run, translation)
    if is_page:
        write_text(Path(arguments.output), attention_page(arguments.text, list(views.values())))
    else:
        picture = run_page.attention_picture(views[arguments.which or "cross"], arguments.layer, arguments.head)
        plots.save(picture, arguments.output)
    return arguments.output


def draw_page(arguments: argparse.Namespace) -> str:
    from transformer_jax.evaluation import matches
    from transformer_jax.runs.folder import RunFolder

    folder = RunFolder(arguments.workdir)
    folder.load_config()  # raises an error if it is not a run
    output = arguments.output or str(folder.path / "page.html")
    plots.check_format(output, (".html",))
    page = run_page.run_page(folder, arguments.weights, matches)
    write_text(Path(output), page, follow=arguments.output is not None)
    return output
