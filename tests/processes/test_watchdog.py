"""Processes that no longer make progress are named. test_channel.py has how they end."""

import pytest

from transformer_jax.processes import watchdog
from transformer_jax.processes.watchdog import SECONDS_AFTER_A_SIGNAL, Watchdog, advance, state, waiting, working

NAMES = ("process 0", "process 1", "process 2")


def looking(states, limit=10.0, is_hurried=False):
    """What a watchdog says when nothing has changed for 9 seconds and for 18."""
    dog = Watchdog(NAMES, limit)
    for number, (count, doing) in enumerate(states):
        dog.set(number, count, doing)
    if is_hurried:
        dog.hurry()
    return dog.look(9.0), dog.look(9.0)


@pytest.mark.parametrize(
    ("states", "behind"),
    [
        (((3, "waits"), (2, ""), (3, "waits")), [1]),
        (((2, ""), (3, ""), (2, "waits")), [0, 2]),
        (((3, "waits"), (3, "waits"), (3, "waits")), [0, 1, 2]),  # for different things
        (((3, "waits"), (3, ""), (3, "waits")), None),  # it computes, as all do
        (((3, "waits"), (2, "works"), (3, "waits")), None),  # it prepares the data
    ],
)
def test_who_is_behind_is_named_in_time(states, behind):
    early, found = looking(states)
    assert early is None and (found and found[1]) == behind
    if behind:
        assert found[0].startswith(f"no progress for 10 s: waiting for {', '.join(NAMES[each] for each in behind)};")


def test_progress_of_one_is_progress():
    dog = Watchdog(NAMES, 10.0)
    for count in range(20):
        dog.set(1, count, "")
        assert dog.look(9.0) is None


def test_after_a_signal_there_is_less_time_and_no_excuse():
    dog = Watchdog(NAMES, 600.0)
    dog.set(1, 1, "works")
    assert dog.look(590.0) is None
    dog.hurry()
    assert dog.look(SECONDS_AFTER_A_SIGNAL) is None
    assert dog.look(1.0) is not None
    assert looking([(1, "")] * 3, limit=10.0, is_hurried=True)[1][1] == [0, 1, 2]


def test_what_a_process_counts(monkeypatch):
    for name, value in (("_count", 5), ("_waiting", 0), ("_working", 0)):
        monkeypatch.setattr(watchdog, name, value)
    assert state() == (5, "")
    advance()
    with waiting():
        assert state() == (7, "waits")
        with working():
            assert state() == (7, "works")
    assert state() == (7, "")
