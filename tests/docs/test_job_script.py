"""docs/clusters/train.sbatch with stubs of SLURM's commands: which exit statuses requeue the job."""

import os
import subprocess

import pytest

from tests.support.places import ROOT

SCRIPT = ROOT / "docs/clusters/train.sbatch"


@pytest.fixture
def submitted(tmp_path):
    """Runs the job once with a training that ends with a status: (whether it was requeued, its own exit status)."""
    for name, line in {"srun": 'exit "$STATUS"', "scontrol": "touch requeued", "scancel": "exit 1"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)

    def run(status, checkpoint=None):
        if checkpoint is not None:  # made by this training
            made = f'#!/bin/sh\nmkdir -p run/checkpoints/{checkpoint}\nexit "$STATUS"\n'
            (tmp_path / "srun").write_text(made)
        environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "STATUS": str(status)}
        ended = subprocess.run(["bash", SCRIPT, "config.py", "run"], cwd=tmp_path, env=environment, capture_output=True)
        requeued = tmp_path / "requeued"
        again = requeued.exists()
        requeued.unlink(missing_ok=True)
        return again, ended.returncode

    return run


@pytest.mark.parametrize(("status", "again"), [(0, False), (2, False), (75, True), (1, True), (137, True)])
def test_which_exit_statuses_requeue_the_job(submitted, status, again):
    assert submitted(status) == (again, 0 if again else status)


def test_failures_without_progress_are_counted(submitted):
    """A run that diverges would otherwise be repeated for days, and one with a weak node be given up."""
    assert submitted(1) == submitted(1) == (True, 0)
    assert submitted(1, checkpoint=100) == (True, 0)
    assert submitted(1) == (True, 0) and submitted(75) == (True, 0)
    assert submitted(1) == submitted(1) == (True, 0)
    assert submitted(1) == (False, 1)


def test_preemption_before_training_began_is_no_failure(submitted):
    assert [submitted(143) for _ in range(4)] == [(True, 0)] * 4


def test_nothing_is_left_where_a_training_has_finished(submitted, tmp_path):
    assert submitted(1) == (True, 0) and submitted(0) == (False, 0)
    assert not list(tmp_path.glob(".train-*"))
