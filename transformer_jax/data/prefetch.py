"""Prefetching: one thread makes the next batches while the device computes on the current one."""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class _Failure:
    """An error that the thread raised instead of making an item."""

    def __init__(self, error: BaseException):
        self.error = error


class Prefetcher(Generic[T]):
    """Iterate over make(start_step), make(start_step + 1), ...: at most `depth` of them are made ahead, in one thread.

    `make` may also transfer the batch to the device, so that this overlaps too. An exception that it raises is raised
    by the `next` that asks for the item. However the `with` block is left, the thread ends.
    """

    def __init__(self, make: Callable[[int], T], start_step: int = 0, *, depth: int = 2, stop_step: int | None = None):
        self.data_wait = 0.0  # seconds that the consumer has waited for items, so far
        self._make = make
        self._steps = itertools.count(start_step) if stop_step is None else iter(range(start_step, stop_step))
        self._ready: queue.SimpleQueue[T | _Failure] = queue.SimpleQueue()
        # Waiting for a free slot is the only place where the thread sleeps, so `close` wakes it by freeing one.
        self._free_slots = threading.Semaphore(depth)
        self._closed = False
        self._failure: _Failure | None = None
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._closed:
            raise RuntimeError("the prefetcher is closed")
        if self._failure is None:
            begin = time.perf_counter()
            item = self._ready.get()
            self.data_wait += time.perf_counter() - begin
            self._free_slots.release()
            if not isinstance(item, _Failure):
                return item
            self._failure = item
        raise self._failure.error

    def close(self) -> None:
        """Stops the thread and waits for it, at most until the current item is made."""
        self._closed = True
        self._free_slots.release()
        self._thread.join()

    def _work(self) -> None:
        try:
            for step in self._steps:
                self._free_slots.acquire()
                if self._closed:
                    return
                self._ready.put(self._make(step))
            self._ready.put(_Failure(StopIteration()))
        except BaseException as error:
            self._ready.put(_Failure(error))
