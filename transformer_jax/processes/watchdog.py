"""A watchdog of progress: if one of several processes stops taking steps, the others say which one, and all end.

Heartbeats do not notice that, because they come from a separate thread. So each process counts its steps, and
tells the others through JAX's coordination service. All run the same program: whose count is lower is waited for.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from jax._src import distributed  # its key-value store has no public name

from transformer_jax.files.progress import tell

KEY = "transformer_jax/progress/"
SECONDS_BETWEEN_LOOKS = 10.0
# Time for all processes to say what they know, before the first one ends and JAX ends the others.
SECONDS_TO_TELL = 5.0

_count = 0


def advance() -> None:
    """Counts a step, or another piece of work that all processes do."""
    global _count
    _count += 1


@contextlib.contextmanager
def watching(process: str, number: int, stalled_after: float) -> Iterator[None]:
    """Ends this process when it has waited for another one for `stalled_after` seconds, and when it is that one."""
    over = threading.Event()
    client = distributed.global_state.client
    threading.Thread(target=_watch, args=(client, process, number, stalled_after, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _watch(client: Any, process: str, number: int, stalled_after: float, over: threading.Event) -> None:
    seen, since = _count, time.monotonic()
    while not over.wait(min(SECONDS_BETWEEN_LOOKS, stalled_after / 4)):
        if _count != seen:
            seen, since = _count, time.monotonic()
        try:
            client.key_value_set(f"{KEY}{number}", f"{seen} {process}", allow_overwrite=True)
            texts = [text for _, text in client.key_value_dir_get(KEY)]
        except Exception:  # the others are gone, and JAX will end this process
            return
        counts = {name: int(count) for count, _, name in (text.partition(" ") for text in texts)}
        behind = sorted(name for name, count in counts.items() if count < max(counts.values()))
        if behind and time.monotonic() > since + stalled_after:
            tell(f"failed: no progress for {stalled_after:g} s: waiting for {', '.join(behind)}; ending, to be resumed")
            if process in behind:
                frame = sys._current_frames()[threading.main_thread().ident or 0]
                tell("it is here:\n" + "".join(traceback.format_stack(frame)).rstrip())
            time.sleep(SECONDS_TO_TELL)
            os._exit(1)
