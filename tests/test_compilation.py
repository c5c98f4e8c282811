"""A program that takes long to compile says so; one that does not says nothing."""

import time

from transformer_jax.training.compilation import told_when_slow


def test_only_what_is_slow_is_told():
    told = []
    with told_when_slow(told.append, seconds=60):
        pass
    assert told == []
    with told_when_slow(told.append, seconds=0.01):
        while not told:
            time.sleep(0.01)
    assert told == ["compiling the training step ..."]
