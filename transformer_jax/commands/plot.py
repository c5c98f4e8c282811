"""Draws pictures, as PNG, SVG or PDF by the suffix of --output.

transformer-jax plot positions --length=50 --d-model=128 --output=positions.png
"""

import argparse

from transformer_jax import plots
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pictures = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True, parser_class=type(parser))
    positions = pictures.add_parser("positions", help="the paper's sinusoids as a heat map", allow_abbrev=False)
    positions.add_argument("--length", type=int, default=50, help="positions, the rows (default 50)")
    positions.add_argument("--d-model", type=int, default=128, help="dimensions, the columns (default 128)")
    positions.add_argument("--output", metavar="FILE", required=True, help="where the picture goes: .png, .svg or .pdf")
    positions.set_defaults(draw=draw_positions)


def run(arguments: argparse.Namespace) -> None:
    plots.check_format(arguments.output)
    arguments.draw(arguments)
    print(f"wrote {arguments.output}")


def draw_positions(arguments: argparse.Namespace) -> None:
    if arguments.length < 1:
        raise BadInput(f"--length={arguments.length}: must be at least 1")
    if arguments.d_model < 2 or arguments.d_model % 2:
        raise BadInput(f"--d-model={arguments.d_model}: must be an even number, sines and cosines come in pairs")
    from transformer_jax.model.positions import sinusoidal_positions

    table_LD = sinusoidal_positions(arguments.length, arguments.d_model)
    title = f"Sinusoidal positions, {arguments.length} × {arguments.d_model} (even dimensions sine, odd cosine)"
    plots.save(plots.positional_encoding(table_LD, title), arguments.output)
