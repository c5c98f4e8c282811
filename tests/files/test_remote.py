"""Folders in buckets: a copy for each command; a run there is the run on a disk. More in drills/test_bucket.py."""

import argparse
import contextlib
import dataclasses
import os
import threading
import types
from pathlib import Path

import pytest

from tests.support.cloud_storage import failing_bucket
from tests.support.prepared_data import experiment
from tests.support.training_runs import metrics, train_here, weights
from transformer_jax import cli
from transformer_jax.commands import evaluate
from transformer_jax.config import DataConfig, from_json, to_json
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepare import prepare
from transformer_jax.errors import BadInput, Failed
from transformer_jax.extras import MissingPackages
from transformer_jax.files import remote
from transformer_jax.files.atomic import Locked
from transformer_jax.files.progress import tell
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.state import status_of_run
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.status import state_of


@pytest.fixture(scope="module")
def storage():
    with failing_bucket() as found:
        yield found


@pytest.fixture
def url(storage):
    storage[1].answer = None
    return storage[0]


@pytest.fixture
def proxy(storage):
    return storage[1]


@pytest.fixture(autouse=True)
def copies(tmp_path, monkeypatch):
    """Where the copies are. No test waits as long as a user."""
    monkeypatch.setenv("TRANSFORMER_JAX_BUCKETS", str(tmp_path / "copies"))
    monkeypatch.setattr(remote, "_copies", [])
    monkeypatch.setattr(remote, "_start_pulse", lambda: None)
    monkeypatch.setattr(remote, "BETWEEN_ATTEMPTS", 0.05)
    monkeypatch.setattr(remote, "LEASE", 1.5)
    monkeypatch.setattr(remote, "_is_away", False)
    monkeypatch.setattr(remote, "_told_at", 0.0)
    return tmp_path / "copies"


def written(url, **files):
    """What somebody has in a bucket."""
    for name, content in files.items():
        remote._blob(f"{url.removeprefix('gs://')}/{name}").upload_from_string(content)


def there(url):
    """The names and contents of the objects below an address."""
    bucket, _, folder = url.removeprefix("gs://").partition("/")
    blobs = remote._client(os.environ["STORAGE_EMULATOR_HOST"]).list_blobs(bucket, prefix=f"{folder}/")
    return {blob.name.removeprefix(f"{folder}/"): blob.download_as_bytes().decode(errors="replace") for blob in blobs}


def copy(url):
    return RunFolder(remote.mirrored(url)).path


def test_what_is_written_in_a_copy_is_uploaded_and_nothing_else_happens_there(url, copies):
    place = f"{url}/checkpoints/folder"
    written(place, **{"theirs": "1", "inner/theirs": "2", "console/": ""})
    path = copy(place)
    assert (path / "theirs").read_text() == "1" and (path / "inner/theirs").read_text() == "2"
    for name in ("a", "inner/b", "inner/c.lock", "half.unfinished", "checkpoints"):
        (path / name).write_text(name)
    (path / "link").symlink_to("inner", target_is_directory=True)
    (path / "out").symlink_to("/etc", target_is_directory=True)
    (path / "theirs").unlink()
    remote.push(path)
    ours = {"a": "a", "inner/b": "inner/b", "link.symlink": "inner"}
    assert there(place) == {"theirs": "1", "inner/theirs": "2", "console/": "", **ours}
    assert remote.url_of(path / "a") == f"{place}/a" and remote.read_text(path / "a") == "a"
    (path / "a").write_text("changed here")
    other = copy(place)
    assert other != path and (other / "link" / "b").read_text() == "inner/b"
    remote.close()
    assert there(place)["a"] == "changed here" and not any(copies.iterdir())


def test_a_file_that_another_process_has_written_since_is_not_overwritten(url):
    place = f"{url}/lost"
    written(place, metrics="1\n")
    sleeper, other = copy(place), copy(place)
    (other / "metrics").write_text("1\n2\n3\n")
    (other / "new").write_text("theirs")
    remote.push(other)
    (sleeper / "metrics").write_text("1\n2\n")
    with pytest.raises(Failed, match=rf"{place}/metrics: process \d+ on \S+ has written it meanwhile, so this process"):
        remote.push(sleeper)
    (sleeper / "metrics").unlink()
    (sleeper / "new").write_text("mine")
    with pytest.raises(Failed, match="/new: process"):
        remote.push(sleeper)
    assert there(place) == {"metrics": "1\n2\n3\n", "new": "theirs"}
    remote._blob(f"{place.removeprefix('gs://')}/new").delete()
    (other / "new").write_text("again")
    with pytest.raises(Failed, match="/new: it was deleted meanwhile"):
        remote.push(other)


