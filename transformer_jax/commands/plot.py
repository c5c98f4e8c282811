"""Draws pictures, as PNG, SVG or PDF by the suffix of --output; `page` shows a whole run on one HTML page.

transformer-jax plot positions --length=50 --d-model=128 --output=positions.png
transformer-jax plot schedule --config=configs/base.py --output=schedule.svg
transformer-jax plot page --workdir=runs/demo
"""

import argparse

from transformer_jax import plots
from transformer_jax.commands import configuration
from transformer_jax.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pictures = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True, parser_class=type(parser))
    positions = pictures.add_parser("positions", help="the paper's sinusoids as a heat map", allow_abbrev=False)
    positions.add_argument("--length", type=int, default=50, help="positions, the rows (default 50)")
    positions.add_argument("--d-model", type=int, default=128, help="dimensions, the columns (default 128)")
    positions.add_argument("--output", metavar="FILE", required=True, help="where the picture goes: .png, .svg or .pdf")
    positions.set_defaults(draw=draw_positions)

    schedule = pictures.add_parser("schedule", help="a config's learning rate over its steps", allow_abbrev=False)
    configuration.add_arguments(schedule)
    schedule.add_argument("--output", metavar="FILE", required=True, help="where the picture goes: .png, .svg or .pdf")
    schedule.set_defaults(draw=draw_schedule)


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


def draw_schedule(arguments: argparse.Namespace) -> None:
    from transformer_jax.training.optimizer import make_schedule

    experiment = configuration.load(arguments.config, arguments.overrides)
    steps = experiment.train.steps
    rate = make_schedule(experiment.optimizer, experiment.model.d_model, steps)
    plots.save(plots.schedule(rate, steps, f"Learning rate, {experiment.optimizer.schedule}"), arguments.output)
