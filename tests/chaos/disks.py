"""Disks that are full, and limits on the size of a file."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.chaos.children import run
from tests.chaos.damage import copied
from tests.chaos.folders import TASKS, attempt
from tests.chaos.place import Place, is_root, tree
from tests.chaos.tally import Tally, Violation, check

FULL = ("the disk is full", "a file became too large", "the disk quota", "cannot be written", "could not be written")


def full_disk_while_training(place: Place, dice: random.Random, tally: Tally) -> None:
    """It says so; with room made, the same command goes on."""
    variant = dice.choice(place.variants)
    place.reference(variant)
    with small_disk(place, dice.randint(20, 500)) as disk:
        if disk is None:
            limited(place, variant, dice, tally)
            return
        workdir = disk / "run"
        ended = run(place.train(variant, workdir))
        tally.count("runs", "full disks")
        check(ended.status == 0 or any(word in ended.err for word in FULL), ended.err[-2000:])
        with contextlib.suppress(OSError):
            kept = copied(workdir, place.new("from-full-disk"))
            tally.count("runs")
            place.done(variant, kept)


def limited(place: Place, variant: str, dice: random.Random, tally: Tally) -> None:
    """The same by a limit on the size of files, which everybody may set."""
    workdir = place.new("limited")
    size = int(10 ** dice.uniform(1.5, 4.7))
    ended = run(place.train(variant, workdir), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    tally.count("runs", "file size limits")
    check(ended.status == 0 or any(word in ended.err for word in FULL), ended.err[-2000:])
    place.done(variant, workdir)


def file_size_limit(place: Place, dice: random.Random, tally: Tally) -> None:
    limited(place, dice.choice(place.variants), dice, tally)


def full_disk_afterwards(place: Place, dice: random.Random, tally: Tally) -> None:
    """A finished run on a disk with hardly any room: a command works or says why not, and the run is not harmed."""
    name = dice.choice(list(TASKS))
    with small_disk(place, 8000) as disk:
        if disk is None:
            return
        folder = copied(place.finished(), disk / "run")
        (disk / "text").write_bytes(b"")
        before = tree(folder)
        filler = disk / "filler"
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        os.truncate(filler, max(0, filler.stat().st_size - 1024 * dice.choice([8, 12, 16, 32, 64])))
        tally.count("runs", "full disks")
        ended = attempt(place, folder, name)
        check(ended.status == 0 or any(word in ended.err for word in FULL), ended.err[-2000:])
        now = tree(folder)
        lost = [path for path in before if path not in now or (now[path] != before[path] and ended.status != 0)]
        check(not lost, f"{name}: lost or changed on a full disk: {lost}")


@contextlib.contextmanager
def small_disk(place: Place, kilobytes: int) -> Iterator[Path | None]:
    """A file system of that size; None where this user may mount none."""
    disk = place.new("disk")
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    if not is_root() or not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        if subprocess.run(["umount", "-l", str(disk)], capture_output=True).returncode:
            raise Violation(f"{disk} cannot be unmounted")
