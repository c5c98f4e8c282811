"""Trainings that are killed, stopped, suspended, and started twice."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.children import Child
from tests.chaos.place import Place
from tests.chaos.tally import Tally, check
from transformer_jax.errors import EXIT_UNFINISHED
from transformer_jax.runs.folder import RunFolder

HARMS = (
    *(signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGINT),
    *(signal.SIGUSR1, signal.SIGHUP, signal.SIGSTOP),
)
NAMES = {
    signal.SIGKILL: "kills",
    signal.SIGTERM: "stops by SIGTERM",
    signal.SIGINT: "stops by SIGINT",
    signal.SIGUSR1: "stops by SIGUSR1",
    signal.SIGHUP: "stops by SIGHUP",
    signal.SIGSTOP: "suspensions",
}
# What is in the midst of being written.
UNFINISHED = ("*.unfinished", "*-tmp*", "*.partial", "*.lock")


def interrupted_training(place: Place, dice: random.Random, tally: Tally) -> None:
    """However often it is interrupted, at first as soon as it has a checkpoint, it ends as if it never had been."""
    variant, workdir = dice.choice(place.variants), place.new("interrupted")
    place.reference(variant)
    for is_later in range(dice.randint(1, 5)):
        child = place.start(variant, workdir)
        tally.count("runs")
        if is_later:
            await_moment(child, workdir, place.seconds, dice)
        else:
            while child.alive() and not RunFolder(workdir).saved_steps():
                time.sleep(0.001)
        if not harmed(child, dice, tally):
            break
    tally.count("runs")
    if "resuming from the checkpoint" in place.done(variant, workdir).err:
        tally.count("resumed at last")


def harmed(child: Child, dice: random.Random, tally: Tally) -> bool:
    """Interrupts; False where the child had come to its end before."""
    number = dice.choice(HARMS)
    was_alive = harm(child, number, dice, tally)
    ended = child.end()
    check("Traceback" not in ended.err, ended.err[-3000:])
    check("This is a bug" not in ended.err, ended.err[-3000:])
    # Before it listens a signal ends it as it ends any program.
    check(
        ended.status in (0, 1, EXIT_UNFINISHED, -number), f"{number.name}: status {ended.status}\n{ended.err[-2000:]}"
    )
    return was_alive and number != signal.SIGSTOP


def harm(child: Child, number: signal.Signals, dice: random.Random, tally: Tally) -> bool:
    if not child.alive():
        return False
    child.send(number)
    tally.count(NAMES[number])
    if number == signal.SIGSTOP:
        time.sleep(dice.uniform(0.05, 0.5))
        child.send(signal.SIGCONT)
    elif number != signal.SIGKILL and dice.random() < 0.2:
        time.sleep(dice.uniform(0, 0.05))
        child.send(number)  # an impatient hand
    return True


def await_moment(child: Child, workdir: Path, seconds: float, dice: random.Random) -> None:
    """Any moment; half of the time one at which something is being written."""
    deadline = time.monotonic() + dice.uniform(0, seconds)
    if dice.random() < 0.5:
        time.sleep(max(0.0, deadline - time.monotonic()))
        return
    skipped = dice.randint(0, 3)
    seen: set[str] = set()
    while child.alive() and time.monotonic() < deadline + seconds:
        seen |= set(unfinished(workdir))
        if len(seen) > skipped:
            break
        time.sleep(0.001)
    time.sleep(dice.choice([0.0, 0.001, 0.01]))


def unfinished(folder: Path) -> Iterator[str]:
    for pattern in UNFINISHED:
        for place in (folder, folder / "checkpoints", folder / "data.partial"):
            if place.is_dir():
                yield from (str(path) for path in place.glob(pattern) if path.name != ".lock")
