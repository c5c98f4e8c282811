"""Fault injection: small runs are killed, stopped, suspended and damaged, and their storage fails.

    python -m tests.chaos --runs=100 --seed=0        # from the root of a checkout
    python -m tests.chaos --hours=2
    python -m tests.chaos --only=interrupted_training --seed=0 --first=17 --runs=1   # one case again

Four things hold in every case. An error is told in a line and never in a traceback. A run that ends well has the
parameters that it would have had undisturbed, to the bit. What was finished stays finished. And the same command
either goes on or says clearly why it does not.
"""
