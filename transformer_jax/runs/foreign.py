"""Refuses to train in a folder that holds something else than a run."""

import contextlib
from pathlib import Path

from transformer_jax.errors import BadInput
from transformer_jax.files.record import read_object

WEIGHTS, ORIGIN = "model.safetensors", "weights.json"  # an exported folder has both

# What `train`, `prepare` and a sweep's worker leave if they are killed before they write versions.json.
LEFT_BY_A_START = {
    *(".lock", "data", "data.lock", "data.partial", "versions.json.unfinished"),
    *(".worker.lock", "log.txt", "attempt.json.unfinished"),
}
# Any of these files with these fields makes a folder a run. versions.json is written first, attempt.json by a sweep's
# worker before it trains; config.json is a common name and counts only beside checkpoints.
OF_RUNS = {
    "versions.json": {"python", "platform", "command"},
    "attempt.json": {"state", "host", "pid"},
    "config.json": {"seed", "model", "data", "optimizer", "mesh", "train", "decode"},
}
SHOWN_NAMES = 5


def refuse_foreign(path: Path) -> None:
    """Refuses a folder that is neither new nor empty nor a run, before anything is written there."""
    if not path.is_dir():
        return
    names = {entry.name for entry in path.iterdir()}
    if names & {WEIGHTS, ORIGIN}:
        raise BadInput(
            f"{path}: is an exported folder, whose config.json training would replace; use another --workdir "
            f"(--init-from={path} begins with its weights)"
        )
    others = sorted(names - LEFT_BY_A_START)
    if others and not is_run(path):
        more = f" and {len(others) - SHOWN_NAMES} more" if len(others) > SHOWN_NAMES else ""
        raise BadInput(
            f"{path}: is not a run of this library, and not empty (it has {', '.join(others[:SHOWN_NAMES])}{more}); "
            "use a new or empty folder"
        )


def is_run(path: Path) -> bool:
    """Whether a folder is a run of this library; some of its files may be missing or damaged."""
    for name, fields in OF_RUNS.items():
        with contextlib.suppress(OSError, BadInput):
            if read_object(path / name).keys() >= fields:
                return name != "config.json" or (path / "checkpoints").is_dir()
    return False
