"""Drill: one of several processes differs from the others, cannot read or write, hangs, or never comes.

Every process says which one and why, and all end soon, with a true status.
"""

import re
import shutil
import signal
import subprocess
import time

import pytest

from tests.chaos.storage import library
from tests.support.many_processes import free_address, job, train
from tests.support.places import ROOT
from tests.support.training_runs import assert_same_run, command, environment, metrics

OPTIONS = ("train.log_every=6", "train.steps=60", "mesh.start_within=100")
# A process that runs for longer hangs, on a busy machine, too.
PATIENCE = 600.0
# What is done in one process before the command runs; `{who}` is its number.
PROGRAM = """
import ctypes, errno, os, sys, time
number = int(next(argument for argument in sys.argv if argument.startswith("--process-id")).split("=")[1])
workdir = next(argument for argument in sys.argv if argument.startswith("--workdir")).split("=")[1]
OPEN, READ, STAT, LIST, CREATE, WRITE, SYNC, RENAME, LOCK, HIDE = (1 << bit for bit in range(10))
count = ctypes.c_int()
def fail(folder, part, operations, error):
    ctypes.CDLL(None).set_fault(folder.encode(), part.encode(), operations, error, 0, 1 << 30, ctypes.byref(count))
def hang(*arguments, **more):
    while True: time.sleep(1)
if number == {who}:
    {fault}
from transformer_jax import cli
if number == {who}:
    {later}
from transformer_jax.files import output
output.use_in_this_command()
sys.exit(cli.main())
"""


def in_one(who: int, fault: str = "pass", later: str = "pass") -> str:
    return PROGRAM.replace("{who}", str(who)).replace("{fault}", fault).replace("{later}", later)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("one")


@pytest.fixture(scope="module")
def half(place):
    """A run of two processes at step 12, with checkpoints of the steps 6 and 12."""
    train(place / "half", 2, *OPTIONS, "train.steps=12")
    return place / "half"


@pytest.fixture(scope="module")
def straight(place):
    train(place / "straight", 2, *OPTIONS)
    return place / "straight"


@pytest.fixture
def workdir(half, request):
    name = re.sub(r"\W+", "_", request.node.name)
    return shutil.copytree(half, half.with_name(name))


@pytest.fixture
def failing_calls(monkeypatch):
    """Loads the library with which calls of the operating system fail."""
    found = library()
    if found is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("LD_PRELOAD", str(found))


def lines(running, number: int) -> list[str]:
    return [line for line in running.told(number).splitlines() if line.startswith(("failed:", "error:"))]


def ended(running, within: float = PATIENCE) -> list[int]:
    """The statuses of all, and what they said; fails if one still runs after so many seconds."""
    begin = time.monotonic()
    try:
        statuses = running.statuses(within)
    except subprocess.TimeoutExpired:
        statuses = [process.poll() for process in running.processes]
    told = [running.told(number)[-1500:] for number in range(len(statuses))]
    print(f"statuses {statuses} after {time.monotonic() - begin:.0f} s:", *told, sep="\n--- ")
    assert None not in statuses
    for text in told:
        assert "Traceback" not in text and "This is a bug" not in text and "stack trace" not in text
    return statuses


OTHER_CODE = """
    import shutil, tempfile
    copy = tempfile.mkdtemp()
    shutil.copytree("transformer_jax", copy + "/transformer_jax")
    with open(copy + "/transformer_jax/update/loss.py", "a") as file: file.write("\\n# edited\\n")
    sys.path.insert(0, copy)
"""
DIFFERENCES = {
    "other code": (OTHER_CODE.strip(), "transformer_jax_sha256"),
    "other random numbers": ("os.environ['JAX_DEFAULT_PRNG_IMPL'] = 'rbg'", "jax_default_prng_impl"),
    "other precision": ("os.environ['JAX_DEFAULT_MATMUL_PRECISION'] = 'highest'", "jax_default_matmul_precision"),
    "other flags": ("os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=2'", "XLA_FLAGS"),
    "other devices": ("import jax; jax.config.update('jax_num_cpu_devices', 2)", "devices"),
    "another option": ("sys.argv.append('--config.train.label_smoothing=0.2')", "train.label_smoothing"),
    "another flag": ("sys.argv.append('--accept-changed-code')", "--accept-changed-code"),
}


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_one_that_differs_is_named_in_every_log(place, difference):
    fault, name = DIFFERENCES[difference]
    workdir = place / difference.replace(" ", "_")
    with job(workdir, 2, *OPTIONS, program=in_one(1, fault)) as running:
        assert ended(running) == [2, 2]
        for number in (0, 1):
            assert len(found := lines(running, number)) == 1, found
            assert name in found[0] and "process 1 of 2 (" in found[0]
    assert not (workdir / "metrics.jsonl").exists()


