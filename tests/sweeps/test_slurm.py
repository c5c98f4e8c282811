"""SLURM, with squeue and sbatch replaced by functions; on a real one: test_slurm_cluster.py."""

import io
import json
import sys
from types import SimpleNamespace

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.commands.status import show_sweep
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.files.atomic import write_json
from transformer_jax.processes.signals import StopSignals
from transformer_jax.sweeps import slurm
from transformer_jax.sweeps.launch import run_jobs
from transformer_jax.sweeps.slurm import NoAnswer, Slurm, SlurmPool
from transformer_jax.sweeps.status import Progress


class Cluster:
    """Jobs by number: the states that squeue shows, one a call, the last one for ever; None is not listed.

    `fails`: the numbers of the calls to which squeue does not answer. `started` is called after jobs are submitted.
    """

    def __init__(self, *states, fails=(), started=lambda: None):
        self.started = started
        self.states, self.submitted, self.fails, self.asked = dict(enumerate(states)), [], fails, 0
        self.arrays = []  # the number of jobs in each

    def job_states(self):
        self.asked += 1
        if self.asked in self.fails:
            raise NoAnswer("squeue does not answer")
        shown = {}
        for number in range(len(self.submitted)):
            states = self.states[number]
            shown[f"7_{number}"] = states.pop(0) if len(states) > 1 else states[0]
        return {job: state for job, state in shown.items() if state is not None}

    def submit_array(self, tasks):
        first = len(self.submitted)
        self.arrays.append(len(tasks))
        self.submitted += [task.run_ids for task in tasks]
        self.started()
        return [SimpleNamespace(job_id=f"7_{first + number}") for number in range(len(tasks))]


@pytest.fixture
def states(folder, monkeypatch):
    """Runs a sweep's runs on a cluster; returns (the state of each run, what was printed)."""

    def states(cluster, runs, detach=False, **options):
        monkeypatch.setattr(slurm, "job_states", cluster.job_states)
        monkeypatch.setattr(slurm, "SECONDS_TO_SETTLE", 0.0)
        monkeypatch.setattr(Slurm, "executor", lambda *_: cluster)
        monkeypatch.setattr(SlurmPool, "seconds_between_polls", 0.0)
        folder.path.mkdir(exist_ok=True)
        progress = Progress(runs, io.StringIO())
        pool = SlurmPool(folder, Slurm({}, 10, detach=detach), progress)
        run_jobs(pool, [[run] for run in runs], progress, StopSignals(), **options)
        return {found.run.run_id: found.state for found in progress.statuses()}, progress.stream.getvalue()

    return states


def recorded(folder):
    """The jobs in the sweep's folder."""
    return json.loads((folder.path / "slurm/jobs.json").read_text())


def test_jobs_that_end_and_jobs_that_break(folder, states):
    base, four = folder.runs(defined(FOUR))
    pretend_finished(base)
    found, printed = states(Cluster(["PD", "R", "CD"], ["PD", "R", "OOM"]), [base, four])
    assert found == {"base/seed-0": "finished", "h-=-4/seed-0": "failed"}
    assert "job 7_0: base/seed-0\njob 7_1: h-=-4/seed-0\n" in printed
    assert recorded(folder) == {}


def test_a_failed_job_is_submitted_again(folder, states):
    (run,) = folder.runs(defined())
    cluster = Cluster(["F"], ["R", "CD"])
    found, printed = states(cluster, [run], retries=1)
    assert found == {"base/seed-0": "failed"} and len(cluster.submitted) == 2
    assert "base, seed 0: failed, starting it again: job 7_0 ended without a result" in printed


def test_a_detached_launch_submits_only_what_is_not_in_flight(folder, states):
    runs = folder.runs(defined(FOUR))
    cluster = Cluster(["R"], ["PD"])
    assert states(cluster, runs[:1], detach=True)[0] == {"base/seed-0": "queued"}
    assert set(states(cluster, runs, detach=True)[0].values()) == {"queued"}
    assert cluster.submitted == [["base/seed-0"], ["h-=-4/seed-0"]]
    assert recorded(folder) == {
        "7_0": ["base/seed-0"],
        "7_1": ["h-=-4/seed-0"],
    }


def test_one_answer_without_a_job_or_none_at_all_ends_nothing(folder, states):
    (run,) = folder.runs(defined())
    cluster = Cluster(["R", None, None, "R", None, "R", "OOM"], fails=(2, 5, 6))
    found, printed = states(cluster, [run])
    assert found == {"base/seed-0": "failed"} and len(cluster.submitted) == 1
    assert printed.count("squeue does not answer") == 1 and cluster.asked == 10, "until the job broke"


def test_a_job_that_squeue_has_forgotten_is_over_when_its_run_has_ended_or_after_some_answers(folder, states):
    (run,) = folder.runs(defined())
    run.path.mkdir(parents=True)
    cluster = Cluster([None], started=lambda: run.record_attempt(state="diverged", error="at step 3"))
    assert states(cluster, [run])[0] == {"base/seed-0": "diverged"} and cluster.asked == 1
    cluster = Cluster([None], started=lambda: run.record_attempt(state="running", host="a node that died"))
    assert states(cluster, [run])[0] == {"base/seed-0": "failed"} and cluster.asked == slurm.ABSENT


@pytest.mark.parametrize("before", ["failed", "stopped"])
@pytest.mark.parametrize("started", [{}, {"state": "stopped"}], ids=["waits", "requeued"])
def test_one_answer_without_a_job_ends_no_run_that_is_queued_again(folder, states, before, started):
    (run,) = folder.runs(defined())
    run.record_attempt(state=before, error="yesterday")
    cluster = Cluster(["PD", None, "PD", "R", "OOM"], started=lambda: run.record_attempt(**started))
    assert states(cluster, [run])[0] == {"base/seed-0": "failed"} and cluster.asked == 5
    assert "yesterday" not in run.attempt()["error"]


