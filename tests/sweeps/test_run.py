"""One run of a sweep: when its result counts."""

import dataclasses
import json

import pytest

from tests.support.sweep_runs import FOUR, defined, pretend_finished
from transformer_jax.files.atomic import write_json
from transformer_jax.sweeps.folder import SweepFolder


def test_a_result_counts_only_for_the_config_and_the_tests_it_was_made_with(tmp_path):
    folder, definition = SweepFolder(tmp_path), defined(FOUR)
    (base, four) = folder.runs(definition)
    pretend_finished(base)
    assert base.result() is not None and four.result() is None
    of_another_sweep, _ = folder.runs(defined(FOUR, name="another"))
    assert of_another_sweep.is_finished()
    retrained, _ = folder.runs(defined(FOUR, overrides=[("model.dropout", "0.3")]))
    assert retrained.path == base.path and retrained.result() is None
    measured_more, _ = folder.runs(defined(FOUR, tests=("test", "valid")))
    assert measured_more.result() is None
    (base.path / "result.json").write_text('{"config')  # not whole
    assert base.result() is None


@pytest.mark.parametrize("changed", [None, {"steps": [24]}, {"test_set_sha256": "1"}, "missing", "odd"])
def test_a_run_is_finished_as_long_as_its_records_are_those_it_was_measured_by(folder, changed):
    (run,) = folder.runs(defined())
    pretend_finished(run)
    record = run.path / "translations" / "test.latest.json"
    if changed == "missing":
        record.unlink()
    elif changed is not None:
        write_json(record, {} if changed == "odd" else {**json.loads(record.read_text()), **changed})
    assert run.result() is not None and run.is_finished() == (changed is None)


def test_a_result_of_an_earlier_version_has_no_code(folder):
    (run,) = folder.runs(defined())
    pretend_finished(run)
    result = json.loads((run.path / "result.json").read_text())
    del result["code"]
    write_json(run.path / "result.json", result)
    assert dataclasses.replace(run, measured_by={"mine.py": "1"}).result() is not None
