"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP: the first makes a run save and stop, another one ends it at once."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from transformer_jax.files import output
from transformer_jax.processes.distributed import processes

# Supervisors often send two signals at once. Ctrl-C is not counted among these: people press it twice.
SECONDS_UNTIL_THE_SECOND = 5.0
# What a stopped command ignores until its exit. Ctrl-C still ends it, for example while it waits for a bucket.
UNTIL_THE_EXIT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)


class StopSignals:
    """Handles the signals while it is entered.

    Several processes agree at which step they stop. Any of them may be inside a collective, where Python calls no
    handlers, so that a thread reads which signals came.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.exit_status = 1  # where a signal ends the process at once
        self._is_sent = self._has_stopped = False
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}
        self._channel = processes().channel

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():  # elsewhere Python allows no handlers
            return self
        handle = self._handle if self._channel is None else lambda number, frame: None
        for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP, signal.SIGTERM):
            self._before[number] = signal.signal(number, handle)
        for number in (signal.SIGINT, signal.SIGHUP):
            if self._before[number] is signal.SIG_IGN:  # by a shell's & or by nohup
                signal.signal(number, signal.SIG_IGN)
        if self._channel is not None:
            self._read, self._written = os.pipe()
            os.set_blocking(self._written, False)
            signal.set_wakeup_fd(self._written)
            threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None and self._before:
            signal.set_wakeup_fd(-1)
            os.close(self._written)
        after = dict(self._before)
        if after and output.is_command and (self.asked or self._has_stopped):
            after |= dict.fromkeys(UNTIL_THE_EXIT, signal.SIG_IGN)  # its exit status says that it has saved
        for number, handler in after.items():
            signal.signal(number, handler)

    def stop_at(self, step: int, why: str | None = None) -> str | None:
        """Why every process stops before this step, or None: a signal to one of them, or another reason `why`."""
        if self._channel is None:
            reason = self.asked or why
        else:
            if why is not None and not self._is_sent:
                self._is_sent = True
                self._channel.send("ask", why, False)
            reason = self._channel.stops_at(step)
        self._has_stopped = reason is not None
        return reason

    def _listen(self) -> None:
        assert self._channel is not None
        while numbers := os.read(self._read, 1):
            self._handle(numbers[0])
            self._channel.send("ask", self.asked, True)
        os.close(self._read)

    def _handle(self, number: int, frame: FrameType | None = None) -> None:
        name = signal.Signals(number).name
        if not self.asked:
            self.asked, self._asked_at = f"by {name}", time.monotonic()
            output.tell_in_handler(f"{name}: saving a checkpoint, then ending (a second signal ends at once)")
        elif number == signal.SIGINT or time.monotonic() > self._asked_at + SECONDS_UNTIL_THE_SECOND:
            output.tell_in_handler(f"{name} again: ending at once; the last checkpoint is kept")
            if number == signal.SIGINT and self._channel is None and not output.is_command:  # in a notebook
                raise KeyboardInterrupt
            os._exit(self.exit_status)
