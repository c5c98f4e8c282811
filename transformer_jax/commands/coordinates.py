"""plot coordinates: trains models of several widths for a few updates, and plots how large their activations are.

The batches are those of the config's data where it is prepared; otherwise random tokens that are to be copied.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax.commands import configuration
from transformer_jax.commands.arguments import add_run
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.files.progress import counting, tell
from transformer_jax.pictures import plots

if TYPE_CHECKING:
    from transformer_jax.config import ExperimentConfig
    from transformer_jax.data.batching import Batch

MOST_UPDATES = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    configuration.add_arguments(parser)
    parser.add_argument(
        "--widths",
        default="64,128,256,512",
        help="values of d_model; d_ff, d_k and d_v change in proportion (default 64,128,256,512)",
    )
    parser.add_argument("--updates", type=int, default=5, help="updates, all at the peak learning rate (default 5)")
    add_run(parser, "where the data is prepared; by default data.directory, or random tokens", required=False)


def draw(arguments: argparse.Namespace) -> str:
    plots.check_format(arguments.output)
    if not 1 <= arguments.updates <= MOST_UPDATES:
        raise BadInput(f"--updates={arguments.updates}: must be at least 1 and at most {MOST_UPDATES:,}")
    from transformer_jax.processes.compilation import use_cache
    from transformer_jax.training.coordinates import coordinate_check, verdict

    experiment, batches, source = batches_of(
        configuration.load(arguments.config, arguments.overrides), arguments.workdir, arguments.updates
    )
    widths = checked_widths(arguments.widths, experiment)
    use_cache(experiment.train.compile_cache)
    tell(f"{arguments.updates} updates at each of {len(widths)} widths, on {source}")
    with counting("coordinate check", "widths", len(widths)) as advance:
        sizes = coordinate_check(experiment, widths, batches, lambda width: advance(1))
    print(f"{'power of the width after the last update':<40} {'size':>6} {'change':>7}")
    for name, each in sizes.items():
        value, change = each.slopes(widths)
        print(f"{name:<40} {value:>6.2f} {change:>7.2f}")
    conclusion = verdict(sizes, widths)
    print(conclusion)
    base = experiment.model.mup_base_d_model
    kind = "standard parametrisation" if base is None else f"muP, base {base}"
    plots.save(plots.coordinates(sizes, widths, f"{kind}: {conclusion.partition(':')[0]}"), arguments.output)
    return str(arguments.output)


def checked_widths(text: str, experiment: ExperimentConfig) -> list[int]:
    """The widths of the flag, in order, with a valid config at each of them."""
    from transformer_jax.training.coordinates import widened

    try:
        widths = sorted({int(width) for width in text.split(",")})
    except ValueError:
        raise BadInput(f"--widths={text}: must be whole numbers, such as 64,128,256") from None
    if len(widths) < 2:
        raise BadInput(f"--widths={text}: at least two are needed")
    for width in widths:
        try:
            widened(experiment, width)
        except ConfigError as error:
            raise BadInput(f"--widths={text}: {error.problems[0]}") from None
    return widths


def batches_of(
    experiment: ExperimentConfig, workdir: str | None, updates: int
) -> tuple[ExperimentConfig, list[Batch], str]:
    """The experiment with the vocabulary of its data, the batches, and where they are from."""
    from transformer_jax.data.batching import training_batches
    from transformer_jax.data.prepared import MANIFEST, Prepared
    from transformer_jax.experiment import with_vocabulary
    from transformer_jax.runs.folder import RunFolder
    from transformer_jax.training.coordinates import random_batch
    from transformer_jax.update.sharding import batch_devices, batch_share, make_mesh

    if workdir is not None and not Path(workdir).is_dir():
        raise BadInput(f"--workdir={workdir}: there is no such folder; without --workdir tokens are random")
    directory = RunFolder(workdir or "").data(experiment)
    if (workdir is None and experiment.data.directory is None) or not (directory / MANIFEST).is_file():
        return experiment, [random_batch(experiment)] * updates, "random tokens"
    prepared, mesh = Prepared.open(directory), make_mesh(experiment.mesh)
    batches = training_batches(experiment.data, prepared.pairs("train"), batch_devices(mesh))
    share = batch_share(mesh)
    first = [batches.batch(step, *share) for step in range(updates)]
    return with_vocabulary(experiment, prepared), first, str(directory)
