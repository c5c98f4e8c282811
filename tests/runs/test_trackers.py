"""The real packages of trackers, in their offline modes; each is skipped where it is not installed.

pip install 'transformer_jax[wandb,mlflow,trackio]' && python -m pytest tests/runs/test_trackers.py
"""

import json
import sqlite3
import struct

import pytest

from transformer_jax.config import from_config_dict
from transformer_jax.runs.tracking import Labels, Tracking

LOSSES = [(10, 2.9), (20, 2.8), (30, 2.7), (40, 2.6)]


def report(folder, name):
    """Two processes of one run: the second resumes it from a checkpoint of step 20."""
    config = from_config_dict({"train": {"tracker": name}})
    for first, last in ((0, 3), (2, 4)):
        tracking = Tracking(folder, config, Labels("heads", "h=4", "h=4, seed 0"))
        for step, loss in LOSSES[first:last]:
            tracking.log(step, {"loss": loss})
        tracking.finish()
        assert tracking._tracker is not None, "it failed"
    return json.loads((folder / "tracker.json").read_text())["id"]


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    identity = report(tmp_path, "wandb")
    wandb.teardown()  # waits until its process has written everything
    found = []
    for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        for content in _leveldb_records(file.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                run = record.run
                assert (run.run_id, run.project, run.run_group) == (identity, "heads", "h=4")
            if record.HasField("history"):
                values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                found.append((int(values["_step"]), values["loss"]))
    assert found == LOSSES


def _leveldb_records(data):
    """The records of a log in LevelDB's format: parts with a header of 7 bytes, in blocks of 32 kB."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""


def test_mlflow_with_a_local_store(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    identity = report(tmp_path, "mlflow")
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("heads").experiment_id])
    assert run.data.tags["transformer_jax.id"] == identity and run.data.tags["group"] == "h=4"
    assert run.info.run_name == "h=4, seed 0" and run.info.status == "FINISHED"
    assert run.data.params["model.num_heads"] == "8"
    assert [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")] == LOSSES


def test_trackio_local(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read when it is imported
    pytest.importorskip("trackio")
    identity = report(tmp_path, "trackio")
    with sqlite3.connect(tmp_path / "heads.db") as store:
        rows = store.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {name for name, _, _ in rows} == {f"h=4, seed 0 {identity[:8]}"}
    assert [(step, json.loads(metrics)["loss"]) for _, step, metrics in rows] == LOSSES
