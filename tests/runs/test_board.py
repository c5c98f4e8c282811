"""TensorBoard files: what is in them, and that a training goes on without them."""

import errno
import os
import struct

from tensorboardX.proto.event_pb2 import Event, SessionLog

from transformer_jax.runs.board import Board
from transformer_jax.runs.metrics import MetricsFile, read_metrics


def events(folder):
    """The events in a file: a length, its checksum, the event, its checksum."""
    (path,) = folder.iterdir()
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack_from("<Q", content)
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def test_the_events_of_a_resumed_run(tmp_path):
    board = Board(tmp_path / "tensorboard", purge_step=11)
    board.log(15, {"loss": 1.5, "name": "no number"})
    board.finish()
    version, start, loss = events(tmp_path / "tensorboard")
    assert version.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (11, SessionLog.START)
    (value,) = loss.summary.value
    assert (loss.step, value.tag, value.simple_value) == (15, "loss", 1.5)


def test_without_tensorboard_a_training_goes_on(tmp_path, monkeypatch, capsys):
    def fsync(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, tensorboard=True) as metrics:
        metrics.begin(-1)
        monkeypatch.setattr(os, "fsync", fsync)
        for step in range(20):
            metrics.write(step, {"loss": 1.0, "accuracy": 0.5})
    assert len(read_metrics(path)) == 20
    assert capsys.readouterr().err.count("tensorboard failed and is left out from here on") == 1


def test_without_its_folder_a_training_goes_on(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    (tmp_path / "tensorboard").write_text("a file")
    with MetricsFile(path, tensorboard=True) as metrics:
        metrics.begin(-1)
        metrics.write(1, {"loss": 1.0})
    assert len(read_metrics(path)) == 1
    assert capsys.readouterr().err.count("tensorboard failed and is left out from here on") == 1