def test_an_upload_whose_answer_was_lost_is_ones_own(url, monkeypatch):
    place = f"{url}/twice"
    path = copy(place)
    (path / "a").parent.mkdir(parents=True)
    (path / "a").write_text("1")
    write, failing = remote._write, [True]

    def lose_the_answer(name, content, generation, *rest):
        if failing.pop() if failing else False:
            write(name, content, generation, *rest)
        return write(name, content, generation, *rest)

    monkeypatch.setattr(remote, "_write", lose_the_answer)
    remote.push(path)
    assert there(place) == {"a": "1"}


HOSTILE = {
    "dots": {"run/../../../escaped": "x"},
    "dots at the end": {"run/a/..": "x"},
    "absolute": {"run//tmp/escaped": "x"},
    "link to a folder": {"run/x.symlink": "../../../../target", "run/x/escaped": "x"},
    "link alone": {"run/x.symlink": "../../../../target"},
    "absolute link": {"run/x.symlink": "/tmp"},
    "link through a link": {"run/d.symlink": "..", "run/x.symlink": "d/../../../target"},
    "NUL": {"run/a\0b": "x"},
}


@pytest.mark.parametrize("objects", HOSTILE.values(), ids=HOSTILE)
def test_objects_of_somebody_else_are_written_nowhere_but_in_the_copy(url, tmp_path, copies, capsys, request, objects):
    (tmp_path / "target").mkdir()
    place = f"{url}/{request.node.callspec.id.replace(' ', '-')}"
    for name, content in {"run/metrics.jsonl": "", **objects}.items():
        written(place, **{name: content})
    assert cli.main(["report", f"{place}/run"]) == 2
    told = capsys.readouterr().err
    assert "not the name of a file" in told or "is a link" in told
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(copies)]
    assert outside == [tmp_path / "target"], told


def test_a_link_brings_what_it_leads_to(url):
    path = copy(f"{url}/sweep")
    (path / "data").mkdir(parents=True)
    (path / "data/tokens").write_text("1 2")
    (path / "runs").mkdir()
    (path / "runs/data").symlink_to("../data", target_is_directory=True)
    remote.push(path)
    assert (copy(f"{url}/sweep/runs") / "data/tokens").read_text() == "1 2"


def test_text_in_a_bucket_is_fetched_once_by_each_machine(url, tmp_path, monkeypatch):
    config = experiment(tmp_path, tokenizer="words")
    places = {f"train.{side}": f"{url}/text/train.{side}" for side in ("en", "de")}
    written(f"{url}/text", **{name: (tmp_path / name).read_text() for name in places})
    source, target = ((place,) for place in places.values())
    remotely = dataclasses.replace(config, data=dataclasses.replace(config.data, source=source, target=target))
    assert from_json(to_json(remotely).encode(), "config.json") == remotely
    fetched, download = [], remote._download
    monkeypatch.setattr(remote, "_download", lambda *names: fetched.append(names) or download(*names))
    made = prepare(remotely, tmp_path / "data")
    assert made.fingerprint == prepare(config, tmp_path / "local").fingerprint
    assert [each["file"] for each in made.manifest["sources"]] == list(places.values())
    prepare(remotely, tmp_path / "data")
    assert len(fetched) == 2
    written(f"{url}/text", **{"train.en": "other text\n"})
    with pytest.raises(BadInput, match="the train text has changed"):
        prepare(remotely, tmp_path / "data")
    remote._blob("bucket/text/train.en").delete()
    assert prepare(remotely, tmp_path / "data").fingerprint == made.fingerprint  # it is not needed again
    with pytest.raises(BadInput, match=r"gs://bucket/text/train\.en: there is no such file"):
        prepare(remotely, tmp_path / "other")


def test_two_processes_that_fetch_a_text_at_once_have_all_of_it(url, monkeypatch):
    written(f"{url}/text", **{"train.en": "old\n"})
    before = remote.fetched(f"{url}/text/train.en")
    written(f"{url}/text", **{"train.en": "a\nb\n"})
    patiently, other = remote._patiently, []

    def slowly(name, act):
        found = patiently(name, act)
        if name.endswith("train.en") and not other:
            other.append("")
            other[0] = remote.fetched(f"{url}/text/train.en")  # what another process does meanwhile
        return found

    monkeypatch.setattr(remote, "_patiently", slowly)
    path = remote.fetched(f"{url}/text/train.en")
    assert other == [path] and Path(path).read_text() == "a\nb\n"
    assert not os.path.exists(before) and os.listdir(os.path.dirname(path)) == ["train.en"]


def test_only_texts_may_be_in_a_bucket(url):
    with pytest.raises(BadInput, match=f"data.corpus_folder = {url}/cogs: must be a local folder"):
        open_corpus(DataConfig(corpus="cogs", corpus_folder=f"{url}/cogs"))


