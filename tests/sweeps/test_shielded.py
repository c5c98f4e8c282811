"""A process whose signals wait until it handles them, as SLURM's jobs are started."""

import signal
import subprocess
import sys

from transformer_jax.sweeps import shielded

MODULE = """
import os, signal, sys
os.kill(os.getpid(), signal.SIGUSR2)
print("imports", sys.argv[1:], flush=True)
sys.stdin.read()
for number in (signal.SIGTERM, signal.SIGUSR2):
    signal.signal(number, lambda number, _: print(signal.Signals(number).name, flush=True))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM, signal.SIGUSR2])
"""


def test_signals_that_come_during_imports_are_handled_after_them(tmp_path):
    (tmp_path / "imported_slowly.py").write_text(MODULE)
    command = [sys.executable, shielded.__file__, "-u", "-m", "imported_slowly", "folder"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert process.stdout.readline() == "imports ['folder']\n"
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate("")
    assert sorted(printed.split()) == ["SIGTERM", "SIGUSR2"] and process.returncode == 0
