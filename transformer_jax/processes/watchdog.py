"""A watchdog of progress: if one of several processes hangs, all say which one, and end.

All run the same program, and each counts what it does: its steps, and how often it began to wait for others. Whose
count is lower is waited for. Process 0 compares the counts (channel.py).
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence

# Seconds without progress after which processes end that were sent a signal; or mesh.stalled_after, if it is less.
SECONDS_AFTER_A_SIGNAL = 60.0

_lock, _count = threading.Lock(), 0
_waiting = _working = 0  # how many parts of this process do


def advance() -> None:
    """Counts a step, or another piece of work that all processes do."""
    global _count
    with _lock:
        _count += 1


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Around what lasts until other processes have come to the same place. It counts."""
    global _waiting
    advance()
    _waiting += 1
    try:
        yield
    finally:
        _waiting -= 1


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Around work for which the others wait however long it takes."""
    global _working
    _working += 1
    try:
        yield
    finally:
        _working -= 1


def state() -> tuple[int, str]:
    """The count of this process, and whether it waits or works."""
    return _count, "works" if _working else "waits" if _waiting else ""


class Watchdog:
    """What process 0 knows of the progress of all."""

    def __init__(self, names: Sequence[str], stalled_after: float):
        self._names, self._limit = names, stalled_after
        self._is_hurried = False
        self._counts, self._states = [0] * len(names), [""] * len(names)
        self._unmoved = 0.0  # seconds without progress of any process

    def set(self, number: int, count: int, state: str) -> None:
        if count != self._counts[number]:
            self._unmoved = 0.0
        self._counts[number], self._states[number] = count, state

    def hurry(self) -> None:
        """A signal was sent to a process."""
        if not self._is_hurried:
            self._is_hurried, self._unmoved = True, 0.0
            self._limit = min(self._limit, SECONDS_AFTER_A_SIGNAL)

    def look(self, seconds: float) -> tuple[str, list[int]] | None:
        """Why all processes must end, and which of them hang; or None. `seconds` have passed since the last call."""
        self._unmoved += seconds
        behind = [number for number, count in enumerate(self._counts) if count < max(self._counts)]
        hangs = behind or all(state == "waits" for state in self._states)
        if self._unmoved <= self._limit or not (self._is_hurried or (hangs and "works" not in self._states)):
            return None
        behind = behind or list(range(len(self._names)))
        who = ", ".join(self._names[number] for number in behind)
        return f"no progress for {self._limit:g} s: waiting for {who}; ending, to be resumed", behind
