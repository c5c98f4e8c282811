"""result.json: what a trained run of a sweep comes to."""

import dataclasses
import json
import shutil

import pytest

from tests.support.devices import one_device
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.processes.compilation import CompileWatch
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.sweeps import measure
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.run import read_json

ANALYSES = "def a(run, config, tests):\n    return 3\ndef b(run, config, tests):\n    return {'x': a}\n"


def test_a_result_is_that_of_the_run(worked):
    folder, definition, _ = worked
    run = folder.find(definition, "base/seed-0")
    result = run.result()
    assert result["variant"] == "base" and result["seed"] == 0 and result["steps"] == 12 and result["together"] == 1
    assert result["parameters"] == 12 * 16 + (1024 + 1072 + 64) + (2048 + 1072 + 96)
    assert result["learning_rate"] == 3e-3 and set(result["valid"]) >= {"loss", "perplexity", "accuracy"}
    record = json.loads((run.path / result["tests"]["test"]["file"]).read_text())
    assert record["n"] == 10 and record["measures"]["bleu"]["score"] == result["tests"]["test"]["bleu"]
    right = sum(record["sentences"]["exact_match"])
    assert result["tests"]["test"]["exact_match"] == {"right": right, "total": 10}
    assert result["tests"]["test"]["custom_metrics"] == {"count": 10.0}
    lengths = Prepared.open(run.folder.data(run.experiment)).pairs("train").target_lengths
    assert result["longest_target"] == lengths.max() + 1  # <eos>
    assert result["devices"].partition(" ")[2] == "CPU cores"
    assert json.loads(run.analysis("words").read_text()) == {"title": "Words", "text": "10"}


def test_a_sweep_evaluates_the_weights_that_it_names(worked, tmp_path):
    """The checkpoints are of steps 6 and 12; the best is the one with the lower validation loss."""
    finished, definition, _ = worked
    shutil.copytree(finished.path, tmp_path / "sweep", symlinks=True)
    run = SweepFolder(tmp_path / "sweep").find(definition, "base/seed-0")
    lines = read_metrics(run.folder.metrics)
    losses = {line["step"]: line["valid_loss"] for line in lines if "valid_loss" in line}
    losses[6] = losses[12] / 2
    better = [
        line | {"valid_loss": losses[6]} if line["step"] == 6 and "valid_loss" in line else line for line in lines
    ]
    run.folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in better))
    best = min(losses, key=losses.get)
    with one_device():
        for weights, steps in (("latest", [12]), ("best", [best]), ("averaged", [6, 12])):
            sweep = dataclasses.replace(definition.sweep, weights=weights)
            measure.finish(run, dataclasses.replace(definition, sweep=sweep), 1, CompileWatch())
            result = read_json(run.path / "result.json")
            assert result["tests"]["test"]["steps"] == steps
            assert read_json(run.path / f"translations/test.{weights}.json")["weights"] == weights
            assert result["valid"]["loss"] == losses[best if weights == "best" else 12]


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_analysis_must_return_a_dict_of_json(tmp_path, name):
    file = tmp_path / "odd.py"
    file.write_text(ANALYSES)
    with pytest.raises(BadInput, match=f"analysis '{name}': "):
        measure.analyse(None, None, {}, name, f"{file}:{name}")
