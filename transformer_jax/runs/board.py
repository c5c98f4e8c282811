"""TensorBoard files, on which nothing depends."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from transformer_jax.files.progress import tell

SECONDS_BETWEEN_FLUSHES = 60.0


class Board:
    """Writes scalars for TensorBoard, which then hides older ones from `purge_step` on. After an error it is left out.

    It does not use SummaryWriter: an error ends that class's thread, and a later scalar then waits for the thread
    without end.
    """

    def __init__(self, folder: Path, purge_step: int):
        self._folder, self._flush_at = folder, 0.0
        self._writer: Any = None
        with self._left_out_after_an_error():
            folder.mkdir(exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"))
            self._writer.write_event(Event(step=purge_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes the numbers among these values."""
        if self._writer is None:
            return
        with self._left_out_after_an_error():
            for name, value in values.items():
                if isinstance(value, (int, float)):
                    self._writer.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
            if time.monotonic() >= self._flush_at:
                self._writer.flush()
                self._flush_at = time.monotonic() + SECONDS_BETWEEN_FLUSHES

    def close(self) -> None:
        if self._writer is not None:
            with self._left_out_after_an_error():
                self._writer.close()

    @contextlib.contextmanager
    def _left_out_after_an_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._writer = None
            tell(f"warning: {self._folder} is left out from here on ({error}); metrics.jsonl has everything")
