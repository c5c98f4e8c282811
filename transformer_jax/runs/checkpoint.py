"""Checkpoints, written and read by orbax, with a strict restore.

A checkpoint is restored only if it has exactly the wanted arrays, bit for bit as they were saved. A damaged one is
reported as such; one of another model raises an error.
"""

import errno
import functools
import itertools
import json
import logging
import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from transformer_jax.errors import BadInput, Failed, is_of_memory
from transformer_jax.files import output, storage_errors
from transformer_jax.files.atomic import patiently, sync_directory
from transformer_jax.processes import watchdog
from transformer_jax.processes.distributed import processes
from transformer_jax.update.sharding import path_name

# How many differences between a checkpoint and a model are shown.
SHOWN_DIFFERENCES = 12
# How often files must look damaged: to orbax a file is missing if its status cannot be read once.
LOOKS = 3
# Orbax leaves a coroutine behind when it cannot read a checkpoint; Python would warn of it at any later time.
warnings.filterwarnings("ignore", message="coroutine 'Store.* was never awaited", category=RuntimeWarning)


class DamagedCheckpoint(Exception):
    """The files are not what was saved."""


class Checkpoints:
    """The checkpoints of one run: the newest `keep_latest`, and the `keep_best` of highest score.

    One that is not of a multiple of `every` (where a run was stopped, or by time) is kept while it is the newest, or
    with keep_latest > 1 among the newest two. `scores` has the scores by step; the trainer fills it.
    Saving runs in the background; an error there is raised by the next call. The newest is never deleted.
    """

    def __init__(
        self, directory: Any, keep_latest: int = 1, keep_best: int = 0, every: int = 1, read_only: bool = False
    ):
        _silence()
        self.directory: Any = directory.absolute() if isinstance(directory, Path) else directory  # or in a bucket
        self._keep_latest, self._keep_best = keep_latest, keep_best
        self._every, self.scores = every, dict[int, float]()
        options = ocp.CheckpointManagerOptions(
            preservation_policy=self,  # orbax's own forgets the scores at a restart
            cleanup_tmp_directories=not read_only,
            read_only=read_only,
            create=not read_only,
            step_name_format=_NamesOfFirst() if processes().count > 1 else None,
            async_options=ocp.AsyncOptions(
                post_finalization_callback=self._sync_unfinished,
                barrier_sync_fn=_meet if processes().count > 1 else None,
            ),
        )
        self._manager = self._reader = _Manager(self.directory, options=options)
        if (count := processes().count) > 1:  # each reads alone, so that none waits for another that cannot
            own = processes().number
            alone = ocp.options.MultiprocessingOptions(own, {own}, barrier_sync_key_prefix=f"{own} of {count}")
            options = ocp.CheckpointManagerOptions(read_only=True, multiprocessing_options=alone)
            self._reader = ocp.CheckpointManager(self.directory, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and processes().count > 1:
            return  # the others learn that this process ends (processes/channel.py), and do not close with it
        try:
            self._check(self._manager.close)
        except Failed:
            # A failed save says which checkpoint is safe, but it does not hide an error of another kind.
            if kind is None or issubclass(kind, Failed):
                raise

    @property
    def steps(self) -> list[int]:
        """The steps of the checkpoints, oldest first."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Any, notes: dict[str, Any]) -> None:
        """Starts to write a checkpoint, which gets its name when it is complete."""
        self.check()
        content = json.dumps({"notes": notes, "leaves": shapes(state), "digests": digests(state)}, sort_keys=True)
        record = {"content": content, "crc32": str(zlib.crc32(content.encode()))}
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(state), record=ocp.args.JsonSave(record))
        with watchdog.waiting():
            self._check(lambda: self._manager.save(step, args=arguments))

    def check(self) -> None:
        """Raises Failed if writing in the background has failed."""
        self._check(self._manager.check_for_errors)

    def wait(self) -> None:
        """Waits until every checkpoint is on the disk."""
        with watchdog.waiting():
            self._check(self._manager.wait_until_finished)
        self.check()
        if isinstance(self.directory, Path):
            self._check(lambda: sync_directory(self.directory))

    def _sync_unfinished(self) -> None:
        """Flushes a checkpoint that is about to get its name: older ones are deleted after that."""
        if processes().is_first and isinstance(self.directory, Path):
            for unfinished in self.directory.glob("*.orbax-checkpoint-tmp*"):
                for path in (*unfinished.rglob("*"), unfinished):
                    sync_directory(path)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """For each checkpoint whether it is kept; orbax calls this."""
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        # If scores are equal, the earlier is better, as for train.patience.
        ranked = sorted((step for step in steps if step in self.scores), key=lambda step: (-self.scores[step], step))
        newest = steps[-min(self._keep_latest, 2) :]
        kept = {*newest, *regular(steps, self._every)[-self._keep_latest :], *ranked[: self._keep_best]}
        return [checkpoint.step in kept for checkpoint in checkpoints]

    def restore(self, step: int, wanted: Any) -> tuple[Any, dict[str, Any]]:
        """The state, sharded like the abstract state `wanted`, and the notes of a checkpoint.

        Raises DamagedCheckpoint, BadInput if it is of another model, or Failed if it cannot be read now; of several
        processes in all of them, and Failed if only some can read it.
        """
        problem: Exception | None = None
        try:
            record = self.record(step)
            if changed := differences(record["leaves"], shapes(wanted)):
                raise BadInput(
                    f"{self.directory / str(step)}: is a checkpoint of another model or optimizer; "
                    f"{len(changed)} arrays differ:\n  " + "\n  ".join(changed[:SHOWN_DIFFERENCES])
                )
            state = self._read(step, ocp.args.Composite(state=ocp.args.StandardRestore(wanted)))["state"]
        except (BadInput, DamagedCheckpoint, Failed) as found:
            problem = found
        reasons = processes().gather(f"{type(problem).__name__}: {problem}" if problem else "")
        if problem and len({reason.partition(":")[0] for reason in reasons}) == 1:
            raise problem
        if any(reasons):
            number, reason = next((number, reason) for number, reason in enumerate(reasons) if reason)
            raise Failed(
                f"process {number} cannot read the checkpoint of step {step} ({reason}), but others can: do all see "
                f"the files in {self.directory}? Nothing was changed; the same command tries again"
            )
        found_digests = digests(state)
        if changed := [name for name, digest in record["digests"].items() if found_digests[name] != digest]:
            raise DamagedCheckpoint(f"not as saved: {', '.join(changed[:3])}")
        return state, record["notes"]

    def record(self, step: int) -> dict[str, Any]:
        """The notes, shapes and digests of a checkpoint. Raises DamagedCheckpoint, or Failed as above."""
        record = self._read(step, ocp.args.Composite(record=ocp.args.JsonRestore()))["record"]
        try:
            if zlib.crc32(record["content"].encode()) == int(record["crc32"]):
                return json.loads(record["content"])
        except (KeyError, TypeError, ValueError, AttributeError):
            pass
        raise DamagedCheckpoint("its record is not what was saved")

    def drop_after(self, step: int) -> None:
        """Deletes the checkpoints of later steps, the newest first."""
        for later in reversed(self.steps):
            if later > step:
                self._manager.delete(later)

    def is_deleted(self, step: int) -> bool:
        """Whether a checkpoint is no longer there, or goes within a second: training deletes the oldest."""
        for _ in range(10):
            if not (self.directory / str(step)).exists():
                return True
            time.sleep(0.1)
        return False

    def set_aside(self, step: int) -> Any:
        """Moves a damaged checkpoint away, because another one of this step will be written."""
        aside = self.directory.parent / "damaged_checkpoints" / str(step)
        if processes().is_first:
            aside.parent.mkdir(exist_ok=True)
            if aside.exists():
                numbers = itertools.count(1)
                aside = next(other for n in numbers if not (other := aside.with_name(f"{step}-{n}")).exists())
            (self.directory / str(step)).rename(aside)
        processes().gather("")  # once it is set aside
        self._manager.reload()
        return aside

    def _check(self, act: Callable[[], Any]) -> None:
        """Reports an error of this save, or of the last one in the background, with the checkpoint that is safe."""
        try:
            act()
        except Exception as error:
            whole = [step for step in self.steps if (self.directory / str(step)).is_dir()]
            safe = f"the newest complete one is of step {whole[-1]}" if whole else "there is none yet"
            raise Failed(
                f"a checkpoint could not be written to {self.directory} ({storage_errors.short(error)}); {safe}. "
                "The same command resumes from there"
            ) from error

    def _read(self, step: int, items: Any) -> Any:
        """Reads items of a checkpoint. An error is damage, unless a lack of memory or of access is its cause."""
        where = self.directory / str(step)

        def attempt() -> Any:
            try:
                return self._reader.restore(step, args=items)
            except Exception as error:
                if number := _passing_error(error, where):
                    raise OSError(number, os.strerror(number), str(where)) from error
                if any(map(is_of_memory, storage_errors.causes(error))):
                    raise
                raise DamagedCheckpoint(storage_errors.short(error)) from error

        for _ in range(LOOKS):
            try:
                return patiently(attempt)
            except DamagedCheckpoint as error:
                damage = error
            except OSError as error:
                if error.errno == errno.EIO:
                    raise DamagedCheckpoint(str(error)) from error
                raise Failed(f"{where}: cannot be read now: {error.strerror}; the same command tries again") from error
        raise damage


def _meet(*, key: str, timeout_ms: int) -> None:
    """Waits until all processes have written their part of a checkpoint; orbax calls this in a thread."""
    processes().gather("", key)


class _Manager(ocp.CheckpointManager):
    """Orbax's. Of several processes, one that fails to write in the background ends all at once.

    Orbax would wait for the others first, in the thread that has the error.
    """

    def _wait_for_checkpointers(self) -> None:
        try:
            super()._wait_for_checkpointers()
        except Exception as error:
            if channel := processes().channel:
                why = f"a checkpoint could not be written to {self.directory} ({storage_errors.short(error)})"
                channel.fail(f"{why}; the same command resumes from the last complete one")
            raise


class _NamesOfFirst(ocp.path.step.NameFormat[Any]):
    """The usual names of checkpoints. All processes see those that the first one sees.

    Listings of a shared file system may differ, and all must agree which checkpoints are still to be written.
    """

    def __init__(self) -> None:
        self._usual = ocp.path.step.standard_name_format()

    def build_name(self, step: int) -> str:
        return self._usual.build_name(step)

    def find_step(self, base_path: Any, step: int) -> Any:
        return self._usual.find_step(base_path, step)

    def find_all(self, base_path: Any) -> Iterator[Any]:
        steps = processes().broadcast([found.step for found in self._usual.find_all(base_path)])
        return iter([ocp.path.step.Metadata(step=step, path=base_path / self.build_name(step)) for step in steps])


def regular(steps: Sequence[int], every: int) -> list[int]:
    """The steps that are multiples of `every`, and the last one, in order. At step 0 nothing is trained."""
    return [step for step in steps if (step > 0 and step % every == 0) or step == steps[-1]]


def digests(tree: Any) -> dict[str, int]:
    """A number for each array that changes when one of its bits does; by path.

    Orbax restores a checkpoint in which a bit has flipped without an error. A digest is a sum over the array's bits,
    computed on its devices in one pass, and does not depend on how it is sharded.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    values = jax.device_get(_digests([leaf for _, leaf in leaves]))
    return {path_name(path): int(value) for (path, _), value in zip(leaves, values, strict=True)}


def _digest(leaf: jax.Array) -> jax.Array:
    """The sum, modulo 2^32, of each element's bits times an odd number of its position.

    A flipped bit changes the sum by an odd multiple of a power of two, which is never zero; elements that
    change places change it too.
    """
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # some optimizers remember one
        leaf = jax.random.key_data(leaf)
    if leaf.dtype == bool:
        leaf = leaf.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(np.dtype(leaf.dtype).itemsize, jnp.uint32)
    bits = jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32).reshape(-1)
    odd = 2 * jax.lax.iota(jnp.uint32, bits.size) + 1
    return jnp.sum(bits * (odd ^ (odd << 16)), dtype=jnp.uint32)


