"""How a run stands, from its files alone and without JAX, for whoever watches it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from transformer_jax.files import remote
from transformer_jax.files.atomic import NO_LOCKS, explained, write_json
from transformer_jax.files.record import read_if_sound
from transformer_jax.runs.metrics import newest_metrics

STATE = "state.json"


class State(TypedDict, total=False):
    """What is read of state.json."""

    state: str
    why: str
    host: str


class Earlier(TypedDict):
    until: int


class Versions(TypedDict):
    """What is read of versions.json, which has also the versions of packages."""

    config_sha256: NotRequired[str]
    earlier: NotRequired[list[Earlier]]
    last_step: NotRequired[int | None]
    directory: NotRequired[str]
    command: NotRequired[str]


def record_state(run: Path, state: str, why: str = "") -> None:
    """Records the state of a training that begins ("running") or has ended."""
    with explained(run):
        write_json(run / STATE, {"state": state, "why": why, "host": socket.gethostname(), "pid": os.getpid()})


def status_of_run(run: Path) -> dict[str, Any]:
    """The state of a run, its last step, and the seconds since its last line of metrics, or since it began.

    The states: waiting (it has not begun), running, finished, stopped (it can be resumed), interrupted (its process is
    gone), failed (its process ended with an error), diverged.
    """
    record = read_if_sound(run / STATE, State) or {}
    steps = (read_if_sound(run / "versions.json", Versions) or {}).get("last_step")
    metrics, lock = run / "metrics.jsonl", run / ".lock"
    line: dict[str, Any] = next(newest_metrics(metrics), {})
    latest = max(map(_time_of_change, (run / STATE, metrics, lock)))
    step = line.get("step", 0)
    state = record.get("state", "stopped" if step else "waiting")
    holder = ""  # process 7 on HOST
    with contextlib.suppress(OSError):
        holder = lock.read_text(errors="replace").partition("\n")[0]
    is_renewed = remote.is_renewed(lock)
    if is_held(lock) or is_renewed or (holder and not holder.endswith(f" on {socket.gethostname()}")):
        state = "running"  # the locks of another machine may not be visible
    elif holder or is_renewed is not None:
        state = "interrupted"
    elif state == "running":
        state = "failed"
    return {
        "run": remote.name_of(str(run)),
        "state": state,
        "step": step,
        "steps": steps,
        "seconds_since_step": round(time.time() - latest, 1) if latest else None,
        "time": line.get("time"),
        **{name: line[name] for name in ("loss", "valid_loss") if name in line},
        "host": record.get("host", ""),
        "why": record.get("why", ""),
    }


def is_held(lock: Path) -> bool:
    """Whether a process holds this lock; perhaps one does where locks do not work."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in NO_LOCKS
    return False


def _time_of_change(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
