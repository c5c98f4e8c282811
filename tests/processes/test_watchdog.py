"""A process that no longer takes steps is named, and all end."""

import threading

import pytest

from transformer_jax.processes import watchdog


class Store:
    """As JAX's, with what another process has told."""

    def __init__(self, other):
        self.content = {f"{watchdog.KEY}1": other}

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self.content[key] = value

    def key_value_dir_get(self, key):
        return list(self.content.items())


@pytest.mark.parametrize(
    ("other", "told"),
    [("2 process 1", "waiting for process 1"), ("4 process 1", "waiting for process 0"), ("3 process 1", "")],
    ids=["the other", "this one", "none"],
)
def test_who_is_behind_is_named(other, told, monkeypatch, capsys):
    over, ended = threading.Event(), []
    monkeypatch.setattr(watchdog, "_count", 2)
    monkeypatch.setattr(watchdog, "SECONDS_TO_TELL", 0.0)
    monkeypatch.setattr("os._exit", lambda status: (ended.append(status), over.set()))
    watchdog.advance()
    thread = threading.Thread(target=watchdog._watch, args=(Store(other), "process 0", 0, 0.05, over))
    thread.start()
    thread.join(0.5)
    over.set()
    thread.join()
    err = capsys.readouterr().err
    assert bool(ended) == bool(told) and told in err
    assert ("test_who_is_behind_is_named" in err) == ("process 0" in told)  # where it is


def test_progress_is_no_stall(monkeypatch, capsys):
    over = threading.Event()
    monkeypatch.setattr("os._exit", lambda status: over.set())
    thread = threading.Thread(target=watchdog._watch, args=(Store("0 process 1"), "process 0", 0, 0.2, over))
    thread.start()
    for _ in range(40):
        watchdog.advance()
        thread.join(0.01)
    assert not over.is_set()
    over.set()
    thread.join()
    assert capsys.readouterr().err == ""