_digests = jax.jit(lambda leaves: [_digest(leaf) for leaf in leaves])


def shapes(tree: Any) -> dict[str, str]:
    """The type and shape of each array, by path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in leaves}


def differences(saved: dict[str, str], wanted: dict[str, str]) -> list[str]:
    """One line for each array that differs, by `shapes`."""
    return [
        f"{name}: {saved.get(name, 'nothing')} saved, {wanted.get(name, 'nothing')} wanted"
        for name in {**saved, **wanted}
        if saved.get(name) != wanted.get(name)
    ]


def _passing_error(error: Exception, checkpoint: Path) -> int | None:
    """The number of an error of the operating system that passes; None for another error."""
    if (number := storage_errors.passing(error)) is not None:
        return number

    def refused(problem: OSError) -> None:
        raise problem

    try:  # to orbax a file that cannot be looked at does not exist
        for folder, _, names in os.walk(checkpoint, onerror=refused):
            os.stat(folder)
            for name in names:
                with open(os.path.join(folder, name), "rb") as file:
                    file.read(1)
    except OSError as problem:
        return storage_errors.passing(problem)
    return None


@functools.cache
def _silence() -> None:
    """Orbax logs everything, and what it forgot to await in a failed restore complains in hundreds of lines."""
    logging.getLogger("absl").addFilter(lambda record: "orbax" not in record.pathname)
    if output.is_command:  # elsewhere other code may need these logs
        for name in ("asyncio", "gcsfs"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if "coroutine" not in repr(unraisable.object) and "Event loop is closed" not in str(unraisable.exc_value):
            before(unraisable)

    sys.unraisablehook = hook
