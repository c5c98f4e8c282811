"""Files that appear whole or not at all."""

import errno
import fcntl
import json
import os
import stat
import threading
import time

import pytest

from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import Locked, explained, locked, sync_directory, write_atomically, write_json
from transformer_jax.pictures import plots


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(tmp_path):
    """As root, an output to /dev/null would otherwise put a file in its place."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_atomically(pipe, b"text")
    reader.join(timeout=10)
    assert pipe.is_fifo() and read == [b"text"]
    assert os.listdir(tmp_path) == ["pipe"]


def test_two_writers_of_one_file_do_not_mix(tmp_path, monkeypatch):
    """The one that is complete last has written the file."""
    path, replace = tmp_path / "file", os.replace

    def later(*names):
        monkeypatch.setattr(os, "replace", replace)
        write_atomically(path, b"second")
        assert path.read_bytes() == b"second"
        replace(*names)

    monkeypatch.setattr(os, "replace", later)
    write_atomically(path, b"first")
    assert path.read_bytes() == b"first" and os.listdir(tmp_path) == ["file"]


def test_a_symbolic_link_is_replaced_or_followed_if_it_was_typed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    for text in (b"one", b"two"):
        write_atomically(tmp_path / "link", text, follow=True)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "elsewhere" / "file").read_bytes() == text
    write_atomically(tmp_path / "link", b"three")
    assert (tmp_path / "link").read_bytes() == b"three" and (tmp_path / "elsewhere" / "file").read_bytes() == b"two"


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(BadInput), explained(tmp_path), locked(tmp_path / ".lock"):
        pass
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_lock_is_waited_for_or_names_its_holder(tmp_path, capsys):
    path, order = tmp_path / "lock", []

    def second():
        with locked(path):
            order.append("second")

    with locked(path):
        with pytest.raises(Locked, match=f"process {os.getpid()} on "), locked(path, wait=False):
            pass
        waiting = threading.Thread(target=second, daemon=True)
        waiting.start()
        while "waiting for process" not in capsys.readouterr().err:
            time.sleep(0.01)
        order.append("first")
    waiting.join(timeout=10)
    assert order == ["first", "second"] and not path.exists()


def test_a_lock_that_is_looked_at_is_taken_soon(tmp_path):
    """As `status` looks at it, after its process was killed."""
    path = tmp_path / "lock"
    path.write_bytes(b"process 7 on h\xff\n")
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.05, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        with locked(path, wait=False) as taken_by:
            assert taken_by() == ""


def test_on_a_full_disk_a_picture_is_not_written_in_part(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    picture = tmp_path / "picture.png"
    picture.write_bytes(b"an older one")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(Failed, match=r"picture\.png: No space left on device"):
        plots.save(plots.positional_encoding([[0.0, 1.0]]), picture)
    assert picture.read_bytes() == b"an older one"
    assert os.listdir(tmp_path) == ["picture.png"]


def test_what_a_directory_holds_is_written_where_only_files_can_be_synced(tmp_path, monkeypatch):
    sync = os.fsync

    def files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr("os.fsync", files_only)
    write_json(tmp_path / "record.json", {"a": 1})
    assert json.loads((tmp_path / "record.json").read_text()) == {"a": 1}

    def none(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.fsync", none)
    with pytest.raises(OSError, match="Invalid argument"):
        sync_directory(tmp_path / "record.json")


def test_a_file_name_that_is_not_utf_8_can_be_recorded(tmp_path):
    write_json(tmp_path / "record.json", {"file": "a\udcff\\udcff"})
    assert json.loads((tmp_path / "record.json").read_text())["file"] == "a\udcff\\udcff"
