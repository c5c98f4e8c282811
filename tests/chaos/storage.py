"""Storage that fails for a while or for good: nothing is lost, nothing goes on silently wrong, each end has its status.

The faults are those of the operating system's calls, in Python and in the libraries alike: `faults.c` is preloaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from tests.chaos import preparing
from tests.chaos.children import Child, Ended, command
from tests.chaos.folders import TASKS, TEXT, attempted, expected
from tests.chaos.identities import half_way
from tests.chaos.place import Place, prepared_bytes
from tests.chaos.tally import Tally, check
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.files import atomic

SOURCE = Path(__file__).with_name("faults.c")
OPEN, READ, STAT, LIST, CREATE, WRITE, SYNC, RENAME, LOCK, HIDE = (1 << bit for bit in range(10))
READING, WRITING = (OPEN, READ, STAT, LIST), (CREATE, WRITE, SYNC, RENAME)
PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE, errno.EACCES)
LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# What a user must change; every other error may pass, or is the machine's.
BAD_INPUT = (errno.EACCES, 0)
FOR_EVER = 1 << 30
PLACES = ("", "/checkpoints/", "state", "record", "METADATA", "metrics.jsonl", ".lock", "json", "data")
# Seconds until the same command must have ended. The waits of commands are shortened.
PATIENCE = 120.0
WAITS = (0.05, 0.1, 0.2)


class Fault(NamedTuple):
    """Calls that fail: `times` of them, after the first `skipped`."""

    part: str  # of the path, below the folder
    operations: int
    error: int
    skipped: int = 0
    times: int = FOR_EVER

    def __str__(self) -> str:
        times = "for ever" if self.times == FOR_EVER else f"{self.times} times"
        return f"{errno.errorcode.get(self.error)} {times} after {self.skipped}, on {self.part!r} ({self.operations})"


def library() -> Path | None:
    """The library of failing calls, compiled; None if there is no C compiler."""
    built = Path(tempfile.gettempdir(), f"faults-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}.so")
    if not built.exists():
        if not (compiler := shutil.which("cc")):
            return None
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl"], check=True)
    return built


def preload() -> bool:
    """Starts this program again with the failing calls; False if there is no C compiler."""
    found = library()
    if found is None or os.environ.get("LD_PRELOAD") == str(found):
        return found is not None
    arguments = [sys.executable, "-m", "tests.chaos", *sys.argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, "LD_PRELOAD": str(found)})


class Faults:
    """The faults of one child: what it calls first, and how often they came."""

    def __init__(self, folder: Path, *faults: Fault):
        self.folder, self.faults = folder, faults
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self._count = ctypes.c_int.from_buffer(self._shared)

    def begin(self) -> None:
        atomic.WAITS = WAITS
        for part, operations, error, skipped, times in self.faults:
            counter, folder = ctypes.byref(self._count), str(self.folder).encode()
            in_folder = b"" if operations == HIDE else folder
            ctypes.CDLL(None).set_fault(in_folder, part.encode(), operations, error, skipped, times, counter)

    @property
    def count(self) -> int:
        return self._count.value

    def ended(self, child: Child, tally: Tally) -> Ended:
        ended = child.end(PATIENCE).checked()
        if self.count:
            tally.count("faults", *(f"  faults: {errno.errorcode.get(each.error, 'hidden')}" for each in self.faults))
        told = f"status {ended.status} after {'; '.join(map(str, self.faults))}:\n{ended.err[-2000:]}"
        errors = [fault.error for fault in self.faults]
        check(ended.status != 2 or set(errors) <= set(BAD_INPUT), told)
        check(ended.status != 1 or bool(ended.complaints), told)
        moved = list(self.folder.glob("damaged_checkpoints/*"))
        check(not moved or errno.EIO in errors, f"moved a good checkpoint: {told}")
        return ended


def a_fault(dice: random.Random, operations: tuple[int, ...] = (*READING, *WRITING)) -> Fault:
    """One kind of call on one kind of file, once, a few times, or for ever."""
    operation = dice.choice(operations)
    error = dice.choice(PASSING if operation in READING else (*PASSING, *LASTING))
    times = FOR_EVER if error in LASTING else dice.choice([1, 2, FOR_EVER])
    # A disk that is full is full for all.
    wide = WRITE | CREATE if error in LASTING else operation
    return Fault(dice.choice(PLACES), wide, error, dice.choice([0, 0, 0, 1, 2, 5, 15, 40]), times)


def failing_training(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run begins or goes on, again and again with another fault, and once without."""
    workdir = place.new("failing")
    if dice.random() < 0.6:
        shutil.copytree(half_way(place, ()), workdir)
    for _ in range(dice.randint(1, 3)):
        faults = Faults(workdir, a_fault(dice))
        tally.count("runs")
        ended = faults.ended(command(place.train("plain", workdir), faults.begin), tally)
        if ended.status == 0:
            break
    if (workdir / "damaged_checkpoints").exists():
        shutil.rmtree(workdir / "damaged_checkpoints")
    tally.count("runs")
    place.done("plain", workdir)
    shutil.rmtree(workdir)


