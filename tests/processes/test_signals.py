"""Signals: the first asks for a stop, a later one ends the process."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from transformer_jax.files import output
from transformer_jax.processes import signals as module
from transformer_jax.processes.distributed import Processes
from transformer_jax.processes.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_the_first_signal_is_a_reason_to_stop_and_a_later_one_ends_the_process(number, monkeypatch, capfd):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.getsignal(number)
    signal.signal(number, signal.default_int_handler)  # the tests may run under nohup
    with StopSignals() as signals:
        monkeypatch.setattr(output, "is_command", True)
        assert signals.stop_at(1) is None and signals.stop_at(1, "after train.hours = 1") == "after train.hours = 1"
        signal.raise_signal(number)
        assert signals.stop_at(2, "after train.hours = 1") == f"by {number.name}" and not ended
        signal.raise_signal(number)
        assert bool(ended) == (number == signal.SIGINT)  # supervisors often send two at once
        monkeypatch.setattr(module, "SECONDS_UNTIL_THE_SECOND", 0.0)
        signal.raise_signal(number)
        assert ended
        monkeypatch.setattr(output, "is_command", False)
    assert signal.signal(number, before) is signal.default_int_handler
    told = capfd.readouterr().err.splitlines()
    assert told[0].startswith(f"{number.name}: saving") and told[1].startswith(f"{number.name} again: ending at once")


def test_a_second_interrupt_leaves_a_notebook_alive():
    """Its variables are kept, and Ctrl-C is its own again."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run under nohup
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


STOPPED = """
import os, signal, sys, time
from transformer_jax.files import output
from transformer_jax.files.progress import tell
from transformer_jax.processes.signals import StopSignals

output.use_in_this_command()
with StopSignals() as signals:
    tell("ready")
    while not signals.asked:
        time.sleep(0.01)
    tell("saved")
os.kill(os.getpid(), signal.SIGTERM)  # while it ends
sys.exit(75)
"""


def test_a_command_whose_terminal_closes_stops_and_ends_as_it_promised():
    master, terminal = pty.openpty()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", STOPPED],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    os.close(terminal)
    seen = b""
    while b"ready" not in seen:
        seen += os.read(master, 1000)
    os.close(master)
    assert process.wait() == 75


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_a_background_job_ignores_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(number)
            assert signals.stop_at(1) is None
    finally:
        signal.signal(number, before)


def test_among_several_processes_a_thread_reads_signals_and_asks_all_to_stop(monkeypatch, capfd):
    asked, ended = [], []
    monkeypatch.setattr(os, "_exit", ended.append)

    class Channel:
        def send(self, *message):
            asked.append(message)

        def stops_at(self, step):
            return "by SIGTERM" if step > 2 else None

    monkeypatch.setattr(module, "processes", lambda: Processes(1, 2, Channel()))
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert signals.stop_at(1) is None and signals.stop_at(3) == "by SIGTERM"
        for _ in range(2):
            signals.stop_at(1, "after train.hours = 1")
        assert asked == [("ask", "after train.hours = 1", False)]
        signal.raise_signal(signal.SIGTERM)
        until(lambda: len(asked) == 2)
        monkeypatch.setattr(module, "SECONDS_UNTIL_THE_SECOND", 0.0)
        signal.raise_signal(signal.SIGTERM)
        until(lambda: ended)
    assert asked[1] == ("ask", "by SIGTERM", True) and signal.getsignal(signal.SIGTERM) is before
    assert "SIGTERM again: ending at once" in capfd.readouterr().err


def until(holds):
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
