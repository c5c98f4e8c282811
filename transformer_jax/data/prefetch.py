"""Prefetching: one thread makes the next batches while the device computes on the current one."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetcher(Generic[T]):
    """Iterate over make(start_step), make(start_step + 1), ...: at most `depth` of them are made ahead, in one thread.

    `make` may also transfer the batch to the device, so that this overlaps too. An exception that it raises is raised
    by the `next` that asks for the item. However the `with` block is left, the thread ends.
    """

    def __init__(self, make: Callable[[int], T], start_step: int = 0, *, depth: int = 2):
        self.data_wait = 0.0  # seconds that the consumer has waited for items, so far
        self._make = make
        self._steps = itertools.count(start_step)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="prefetch")
        self._ahead: deque[Future[T]] = deque()
        for _ in range(depth):
            self._submit()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *error: object) -> None:
        """Stops the thread and waits for it, at most until the current item is made."""
        self._ahead.clear()
        self._thread.shutdown(cancel_futures=True)

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        begin = time.perf_counter()
        item = self._ahead[0].result()
        self.data_wait += time.perf_counter() - begin
        self._ahead.popleft()
        self._submit()
        return item

    def _submit(self) -> None:
        self._ahead.append(self._thread.submit(self._make, next(self._steps)))
