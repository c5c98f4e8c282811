"""TensorBoard files."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

SECONDS_BETWEEN_FLUSHES = 60.0


class Board:
    """A tracker that writes scalars for TensorBoard, which then hides older ones from `purge_step` on.

    It does not use SummaryWriter: an error ends that class's thread, and a later scalar then waits for the thread
    without end.
    """

    def __init__(self, folder: Path, purge_step: int):
        self._folder, self._purge_step, self._flush_at = folder, purge_step, 0.0
        self._writer: Any = None

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the numbers among these values."""
        if self._writer is None:
            self._folder.mkdir(exist_ok=True)
            self._writer = EventsWriter(str(self._folder / "events"))
            self._writer.write_event(Event(step=self._purge_step, session_log=SessionLog(status=SessionLog.START)))
        for name, value in metrics.items():
            if isinstance(value, (int, float)):
                self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        if time.monotonic() >= self._flush_at:
            self._writer.flush()
            self._flush_at = time.monotonic() + SECONDS_BETWEEN_FLUSHES

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