def test_one_of_four_that_differs(place):
    fault, name = DIFFERENCES["other random numbers"]
    with job(place / "four", 4, *OPTIONS, program=in_one(2, fault)) as running:
        assert ended(running) == [2] * 4
        assert all(name in running.told(number) and "process 2 of 4 (" in running.told(number) for number in range(4))


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("part", ["/data/", "config.json", "/checkpoints/12/"])
def test_one_that_cannot_read(workdir, failing_calls, who, part):
    fault = f"fail(workdir, {part!r}, OPEN | READ, errno.EIO)"
    with job(workdir, 2, *OPTIONS, program=in_one(who, fault)) as running:
        assert sorted(ended(running)) in ([1, 1], [1, 2], [2, 2])
        assert all(f"process {who} of 2" in running.told(number) for number in (0, 1))
        assert all(lines(running, number) for number in (0, 1))
    assert (workdir / "checkpoints" / "12").is_dir()


@pytest.mark.parametrize("who", [0, 1])
def test_a_disk_that_is_full_for_one(workdir, straight, failing_calls, who):
    fault = "fail(workdir, '/checkpoints/', WRITE | CREATE, errno.ENOSPC)"
    with job(workdir, 2, *OPTIONS, program=in_one(who, fault)) as running:
        assert ended(running) == [1, 1]
        assert all("the disk is full" in running.told(number) for number in (0, 1))
    train(workdir, 2, *OPTIONS)
    assert_same_run(workdir, straight)


@pytest.mark.parametrize("who", [0, 1])
def test_a_listing_that_lacks_the_newest_checkpoint(workdir, straight, failing_calls, who):
    with job(workdir, 2, *OPTIONS, program=in_one(who, "fail('', '12', HIDE, 0)")) as running:
        assert ended(running) == [0, 0]
    assert_same_run(workdir, straight)


# Where process 1 hangs for ever, and the process that is then told to stop.
HANGS = {
    "saving": "from transformer_jax.runs import checkpoint; checkpoint.Checkpoints.save = hang",
    "writing": "from orbax.checkpoint._src.futures import future; future.ChainedFuture.result = hang",
    "restoring": "from transformer_jax.runs import checkpoint; checkpoint.Checkpoints.record = hang",
    "validating": "from transformer_jax.training import setup; setup.RunSetup.over_validation_data = hang",
    "taking a step": "from transformer_jax.training import train; train.Trainer.take_step = hang",
}


@pytest.mark.parametrize("where", HANGS)
def test_one_that_hangs_is_named(workdir, where):
    with job(workdir, 2, *OPTIONS, "mesh.stalled_after=15", program=in_one(1, later=HANGS[where])) as running:
        assert ended(running) == [1, 1]
        assert all("waiting for process 1 of 2 (" in line for number in (0, 1) for line in lines(running, number))
        assert where == "writing" or "hang" in running.told(1)  # where the main thread is


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("where", HANGS)
def test_a_signal_ends_a_process_that_waits(workdir, where, who):
    with job(workdir, 2, *OPTIONS, program=in_one(1, later=HANGS[where])) as running:
        running.wait_for("resuming from" if where != "restoring" else "processes,")
        time.sleep(10)
        running.processes[who].send_signal(signal.SIGTERM)
        assert set(ended(running)) <= {1, -signal.SIGTERM}
    assert "step" in str(metrics(workdir))


def test_one_that_never_comes(place):
    with job(place / "absent", 3, *OPTIONS, "mesh.start_within=10", present=2) as running:
        assert ended(running) == [1, 1]
        assert all("process 2" in line for number in (0, 1) for line in lines(running, number))


def test_a_first_process_that_never_comes(place):
    address, workdir = free_address(), place / "headless"
    flags = (f"--coordinator={address}", "--processes=2", "--process-id=1")
    started = [*command(workdir, *OPTIONS, "mesh.start_within=5"), *flags]
    done = subprocess.run(started, env=environment(), capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.count("failed:") == 1 and "process 0" in done.stderr


@pytest.mark.parametrize("twice", [0, 1])
def test_two_with_one_number(place, twice):
    with job(place / f"twice {twice}", 3, *OPTIONS, numbers=(0, 1, twice)) as running:
        assert ended(running) == [1, 1, 1]
        for number in range(3):
            (line,) = lines(running, number)
            # Process 1 may come when both others have ended, and finds nobody.
            is_late = (number, twice) == (1, 0) and "has not found process 0" in line
            assert is_late or f"--process-id={twice}" in line
