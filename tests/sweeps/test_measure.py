"""result.json: what a trained run of a sweep comes to."""

import json

import pytest

from transformer_jax import load_run
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.sweeps import measure

ANALYSES = "def a(run, config, tests):\n    return 3\ndef b(run, config, tests):\n    return {'x': run}\n"


def test_a_result_is_that_of_the_run(worked):
    folder, definition, _ = worked
    run = folder.find(definition, "base/seed-0")
    result = run.result()
    assert result["variant"] == "base" and result["seed"] == 0 and result["steps"] == 12 and result["together"] == 2
    assert result["parameters"] == 12 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert result["learning_rate"] == 3e-3 and set(result["valid"]) >= {"loss", "perplexity", "accuracy"}
    record = json.loads((run.path / result["tests"]["test"]["file"]).read_text())
    assert record["n"] == 10 and record["measures"]["bleu"]["score"] == result["tests"]["test"]["bleu"]
    right = sum(record["sentences"]["exact_match"])
    assert result["tests"]["test"]["exact_match"] == {"right": right, "total": 10}
    lengths = Prepared.open(run.folder.data(run.experiment)).pairs("train").target_lengths
    assert result["longest_target"] == lengths.max() + 1  # <eos>
    assert json.loads(run.analysis("words").read_text()) == {"title": "Words", "text": "10"}


def test_an_analysis_must_return_a_dict_of_json(worked, tmp_path):
    folder, definition, _ = worked
    run = folder.find(definition, "base/seed-0")
    model, config, file = load_run(run.path), run.folder.load_config(), tmp_path / "odd.py"
    file.write_text(ANALYSES)
    with pytest.raises(BadInput, match=r"analysis 'a': .* returned int; it must return a dict"):
        measure.analyse(model, config, {}, "a", f"{file}:a")
    with pytest.raises(BadInput, match=r"analysis 'b': what .* returned cannot be stored as JSON"):
        measure.analyse(model, config, {}, "b", f"{file}:b")


def test_the_devices_are_named():
    assert measure.devices().partition(" ")[2] in ("CPU core", "CPU cores")
