"""Checkpoints: what is kept, what is refused, and that no damage is restored in silence."""

import builtins
import errno
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from orbax.checkpoint.experimental import v1

from tests.support.places import ROOT
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files import atomic
from transformer_jax.runs import checkpoint
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint, digests, regular


def state_of(step, shape=(8, 6)):
    """Something like a train state, every number of which depends on the step."""
    random = np.random.default_rng(step)
    params = {name: jnp.asarray(random.normal(size=shape), jnp.float32) for name in ("kernel", "table")}
    return {"step": jnp.asarray(step, jnp.int32), "params": params, "half": params["kernel"].astype(jnp.bfloat16)}


def plan_of(state, sharding=None):
    sharding = sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), state)


def assert_equal(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(ours), jax.device_get(theirs))


def saved(directory, steps, scores=None, **keep):
    """A directory into which these steps were saved, one after the other."""
    with Checkpoints(directory, **keep) as checkpoints:
        for step in steps:
            checkpoints.scores = {at: score for at, score in (scores or {}).items() if at <= step}
            checkpoints.save(step, state_of(step), {"of": step})
        checkpoints.wait()
        return checkpoints.steps


def restored(directory, plan=None):
    """The newest checkpoint that is whole, and what is wrong with those after it."""
    found = types.SimpleNamespace(step=None, damaged={})
    with Checkpoints(directory, read_only=True) as checkpoints:
        for found.step in reversed(checkpoints.steps):
            try:
                found.state, found.notes = checkpoints.restore(found.step, plan or plan_of(state_of(0)))
                break
            except DamagedCheckpoint as problem:
                found.damaged[found.step] = str(problem)
    return found


def test_the_functions_of_orbax_1_read_todays_checkpoints(tmp_path):
    """Its interface is in orbax 0.12 already, as v1."""
    saved(tmp_path, [3])
    found = v1.load_checkpointables(tmp_path / "3", {"state": plan_of(state_of(0)), "record": None})
    assert_equal(found["state"], state_of(3))
    assert json.loads(found["record"]["content"])["notes"] == {"of": 3}


def test_what_was_saved_comes_back(tmp_path):
    saved(tmp_path, [3])
    found = restored(tmp_path)
    assert (found.step, found.notes, found.damaged) == (3, {"of": 3}, {})
    assert_equal(found.state, state_of(3))


@pytest.mark.parametrize(
    ("scores", "keep", "left"),
    [
        (None, {"keep_latest": 2}, [4, 5]),
        ({1: 1.0, 2: 5.0, 3: 2.0, 4: 3.0, 5: 0.0}, {"keep_latest": 2, "keep_best": 2}, [2, 4, 5]),
        ({1: 5.0, 2: 4.0, 3: 3.0, 4: 2.0, 5: 1.0}, {"keep_latest": 1, "keep_best": 2}, [1, 2, 5]),
        ({1: 5.0, 3: 3.0}, {"keep_latest": 1, "keep_best": 1}, [1, 5]),
        ({1: 1.0, 2: 5.0, 3: 5.0, 4: 0.0}, {"keep_latest": 1, "keep_best": 1}, [2, 5]),  # of equal ones the first
    ],
)
def test_keeps_the_newest_and_the_best(tmp_path, scores, keep, left):
    """The newest is never the one that is deleted, however badly it scores."""
    assert saved(tmp_path, [1, 2, 3, 4, 5], scores, **keep) == left
    assert restored(tmp_path).step == 5


def test_checkpoints_of_where_a_run_was_stopped_do_not_take_the_place_of_others(tmp_path):
    """So that those which are averaged are equally far apart."""
    assert saved(tmp_path, [2, 4, 5], keep_latest=3, every=2) == [2, 4, 5]
    assert saved(tmp_path, [6], keep_latest=3, every=2) == [2, 4, 5, 6]
    assert saved(tmp_path, [7, 8, 9], keep_latest=3, every=2) == [6, 8, 9]
    assert regular([2, 4, 5, 6, 7], 2) == [2, 4, 6, 7] and regular([], 2) == []
    assert regular([0, 2, 3], 2) == [2, 3]  # stopped before the first update: nothing to average


