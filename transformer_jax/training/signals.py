"""SIGTERM and SIGINT: asked once to stop, a run saves and ends; asked twice, it ends at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import jax

from transformer_jax.data.progress import tell

HEARD = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Listens while it is entered. `asked` names the signal that came."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._hear) for number in HEARD}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop_at(self, step: int) -> str | None:
        """Why every process should stop after this step, or None.

        Among several processes jax.distributed hears the signal and settles one step for all of them.
        """
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            return "SIGTERM" if multihost_utils.reached_preemption_sync_point(step) else None
        return self.asked

    def _hear(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked:
            tell(f"{name} again: ending at once; the last checkpoint stands")
            os._exit(1)
        self.asked = name
        tell(f"{name}: saving, then ending (once more ends at once)")