def test_a_training_that_another_machine_takes_over_stops(url):
    first = RunFolder(remote.mirrored(f"{url}/taken"))
    with first.held():
        first.config.touch()
        first.refuse_other_training()
        locks = dict(remote._locks)  # which another machine does not share
        second = RunFolder(remote.mirrored(f"{url}/taken"))  # the first does not show that it lives
        with second.held(), pytest.raises(Failed, match="has begun to train here"):
            first.refuse_other_training()
        remote._locks |= locks


def test_the_status_of_a_run_in_a_bucket_tells_whether_its_process_lives(url, monkeypatch):
    place = f"{url}/watched"
    watched = RunFolder(remote.mirrored(place))
    with watched.held():
        watched.record_state("running")
        watched.metrics.write_text('{"step": 10}\n')
        remote.push(watched.path)
        locks = dict(remote._locks)
        remote._locks.clear()  # which another process does not share
        found = status_of_run(copy(place))
        assert (found["run"], found["state"], found["step"]) == (place, "running", 10)
        written_at = remote._found("bucket/watched/metrics.jsonl").updated.timestamp()
        assert (copy(place) / "metrics.jsonl").stat().st_mtime == pytest.approx(written_at, abs=1e-3)
        monkeypatch.setattr(remote, "LEASE", 0.0)
        assert status_of_run(copy(place))["state"] == "interrupted"
        remote._locks |= locks
    assert status_of_run(copy(place))["state"] == "failed"  # its process ended, and recorded no other state


def test_the_runs_of_a_sweep_in_a_bucket_are_running_while_its_launcher_lives(url, monkeypatch):
    attempt = {"state": "running", "host": os.uname().nodename}
    sweep = SweepFolder(remote.mirrored(f"{url}/sweep-watched"))
    with sweep.held():
        assert state_of(sweep.path / "runs/base/seed-0", attempt)[0] == "interrupted"  # its worker is gone
        locks = dict(remote._locks)
        remote._locks.clear()
        watched = copy(f"{url}/sweep-watched") / "runs/base/seed-0"
        assert state_of(watched, attempt)[0] == "running"
        monkeypatch.setattr(remote, "LEASE", 0.0)
        assert state_of(watched, attempt | {"host": "elsewhere"})[0] == "interrupted"
        remote._locks |= locks


def test_a_lock_that_is_given_back_while_it_is_renewed_is_removed(url, monkeypatch):
    folder, write = RunFolder(remote.mirrored(f"{url}/short")), remote._write
    turns = iter([False, True, True])  # one renewal
    with contextlib.ExitStack() as stack:
        stack.enter_context(folder.held())

        def slowly(*arguments):
            renewed = write(*arguments)
            stack.close()  # in another thread
            return renewed

        monkeypatch.setattr(remote, "_write", slowly)
        remote._keep_alive(types.SimpleNamespace(wait=lambda seconds: next(turns), is_set=lambda: False))
    assert ".lock" not in there(f"{url}/short")


def test_a_run_whose_lock_in_a_bucket_another_machine_has_is_waited_for(url, monkeypatch):
    take, others = remote._take, ["process 7 on elsewhere"] * 2

    def taken(name, own):
        if others:
            raise Locked(others.pop())
        return take(name, own)

    monkeypatch.setattr(remote, "_take", taken)
    monkeypatch.setattr("transformer_jax.runs.folder.time", types.SimpleNamespace(sleep=lambda seconds: None))
    with RunFolder(remote.mirrored(f"{url}/busy")).held():
        assert not others and there(f"{url}/busy").keys() == {".lock"}


def test_a_disk_that_is_full_here_does_not_end_the_renewal_of_locks_silently(url, monkeypatch, capsys):
    copy(f"{url}/full")
    ended, statuses = threading.Event(), []

    def leave(status):
        statuses.append(status)
        ended.set()

    monkeypatch.setattr(remote, "HEARTBEAT", 0.01)
    monkeypatch.setattr(remote, "SECONDS_BETWEEN_PUSHES", 0.0)
    monkeypatch.setattr(remote, "write_json", lambda path, content: os.write(os.open("/dev/full", os.O_WRONLY), b"x"))
    monkeypatch.setattr(os, "_exit", leave)
    remote._keep_alive(ended)
    assert statuses == [1] and "No space left on device" in capsys.readouterr().err


def test_a_file_that_vanishes_is_not_uploaded(url, monkeypatch):
    path, upload = copy(f"{url}/vanished"), remote._upload

    def slow(name, content, *more):
        (path / "temporary").unlink(missing_ok=True)
        return upload(name, content, *more)

    monkeypatch.setattr(remote, "_upload", slow)
    path.mkdir(parents=True)
    for name in ("temporary", "kept"):
        (path / name).write_text(name)
    remote.push(path)
    assert there(f"{url}/vanished") == {"kept": "kept"}


