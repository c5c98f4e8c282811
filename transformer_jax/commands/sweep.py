"""Runs an ablation: every variant of an experiment file with every seed; resumes where it was interrupted.

  transformer-jax sweep experiments/table3.py --workdir=runs/table3 --dry-run
  transformer-jax sweep experiments/table3.py --workdir=runs/table3 --jobs=2
  transformer-jax sweep preset:table3 --workdir=runs/table3   (without a checkout)
  transformer-jax status runs/table3
  transformer-jax report runs/table3

The file has a function get_sweep(scale) that returns a Sweep: a base config, variants as differences from it, seeds.
--config.group.name=value changes the base, and so all variants. All variants are checked before the first run starts,
and everything that is wrong is reported.

Each run is a separate process with its own folder, SWEEP/runs/VARIANT/seed-N (rate-FACTOR-seed-N or
setting-NUMBER-seed-N at a tuned setting), as `train` makes it; a run that fails does not affect the others. The same
command again runs what is missing and repeats nothing, even after a kill. Options that affect results may not change;
variants, seeds, test sets, contrasts, analyses, factors of --tune and trials may be added.
Without FILE it resumes the sweep in SWEEP. Ctrl-C saves and ends. Exit status, also of --status: 0 when all runs are
finished, 1 when one failed, 75 when some are not finished; 2 for bad input.
"""

import argparse
import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_jax import shipped
from transformer_jax.commands.arguments import add_accept_changed_code, at_least, path, python_file, refuse_alone
from transformer_jax.errors import BadInput

if TYPE_CHECKING:
    from transformer_jax.sweeps.folder import SweepFolder
    from transformer_jax.sweeps.resolved import ResolvedSweep
    from transformer_jax.sweeps.slurm import Slurm

# The default time limit of a job.
MINUTES = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "a file with get_sweep(), as in experiments/, which are also available by name from any directory: "
    about += ", ".join(f"{shipped.PRESET}{name}" for name in shipped.experiments())
    parser.add_argument("file", nargs="?", type=python_file, metavar="FILE.py", help=about)
    parser.add_argument("--workdir", type=path, required=True, metavar="SWEEP", help="the sweep's folder")
    parser.set_defaults(overrides=[])
    add = parser.add_argument_group("the runs").add_argument
    add("--scale", metavar="NAME", help="the size: demo, multi30k or paper in experiments/")
    add("--seeds", type=seeds, metavar="N", help="how many seeds (3), or which (0,1,5 or 7,) instead of the file's")
    add("--only", action="append", metavar="GLOB", help="only variants whose names match: 'B*'; repeatable")
    about = "first train each variant at its learning rate times each of 0.5,1,2, with two seeds, and use the rate "
    about += "that validation loss favors; none: do not tune"
    add("--tune", type=factors, metavar="FACTORS", help=about)
    add = parser.add_argument_group("without running anything").add_argument
    add("--dry-run", action="store_true", help="print every variant, what differs, its size and its cost")
    add("--quick", action="store_true", help="with --dry-run: time nothing, and estimate no cost in hours")
    add("--status", action="store_true", help="the same as the command `status`: print the state of every run")
    add("--json", action="store_true", help="with --status: as JSON")
    how = parser.add_argument_group("how it is run")
    about = "processes at a time (default: one per GPU or TPU chip, or 1)"
    how.add_argument("--jobs", type=at_least(1), metavar="N", help=about)
    about = "train up to N runs that differ only in seed or in numbers such as dropout in one program; all see the "
    about += "training pairs in the same order"
    how.add_argument("--together", nargs="?", type=at_least(2), const=0, metavar="N", help=about)
    how.add_argument("--retries", type=at_least(0), default=0, metavar="N", help="how often to retry a failed run")
    add_accept_changed_code(how, "resume the sweep")
    how.add_argument("--fail-fast", action="store_true", help="stop all other runs after the first failure")
    add = parser.add_argument_group("on a SLURM cluster (pip install 'transformer_jax[slurm]')").add_argument
    add(
        "--slurm",
        action="store_true",
        help="submit a job for each run or group, --jobs at a time; data is prepared here",
    )
    add("--partition", metavar="NAME", help="the partition to submit to")
    add("--time-limit", type=at_least(2), metavar="MINUTES", help=f"of a job until it is requeued (default {MINUTES})")
    about = "an option of sbatch, repeatable: gpus-per-node=1, mem=16GB, exclusive"
    add("--slurm-option", action="append", metavar="NAME[=VALUE]", help=about)
    add("--detach", action="store_true", help="exit after submitting; `status` shows the state")