def failing_reading(place: Place, dice: random.Random, tally: Tally) -> None:
    """A command on a finished run, whose files cannot be read for a while or for good."""
    task, folder = dice.choice(TASKS), shutil.copytree(place.finished(), place.new("unreadable"), symlinks=True)
    wanted, faults = expected(place, task), Faults(folder, a_fault(dice, READING))
    tally.count("runs")
    ended = faults.ended(command(attempted(folder, task, place), faults.begin, TEXT), tally)
    if ended.status == 0 and task.exact and not ended.warned:
        silent = f"{task.command} after {faults.faults[0]}: a silent other result\n{ended.out[:1000]!r}"
        check(task.result(folder, ended) == wanted, silent)
    shutil.rmtree(folder)


def failing_preparing(place: Place, dice: random.Random, tally: Tally) -> None:
    """Preparing with a fault, and once more without: the same bytes."""
    kind, workdir = dice.choice(list(preparing.KINDS)), place.new("preparing")
    wanted, _ = preparing.reference(place, kind)
    faults = Faults(workdir, a_fault(dice)._replace(part=dice.choice(["", "data", "scratch", "manifest", "tokenizer"])))
    tally.count("runs", "runs")
    faults.ended(preparing.prepare(place, kind, workdir, faults.begin), tally)
    check(preparing.done(place, kind, workdir).status == 0, "refused without the fault")
    check(prepared_bytes(workdir / "data") == wanted, "other data than an undisturbed preparing makes")
    shutil.rmtree(workdir)


def two_trainings(place: Place, dice: random.Random, tally: Tally) -> None:
    """Locks that do not work, or only within a machine, let a second training in: one of the two ends the run."""
    variant, workdir = "often", place.new("two")
    place.reference(variant)
    error = dice.choice([0, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
    faults = [Faults(workdir, Fault(".lock", LOCK, error)) for _ in range(2)]
    first = command(place.train(variant, workdir), faults[0].begin)
    lines = dice.randint(0, 8)
    until = time.monotonic() + PATIENCE
    while first.alive() and _lines(workdir) < lines and time.monotonic() < until:
        time.sleep(0.01)
    second = command(place.train(variant, workdir), faults[1].begin)
    tally.count("runs", "runs", "second trainings")
    ends = [faults[0].ended(first, tally), faults[1].ended(second, tally)]
    check(sum(ended.status == 0 for ended in ends) >= 1 or any(ended.complaints for ended in ends), str(ends))
    place.done(variant, workdir)


def lost_checkpoints(place: Place, dice: random.Random, tally: Tally) -> None:
    """A folder without its checkpoints, or without anything, as before a file system is mounted."""
    workdir = shutil.copytree(half_way(place, ()), place.new("lost"))
    checkpoints, aside = workdir / "checkpoints", workdir.with_name(f"{workdir.name}-aside")
    everything = dice.random() < 0.5
    (workdir if everything else checkpoints).rename(aside)
    if not everything and dice.random() < 0.5:
        checkpoints.mkdir()
    flags = ["--must-resume"] if everything else []
    ended = command([*place.train("plain", workdir), *flags]).end(PATIENCE).checked()
    tally.count("runs", "faults", "  faults: no checkpoints")
    check(ended.status == (1 if everything else 2), ended.err)
    check(not (everything and workdir.exists()), "made a folder where nothing is mounted")
    shutil.rmtree(checkpoints, ignore_errors=True)
    aside.rename(workdir if everything else checkpoints)
    place.done("plain", workdir)


def stale_listing(place: Place, dice: random.Random, tally: Tally) -> None:
    """The newest checkpoint is there, and not listed, for a while or for good."""
    workdir = shutil.copytree(half_way(place, ()), place.new("stale"))
    newest = max(int(path.name) for path in (workdir / "checkpoints").iterdir())
    faults = Faults(workdir, Fault(str(newest), HIDE, 0, 0, dice.choice([1, 3, 10, FOR_EVER])))
    ended = faults.ended(command(place.train("plain", workdir), faults.begin), tally)
    tally.count("runs")
    if ended.status == 0:
        place.compare("plain", workdir)
    place.done("plain", workdir)


def interrupted_on_failing_storage(place: Place, dice: random.Random, tally: Tally) -> None:
    """A signal to stop, while a file cannot be written or read."""
    workdir = place.new("interrupted-failing")
    place.reference("validating")
    for _ in range(dice.randint(1, 2)):
        faults = Faults(workdir, a_fault(dice)._replace(skipped=dice.choice([0, 5, 20, 60])))
        child = command(place.train("validating", workdir), faults.begin)
        tally.count("runs")
        time.sleep(dice.uniform(0.3, 1.2) * place.seconds)
        number = dice.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
        child.send(number)
        ended = child.end(PATIENCE)
        check("Traceback" not in ended.err and "This is a bug" not in ended.err, ended.err[-3000:])
        check(ended.status in (0, 1, 2, EXIT_UNFINISHED, -number), f"{number.name}: {ended.status} {ended.err[-2000:]}")
        tally.count("signals", *["faults"] * (faults.count > 0))
    shutil.rmtree(workdir / "damaged_checkpoints", ignore_errors=True)
    place.done("validating", workdir)


def _lines(workdir: Path) -> int:
    with contextlib.suppress(OSError):
        return (workdir / "metrics.jsonl").read_text().count("\n")
    return 0