def test_another_model_is_refused_with_the_differences(tmp_path):
    saved(tmp_path, [1])
    state = state_of(0)
    other = {"step": state["step"], "params": {"kernel": jnp.zeros((9, 6))}, "half": state["params"]["kernel"]}
    with pytest.raises(BadInput, match="4 arrays differ") as problem:
        restored(tmp_path, plan_of({**other, "nu": jnp.zeros(3)}))
    assert sorted(line.strip() for line in str(problem.value).splitlines()[1:]) == [
        "half: bfloat16[8, 6] saved, float32[8, 6] wanted",
        "nu: nothing saved, float32[3] wanted",
        "params/kernel: float32[8, 6] saved, float32[9, 6] wanted",
        "params/table: float32[8, 6] saved, nothing wanted",
    ]


@pytest.mark.parametrize(("there", "here"), [(1, 8), (8, 2)])
def test_restores_onto_another_number_of_devices(tmp_path, there, here):
    def on(devices, state):
        mesh = jax.make_mesh((devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
        first = NamedSharding(mesh, PartitionSpec("x"))
        whole = NamedSharding(mesh, PartitionSpec())
        return jax.tree.map(lambda leaf: jax.device_put(leaf, first if leaf.ndim else whole), state)

    state = on(there, state_of(1))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
    target = on(here, state_of(2))
    plan = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), target)
    found = restored(tmp_path, plan).state
    assert_equal(found, state_of(1))
    assert len(found["params"]["kernel"].sharding.device_set) == here
    assert digests(found) == digests(state) == digests(state_of(1))


def test_a_digest_sees_every_single_bit():
    floats = (jnp.float32, jnp.bfloat16)
    for array in (*(jnp.arange(1, 3, dtype=kind) for kind in floats), jnp.arange(3, dtype=jnp.int32)):
        whole = digests(array)
        raw = np.asarray(array)
        for bit in range(8 * raw.nbytes):
            flipped = np.frombuffer(raw.tobytes(), np.uint8).copy()
            flipped[bit // 8] ^= 1 << bit % 8
            assert digests(jnp.asarray(flipped.view(raw.dtype))) != whole
    assert digests(jnp.array([1.0, 2.0, 3.0])) != digests(jnp.array([1.0, 3.0, 2.0]))  # they changed places


def test_a_state_of_every_type_comes_back(tmp_path):
    state = {
        "flag": jnp.array([True, False]),
        "one": jnp.array(True),
        "key": jax.random.key(3),
    }
    assert digests(state["flag"]) != digests(~state["flag"]) != digests(jnp.array([True, True]))
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
    found = restored(tmp_path, plan_of(state)).state
    found["key"], state["key"] = jax.random.key_data(found["key"]), jax.random.key_data(state["key"])
    assert_equal(found, state)


def test_a_damaged_checkpoint_is_named_and_can_be_set_aside(tmp_path):
    directory = tmp_path / "checkpoints"
    saved(directory, [1, 2], keep_latest=2)
    shutil.rmtree(directory / "2" / "state")
    found = restored(directory)
    assert found.step == 1 and list(found.damaged) == [2]
    with Checkpoints(directory, keep_latest=2) as checkpoints:
        assert checkpoints.set_aside(2) == tmp_path / "damaged_checkpoints" / "2"
        checkpoints.save(2, state_of(2), {"of": "a new one"})
        checkpoints.wait()
        assert restored(directory).notes == {"of": "a new one"}
        (tmp_path / "damaged_checkpoints" / "2-2" / "state").mkdir(parents=True)
        assert checkpoints.set_aside(2) == tmp_path / "damaged_checkpoints" / "2-1"


def flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [flipped, truncated, pathlib.Path.unlink])
def test_each_file_damaged_in_turn_is_noticed_or_does_not_matter(tmp_path, damage):
    saved(tmp_path / "whole", [1])
    files = [path for path in (tmp_path / "whole/1").rglob("*") if path.is_file()]
    noticed = 0
    for number, file in enumerate(files):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        damage(copy / file.relative_to(tmp_path / "whole"))
        found = restored(copy)
        noticed += len(found.damaged)
        if not found.damaged:
            assert_equal(found.state, state_of(1))
            assert found.notes == {"of": 1}
    assert noticed >= 3  # many files are of writing alone