def test_a_command_that_is_mistyped_leaves_no_copy(url, copies, capsys):
    written(f"{url}/typo", theirs="1")
    assert cli.main(["status", f"{url}/typo", "--bogus"]) == 2
    assert "--bogus" in capsys.readouterr().err and not any(copies.iterdir())


def test_two_launchers_cannot_hold_one_sweep(url, monkeypatch):
    first, second = (SweepFolder(remote.mirrored(f"{url}/held")) for _ in range(2))
    with first.held():
        name = "bucket/held/.lock"
        own, generation = remote._locks[name]

        def live():
            remote._locks[name] = own, remote._write(name, own, generation)

        renewal = threading.Timer(0.5, live)
        renewal.start()
        with pytest.raises(Failed, match="is working on this sweep"), second.held():
            pass
        renewal.join()
    with second.held():
        pass
    assert there(f"{url}/held") == {}


def test_a_bucket_that_is_away_is_waited_for(url, proxy, capsys, monkeypatch):
    path = copy(f"{url}/away")
    path.mkdir(parents=True)
    (path / "a").write_text("1")
    proxy.answer = 503
    threading.Timer(0.5, lambda: setattr(proxy, "answer", None)).start()
    remote.push(path)
    assert there(f"{url}/away") == {"a": "1"}
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "the bucket does not respond; it is waited for, up to 300 s more" in told


def test_a_bucket_that_stays_away_is_a_failure_in_one_line(url, proxy, monkeypatch):
    path = copy(f"{url}/gone")
    path.mkdir(parents=True)
    (path / "a").write_text("1")
    proxy.answer = 503
    monkeypatch.setattr(remote, "PATIENCE", 0.3)
    with pytest.raises(Failed, match=r"gs://bucket/gone/a: the bucket does not respond; the same command tries again"):
        remote.push(path)
    proxy.answer = None


def test_access_that_is_denied_is_not_waited_for(url, proxy):
    proxy.answer = 403
    with pytest.raises(Failed, match="access is denied"):
        remote.mirrored(f"{url}/denied")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackages, match=r"transformer_jax\[gcs\]"):
        remote.mirrored("gs://bucket/x")


def test_copies_of_killed_processes_are_removed_after_a_day(url, copies):
    path = copy(f"{url}/old")
    state = copies / f"{path.relative_to(copies).parts[0]}.json"
    os.utime(state, (0, 0))
    new = copy(f"{url}/old")
    assert not state.exists() and (copies / f"{new.relative_to(copies).parts[0]}.json").exists()


def test_a_run_in_a_bucket_is_the_run_on_a_disk(url, tmp_path, copies, capsys):
    """Interrupted, gone on with on another machine, evaluated on a third one, deleted, and started again."""
    often, flags = "train.log_every=6", [f"--workdir={url}/run"]
    train_here(tmp_path / "disk", often)
    train_here(tmp_path / "run", often, "train.steps=12", flags=flags)
    assert "resuming from the checkpoint of step 12" in train_here(tmp_path / "run", often, flags=flags)
    path = copy(f"{url}/run")
    assert metrics(path) == metrics(tmp_path / "disk") and not (path / "checkpoints").exists()
    ours, theirs = weights(path), weights(tmp_path / "disk")
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    remote.close()
    assert cli.main(["evaluate", *flags, "--config.decode.beam=1", "--config.decode.extra_length=2"]) == 0
    assert f"\n{url}/run/translations/test." in capsys.readouterr().out
    assert any(name.startswith("translations/") for name in there(f"{url}/run"))
    for blob in remote._bucket("bucket")[0].list_blobs(prefix="run/"):
        blob.delete()
    assert "resuming" not in train_here(tmp_path / "run", often, "train.steps=12", flags=flags)


def test_messages_have_addresses_and_not_the_paths_of_copies(url, capsys, copies):
    path = remote.mirrored(f"{url}/nothing")
    tell(f"{path}/run: is not a run")
    assert capsys.readouterr().err == f"{url}/nothing/run: is not a run\n"
    assert cli.main(["evaluate", f"--workdir={url}/nothing"]) == 2
    assert f"error: {url}/nothing: is not a run" in capsys.readouterr().err
    written(f"{url}/text", **{"x.en": "a\n", "x.de": "b\n"})
    texts = {side: remote.mirrored(f"{url}/text/x.{name}") for side, name in (("source", "en"), ("target", "de"))}
    test_set = evaluate._test_set(argparse.Namespace(**texts, split=None, workdir="run"))
    assert test_set.name == f"{url}/text/x.en -> {url}/text/x.de"
