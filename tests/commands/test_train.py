"""train: values of its flags. Training itself: tests/training and tests/test_experiment.py."""

import argparse

import pytest

from transformer_jax.commands.train import span


def test_a_span_of_updates():
    assert span("20:5") == (20, 5)
    for text in ("3", "0:5", "5:0", "a:b", "-1:5"):
        with pytest.raises(argparse.ArgumentTypeError):
            span(text)