EIO, EMFILE, ESTALE, ENOENT = (
    OSError(number, os.strerror(number)) for number in (errno.EIO, errno.EMFILE, errno.ESTALE, errno.ENOENT)
)
IN_A_TEXT = ValueError("PERMISSION_DENIED: Failed to open: Permission denied [os_error_code='13']")
TOO_MANY = ValueError("RESOURCE_EXHAUSTED: Failed to open: Too many open files [os_error_code='24']")
UNAVAILABLE = ValueError("UNAVAILABLE: Error reading gs://bucket/d")
# What tensorstore says of a server that is down, after 897 seconds.
RETRIED = ValueError("ABORTED: All 32 retry attempts failed: CURL error Could not connect to server [curl_code='7']")
FORBIDDEN = OSError("Forbidden: gs://bucket/d")
UNREACHABLE = type("ClientConnectorError", (OSError,), {"__module__": "aiohttp.client_exceptions"})
NO_MEMORY = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1GiB")
CAUSED = ValueError("could not be restored")
CAUSED.__cause__ = EMFILE


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((error, Failed) for error in (ESTALE, ExceptionGroup("several", [ENOENT, EMFILE]), CAUSED)),
        *((error, Failed) for error in (IN_A_TEXT, TOO_MANY, UNAVAILABLE, RETRIED, FORBIDDEN, UNREACHABLE())),
        *((error, type(error)) for error in (MemoryError(), NO_MEMORY, ExceptionGroup("several", [ENOENT, NO_MEMORY]))),
        *((error, DamagedCheckpoint) for error in (ENOENT, EIO, ValueError("NOT_FOUND: Error opening"))),
    ],
    ids=str,
)
def test_what_is_only_unreadable_now_is_not_called_damaged(tmp_path, monkeypatch, error, kind):
    saved(tmp_path, [1])
    monkeypatch.setattr(atomic, "WAITS", ())
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        monkeypatch.setattr(checkpoints._reader, "restore", lambda step, args: (_ for _ in ()).throw(error))
        with pytest.raises(kind):
            checkpoints.restore(1, plan_of(state_of(0)))


def test_an_error_that_passes_is_overcome(tmp_path, monkeypatch):
    saved(tmp_path, [1])
    monkeypatch.setattr(atomic, "WAITS", (0.0, 0.0))
    errors = [EIO, ESTALE, KeyError('Item "state" was not found')]  # orbax found no status, which is there again
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        read = checkpoints._reader.restore

        def failing(step, args):
            if errors:
                raise errors.pop()
            return read(step, args=args)

        monkeypatch.setattr(checkpoints._reader, "restore", failing)
        checkpoints.restore(1, plan_of(state_of(0)))
    assert not errors


@pytest.mark.parametrize(("module", "name"), [(builtins, "open"), (os, "stat")])
def test_files_that_cannot_be_looked_at_are_not_missing(tmp_path, monkeypatch, module, name):
    """orbax takes a file whose status cannot be read for a missing one."""
    saved(tmp_path, [1])
    monkeypatch.setattr(atomic, "WAITS", ())
    call = getattr(module, name)

    def failing(path, *arguments, **options):
        if str(path).startswith(str(tmp_path / "1" / "state")):
            raise ESTALE
        return call(path, *arguments, **options)

    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        monkeypatch.setattr(checkpoints._reader, "restore", lambda step, args: (_ for _ in ()).throw(ENOENT))
        monkeypatch.setattr(module, name, failing)
        with pytest.raises(Failed, match="cannot be read now"):
            checkpoints.restore(1, plan_of(state_of(0)))