def seeds(text: str) -> int | list[int]:
    """The number of seeds (3), or the seeds themselves (0,1,5); "7," is the single seed 7."""
    number = at_least(0)
    return [number(item) for item in text.split(",") if item] if "," in text else number(text)


def factors(text: str) -> tuple[float, ...]:
    """Factors of the learning rate: 0.5,1,2; empty for none."""
    try:
        return () if text == "none" else tuple(float(item) for item in text.split(",") if item)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: must be numbers, as in 0.5,1,2, or none") from None


def run(arguments: argparse.Namespace) -> int:
    import jax

    from transformer_jax.processes.hardware import keep_freed_memory
    from transformer_jax.sweeps.folder import SweepFolder
    from transformer_jax.sweeps.launch import LaunchOptions, launch, ready
    from transformer_jax.sweeps.local import confined, slots

    refuse_alone(arguments, "status", "json")
    refuse_alone(arguments, "dry_run", "quick")
    refuse_alone(arguments, "slurm", "partition", "time_limit", "slurm_option", "detach")
    if arguments.status:
        from transformer_jax.commands.status import show_sweep

        return show_sweep(Path(arguments.workdir), arguments.json, only=arguments.only)
    folder = SweepFolder(arguments.workdir)
    names = {field.name for field in dataclasses.fields(LaunchOptions)} - {"slurm"}
    with folder.in_original_directory() if arguments.file is None else contextlib.nullcontext(folder) as sweep:
        if arguments.only is None and arguments.file is None:
            arguments.only = sweep.load().only  # as the sweep was started
        options = LaunchOptions(slurm=_slurm(arguments), **{name: getattr(arguments, name) for name in names})
        if not arguments.dry_run:
            arguments.prints_results = False  # but messages; the results are in the folder
            jax.config.update("jax_platforms", "cpu")  # on a GPU this process would take the memory that the runs need
            return launch(sweep, _definition(arguments, sweep), options)
        from transformer_jax.sweeps.plan import plan

        jobs = 1 if options.slurm else options.jobs
        keep_freed_memory()
        with confined(slots(jobs)[0]):  # updates are timed as a run would make them
            definition = _definition(arguments, sweep)
            variants = definition.chosen(options.only)
            print(plan(sweep, ready(sweep, definition, options), variants, jobs, arguments.quick))
        return 0


def _slurm(arguments: argparse.Namespace) -> "Slurm | None":
    from transformer_jax.sweeps.slurm import Slurm

    if not arguments.slurm:
        return None
    parameters = dict(option.partition("=")[::2] for option in arguments.slurm_option or ())
    if arguments.partition:
        parameters["partition"] = arguments.partition
    return Slurm(parameters, arguments.time_limit or MINUTES, arguments.jobs, arguments.detach)


def _definition(arguments: argparse.Namespace, sweep: "SweepFolder") -> "ResolvedSweep":
    """The file's sweep with the command line's changes; without a file, the sweep in the folder."""
    from transformer_jax.sweeps.resolved import load

    if arguments.file is not None:
        return load(arguments.file, arguments.scale, arguments.overrides, arguments.seeds, arguments.tune)
    if arguments.scale or arguments.seeds is not None or arguments.tune is not None or arguments.overrides:
        raise BadInput("--scale, --seeds, --tune and --config.* need FILE.py, whose sweep they change")
    return sweep.load()
