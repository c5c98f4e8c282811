"""SIGTERM and SIGINT: the first makes a run save and stop, the second ends it at once."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from transformer_jax.files.progress import tell
from transformer_jax.processes.distributed import processes

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handles the signals while it is entered."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._handle) for number in HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop_at(self, step: int, why: str | None = None) -> str | None:
        """Why every process stops before this step, or None: a signal to one of them, or another reason `why`."""
        return processes().stop_at(step, self.asked or why)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked:
            tell(f"{name} again: ending at once; the last checkpoint is kept")
            os._exit(1)
        self.asked = f"by {name}"
        tell(f"{name}: saving, then ending (once more ends at once)")
