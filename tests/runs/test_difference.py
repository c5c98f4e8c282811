"""What the files of two runs say about how they differ."""

import json
import shutil

import pytest

from tests.support.translating_runs import made_run
from transformer_jax.errors import BadInput
from transformer_jax.files.atomic import write_record
from transformer_jax.files.record import read_record
from transformer_jax.runs import difference
from transformer_jax.runs.difference import RecordedRun


@pytest.fixture
def pair(tmp_path):
    """A run and a copy of it."""
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        shutil.copytree(made_run(), folder, ignore=shutil.ignore_patterns("averaged", "translations"))
    return folders


def compared(compare, folders):
    rows = compare(*map(RecordedRun, folders))
    return {row.name: (row.first, row.second) for row in rows if row.first != row.second}


def set_options(folder, **groups):
    config = json.loads((folder / "config.json").read_text())
    for group, values in groups.items():
        config[group] |= values
    (folder / "config.json").write_text(json.dumps(config))


def test_a_run_does_not_differ_from_its_copy(pair):
    for compare in (difference.options, difference.code, difference.data, difference.metrics):
        assert not compared(compare, pair)


def test_options_count_where_they_have_an_effect(pair):
    set_options(pair[1], model={"num_heads": 4}, decode={"temperature": 0.5})
    assert compared(difference.options, pair) == {"model.num_heads": (2, 4)}
    set_options(pair[1], decode={"sample": True})
    assert set(compared(difference.options, pair)) == {"model.num_heads", "decode.sample", "decode.temperature"}


def test_versions_custom_code_and_data(pair, tmp_path):
    record = read_record(pair[1] / "versions.json")
    write_record(pair[1] / "versions.json", {**record, "jax": "0.0.1"})
    (tmp_path / "mine.py").write_text("def loss(): ...\n")
    run = RecordedRun(pair[0]).folder
    from transformer_jax.runs.code import code_of

    used = [("train.loss", f"{tmp_path}/mine.py:loss")]
    run.code.keep(used, code_of(used), 0)
    found = compared(difference.code, pair)
    assert found["jax"] == (record["jax"], "0.0.1")
    assert found["train.loss:loss"][0].startswith("mine.py ") and found["train.loss:loss"][1] is None
    assert len(found) == 2

    manifest = pair[1] / "data/manifest.json"
    content = read_record(manifest)
    content["splits"]["train"]["arrays"]["source.tokens"]["sha256"] = "0" * 64
    write_record(manifest, content)
    assert set(compared(difference.data, pair)) == {"train pairs"}
    content["splits"]["valid"]["arrays"]["source.tokens"]["sha256"] = "0" * 64
    content["tokenizers"]["source"]["fingerprint"] = "0" * 64
    write_record(manifest, content)
    for folder in pair:
        (folder / "translations").mkdir()
        record = {"measures": {"exact_match": {"score": 5.0}}, "perplexity": {"per_token": 4.0}, "test_set_sha256": "a"}
        write_record(folder / "translations/test.latest.json", record)
    assert difference.notes(*map(RecordedRun, pair)) == [
        "metrics of validation: not comparable: the valid pairs and the source vocabulary are not the same",
        "test.latest: perplexity per token: not comparable: the vocabularies are not the same",
    ]
    assert "test.latest: exact_match, %" in [row.name for row in difference.metrics(*map(RecordedRun, pair))]


def test_metrics_are_the_last_ones_and_incomparable_scores_are_named(pair):
    lines = [
        {"step": 10, "loss": 3.0, "seconds": 2.0},
        {"step": 10, "valid_loss": 2.0},
        {"step": 20, "valid_loss": 2.5},
    ]
    (pair[0] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for folder, digest in zip(pair, "ab", strict=True):
        (folder / "translations").mkdir()
        record = {"measures": {"bleu": {"score": 10.0}}, "perplexity": {"per_token": 4.0}, "test_set_sha256": digest}
        write_record(folder / "translations/test.latest.json", record)
    found = {row.name: row.first for row in difference.metrics(*map(RecordedRun, pair))}
    assert found["updates"] == 20 and found["valid_loss"] == 2.5 and found["valid_loss, lowest"] == 2.0
    assert found["loss"] == 3.0 and found["training seconds"] == 2.0 and found["test.latest: bleu"] == 10.0
    assert "test.latest: not comparable: the sentences are" in difference.notes(*map(RecordedRun, pair))[0]


def test_a_sweep_is_not_a_run(pair, tmp_path):
    run = tmp_path / "sweep/runs/base/seed-0"
    shutil.copytree(pair[0], run)
    (tmp_path / "sweep/sweep.json").write_text("{}")
    with pytest.raises(BadInput, match=f"is a sweep, not a run; give one of its runs, such as {run}"):
        RecordedRun(tmp_path / "sweep")
    with pytest.raises(BadInput, match="is not a run"):
        RecordedRun(tmp_path)
