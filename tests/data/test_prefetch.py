"""Prefetching: in order, only so far ahead, errors passed on, no thread left behind."""

import itertools
import threading
import time

import pytest

from transformer_jax.data.prefetch import Prefetcher


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_items_come_in_order_from_one_other_thread_which_is_only_so_far_ahead():
    made, threads = [], set()

    def make(step):
        threads.add(threading.current_thread())
        made.append(step)
        time.sleep(0.005)  # meanwhile a second thread would begin the next
        return step * step

    with Prefetcher(make, start_step=3, depth=3) as items:
        assert list(itertools.islice(items, 4)) == [9, 16, 25, 36]
        deadline = time.monotonic() + 60
        while len(made) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # it makes no more
        assert made == [*range(3, 10)]
        assert len(threads) == 1 and threading.current_thread() not in threads


def test_an_error_is_raised_where_its_item_is_asked_for_and_ever_after():
    def make(step):
        if step == 2:
            raise OSError("the disk is gone")
        return step

    with Prefetcher(make) as items:
        assert [next(items), next(items)] == [0, 1]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                next(items)


def test_leaving_early_by_an_exception_ends_the_thread():
    def interrupted():
        with Prefetcher(int) as items:
            next(items)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
