"""Nothing that was only given to read is run: no pickle, no line of a script. SECURITY.md says what is code."""

import sys
from pathlib import Path

import pytest

from tests.support.translating_runs import made_run
from transformer_jax import load_run
from transformer_jax.errors import BadInput
from transformer_jax.sweeps.slurm import Slurm

unpickled: list[tuple] = []
watching = False


def _watch(event, arguments):
    if watching and event == "pickle.find_class":
        unpickled.append(arguments)


def test_loading_a_model_and_a_checkpoint_unpickles_nothing(tmp_path):
    """Also none of the libraries below does: Python itself tells of every class that a pickle asks for."""
    import pickle

    from tests.runs.test_checkpoint import plan_of, restored, saved, state_of

    run = made_run()
    global watching
    sys.addaudithook(_watch)  # it stays, but hears nothing once we are done
    watching = True
    try:
        pickle.loads(pickle.dumps(Path))
        assert len(unpickled) == 1  # it can hear
        unpickled.clear()
        load_run(run, "averaged")
        saved(tmp_path / "checkpoints", [1])
        assert restored(tmp_path / "checkpoints", plan_of(state_of(1))).step == 1
    finally:
        watching = False
    assert unpickled == []


@pytest.mark.parametrize(
    "parameters",
    [
        {"comment": "a\nrm -rf x"},
        {"comment": "a\rb"},
        {"a\nrm x": "1"},
        {"$(rm x)": "1"},
    ],
)
def test_no_option_of_slurm_becomes_a_line_of_the_script(parameters, tmp_path):
    with pytest.raises(BadInput, match="sbatch"):
        Slurm(parameters, 10).executor(tmp_path)
