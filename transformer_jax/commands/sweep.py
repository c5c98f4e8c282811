"""Runs an ablation: every variant of an experiment file with every seed, and goes on where it was interrupted.

  transformer-jax sweep experiments/table3.py --workdir=runs/table3 --dry-run
  transformer-jax sweep experiments/table3.py --workdir=runs/table3 --jobs=2
  transformer-jax sweep preset:table3 --workdir=runs/table3   (the same, where there is no checkout)
  transformer-jax sweep --workdir=runs/table3 --status
  transformer-jax report runs/table3

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

from transformer_jax import shipped
from transformer_jax.commands import configuration
from transformer_jax.errors import BadInput

if TYPE_CHECKING:
    from transformer_jax.sweeps.folder import SweepFolder
    from transformer_jax.sweeps.slurm import Slurm
    from transformer_jax.sweeps.spec import Definition

# A job's time limit where none is given.
MINUTES = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        type=configuration.python_file,
        metavar="FILE.py",
        help="the experiment: a file as in experiments/, which are also there by name, from wherever one is, as "
        f"{shipped.PRESET}NAME: {', '.join(shipped.experiments())}",
    )
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
    what.add_argument(
        "--only", metavar="GLOB", help="only the variants whose name fits: --only='B*'; with --status too"
    )
    what.add_argument(
        "--tune",
        metavar="FACTORS",
        help="0.5,1,2: first train each variant with the first seed and its learning rate times each of these; all "
        "seeds then have the one with the lowest validation loss (SWEEP/tuned.json)",
    )
    look = parser.add_argument_group("to look, and run nothing")
    look.add_argument("--dry-run", action="store_true", help="every variant, what differs, its size and its cost")
    look.add_argument("--status", action="store_true", help="where every run of SWEEP stands")
    _add_how(parser)
    _add_cluster(parser)


def _add_how(parser: argparse.ArgumentParser) -> None:
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
        "most; faster where one run leaves most of a device idle. All seeds of a sweep that begins so see the training "
        "pairs in the same order; in any other sweep each seed has its own",
    )
    how.add_argument("--retries", type=at_least(0), default=0, metavar="N", help="try a failed run so often again")
    configuration.add_accept_changed_code(how, "complete the sweep")
    how.add_argument("--fail-fast", action="store_true", help="after the first failure stop all other runs")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    cluster = parser.add_argument_group("on a SLURM cluster (pip install 'transformer_jax[slurm]')")
    cluster.add_argument(
        "--slurm",
        action="store_true",
        help="submit an array of jobs, one for each run or group; --jobs is then how many at a time. The data is "
        "prepared here first. A job whose time is up saves and queues again",
    )
    cluster.add_argument("--partition", metavar="NAME", help="where to")
    cluster.add_argument(
        "--time-limit", type=at_least(2), metavar="MINUTES", help=f"of a job, until it queues again ({MINUTES})"
    )
    cluster.add_argument(
        "--slurm-option",
        action="append",
        type=name_and_value,
        metavar="NAME=VALUE",
        help="any other of sbatch or submitit, as often as needed: gpus-per-node=1, mem=16GB, account=me",
    )
    cluster.add_argument("--detach", action="store_true", help="leave after submitting; --status looks in later")


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
    if arguments.file is not None:
        return run_in(sweep, arguments)
    with sweep.as_it_began() as sweep:
        return run_in(sweep, arguments)


def run_in(sweep: "SweepFolder", arguments: argparse.Namespace) -> int:
    """What is asked for of this sweep."""
    if arguments.status:
        print(overview(sweep, arguments.only))
        return 0
    if arguments.dry_run:
        from transformer_jax.sweeps.plan import plan

        definition = _definition(arguments, sweep)
        print(plan(sweep, sweep.merged(definition, arguments.together is not None), definition.chosen(arguments.only)))
        return 0
    from transformer_jax.sweeps.launch import Orders, launch, leave_devices_alone

    leave_devices_alone()
    definition = _definition(arguments, sweep)
    orders = Orders(
        only=arguments.only,
        jobs=arguments.jobs,
        together=arguments.together,
        retries=arguments.retries,
        fail_fast=arguments.fail_fast,
        accept_changed_code=arguments.accept_changed_code,
        slurm=_slurm(arguments),
    )
    return launch(sweep, definition, orders)


def overview(sweep: "SweepFolder", only: str | None = None) -> str:
    """Where every run of a sweep stands now, or every one of the variants whose name fits `only`."""
    from transformer_jax.sweeps.slurm import in_flight
    from transformer_jax.sweeps.status import Display, counts, failure, table

    definition = sweep.load()
    names = definition.chosen(only)
    display = Display([*sweep.tries(definition, names), *sweep.runs(definition, names)])
    display.ahead = {address: "queued" for addresses in in_flight(sweep).values() for address in addresses}
    standings = display.standings()
    failed = [failure(run, standings[run.address]) for run in display.runs if standings[run.address].state == "failed"]
    return "\n\n".join([table(display.runs, standings), *failed, counts(standings)])


def _slurm(arguments: argparse.Namespace) -> "Slurm | None":
    """What the flags of the cluster say; they mean nothing without --slurm."""
    from transformer_jax.sweeps.slurm import Slurm

    if not arguments.slurm:
        flags = ("partition", "time_limit", "slurm_option", "detach")
        for flag in flags:
            if getattr(arguments, flag):
                raise BadInput(f"--{flag.replace('_', '-')}: is about a cluster; give --slurm as well")
        return None
    parameters = dict(arguments.slurm_option or ())
    if arguments.partition:
        parameters["partition"] = arguments.partition
    return Slurm(parameters, arguments.time_limit or MINUTES, arguments.jobs, arguments.detach)


def name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r}: must be NAME=VALUE")
    return name, value


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
