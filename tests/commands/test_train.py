"""train: values of its flags. Training itself: tests/training and tests/test_experiment.py."""

import argparse

import pytest

from tests.support.places import ROOT
from transformer_jax import cli
from transformer_jax.commands.train import span


def test_a_span_of_updates():
    assert span("20:5") == (20, 5)
    for text in ("3", "0:5", "5:0", "a:b", "-1:5"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not START:STEPS"):
            span(text)


def test_a_flag_without_effect_is_refused(capsys):
    assert cli.main(["train", f"--config={ROOT / 'configs/base.py'}", "--workdir=run", "--init-weights=best"]) == 2
    assert capsys.readouterr().err == "error: --init-weights=best: has no effect without --init-from\n"
