"""SLURM, with squeue and sbatch replaced by functions; on a real one: test_slurm_cluster.py, test_slurm_job.py."""

import io
import signal
import sys
from types import SimpleNamespace

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import write_json
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import slurm
from transformer_jax.sweeps.launch import run_jobs
from transformer_jax.sweeps.run import read_json
from transformer_jax.sweeps.slurm import Slurm, SlurmPool
from transformer_jax.sweeps.status import Display


class Cluster:
    """Jobs by number: the states that squeue shows, one a call, the last one for ever."""

    def __init__(self, *states):
        self.states, self.submitted, self.cancelled = dict(enumerate(states)), [], []

    def job_states(self):
        shown = {}
        for number in range(len(self.submitted)):
            states = self.states[number]
            shown[f"7_{number}"] = states.pop(0) if len(states) > 1 else states[0]
        return shown

    def submit_array(self, tasks):
        first = len(self.submitted)
        self.submitted += [task.addresses for task in tasks]
        return [SimpleNamespace(job_id=f"7_{first + number}") for number in range(len(tasks))]


@pytest.fixture
def states(folder, monkeypatch):
    """Runs a sweep's runs on a cluster; returns (the state of each run, what was printed)."""

    def states(cluster, runs, detach=False, **options):
        monkeypatch.setattr(slurm, "job_states", cluster.job_states)
        monkeypatch.setattr(Slurm, "executor", lambda *_: cluster)
        monkeypatch.setattr(SlurmPool, "seconds_between_polls", 0.0)
        folder.path.mkdir(exist_ok=True)
        display = Display(runs, io.StringIO())
        pool = SlurmPool(folder, Slurm({}, 10, detach=detach), display)
        run_jobs(pool, [[run] for run in runs], display, StopSignals(), **options)
        return {found.run.address: found.state for found in display.statuses()}, display.stream.getvalue()

    return states


def test_jobs_that_end_and_jobs_that_break(folder, states):
    base, four = folder.runs(defined(FOUR))
    pretend_finished(base)
    found, printed = states(Cluster(["PD", "R", "CD"], ["PD", "R", "OOM"]), [base, four])
    assert found == {"base/seed-0": "finished", "h-=-4/seed-0": "failed"}
    assert "job 7_0: base/seed-0\njob 7_1: h-=-4/seed-0\n" in printed
    assert read_json(folder.path / "slurm/jobs.json") == {}


def test_a_failed_job_is_submitted_again(folder, states):
    (run,) = folder.runs(defined())
    cluster = Cluster(["F"], ["R", "CD"])
    found, printed = states(cluster, [run], retries=1)
    assert found == {"base/seed-0": "failed"} and len(cluster.submitted) == 2
    assert "base, seed 0: failed, retrying: job 7_0 ended without a result; its last lines:" in printed


def test_a_detached_launch_submits_only_what_is_not_in_flight(folder, states):
    runs = folder.runs(defined(FOUR))
    cluster = Cluster(["R"], ["PD"])
    assert states(cluster, runs[:1], detach=True)[0] == {"base/seed-0": "queued"}
    assert set(states(cluster, runs, detach=True)[0].values()) == {"queued"}
    assert cluster.submitted == [["base/seed-0"], ["h-=-4/seed-0"]]
    assert slurm.in_flight(folder) == {"7_0": ["base/seed-0"], "7_1": ["h-=-4/seed-0"]}


def test_a_refused_submission_shows_the_reason(folder, states):
    cluster = Cluster()
    cluster.submit_array = lambda tasks: 1 / 0
    with pytest.raises(Failed, match="sbatch did not accept the jobs: division by zero"):
        states(cluster, folder.runs(defined()))


def test_only_jobs_that_squeue_lists_are_in_flight(folder, monkeypatch):
    (folder.path / "slurm").mkdir(parents=True)
    write_json(folder.path / "slurm/jobs.json", {"1": ["a"], "2": ["b"], "3": ["c"]})
    monkeypatch.setattr(slurm, "job_states", lambda: {"1": "R", "2": "CA"})
    assert slurm.in_flight(folder) == {"1": ["a"]}


def test_signals_are_ignored_while_a_worker_starts():
    with slurm.ignored(signal.SIGUSR2):
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGUSR2) is not signal.SIG_IGN


def test_a_machine_without_slurm_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="--slurm"):
        Slurm({}, 10).executor(tmp_path)


def test_a_job_does_not_import_from_the_current_directory(monkeypatch, tmp_path):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    executor = Slurm({"mem": "16GB", "gpus-per-node": "1", "account": "me"}, 10).executor(tmp_path)
    assert executor._submitit_command_str.startswith(f"{sys.executable} -P -u -m submitit")
    assert executor.parameters["gpus_per_node"] == 1