def test_a_job_that_was_cancelled_while_it_waited_is_not_submitted_again(folder, states):
    (run,) = folder.runs(defined())
    run.record_attempt(state="stopped", error="at its time limit")
    cluster = Cluster(["PD", "CA"])
    assert states(cluster, [run], retries=1)[0] == {"base/seed-0": "stopped"} and len(cluster.submitted) == 1


def test_a_new_launch_asks_again_before_it_submits_what_may_be_running(folder, states):
    (run,) = folder.runs(defined())
    cluster = Cluster(["PD", None, None, "R"])
    for _ in range(2):
        assert states(cluster, [run], detach=True)[0] == {"base/seed-0": "queued"}
    cluster.states[0] = [None]
    cluster.states[1] = ["PD"]
    states(cluster, [run], detach=True)
    assert cluster.submitted == [["base/seed-0"]] * 2
    with pytest.raises(NoAnswer):
        states(Cluster(fails=(1,)), [run], detach=True)


def test_a_job_is_queued_again_though_slurm_is_busy(squeue, monkeypatch, tmp_path):
    """The first call of each command fails."""
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    monkeypatch.setattr(slurm, "SECONDS_TO_REQUEUE", (0.01, 0.01, 0.0))
    busy = f"cd {tmp_path}; [ -e {{0}} ] || {{{{ : > {{0}}; exit 1; }}}};"
    squeue(busy.format("asked") + "echo JOBID ST; echo 9 R", scontrol=busy.format("told") + 'echo "$@" > queued')
    slurm.requeue()
    assert (tmp_path / "queued").read_text() == "requeue 9\n"
    squeue("exit 1")
    with pytest.raises(NoAnswer):
        slurm.requeue()


@pytest.mark.parametrize(
    ("status", "state", "at_the_time", "exit_status", "again"),
    [
        (0, "finished", "R", 0, False),
        (1, "failed", "R", 1, False),
        (-9, "failed", "R", 137, False),  # no memory
        (75, "stopped", "R", 75, True),  # preempted
        (75, "stopped", "CA", 75, False),  # scancel
    ],
)
def test_a_job_ends_as_its_worker_or_is_queued_again(
    folder, squeue, monkeypatch, status, state, at_the_time, exit_status, again
):
    folder.save(defined())
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "0")
    squeue(f"echo JOBID ST; echo 7_0 {at_the_time}", scontrol=f'echo "$@" > {folder.path}/asked')

    def worker(sweep, runs):
        for run in runs:
            run.record_attempt(state=state)
        return SimpleNamespace(runs=runs, conclude=lambda: status)

    monkeypatch.setattr(slurm, "WorkerProcess", worker)
    monkeypatch.setattr(slurm.signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        slurm.SlurmTask(folder.path, ["base/seed-0"])()
    assert ended.value.code == exit_status
    asked = folder.path / "asked"
    assert (asked.read_text() == "requeue 7_0\n" if asked.exists() else False) == again


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Puts a squeue, and a scontrol, into the path that are these shell scripts; none if they are empty."""

    def squeue(script, scontrol="exit 1"):
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name, text in (("squeue", script), ("scontrol", scontrol)):
            if text:
                (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
                (tmp_path / "bin" / name).chmod(0o755)

    return squeue


@pytest.mark.parametrize("script", ["", "exit 0", "echo slurm_load_jobs error >&2; exit 1"])
def test_a_squeue_that_is_missing_or_fails_or_says_nothing_is_no_answer(squeue, script):
    squeue(script)
    with pytest.raises(NoAnswer):
        slurm.job_states()
    squeue("echo JOBID ST")
    assert slurm.job_states() == {}
    squeue("echo; echo JOBID ST; echo; echo 7_0 R; echo '  '")
    assert slurm.job_states() == {"7_0": "R"}


def test_status_needs_no_squeue_and_knows_dead_nodes(folder, squeue, capsys):
    definition = defined(FOUR, seeds=2)
    folder.save(definition)
    (folder.path / "slurm").mkdir()
    write_json(
        folder.path / "slurm/jobs.json", {"7_0": ["base/seed-0"], "7_1": ["h-=-4/seed-0"], "7_2": ["base/seed-1"]}
    )
    for run in folder.runs(definition)[:2]:
        run.path.mkdir(parents=True)
        run.record_attempt(state="running", host="another machine")
    squeue("")
    assert show_sweep(folder.path) == EXIT_UNFINISHED
    printed = capsys.readouterr().out
    assert "2 running, 2 waiting" in printed and "squeue" in printed
    squeue("echo JOBID ST; echo 7_0 NF; echo 7_1 R; echo 7_2 PD")
    show_sweep(folder.path)
    assert capsys.readouterr().out.endswith("1 running, 1 queued, 1 waiting, 1 interrupted\n")


def test_a_job_does_not_import_from_the_current_directory(monkeypatch, tmp_path):
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(slurm.shutil, "which", lambda name: name)
    monkeypatch.setattr(submitit.SlurmExecutor, "affinity", classmethod(lambda cls: 2))
    executor = Slurm({"mem": "16GB", "gpus-per-node": "1", "exclusive": ""}, 10).executor(tmp_path)
    assert executor._submitit_command_str.startswith(f"{sys.executable} -P {slurm.shielded.__file__} -u -m submitit")
    assert executor.parameters["additional_parameters"] == {"mem": "16GB", "gpus_per_node": "1", "exclusive": True}
