"""Runs an ablation: every variant of an experiment file with every seed, and goes on where it was interrupted.

  transformer-jax sweep experiments/table3.py --workdir=sweeps/table3 --dry-run
  transformer-jax sweep experiments/table3.py --workdir=sweeps/table3 --jobs=2
  transformer-jax sweep --workdir=sweeps/table3 --status
  transformer-jax report sweeps/table3

The file has a function get_sweep(scale) that returns a Sweep: a base config, variants as differences from it, seeds.
--config.group.name=value changes the base, and so all variants. Everything that is wrong in any variant is told before
the first run starts.

Each run is a process of its own with a folder of its own, SWEEP/runs/VARIANT/seed-N, as `train` makes it; one that
fails harms no other. The same command again runs what is missing and repeats nothing, also after a kill; variants and
seeds may be added, everything else must stay as it was. Without FILE it goes on with what SWEEP says. Ctrl-C saves and
ends. Exit status: 0 when all runs are finished, 1 when one failed, 2 when something was wrong from the start.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from transformer_jax.commands import configuration
from transformer_jax.errors import BadInput

if TYPE_CHECKING:
    from transformer_jax.sweeps.folder import SweepFolder
    from transformer_jax.sweeps.spec import Definition


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE.py", help="the experiment: a file as in experiments/")
    parser.add_argument(
        "--workdir",
        type=configuration.path,
        required=True,
        metavar="SWEEP",
        help="the sweep's folder, made if there is none",
    )
    parser.set_defaults(overrides=[])
    what = parser.add_argument_group("what is run")
    what.add_argument("--scale", metavar="NAME", help="how large: demo, multi30k or paper in experiments/")
    what.add_argument("--seeds", metavar="N", help="how many seeds (3), or which (0,1,5), in place of the file's")
    what.add_argument("--only", metavar="GLOB", help="only the variants whose name fits: --only='B*'")
    what.add_argument(
        "--tune",
        metavar="FACTORS",
        help="0.5,1,2: first train each variant with the first seed and its learning rate times each of these; all "
        "seeds then have the one with the lowest validation loss (SWEEP/tuned.json)",
    )
    look = parser.add_argument_group("to look, and run nothing")
    look.add_argument("--dry-run", action="store_true", help="every variant, what differs, its size and its cost")
    look.add_argument("--status", action="store_true", help="where every run of SWEEP stands")
    how = parser.add_argument_group("how it is run")
    how.add_argument(
        "--jobs",
        type=at_least(1),
        metavar="N",
        help="processes at a time; cores and GPUs are shared out among them (default: one for each GPU, or 1)",
    )
    how.add_argument(
        "--together",
        nargs="?",
        type=group_size,
        const=0,
        metavar="N",
        help="runs of one shape, which differ only in seed or in numbers such as dropout, train in one program, N at "
        "most; faster where one run leaves most of a device idle",
    )
    how.add_argument("--retries", type=at_least(0), default=0, metavar="N", help="try a failed run so often again")
    how.add_argument("--fail-fast", action="store_true", help="after the first failure stop all other runs")


def at_least(lowest: int) -> Callable[[str], int]:
    """Reads a whole number from a command line."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < lowest:
            raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least {lowest}")
        return int(text)

    return read


def group_size(text: str) -> int:
    """The number of --together=N, with a word on what a bare --together takes for one."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 2 runs; a FILE.py goes before --together")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    # Imported here, so that --help and a mistyped flag need not wait for JAX.
    from transformer_jax.sweeps.folder import SweepFolder

    sweep = SweepFolder(arguments.workdir)
    if arguments.status:
        from transformer_jax.sweeps.status import overview

        print(overview(sweep))
        return 0
    definition = _definition(arguments, sweep)
    if arguments.dry_run:
        from transformer_jax.sweeps.plan import plan

        print(plan(sweep, sweep.merged(definition), definition.chosen(arguments.only)))
        return 0
    from transformer_jax.sweeps.launch import Orders, launch

    names = [field.name for field in dataclasses.fields(Orders)]
    return launch(sweep, definition, Orders(**{name: getattr(arguments, name) for name in names}))


def _definition(arguments: argparse.Namespace, sweep: "SweepFolder") -> "Definition":
    """The file's sweep with the command line's changes; without a file, the one that the folder holds."""
    from transformer_jax.sweeps.spec import factors_of, load, seeds_of

    if arguments.file is None:
        given = [f"--{name}" for name in ("scale", "seeds", "tune") if getattr(arguments, name) is not None]
        given += [f"--config.{path}" for path, _ in arguments.overrides]
        if given:
            raise BadInput(f"{given[0]}: needs the experiment's FILE.py, whose sweep it changes")
        return sweep.load()
    seeds = None if arguments.seeds is None else seeds_of(arguments.seeds)
    tune = None if arguments.tune is None else factors_of(arguments.tune)
    definition = load(arguments.file, arguments.scale, arguments.overrides, seeds)
    return dataclasses.replace(definition, tune=tune)
