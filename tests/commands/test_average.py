"""average: which checkpoints are chosen."""

import argparse

import pytest

from transformer_jax import cli
from transformer_jax.commands.average import chosen_steps
from transformer_jax.errors import BadInput


class Weights:
    def last_steps(self, count):
        return [7, 8, 9][-count:]

    def best_steps(self, count):
        return [8, 7, 9][:count]


def chosen(last=None, best=None, steps=None):
    return chosen_steps(argparse.Namespace(last=last, best=best, steps=steps), Weights())


def test_the_chosen_checkpoints():
    assert (chosen(last=2), chosen(best=1), chosen(steps="8000,9000")) == ([8, 9], [8], [8000, 9000])
    for steps, problem in (("8,x", "must be steps separated by commas"), ("8,8", "repeats a step")):
        with pytest.raises(BadInput, match=problem):
            chosen(steps=steps)


def test_a_count_is_at_least_1(capsys):
    assert cli.main(["average", "--workdir=run", "--last=0"]) == 2
    assert "argument --last: '0': must be a whole number of at least 1" in capsys.readouterr().err
