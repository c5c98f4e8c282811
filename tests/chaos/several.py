"""Trainings of several processes, one of which is killed, stopped or suspended, or whose storage fails.

All processes end soon and with a true status, each says why, and the run goes on to what it would have been.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from orbax.checkpoint._src.futures import future

from tests.chaos.children import Ended, command
from tests.chaos.place import Place, fingerprint
from tests.chaos.storage import CREATE, FOR_EVER, HIDE, PATIENCE, WRITE, Fault, Faults, a_fault
from tests.chaos.tally import Tally, check
from tests.chaos.trainings import NAMES, await_moment
from tests.support.many_processes import free_address
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.runs import checkpoint, folder
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training import recorder, setup, train

VARIANTS = ("plain", "validating", "often")
LOST_AFTER = 20
WAITS = ("mesh.start_within=100", f"mesh.lost_after={LOST_AFTER}", "mesh.stalled_after=300")
STOPS = (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class Job:
    """The processes of one training."""

    def __init__(
        self,
        place: Place,
        variant: str,
        workdir: Path,
        count: int,
        before: Mapping[int, Callable[[], Any]],
        numbers: Sequence[int],
        options: Sequence[str],
    ):
        self.workdir = workdir
        flags = (f"--coordinator={free_address()}", f"--processes={count}")
        started = [*place.train(variant, workdir, *WAITS, *options), *flags]
        self.children = [command([*started, f"--process-id={number}"], before.get(number)) for number in numbers]

    def ended(self) -> list[Ended]:
        """How all ended. A process that waits computes hardly anything: if it does so for two minutes, it hangs."""
        return [child.end(PATIENCE) for child in self.children]


class Several:
    """Trainings of a number of processes, and what they come to undisturbed."""

    def __init__(self, place: Place, dice: random.Random):
        self.place, self.count = place, dice.choice([2, 2, 2, 2, 4])
        self.variant = dice.choice([name for name in VARIANTS if name in place.variants] or ["plain"])
        self.victim = dice.randrange(self.count)
        self.key = f"{self.variant} of {self.count}"
        if self.key not in place.of_several:
            workdir, begin = place.new(f"reference-{self.count}"), time.monotonic()
            self.finish(workdir)
            place.of_several[self.key] = fingerprint(workdir), 0.5 * (time.monotonic() - begin)
        self.wanted, self.seconds = place.of_several[self.key]

    def start(
        self,
        workdir: Path,
        before: Callable[[], Any] | None = None,
        options: Sequence[str] = (),
        numbers: Sequence[int] | None = None,
    ) -> Job:
        """Starts all, or those with these numbers; the victim calls `before` first."""
        numbers = range(self.count) if numbers is None else numbers
        befores = {self.victim: before} if before else {}
        return Job(self.place, self.variant, workdir, self.count, befores, numbers, options)

    def finish(self, workdir: Path) -> None:
        """Trains to the end."""
        for ended in self.start(workdir).ended():
            check(ended.status == 0, f"not resumable:\n{ended.err[-2000:]}")
            ended.checked()

    def done(self, workdir: Path) -> None:
        """Trains to the end, and compares with the undisturbed run."""
        shutil.rmtree(workdir / "damaged_checkpoints", ignore_errors=True)
        self.finish(workdir)
        found = fingerprint(workdir)
        check(found == self.wanted, f"{workdir} is another run than {self.key}:\n{found}\n{self.wanted}")
        shutil.rmtree(workdir)

    def check_ends(self, ends: list[Ended], fault: object, victim_may: tuple[int, ...] = ()) -> bool:
        """Whether they finished. Each that has not said why, and none ended well where another did not."""
        statuses = [ended.status for ended in ends]
        told = f"{fault} of process {self.victim}: statuses {statuses}\n" + "\n---\n".join(
            ended.err[-1500:] for ended in ends
        )
        check((0 in statuses) == (set(statuses) == {0}), told)
        check((EXIT_UNFINISHED in statuses) == (set(statuses) == {EXIT_UNFINISHED}), told)
        for number, ended in enumerate(ends):
            if number == self.victim and ended.status in victim_may:
                continue
            # JAX aborts a process that finds the first one gone before that process could say why.
            if self.victim == 0 and -signal.SIGKILL in victim_may and ended.status == -signal.SIGABRT:
                continue
            ended.checked()
            check(ended.status != 1 or bool(ended.complaints), told)
        return set(statuses) == {0}


def killed_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """One of several is killed, again and again."""
    several, workdir = Several(place, dice), place.new("one-killed")
    for _ in range(dice.randint(1, 3)):
        several.victim = dice.randrange(several.count)
        if not _hit(several, workdir, signal.SIGKILL, dice, tally):
            break
    several.done(workdir)


def stopped_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """A signal to one of several stops all, at one step."""
    several, workdir = Several(place, dice), place.new("one-stopped")
    for _ in range(dice.randint(1, 2)):
        several.victim = dice.randrange(several.count)
        if not _hit(several, workdir, dice.choice(STOPS), dice, tally):
            break
    several.done(workdir)


def _hit(several: Several, workdir: Path, number: signal.Signals, dice: random.Random, tally: Tally) -> bool:
    """Sends a signal to the victim; False where it had come to its end before."""
    job = several.start(workdir)
    victim = job.children[several.victim]
    _await(job, several, dice)
    was_alive = victim.alive()
    victim.send(number)
    tally.count("runs of several", *[f"one of several: {NAMES[number]}"] * was_alive)
    several.check_ends(job.ended(), number.name, (-number, 1))
    return was_alive


def suspended_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """One of several is suspended: for a moment, which changes nothing, or for good, and the others give it up."""
    several, workdir = Several(place, dice), place.new("one-suspended")
    job = several.start(workdir)
    victim = job.children[several.victim]
    _await(job, several, dice)
    victim.send(signal.SIGSTOP)
    tally.count("runs of several", "one of several: suspensions")
    if dice.random() < 0.5:
        time.sleep(dice.uniform(0.1, LOST_AFTER / 3))
        victim.send(signal.SIGCONT)
        check(several.check_ends(job.ended(), "a short suspension"), "a short suspension ended the run")
    else:
        others = [child.end(PATIENCE) for child in job.children if child is not victim]
        victim.send(signal.SIGKILL)
        others.insert(several.victim, victim.end(PATIENCE))
        several.check_ends(others, "a suspension", (-signal.SIGKILL,))
    several.done(workdir)


def failing_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """Calls of the operating system fail in one of several, in a new run or one that goes on."""
    several, workdir = Several(place, dice), place.new("one-failing")
    for _ in range(dice.randint(1, 2)):
        several.victim = dice.randrange(several.count)
        fault = a_fault(dice)
        if dice.random() < 0.3:
            fault = Fault("/checkpoints/", WRITE | CREATE, errno.ENOSPC, dice.choice([0, 10, 40]), FOR_EVER)
        if several.check_ends(_with_fault(several, workdir, fault, tally), fault):
            break
    several.done(workdir)


def stale_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """The newest checkpoint is not in the listing of one of several."""
    several, workdir = Several(place, dice), place.new("one-stale")
    _hit(several, workdir, signal.SIGTERM, dice, tally)
    if saved := RunFolder(workdir).saved_steps():
        fault = Fault(str(max(saved)), HIDE, 0, 0, dice.choice([1, 3, 10, FOR_EVER]))
        several.check_ends(_with_fault(several, workdir, fault, tally), fault)
    several.done(workdir)


def _with_fault(several: Several, workdir: Path, fault: Fault, tally: Tally) -> list[Ended]:
    faults = Faults(workdir, fault)
    ends = several.start(workdir, faults.begin).ended()
    tally.count("runs of several", *["one of several: faults"] * (faults.count > 0))
    moved = list(workdir.glob("damaged_checkpoints/*"))
    check(not moved or fault.error == errno.EIO, f"moved a good checkpoint: {fault}")
    return ends


def _await(job: Job, several: Several, dice: random.Random) -> None:
    """Any moment, most often one after the first checkpoint."""
    child = job.children[several.victim]
    if dice.random() < 0.7:
        while all(each.alive() for each in job.children) and not RunFolder(job.workdir).saved_steps():
            time.sleep(0.01)
    await_moment(child, job.workdir, several.seconds, dice)


def differing_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """One of several has other code, options of JAX or devices: all say so, and nothing is computed."""
    several, workdir = Several(place, dice), place.new("one-differs")
    name, change = dice.choice(list(DIFFERENCES.items()))
    ends = several.start(workdir, change).ended()
    tally.count("runs of several", "one of several: differences")
    for ended in ends:
        told = f"{name} in process {several.victim}: {[each.status for each in ends]}\n{ended.err[-1500:]}"
        check(ended.checked().status == 2 and len(ended.complaints) == 1, told)
        check(name in ended.complaints[0] and f"process {several.victim or 1} of" in ended.complaints[0], told)
    check(not (workdir / "metrics.jsonl").exists(), "trained although the processes differ")
    several.done(workdir)


def hanging_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """One of several hangs: it is named and all end; or a signal ends one that waits for it, and with it all."""
    several, workdir = Several(place, dice), place.new("one-hangs")
    is_told = dice.random() < 0.5
    options = [] if is_told else ["mesh.stalled_after=60"]
    _hit(several, workdir, signal.SIGTERM, dice, tally)
    (owner, name), begin = dice.choice(HANGS), time.monotonic()
    job = several.start(workdir, functools.partial(setattr, owner, name, _hang), options)
    if is_told:
        time.sleep(several.seconds + 5)
        dice.choice(job.children).send(dice.choice(STOPS))
    ends = job.ended()
    told = f"{name} in process {several.victim}, told {is_told}, {time.monotonic() - begin:.0f} s:"
    told = "\n---\n".join([f"{told} {[each.status for each in ends]}", *[each.err[-1500:] for each in ends]])
    tally.count("runs of several", "one of several: hangs")
    if {ended.status for ended in ends} == {0}:
        return several.done(workdir)  # it never came to where it hangs
    check(all(ended.status in (1, *[-number for number in STOPS] * is_told) for ended in ends), told)
    check(is_told or all(f"waiting for process {several.victim} of" in ended.err for ended in ends), told)
    several.done(workdir)


def absent_process(place: Place, dice: random.Random, tally: Tally) -> None:
    """One of several does not come, or two have one number: each says so in a line."""
    several, workdir = Several(place, dice), place.new("one-absent")
    numbers = [number for number in range(several.count) if number != several.victim]
    words = f"process {several.victim}"
    if dice.random() < 0.5:
        twice = several.victim if several.count > 2 else 0
        absent = next(number for number in (2, 1) if number < several.count and number != twice)  # so that none begins
        numbers = [*(number for number in range(several.count) if number != absent), twice]
        words = f"--process-id={twice}"
    ends = several.start(workdir, None, ["mesh.start_within=10"], numbers).ended()
    tally.count("runs of several", "one of several: absent or twice")
    for ended in ends:
        told = f"{numbers} of {several.count}: {[each.status for each in ends]}\n{ended.err[-1500:]}"
        check(ended.checked().status == 1 and len(ended.complaints) == 1 and words in ended.err, told)
    several.done(workdir)


def _hang(*arguments: Any, **more: Any) -> None:
    while True:
        time.sleep(1)


HANGS = (
    (checkpoint.Checkpoints, "save"),
    (checkpoint.Checkpoints, "wait"),
    (checkpoint.Checkpoints, "_sync_unfinished"),
    (future.ChainedFuture, "result"),  # of what is written in the background
    (checkpoint.Checkpoints, "record"),
    (setup.RunSetup, "over_validation_data"),
    (recorder.Recorder, "log"),
    (train.Trainer, "take_step"),
)
DIFFERENCES: dict[str, Callable[[], Any]] = {
    "transformer_jax_sha256": lambda: setattr(folder, "source_digest", lambda: "another"),
    "jax_default_prng_impl": lambda: jax.config.update("jax_default_prng_impl", "rbg"),
    "jax_default_matmul_precision": lambda: jax.config.update("jax_default_matmul_precision", "highest"),
    "jax_enable_x64": lambda: jax.config.update("jax_enable_x64", True),
    "XLA_FLAGS": lambda: os.environ.update(XLA_FLAGS="--xla_cpu_enable_fast_math=true"),
    "devices": lambda: jax.config.update("jax_num_cpu_devices", 2),
}