def test_a_checkpoint_is_on_the_disk_before_the_one_before_is_deleted(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(checkpoint, "sync_directory", lambda path: synced.append((path, (tmp_path / "1").is_dir())))
    saved(tmp_path, [1])
    synced.clear()
    assert saved(tmp_path, [2]) == [2]
    inside = {path.name for path, first_is_there in synced if first_is_there}
    assert {"record", "metadata", "state"} <= inside
    assert (tmp_path.absolute(), False) in synced  # and its name


def test_what_a_kill_left_is_no_checkpoint(tmp_path):
    saved(tmp_path, [1])
    shutil.copytree(tmp_path / "1", tmp_path / "2.orbax-checkpoint-tmp")
    assert restored(tmp_path).step == 1
    assert saved(tmp_path, [2], keep_latest=2) == [1, 2]
    assert restored(tmp_path).step == 2


FAILING = """
from pathlib import Path
import jax
from transformer_jax.files import output
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint
output.use_in_this_command()
leaf = jax.ShapeDtypeStruct((64, 64), "float32", sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
with Checkpoints(Path({directory!r}), keep_latest=3) as checkpoints:
    for step in (3, 2, 1):
        try:
            checkpoints.restore(step, {{f"leaf_{{i}}": leaf for i in range(40)}})
            print("whole", step)
        except DamagedCheckpoint:
            print("damaged", step)
"""


def test_a_failed_restore_says_nothing_but_what_we_say(tmp_path):
    with Checkpoints(tmp_path, keep_latest=3) as checkpoints:
        for step in (1, 2, 3):
            checkpoints.save(step, {f"leaf_{i}": jnp.full((64, 64), 1.0 * step) for i in range(40)}, {})
    for path in (*tmp_path.glob("2/state/**/d/*"), *tmp_path.glob("3/state/**/d/*")):
        path.write_bytes(path.read_bytes()[:10])
    script = FAILING.format(directory=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("damaged 3\ndamaged 2\nwhole 1\n", "")


def test_other_code_in_the_process_keeps_its_logs(tmp_path, caplog):
    """That of a notebook or a server; orbax alone is silent."""
    with Checkpoints(tmp_path):
        pass
    with caplog.at_level("INFO"):
        for name in ("absl", "asyncio", "gcsfs"):
            logging.getLogger(name).warning("of %s", name)
        code = compile("import logging; logging.getLogger('absl').warning('of orbax')", "site/orbax/x.py", "exec")
        exec(code, {})
    assert caplog.messages == ["of absl", "of asyncio", "of gcsfs"]


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (FULL, "the disk is full"),
        (ValueError("Error writing: Disk quota exceeded [os_error_code='122']"), "the disk is full"),
        (ValueError("RESOURCE_EXHAUSTED: Out of memory"), "ValueError: RESOURCE_EXHAUSTED: Out of memory"),
    ],
)
def test_a_save_that_failed_in_the_background_is_told_by_the_next_one(tmp_path, monkeypatch, error, told):
    """With the checkpoint that is safe."""
    with Checkpoints(tmp_path) as checkpoints, monkeypatch.context() as patched:
        checkpoints.save(1, state_of(1), {})
        checkpoints.wait()
        patched.setattr(checkpoints._manager, "check_for_errors", lambda: (_ for _ in ()).throw(error))
        with pytest.raises(Failed) as problem:
            checkpoints.save(2, state_of(2), {})
    assert f"({told}); the newest complete one is of step 1" in str(problem.value)


@pytest.mark.parametrize("first", [None, Failed("metrics.jsonl: the disk is full"), ValueError("another reason")])
def test_a_save_that_fails_at_the_end_is_reported_unless_another_error_came_first(tmp_path, monkeypatch, first):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    monkeypatch.setattr(checkpoints._manager, "close", lambda: (_ for _ in ()).throw(FULL))

    def work():
        with checkpoints:
            if first is not None:
                raise first

    with pytest.raises(ValueError if isinstance(first, ValueError) else Failed):
        work()
