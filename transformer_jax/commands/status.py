"""Shows how a run or a sweep stands, from its files alone; also as a probe for Kubernetes and the like.

  transformer-jax status runs/demo
  transformer-jax status runs/demo --json --max-age=1800
  transformer-jax status runs/table3   (a sweep: every run, with its score by the primary metric)

The age of a run is the time since its last line of metrics, or since it began if it has none yet. Exit status: 0 for a
run that is running or finished; 75 for one that is waiting or was stopped and can be resumed; 1 for one that failed,
diverged or was killed, and for one that is running with an age of more than --max-age seconds; 2 if RUN is not a run.
For a sweep: 0 when all runs are finished, 1 when one failed or is too old, else 75.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.commands.arguments import at_least, path
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.extras import require
from transformer_jax.files import paths, remote

STATUSES = {"running": 0, "finished": 0, "waiting": EXIT_UNFINISHED, "stopped": EXIT_UNFINISHED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=path, help="the folder of a run or of a sweep")
    parser.add_argument("--json", action="store_true", help="as JSON, with the seconds since the last step")
    about = "exit status 1 if a running run has written no metrics for this long"
    parser.add_argument("--max-age", type=at_least(1), metavar="SECONDS", help=about)


def run(arguments: argparse.Namespace) -> int:
    folder = Path(paths.expanded(arguments.folder))
    if (folder / "sweep.json").is_file():
        require("transformer-jax status of a sweep", "train")
        return show_sweep(folder, arguments.json, arguments.max_age)
    from transformer_jax.runs.state import STATE, status_of_run

    if not any((folder / name).is_file() for name in (STATE, "versions.json", "attempt.json", ".lock")):
        raise BadInput(f"{remote.name_of(str(folder))}: is not a run or a sweep")
    found = status_of_run(folder)
    age = found["seconds_since_step"]
    is_silent = found["state"] == "running" and bool(arguments.max_age) and (age or 0) > arguments.max_age
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{found['run']}: {found['state']}, step {found['step']:,}", end="")
        print(f" of {found['steps']:,}" if found["steps"] else "", end="")
        print("" if age is None else f", {age:.0f} s ago", f": {found['why']}" if found["why"] else "", sep="")
    return 1 if is_silent else STATUSES.get(found["state"], 1)


def show_sweep(
    folder: Path, as_json: bool = False, max_age: int | None = None, only: Sequence[str] | None = None
) -> int:
    """Prints the state of every run of a sweep, or of the variants that match `only`, by default as it was started.

    Returns 0 if all are finished, 1 if one failed, diverged or wrote nothing for `max_age` seconds, and else 75.
    """
    from transformer_jax.sweeps.folder import SweepFolder
    from transformer_jax.sweeps.slurm import NoAnswer, in_queue
    from transformer_jax.sweeps.status import BAD, Progress, counts, failure, table

    sweep = SweepFolder(folder)
    definition = sweep.load()
    variants = definition.chosen(definition.only if only is None else only)
    progress, unknown = Progress(sweep.all_runs(definition, variants)), ""
    try:
        queued = in_queue(sweep)
    except NoAnswer as problem:
        queued, unknown = {}, f"warning: {problem}; the states of jobs are not known"
    progress.pending = {run_id: "queued" for run_id, is_queued in queued.items() if is_queued}
    statuses = [status.of_job(queued.get(status.run.run_id)) for status in progress.statuses()]
    # A setting that diverges is a failure only if none of its variant's is left.
    tuning = {at.run.variant for at in statuses if at.run.setting is not None and at.state not in BAD}
    failed = [
        failure(at)
        for at in statuses
        if at.state == "failed" or (at.state == "diverged" and (at.run.setting is None or at.run.variant not in tuning))
    ]
    if as_json:
        print(json.dumps([status.to_json() for status in statuses], indent=1))
    else:
        print(*filter(None, [table(statuses), *failed, unknown, counts(statuses)]), sep="\n\n")
    if failed or any(max_age and at.state == "running" and (at.age or 0) > max_age for at in statuses):
        return 1
    return 0 if all(status.state == "finished" for status in statuses) else EXIT_UNFINISHED
