"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP: the first makes a run save and stop, another one ends it at once."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from jax.experimental import multihost_utils

from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import processes

# Supervisors often send two signals at once. Ctrl-C is not counted among these: people press it twice.
SECONDS_UNTIL_THE_SECOND = 5.0


class StopSignals:
    """Handles the signals while it is entered.

    Where several processes train one run, SIGTERM is left to JAX's preemption service, by which the processes agree at
    which step they stop; every other reason to stop is turned into that signal.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self._is_sent, self._asked_at = False, 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        handled = [signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, *[signal.SIGTERM] * (processes().count == 1)]
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for number in handled:
                self._before[number] = signal.signal(number, self._handle)
            for number in (signal.SIGINT, signal.SIGHUP):
                if self._before[number] is signal.SIG_IGN:  # by a shell's & or by nohup
                    signal.signal(number, signal.SIG_IGN)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop_at(self, step: int, why: str | None = None) -> str | None:
        """Why every process stops before this step, or None: a signal to one of them, or another reason `why`."""
        why = self.asked or why
        if processes().count == 1:
            return why
        if why is not None and not self._is_sent:
            self._is_sent = True
            os.kill(os.getpid(), signal.SIGTERM)
        return (why or "by SIGTERM") if multihost_utils.reached_preemption_sync_point(step) else None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if not self.asked:
            self.asked, self._asked_at = f"by {name}", time.monotonic()
            tell(f"{name}: saving a checkpoint, then ending (a second signal ends at once)")
        elif number == signal.SIGINT or time.monotonic() > self._asked_at + SECONDS_UNTIL_THE_SECOND:
            tell(f"{name} again: ending at once; the last checkpoint is kept")
            os._exit(1)
