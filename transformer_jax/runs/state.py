"""How a run stands, from its files alone and without JAX, for whoever watches it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import explained, write_json
from transformer_jax.files.record import read_record
from transformer_jax.runs.metrics import newest_metrics

STATE = "state.json"
# Bytes at the end of metrics.jsonl in which the last line is looked for.
END_BYTES = 1 << 16


def record_state(run: Path, state: str, why: str = "") -> None:
    """Records the state of a training that begins ("running") or has ended."""
    with explained(run):
        write_json(run / STATE, {"state": state, "why": why, "host": socket.gethostname(), "pid": os.getpid()})


def status_of_run(run: Path) -> dict[str, Any]:
    """The state of a run, its last step, and the seconds since its last line of metrics, or since it began.

    The states: waiting (it has not begun), running, finished, stopped (it can be resumed), interrupted (its process is
    gone), failed (its process ended with an error), diverged.
    """
    record, versions = _record(run / STATE), _record(run / "versions.json")
    line, files = last_line(run / "metrics.jsonl"), [run / STATE, run / "metrics.jsonl"]
    step, steps = line.get("step", 0), versions.get("last_step")
    state, lock = (
        record.get("state", "waiting" if not step else "finished" if step == steps else "stopped"),
        run / ".lock",
    )
    is_of_this_machine = record.get("host") == socket.gethostname()
    if is_held(lock) or (state == "running" and lock.exists() and not is_of_this_machine):
        state = "running"  # the locks of another machine may not be visible
    elif state == "running":
        state = "interrupted" if lock.exists() else "failed"
    times = [path.stat().st_mtime for path in files if path.exists()]
    return {
        "run": str(run),
        "state": state,
        "step": step,
        "steps": steps,
        "seconds_since_step": round(time.time() - max(times), 1) if times else None,
        "time": line.get("time"),
        **{name: line[name] for name in ("loss", "valid_loss") if name in line},
        "host": record.get("host", ""),
        "why": record.get("why", ""),
    }


def is_held(lock: Path) -> bool:
    """Whether a process holds this lock, as far as locks can tell."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file, or a file system without locks
        return False
    return False


def last_line(metrics: Path) -> dict[str, Any]:
    """The last complete line of a metrics.jsonl; empty if there is none."""
    with contextlib.suppress(OSError):
        return next(newest_metrics(metrics, END_BYTES), {})
    return {}


def _record(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, BadInput):
        return read_record(path)
    return {}
