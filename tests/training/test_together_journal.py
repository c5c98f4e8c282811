"""The journals of several runs: one that fails harms no other. What they write: test_journal.py, test_together.py."""

import types

import numpy as np
import pytest

from transformer_jax.errors import BadInput, Failed
from transformer_jax.training.ending import Ending
from transformer_jax.training.together_journal import TogetherJournal, isolated
from transformer_jax.update.step import Pulse


def journal(label, check=lambda pulse, step: float(pulse.loss)):
    return types.SimpleNamespace(label=f"{label}: ", ending=None, check=check)


@pytest.mark.parametrize("error", [BadInput, Failed])
def test_an_error_of_a_run_ends_it(error, capfd):
    run = journal("a")
    with isolated(run):
        raise error("the disk is full")
    assert run.ending == Ending("the disk is full", failed=True)
    assert capfd.readouterr().err == "failed: a: the disk is full\n"


def test_an_error_of_the_program_is_no_error_of_a_run():
    with pytest.raises(ZeroDivisionError), isolated(journal("a")):
        raise ZeroDivisionError


def test_the_others_continue():
    def diverged(pulse, step):
        raise Failed(f"the gradient was not finite in {pulse.bad_in_a_row} steps in a row")

    runs = [journal("a"), journal("b", diverged), journal("c")]
    journals = TogetherJournal(runs, None)
    pulse = Pulse(np.array([1.0, np.nan, 3.0]), np.array([0, 5, 0]))
    assert journals.check(pulse, 7) == journals.check(pulse, 8) == 2.0
    assert [run.ending and run.ending.failed for run in runs] == [None, True, None]
