"""SIGTERM and SIGINT: the first asks for a stop, the second ends the process."""

import os
import signal

import pytest

from transformer_jax.processes.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_a_reason_to_stop_and_the_second_ends_the_process(number, monkeypatch, capfd):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.stop_at(1) is None and signals.stop_at(1, "after train.hours = 1") == "after train.hours = 1"
        signal.raise_signal(number)
        assert signals.stop_at(2, "after train.hours = 1") == f"by {number.name}" and not ended
        signal.raise_signal(number)
        assert ended == [1]
    assert signal.getsignal(number) is before
    assert capfd.readouterr().err.splitlines()[:2] == [
        f"{number.name}: saving, then ending (once more ends at once)",
        f"{number.name} again: ending at once; the last checkpoint is kept",
    ]
