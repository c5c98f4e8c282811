"""Runs a module of Python in which the signals of a cluster wait from the beginning until the module handles them.

    python -P shielded.py -u -m MODULE ARGUMENTS

submitit's job is started in this way, because a job that is preempted while it imports would be killed. This file is
run by its path, because importing it as a part of the package would take seconds.
"""

import runpy
import signal
import sys

# What SLURM sends to all processes of a job: when it is preempted or cancelled, and when its time is nearly up.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    module, *rest = sys.argv[sys.argv.index("-m") + 1 :]
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
