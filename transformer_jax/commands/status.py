"""Shows how a run or a sweep stands, from its files alone; also as a probe for Kubernetes and the like.

  transformer-jax status runs/demo
  transformer-jax status runs/demo --json --max-age=1800
  transformer-jax status runs/table3   (a sweep: the same as sweep --workdir=runs/table3 --status)

The age of a run is the time since its last line of metrics, or since it began if it has none yet. Exit status: 0 for a
run that is running or finished; 75 for one that is waiting or was stopped and can be resumed; 1 for one that failed,
diverged or was killed, and for one that is running with an age of more than --max-age seconds; 2 if RUN is not a run.
For a sweep: 0 when all runs are finished, 1 when one failed or is too old, else 75.
"""

import argparse
import json
from pathlib import Path

from transformer_jax.commands.arguments import at_least, path
from transformer_jax.errors import EXIT_UNFINISHED, BadInput
from transformer_jax.files import paths

STATUSES = {"running": 0, "finished": 0, "waiting": EXIT_UNFINISHED, "stopped": EXIT_UNFINISHED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", type=path, help="the folder of a run or of a sweep")
    parser.add_argument("--json", action="store_true", help="as JSON, with the seconds since the last step")
    about = "exit status 1 if a running run has written no metrics for this long"
    parser.add_argument("--max-age", type=at_least(1), metavar="SECONDS", help=about)


def run(arguments: argparse.Namespace) -> int:
    folder = Path(paths.expanded(arguments.folder))
    if (folder / "sweep.json").is_file():
        from transformer_jax.commands.sweep import show_status
        from transformer_jax.sweeps.folder import SweepFolder

        return show_status(SweepFolder(folder), None, arguments.json, arguments.max_age)
    from transformer_jax.runs.state import STATE, status_of_run

    if not any((folder / name).is_file() for name in (STATE, "versions.json", "attempt.json", ".lock")):
        raise BadInput(f"{folder}: is not a run or a sweep")
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
