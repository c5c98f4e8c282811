"""One run of a sweep: its state, from its files."""

import dataclasses
import json
import os

import pytest

from tests.support.places import GOLDEN
from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax import schema
from transformer_jax.files.atomic import write_json
from transformer_jax.sweeps import Variant
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import digest, is_held, state_of

COMPUTATION = {"mesh.fsdp": 2, "mesh.lost_after": 9.0, "train.accumulate": 2, "model.attention_implementation": "jax"}
DROPOUT = Variant("dropout", {"model.dropout": 0.3})


def test_a_result_counts_only_for_the_config_and_the_tests_it_was_made_with(tmp_path):
    folder, definition = SweepFolder(tmp_path), defined(FOUR)
    (base, four) = folder.runs(definition)
    pretend_finished(base)
    assert base.result() is not None and four.result() is None
    retrained, _ = folder.runs(defined(FOUR, overrides=[("model.dropout", "0.3")]))
    assert retrained.path == base.path and retrained.result() is None
    measured_more, _ = folder.runs(defined(FOUR, tests=("test", "valid")))
    assert measured_more.result() is None
    (base.path / "result.json").write_text('{"config')  # not whole
    assert base.result() is None


@pytest.mark.parametrize("changed", [None, {"steps": [24]}, {"measures": {"bleu": {"score": 7.0}}}, "missing", "odd"])
def test_a_run_is_finished_as_long_as_its_records_are_those_it_was_measured_by(folder, changed):
    (run,) = folder.runs(defined())
    pretend_finished(run)
    record = run.path / "translations" / "test.latest.json"
    if changed == "missing":
        record.unlink()
    elif changed is not None:
        write_json(record, {} if changed == "odd" else {**json.loads(record.read_text()), **changed})
    assert run.result() is not None and run.is_finished() == (changed is None)


def test_results_of_a_version_with_fewer_options_count(tmp_path):
    """config.json and the digest in result.json are what a version without data.order_seed left."""
    earlier = json.loads((GOLDEN / "earlier_sweep_run.json").read_text())
    assert "order_seed" not in earlier["config"]["data"]
    definition = dataclasses.replace(defined(FOUR, DROPOUT, seeds=2), vary=("initialization",))
    folder = SweepFolder(tmp_path)
    run = folder.find(definition, "dropout/seed-1")
    pretend_finished(run)
    result = json.loads((run.path / "result.json").read_text())
    write_json(run.path / "result.json", {**result, "config_digest": earlier["config_digest"]})
    assert run.result() is None
    write_json(run.folder.config, earlier["config"])
    assert run.result() is not None
    ordered = dataclasses.replace(definition, vary=("initialization", "order"))
    assert folder.find(ordered, "dropout/seed-1").result() is None
    changed = dataclasses.replace(defined(FOUR, Variant("dropout", {"model.dropout": 0.2}), seeds=2))
    changed = dataclasses.replace(changed, vary=("initialization",))
    assert folder.find(changed, "dropout/seed-1").result() is None


def test_results_of_a_version_that_compared_how_they_were_computed_count(tmp_path):
    definition = defined(FOUR, overrides=[(path, str(value)) for path, value in COMPUTATION.items()])
    run = SweepFolder(tmp_path).runs(definition)[0]
    pretend_finished(run)
    result, config = json.loads((run.path / "result.json").read_text()), schema.to_dict(run.experiment)
    with_computation = digest(run.experiment, schema.flattened(config))
    assert with_computation != run.digest
    write_json(run.path / "result.json", {**result, "config_digest": with_computation})
    assert run.result() is None
    write_json(run.folder.config, config)
    assert run.result() is not None
    assert SweepFolder(tmp_path).runs(defined(FOUR))[0].result() is not None  # on another mesh now
    assert SweepFolder(tmp_path).runs(defined(FOUR, overrides=[("model.d_ff", "8")]))[0].result() is None


@pytest.mark.parametrize(
    ("attempt", "held", "state"),
    [
        ({}, False, ("waiting", "")),
        ({"state": "running", "host": os.uname().nodename}, True, ("running", "")),
        ({"state": "running", "host": os.uname().nodename}, False, ("interrupted", "its process is gone")),
        ({"state": "running", "host": "elsewhere"}, False, ("running", "")),
        ({"state": "stopped", "error": "by SIGTERM"}, False, ("stopped", "by SIGTERM")),
        ({"state": "failed", "error": "no\nroom"}, False, ("failed", "no\nroom")),
        ({"state": "failed", "error": None}, False, ("failed", "no error was recorded")),
        ({"state": "finished"}, False, ("waiting", "")),  # the sweep asks for more than it did then
        ({"state": "odd"}, False, ("waiting", "")),
    ],
)
def test_the_state_of_an_unfinished_run(folder, attempt, held, state):
    (run,) = folder.runs(defined())
    if not held:
        assert state_of(run.path, attempt) == state and not is_held(run.path)
        return
    with run.held():
        assert state_of(run.path, attempt) == state and is_held(run.path)
